//! Reading an entry of `env.taskset.task.judges`, with the keys of verifiers 0.4.0.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Criterion, JudgeSpec, View,
    prompt::{DEFAULT_CRITERIA_PROMPT, DEFAULT_PROMPT, Prompt},
    read::{checked, read_common, read_view},
    verdict::Form,
};
use crate::{
    config::{Document, Layer, Reader, Section},
    template::Template,
};

/// Reads the judges of the block `env.taskset`, `task.judges`, as everyone must who reads such a block for a taskset.
/// Those in which something is wrong are left out; the faults are recorded in the block.
pub fn read_all(block: &mut Section<'_>) -> Vec<JudgeSpec> {
    let mut task = block.child("task");
    let judges = task.doc("Judges that score beside the taskset's own rewards").list("judges", read_plugged);
    judges.into_iter().flatten().collect()
}

/// Reads one entry: `id` is `reference` or `rubric`; paths are relative to the working directory. `None` when something
/// in it is wrong; the faults are recorded in the section.
fn read_plugged(section: &mut Section<'_>) -> Option<JudgeSpec> {
    let id: Option<String> = section.doc("Kind of judge: reference or rubric").required("id");
    let id = id?;
    let name: Option<String> = section.doc("Name of the reward; the id when absent").get("name");
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| id.clone());
    match id.as_str() {
        "reference" => read_reference(section, name),
        "rubric" => read_rubric(section, name),
        "decision" => {
            let problem = "the judge `decision` asks an evaluations API of its own, which rollhouse does not speak; use \
                           `reference` or `rubric`";
            section.fault("id", problem);
            section.accept_rest();
            None
        }
        other => {
            let problem = format!("the judge `{other}` is unknown; expected `reference` or `rubric`");
            section.fault("id", problem);
            section.accept_rest();
            None
        }
    }
}

fn read_reference(section: &mut Section<'_>, name: String) -> Option<JudgeSpec> {
    let asked = read_common(section, name);
    let yes_no = vec!["yes".to_owned(), "no".to_owned()];
    let choices: Vec<String> = section.doc("The words for right and wrong").get_or("choices", yes_no);
    let form = match choices.as_slice() {
        [right, wrong] if !right.is_empty() && !wrong.is_empty() && !right.eq_ignore_ascii_case(wrong) => {
            Some(Form::Choice(vec![(right.clone(), 1.0), (wrong.clone(), 0.0)]))
        }
        _ => {
            section.fault("choices", "expected two different words, that for right first, such as [\"yes\", \"no\"]");
            None
        }
    };
    let prompt = read_prompt(section, DEFAULT_PROMPT);
    let (question_field, answer_field) = read_fields(section, "answer");
    let view = read_view(section, View::LastReply);
    let (form, prompt) = form.zip(prompt)?;
    Some(JudgeSpec { question_field, answer_field, view, ..asked?.judge(form, prompt) })
}

fn read_rubric(section: &mut Section<'_>, name: String) -> Option<JudgeSpec> {
    let asked = read_common(section, name);
    let path: Option<PathBuf> = section.doc("File with the criteria, .toml or .json").required("path");
    let weights = section.doc("Weights of criteria that take the place of the file's").open("weights");
    let criteria = path.and_then(|path| {
        let criteria = read_criteria(&path).map_err(|problem| section.fault("path", problem)).ok()?;
        let criteria = reweighed(section, criteria, &weights)?;
        checked(section, "path", Some(criteria))
    });
    if section.doc("Criteria of one call; all of them").limit_in("max_criteria", 1.., None::<u64>).is_some() {
        section.fault("max_criteria", "not supported: all criteria are judged in one call; leave it out");
    }
    let structured = section.doc("Ask the endpoint for JSON of a schema").get_or("structured_output", false);
    let prompt = read_prompt(section, DEFAULT_CRITERIA_PROMPT);
    let (question_field, answer_field) = read_fields(section, "");
    let view = read_view(section, View::FullTrace);
    let (criteria, prompt) = criteria.zip(prompt)?;
    let spec = asked?.judge(Form::Criteria(criteria), prompt);
    Some(JudgeSpec { structured, question_field, answer_field, view, ..spec })
}

fn read_fields(section: &mut Section<'_>, answer: &str) -> (Option<String>, String) {
    let question = section.doc("Field of the row that is the question; its prompt when empty");
    let question = question.get_or("question_field", String::new());
    let answer = section.doc("Field of the row that is the reference answer").get_or("answer_field", answer.to_owned());
    (Some(question), answer)
}

/// A file of verifiers' form, or what is asked by default.
fn read_prompt(section: &mut Section<'_>, default: &str) -> Option<Prompt> {
    let file: Option<PathBuf> =
        section.doc("File of the prompt, with places such as {question}, {answer} and {response}").get("prompt");
    let Some(file) = file else {
        return Template::new("the default prompt", default).ok().map(Prompt::Template);
    };
    match fs::read_to_string(&file) {
        Ok(text) => Some(Prompt::Places(text)),
        Err(error) => {
            section.fault("prompt", format!("cannot read `{}`: {error}", file.display()));
            None
        }
    }
}

fn reweighed(
    section: &mut Section<'_>,
    mut criteria: Vec<Criterion>,
    weights: &serde_json::Map<String, Value>,
) -> Option<Vec<Criterion>> {
    let mut sound = true;
    for (name, weight) in weights {
        let target = criteria.iter_mut().find(|criterion| criterion.name == *name);
        match (target, weight.as_f64().filter(|weight| *weight >= 0.0)) {
            (Some(criterion), Some(weight)) => criterion.weight = weight,
            (None, _) => {
                section.fault_below("weights", name, "no criterion has this name", "name one of the file's criteria");
                sound = false;
            }
            (_, None) => {
                section.fault_below("weights", name, "not a weight", "give a number from 0");
                sound = false;
            }
        }
    }
    sound.then_some(criteria)
}

/// The criteria of a file: a list named `criteria`, or in JSON the list itself.
fn read_criteria(path: &Path) -> Result<Vec<Criterion>, String> {
    let layer = match fs::read_to_string(path) {
        Ok(text) if text.trim_start().starts_with('[') && path.extension().is_some_and(|ending| ending == "json") => {
            let list: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            Layer::from_value(&serde_json::json!({ "criteria": list }))
        }
        _ => Layer::read(path).map_err(|faults| faults.to_string())?,
    };
    let mut reader = Reader::new(Document::new([layer]));
    let criteria = reader.root().list("criteria", super::read::read_criterion);
    reader.finish().map_err(|faults| faults.to_string())?;
    criteria
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .filter(|criteria| !criteria.is_empty())
        .ok_or_else(|| format!("{}: no `criteria` in it", path.display()))
}
