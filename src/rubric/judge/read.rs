//! Reading a `[[judge]]` table.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Criterion, Endpoint, JudgeSpec, View,
    prompt::{DEFAULT_CRITERIA_PROMPT, DEFAULT_PROMPT, Prompt},
    verdict::Form,
};
use crate::{
    config::{Section, read_endpoint, read_sampling},
    rubric::schema::JsonSchema,
    template::Template,
};

/// Attempts to get a verdict after the first one.
const MAX_RETRIES: u32 = 4;
/// Calls of one judge in flight.
const MAX_CONCURRENT: usize = 32;

/// Keys that mean something only at an endpoint of the judge's own.
const ENDPOINT_KEYS: &[&str] = &["api_key_var", "headers", "headers_from_env", "timeout", "stream"];

/// Reads one `[[judge]]` table; `base` is the folder of a relative `prompt_file`. `None` when something in it is wrong; the
/// faults are recorded in the section.
pub fn read(section: &mut Section<'_>, base: &Path) -> Option<JudgeSpec> {
    let asked = read_asked(section)?;
    let verdict: Option<String> = section
        .doc("Form of the verdict: yes_no, scale, choice, json or criteria; told from the other keys when absent")
        .get("verdict");
    let scale: Option<Vec<f64>> = section.doc("Lowest and highest number of a scale or json verdict").get("scale");
    let choices = section.doc("Words of a choice verdict with their scores").open("choices");
    let schema = section.doc("JSON schema of a json verdict").open("schema");
    let score: Option<String> = section.doc("Where the score stands in the JSON, such as quality.overall").get("score");
    let criteria =
        section.doc("What is judged, in one call: {name, text, weight, choices}").list("criteria", read_criterion);
    let given = [
        ("scale", scale.is_some()),
        ("choices", !choices.is_empty()),
        ("schema", !schema.is_empty()),
        ("score", score.is_some()),
        ("criteria", !criteria.is_empty()),
    ];
    let is_given = |key: &str| given.iter().any(|(name, given)| *name == key && *given);
    let kind = match &verdict {
        Some(kind) => kind.as_str(),
        None if is_given("criteria") => "criteria",
        None if is_given("schema") => "json",
        None if is_given("choices") => "choice",
        None if is_given("scale") => "scale",
        None => "yes_no",
    };
    let needs: &[&str] = match kind {
        "yes_no" => &[],
        "scale" => &["scale"],
        "choice" => &["choices"],
        "json" => &["schema", "score"],
        "criteria" => &["criteria"],
        _ => {
            section.fault(
                "verdict",
                format!("unknown choice `{kind}`; expected one of yes_no, scale, choice, json, criteria"),
            );
            return None;
        }
    };
    let may: &[&str] = if kind == "json" { &["scale"] } else { &[] };
    let mut sound = true;
    for (key, given) in given {
        if given && !needs.contains(&key) && !may.contains(&key) {
            section.fault(key, format!("has no place in a verdict of form `{kind}`; leave it out or change `verdict`"));
            sound = false;
        } else if !given && needs.contains(&key) {
            section.fault(key, format!("missing: a verdict of form `{kind}` needs it"));
            sound = false;
        }
    }
    let bounds = match (&scale, kind) {
        (None, _) => Some((0.0, 1.0)),
        (Some(scale), _) => match scale.as_slice() {
            [low, high] if low < high => Some((*low, *high)),
            _ => {
                section.fault("scale", "expected two numbers, the lower first, such as [0, 10]");
                None
            }
        },
    };
    let form = match kind {
        "yes_no" => Some(Form::yes_no()),
        "scale" => bounds.map(|(low, high)| Form::Scale { low, high }),
        "choice" => read_choices(section, &choices),
        "json" => bounds.zip(score).and_then(|((low, high), path)| {
            let schema = Value::Object(schema);
            let path = path.split('.').map(str::to_owned).collect();
            match JsonSchema::new(&schema) {
                Ok(check) => Some(Form::Json { schema, check, path, low, high }),
                Err(error) => {
                    section.fault("schema", error.to_string());
                    None
                }
            }
        }),
        _ => checked(section, "criteria", criteria.into_iter().collect()).map(Form::Criteria),
    };
    let structured = section.doc("Ask the endpoint for JSON of a schema").get_or("structured", kind == "json");
    let prompt = read_prompt(section, base, kind);
    let answer_field = section.doc("Field of the row that is `answer`").get_or("answer_field", "answer".to_owned());
    let question_field: Option<String> =
        section.doc("Field of the row that is `question`; `question`, else the prompt").get("question_field");
    let view = read_view(section, if kind == "criteria" { View::FullTrace } else { View::LastReply });
    let (form, prompt) = form.zip(prompt).filter(|_| sound)?;
    Some(JudgeSpec { structured, answer_field, question_field, view, ..asked.judge(form, prompt) })
}

