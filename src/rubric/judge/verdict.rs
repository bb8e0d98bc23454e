//! Verdicts: the forms they are asked for in, and how a judge is told to give them.

use serde_json::{Value, json};

use crate::rubric::schema::JsonSchema;

/// What a judge decides.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// One of several words, each with its score.
    Choice(Vec<(String, f64)>),
    /// A number, brought to 0 at `low` and 1 at `high`.
    Scale { low: f64, high: f64 },
    /// JSON of a schema, with a number on a scale (or true and false) at a path in it.
    Json { schema: Value, check: JsonSchema, path: Vec<String>, low: f64, high: f64 },
    /// Each criterion for itself; the score is their weighted mean.
    Criteria(Vec<Criterion>),
}

/// One thing that a judge looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// Its name, without white space around it.
    pub name: String,
    /// What it asks.
    pub text: String,
    /// Its share in the judge's score, from 0.
    pub weight: f64,
    /// Allowed answers from worst (0) to best (1), evenly spaced.
    pub choices: Vec<String>,
}

/// What a judge decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    /// The score, from 0 to 1 unless choices say otherwise.
    pub(super) score: f64,
    /// What it said, in a line.
    pub(super) why: String,
    /// Score and reason of each criterion, in their order.
    pub(super) parts: Vec<(f64, String)>,
}

impl Verdict {
    /// A score for everything that is judged, for the same reason.
    pub(super) fn all(form: &Form, score: f64, why: &str) -> Self {
        let parts = form.criteria().iter().map(|_| (score, why.to_owned())).collect();
        Self { score, why: why.to_owned(), parts }
    }
}

impl Form {
    /// Yes or no.
    pub(super) fn yes_no() -> Self {
        Self::Choice(vec![("yes".to_owned(), 1.0), ("no".to_owned(), 0.0)])
    }

    /// Its criteria, if it has any.
    pub(super) fn criteria(&self) -> &[Criterion] {
        if let Self::Criteria(criteria) = self { criteria } else { &[] }
    }

    /// The words for right and wrong.
    pub(super) fn labels(&self) -> [&str; 2] {
        match self {
            Self::Choice(choices) if choices.len() == 2 => [&choices[0].0, &choices[1].0],
            _ => ["yes", "no"],
        }
    }

