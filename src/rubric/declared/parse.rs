//! The key `parse`: how an answer is taken from a reply.

use serde_json::Value;

use crate::{
    config::{Section, nearest},
    rubric::{
        Answer,
        text::{Normalise, Pattern},
    },
};

/// What a step takes.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    Nothing,
    /// A text that must be there, called so in documentation.
    Text(&'static str),
    /// A text that may be there.
    MaybeText(&'static str),
    /// A list of lists of steps.
    Ways,
}

/// A step of an answer's parser.
pub(super) struct StepKind {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    pub(super) summary: &'static str,
    apply: fn(Answer, &str) -> Result<Answer, String>,
}

/// Every step, by name. `apply` adds it to a parser; its text is empty where the step has none.
pub(super) const STEPS: &[StepKind] = &[
    StepKind {
        name: "strip_think",
        takes: Takes::Nothing,
        summary: "what follows the last `</think>`; thinking that never ends leaves nothing",
        apply: |answer, _| Ok(answer.strip_think()),
    },
    StepKind {
        name: "tag",
        takes: Takes::Text("name"),
        summary: "the content of the one well-formed tag, as `<answer>…</answer>`",
        apply: |answer, name| Ok(answer.tag(name)),
    },
    StepKind {
        name: "tag_lenient",
        takes: Takes::Text("name"),
        summary: "the content of the last such tag, however malformed",
        apply: |answer, name| Ok(answer.tag_lenient(name)),
    },
    StepKind {
        name: "boxed",
        takes: Takes::Nothing,
        summary: "the content of the last `\\boxed{…}`",
        apply: |answer, _| Ok(answer.boxed()),
    },
    StepKind {
        name: "hashes",
        takes: Takes::Nothing,
        summary: "what stands behind the last `####`, to the end of its line",
        apply: |answer, _| Ok(answer.after_hashes()),
    },
    StepKind {
        name: "last_number",
        takes: Takes::Nothing,
        summary: "the last number, as written",
        apply: |answer, _| Ok(answer.last_number()),
    },
    StepKind {
        name: "code",
        takes: Takes::MaybeText("language"),
        summary: "the one fenced code block, or the one of a language",
        apply: |answer, language| Ok(answer.code(Some(language).filter(|language| !language.is_empty()))),
    },
    StepKind {
        name: "last_code",
        takes: Takes::MaybeText("language"),
        summary: "the last fenced code block, or the last of a language",
        apply: |answer, language| Ok(answer.last_code(Some(language).filter(|language| !language.is_empty()))),
    },
    StepKind {
        name: "capture",
        takes: Takes::Text("pattern"),
        summary: "the first group of a regular expression's last match; the whole match without a group",
        apply: |answer, pattern| Pattern::new(pattern).map(|it| answer.capture(it)).map_err(|error| error.to_string()),
    },
    StepKind {
        name: "after",
        takes: Takes::Text("marker"),
        summary: "what stands behind the last such marker, trimmed",
        apply: |answer, marker| Ok(answer.after(marker)),
    },
    StepKind {
        name: "first_line",
        takes: Takes::Nothing,
        summary: "the first line with anything on it, trimmed",
        apply: |answer, _| Ok(answer.first_line()),
    },
    StepKind {
        name: "last_line",
        takes: Takes::Nothing,
        summary: "the last line with anything on it, trimmed",
        apply: |answer, _| Ok(answer.last_line()),
    },
    StepKind {
        name: "strip",
        takes: Takes::Text("characters"),
        summary: "drops these characters and white space at both ends",
        apply: |answer, characters| Ok(answer.strip(characters)),
    },
    StepKind {
        name: "trim",
        takes: Takes::Nothing,
        summary: "drops white space at both ends",
        apply: |answer, _| Ok(answer.normalise(Normalise::TRIM)),
    },
    StepKind {
        name: "lower",
        takes: Takes::Nothing,
        summary: "makes all letters lowercase",
        apply: |answer, _| Ok(answer.normalise(Normalise { ignore_case: true, ..Normalise::NONE })),
    },
    StepKind {
        name: "collapse_space",
        takes: Takes::Nothing,
        summary: "makes each run of white space one space",
        apply: |answer, _| Ok(answer.normalise(Normalise { collapse_space: true, ..Normalise::NONE })),
    },
    StepKind {
        name: "first_of",
        takes: Takes::Ways,
        summary: "what the first of several parsers finds that finds anything",
        // Its ways are read apart.
        apply: |answer, _| Ok(answer),
    },
];

/// Reads the key `parse` of a table; the default where it has none.
pub(super) fn read(table: &mut Section<'_>, default: &Answer) -> Answer {
    let doc = "Steps that take the answer from the last reply, each from what the one before left; the whole reply \
               without them";
    let given = table.doc(doc).value("parse", Value::Null, "a list of parser steps");
    if given.is_null() {
        return default.clone();
    }
    match steps(&given) {
        Ok(answer) => answer,
        Err(problem) => {
            table.fault("parse", problem);
            default.clone()
        }
    }
}

/// A list of steps, or a single one.
fn steps(given: &Value) -> Result<Answer, String> {
    let Value::Array(items) = given else { return step(Answer::whole(), given) };
    let add = |answer, (index, item)| step(answer, item).map_err(|problem| format!("step {}: {problem}", index + 1));
    items.iter().enumerate().try_fold(Answer::whole(), add)
}

fn step(answer: Answer, given: &Value) -> Result<Answer, String> {
    let nothing = Value::Null;
    let (name, argument) = match given {
        Value::String(name) => (name, &nothing),
        Value::Object(table) => match table.iter().next() {
            Some((name, argument)) if table.len() == 1 => (name, argument),
            _ => return Err("expected a table of one key, for example { tag = \"answer\" }".to_owned()),
        },
        _ => return Err(format!("expected a name or a table of one key, not {given}")),
    };
    let Some(kind) = STEPS.iter().find(|kind| kind.name == name) else {
        return Err(format!("unknown step `{name}`; {}", meant(name, STEPS.iter().map(|kind| kind.name))));
    };
    let text = match (kind.takes, argument) {
        (Takes::Ways, Value::Array(ways)) if !ways.is_empty() => {
            let read = |(index, way)| steps(way).map_err(|problem| format!("way {}: {problem}", index + 1));
            return Ok(answer.first_of(ways.iter().enumerate().map(read).collect::<Result<_, _>>()?));
        }
        (Takes::Ways, _) => {
            return Err("`first_of` takes a list of parsers, for example [\"hashes\", \"boxed\"]".to_owned());
        }
        (Takes::Nothing | Takes::MaybeText(_), Value::Null) => "",
        (Takes::Text(_) | Takes::MaybeText(_), Value::String(text)) if !text.is_empty() => text,
        (Takes::Text(what) | Takes::MaybeText(what), _) => {
            return Err(format!("`{name}` takes a {what}: {{ {name} = \"…\" }}"));
        }
        (Takes::Nothing, _) => return Err(format!("`{name}` takes nothing; write \"{name}\"")),
    };
    (kind.apply)(answer, text)
}

/// What an unknown name may have meant, else all names there are.
pub(super) fn meant(name: &str, known: impl Iterator<Item = &'static str> + Clone) -> String {
    match nearest(name, known.clone()).first() {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", known.collect::<Vec<_>>().join(", ")),
    }
}