/// What judges of every kind have: whom they ask and how their reward is called.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) weight: f64,
    model: Option<String>,
    sampling: serde_json::Map<String, Value>,
    endpoint: Option<Endpoint>,
    max_retries: u32,
    max_concurrent: usize,
}

impl Asked {
    pub(super) fn judge(self, form: Form, prompt: Prompt) -> JudgeSpec {
        JudgeSpec {
            name: self.name,
            weight: self.weight,
            model: self.model,
            sampling: self.sampling,
            endpoint: self.endpoint,
            max_retries: self.max_retries,
            max_concurrent: self.max_concurrent,
            prompt,
            form,
            view: View::LastReply,
            answer_field: "answer".to_owned(),
            question_field: None,
            structured: false,
            config: serde_json::Map::new(),
        }
    }
}

fn read_asked(section: &mut Section<'_>) -> Option<Asked> {
    let name: Option<String> = section.doc("Name of the reward").required("name");
    if name.as_deref() == Some("") {
        section.fault("name", "empty; name the judge");
    }
    read_common(section, name.unwrap_or_default())
}

/// Everything about whom to ask, for a judge of this name.
pub(super) fn read_common(section: &mut Section<'_>, name: String) -> Option<Asked> {
    let weight = section.doc("Weight of the reward").get_or("weight", 1.0);
    if !weight.is_finite() {
        section.fault("weight", "not a finite number");
    }
    let model = section.doc("Model of the judge; the run's when absent").get("model");
    let sampling = read_sampling(section);
    let endpoint = read_own_endpoint(section);
    let max_retries = match &endpoint {
        Some(endpoint) => endpoint.client.max_retries,
        None => section.doc("How often it is asked again when its answer holds no verdict").get_in(
            "max_retries",
            0..=100,
            MAX_RETRIES,
        ),
    };
    let max_concurrent = section.doc("Calls in flight").get_in("max_concurrent", 1..=100_000, MAX_CONCURRENT);
    Some(Asked { name, weight, model, sampling, endpoint, max_retries, max_concurrent })
}

fn read_own_endpoint(section: &mut Section<'_>) -> Option<Endpoint> {
    let given = |section: &Section<'_>, key: &str| section.has(key) && !section.is_unset(key);
    if given(section, "base_url") || given(section, "base_urls") {
        let needs_key = given(section, "api_key_var");
        let client = read_endpoint(section);
        if !needs_key {
            // The variable by default may be empty, today and on resume.
            section.resolve("api_key_var", Value::Null);
        }
        return client.map(|client| Endpoint { client, needs_key });
    }
    section.doc("Endpoint of the judge; the run's when absent").value(
        "base_url",
        Value::Null,
        "a URL or a list of URLs",
    );
    for key in ENDPOINT_KEYS {
        if !given(section, key) {
            continue;
        }
        section.value(key, Value::Null, "nothing");
        section.fault(key, "has no effect at the run's endpoint; give the judge a `base_url` or leave it out");
    }
    None
}

/// One entry of a list of criteria.
pub(super) fn read_criterion(item: &mut Section<'_>) -> Option<Criterion> {
    let name: Option<String> = item.doc("Name, unique among the criteria").required("name");
    let text: Option<String> = item.doc("What is asked").required("text");
    let weight = item.doc("Share in the judge's score").get_in("weight", 0.0.., 1.0);
    let yes_no = vec!["no".to_owned(), "yes".to_owned()];
    let choices = item.doc("Allowed answers from worst to best").get_or("choices", yes_no);
    Some(Criterion { name: name?.trim().to_owned(), text: text?, weight, choices })
}