    /// The criteria as a list for people and models.
    pub(super) fn criteria_list(&self) -> String {
        let line = |criterion: &Criterion| {
            let Criterion { name, text, choices, .. } = criterion;
            format!("- {name}: {text} (one of, from worst to best: {})", choices.join(", "))
        };
        self.criteria().iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// How the answer is to be given.
    pub(super) fn instruction(&self, structured: bool) -> String {
        if structured || matches!(self, Self::Criteria(_) | Self::Json { .. }) {
            return self.json_instruction();
        }
        let what = match self {
            Self::Choice(choices) => {
                let names: Vec<String> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
                format!("one of {}", names.join(", "))
            }
            _ => self.bounds().to_string(),
        };
        format!(
            "Give your reasons first, in a few sentences. Then end with one line of this form, where the value is {what}:\n\
             Verdict: <value>"
        )
    }

    pub(super) fn bounds(&self) -> String {
        match self {
            Self::Scale { low, high } | Self::Json { low, high, .. } => format!("a number from {low} to {high}"),
            _ => String::new(),
        }
    }

    fn json_instruction(&self) -> String {
        match self {
            Self::Criteria(_) => format!(
                "The criteria:\n{}\n\nAnswer with one JSON object and nothing else: {{\"verdicts\": [{{\"name\": …, \
                 \"reason\": …, \"verdict\": …}}, …]}}, with one entry for each criterion under its exact name, in one sentence \
                 the reason, and as verdict one of the words in the brackets behind the criterion.",
                self.criteria_list()
            ),
            Self::Json { schema, path, .. } => format!(
                "Answer with one JSON object and nothing else. It must fit this JSON schema; `{}` is {}:\n{schema}",
                path.join("."),
                self.bounds()
            ),
            _ => format!(
                "Answer with one JSON object and nothing else. It must fit this JSON schema; give the reason first:\n{}",
                self.schema()
            ),
        }
    }

    /// What the judge is told when its answer held no verdict.
    pub(super) fn reminder(&self, problem: &str, structured: bool) -> String {
        format!("Your verdict could not be read: {problem}. Give it again.\n\n{}", self.instruction(structured))
    }

    /// The schema of an answer in JSON.
    pub(super) fn schema(&self) -> Value {
        let object = |value: Value| {
            json!({
                "type": "object",
                "properties": {"reason": {"type": "string"}, "verdict": value},
                "required": ["reason", "verdict"],
                "additionalProperties": false,
            })
        };
        match self {
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| name.as_str()).collect();
                object(json!({"type": "string", "enum": names}))
            }
            Self::Scale { low, high } => object(json!({"type": "number", "minimum": low, "maximum": high})),
            Self::Json { schema, .. } => schema.clone(),
            Self::Criteria(criteria) => {
                let names: Vec<&str> = criteria.iter().map(|criterion| criterion.name.as_str()).collect();
                let mut words: Vec<&str> =
                    criteria.iter().flat_map(|criterion| criterion.choices.iter().map(String::as_str)).collect();
                words.sort_unstable();
                words.dedup();
                let entry = json!({
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "enum": names},
                        "reason": {"type": "string"},
                        "verdict": {"type": "string", "enum": words},
                    },
                    "required": ["name", "reason", "verdict"],
                    "additionalProperties": false,
                });
                json!({
                    "type": "object",
                    "properties": {"verdicts": {"type": "array", "items": entry}},
                    "required": ["verdicts"],
                    "additionalProperties": false,
                })
            }
        }
    }

    /// What makes two verdicts of the same question the same.
    pub(super) fn identity(&self) -> Value {
        match self {
            Self::Choice(choices) => json!({ "choices": choices }),
            Self::Scale { low, high } => json!({"scale": [low, high]}),
            Self::Json { schema, path, low, high, .. } => {
                json!({"schema": schema, "score": path, "scale": [low, high]})
            }
            Self::Criteria(criteria) => {
                let of = |criterion: &Criterion| json!([criterion.name, criterion.text, criterion.choices]);
                json!({"criteria": criteria.iter().map(of).collect::<Vec<_>>()})
            }
        }
    }

    /// A verdict of full marks, as a simulated judge gives it.
    pub(super) fn full_marks(&self, structured: bool) -> String {
        let reason = "The simulated judge finds everything right.";
        let best = |choices: &[(String, f64)]| {
            let best = choices.iter().max_by(|left, right| left.1.total_cmp(&right.1));
            best.map(|(name, _)| name.clone()).unwrap_or_default()
        };
        let value = match self {
            Self::Choice(choices) => Value::from(best(choices)),
            Self::Scale { high, .. } => json!(high),
            Self::Json { schema, path, high, .. } => {
                let mut answer = sample(schema);
                let target = path.iter().fold(&mut answer, |value, key| &mut value[key.as_str()]);
                *target = if target.is_boolean() { Value::Bool(true) } else { whole(*high) };
                return answer.to_string();
            }
            Self::Criteria(criteria) => {
                let of = |criterion: &Criterion| json!({"name": criterion.name, "reason": reason, "verdict": criterion.choices.last()});
                return json!({"verdicts": criteria.iter().map(of).collect::<Vec<_>>()}).to_string();
            }
        };
        if structured {
            return json!({"reason": reason, "verdict": value}).to_string();
        }
        format!("{reason}\nVerdict: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }
}

/// A number without a point where it has none.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// The plainest value that a schema without references allows.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema.get("enum").and_then(|choices| choices.get(0)) {
        return first.clone();
    }
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => "simulated".into(),
        Some("number" | "integer") => schema.get("minimum").cloned().unwrap_or_else(|| 0.into()),
        Some("boolean") => true.into(),
        Some("array") => {
            let fewest = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            (0..fewest).map(|_| sample(schema.get("items").unwrap_or(&Value::Null))).collect()
        }
        Some("null") => Value::Null,
        _ => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let fields = properties.into_iter().flatten().map(|(key, schema)| (key.clone(), sample(schema)));
            Value::Object(fields.collect())
        }
    }
}