/// Criteria that can be judged; a fault at `key` says why not.
pub(super) fn checked(
    section: &mut Section<'_>,
    key: &str,
    criteria: Option<Vec<Criterion>>,
) -> Option<Vec<Criterion>> {
    let criteria = criteria?;
    let mut problem = None;
    for (index, criterion) in criteria.iter().enumerate() {
        let Criterion { name, choices, .. } = criterion;
        let twice = choices.iter().enumerate().any(|(at, choice)| {
            choice.is_empty() || choices[..at].iter().any(|other| other.eq_ignore_ascii_case(choice))
        });
        if name.is_empty() {
            problem = Some("a criterion has an empty name".to_owned());
        } else if criteria[..index].iter().any(|other| other.name == *name) {
            problem = Some(format!("two criteria are named `{name}`"));
        } else if choices.len() < 2 || twice {
            problem = Some(format!("criterion `{name}` needs at least two different `choices`"));
        }
    }
    let total: f64 = criteria.iter().map(|criterion| criterion.weight).sum();
    if !(total > 0.0 && total.is_finite()) {
        problem = problem.or(Some("the weights of the criteria add up to nothing".to_owned()));
    }
    match problem {
        None => Some(criteria),
        Some(problem) => {
            section.fault(key, problem);
            None
        }
    }
}

fn read_choices(section: &mut Section<'_>, choices: &serde_json::Map<String, Value>) -> Option<Form> {
    let mut read: Vec<(String, f64)> = Vec::new();
    for (name, score) in choices {
        match score.as_f64() {
            Some(score) if !name.trim().is_empty() => read.push((name.clone(), score)),
            _ => section.fault_below("choices", name, "not a number", "give each word its score: { A = 1.0, B = 0.5 }"),
        }
    }
    if read.len() < choices.len() {
        return None;
    }
    if read.len() < 2 {
        section.fault("choices", "a single word; expected at least two");
        return None;
    }
    Some(Form::Choice(read))
}

fn read_prompt(section: &mut Section<'_>, base: &Path, kind: &str) -> Option<Prompt> {
    let text: Option<String> =
        section.doc("Template over the row's columns, question, answer, reply, transcript and response").get("prompt");
    let file: Option<PathBuf> = section.doc("File of the prompt").get("prompt_file");
    let (key, name, text) = match (text, file) {
        (Some(_), Some(_)) => {
            section.fault("prompt_file", "given together with `prompt`; give one of them");
            return None;
        }
        (Some(text), None) => ("prompt", section.dotted("prompt"), text),
        (None, Some(file)) => {
            let path = base.join(&file);
            match fs::read_to_string(&path) {
                Ok(text) => ("prompt_file", path.display().to_string(), text),
                Err(error) => {
                    section.fault("prompt_file", format!("cannot read `{}`: {error}", path.display()));
                    return None;
                }
            }
        }
        (None, None) if kind == "yes_no" => ("prompt", "the default prompt".to_owned(), DEFAULT_PROMPT.to_owned()),
        (None, None) if kind == "criteria" => {
            ("prompt", "the default prompt".to_owned(), DEFAULT_CRITERIA_PROMPT.to_owned())
        }
        (None, None) => {
            section.fault("prompt", format!("missing: a verdict of form `{kind}` needs `prompt` or `prompt_file`"));
            return None;
        }
    };
    match Template::new(&name, &text) {
        Ok(template) => Some(Prompt::Template(template)),
        Err(error) => {
            section.fault(key, error.to_string());
            None
        }
    }
}

/// How much of the rollout `response` is.
pub(super) fn read_view(section: &mut Section<'_>, default: View) -> View {
    section.doc("What `response` is: last_reply or full_trace").choose(
        "view",
        &[("last_reply", View::LastReply), ("full_trace", View::FullTrace)],
        default,
    )
}
