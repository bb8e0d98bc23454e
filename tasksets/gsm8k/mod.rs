//! Single turn: grade-school word problems with a number for an answer, from rows in the form of GSM8K.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use serde_json::Value;

use super::conversation::{last_reply, said_by_user};
use crate::{
    config::Section,
    rubric::{
        Rubric, Score, ScoreContext, after_hashes, boxed, last_number,
        text::{Tolerance, numeric, parse_number},
    },
    taskset::{
        Shipped, TaskStream, Taskset, TasksetError, TasksetSize,
        dataset::{
            self, Row, Source,
            hub::{Hub, HubDataset},
            jsonl,
        },
    },
    trace::{Fault, Message, Prompt, TaskData},
};

pub(super) const SHIPPED: Shipped = Shipped {
    id: "gsm8k",
    summary: "solve grade-school word problems; rows from a file, the Hugging Face hub or a small sample",
    readme: include_str!("README.md"),
    open,
};

const KIND: &str = "Gsm8kTask";
const INSTRUCTIONS: &str = "Solve the problem step by step. Close with a line that has nothing but #### and the answer as \
    a plain number, for example: #### 42";
const SAMPLE: &str = include_str!("sample.jsonl");

/// Where the rows are.
#[derive(Clone)]
enum Rows {
    Sample,
    Path(PathBuf),
    Hub(HubDataset),
}

struct Gsm8k {
    rows: Rows,
    rubric: Rubric,
}

fn open(section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let path: Option<PathBuf> =
        section.doc("A JSONL, CSV, TSV or Parquet file with the columns `question` and `answer`").get("path");
    let repo: Option<String> = section
        .doc(
            "A data set of the Hugging Face hub, for example \"openai/gsm8k\"; downloaded where it is not in the cache",
        )
        .get("dataset");
    let config = section.doc("Configuration of the data set").get_or("subset", "main".to_owned());
    let split = section.doc("Split of the data set").get_or("split", "test".to_owned());
    let revision = section.doc("Branch, tag or commit of the data set").get_or("revision", "main".to_owned());
    if path.is_some() && repo.is_some() {
        section.fault("path", "stands beside `dataset`; give only one of them");
    }
    let rows = match (path, repo) {
        (Some(path), _) => Rows::Path(path),
        (None, Some(repo)) => Rows::Hub(HubDataset { repo, config, split, revision }),
        (None, None) => Rows::Sample,
    };
    let rubric = Rubric::new().reward("correct", 1.0, correct).metric("format", format);
    Ok(Arc::new(Gsm8k { rows, rubric }))
}

impl Taskset for Gsm8k {
    fn tasks(&self) -> TaskStream {
        let rows = self.rows.clone();
        let locate = move || {
            Ok(match rows {
                Rows::Sample => vec![Source::Shipped { name: "gsm8k/sample.jsonl", text: SAMPLE }],
                Rows::Path(path) => vec![Source::File(path)],
                Rows::Hub(dataset) => Hub::of_user().dataset(&dataset)?.into_iter().map(Source::File).collect(),
            })
        };
        dataset::tasks(KIND, locate, |row| {
            let question = row.text("question")?;
            let solution = row.text("answer")?;
            let answer = final_answer(solution)
                .ok_or_else(|| "`answer` must end in a line `#### number`, as the rows of GSM8K do".to_owned())?;
            let mut data = TaskData {
                id: id(row),
                prompt: Some(Prompt::Text(question.to_owned())),
                system_prompt: Some(INSTRUCTIONS.to_owned()),
                ..TaskData::default()
            };
            data.extra.insert("answer".to_owned(), Value::String(answer.to_owned()));
            data.extra.insert("solution".to_owned(), Value::String(solution.to_owned()));
            Ok(data)
        })
    }

    fn size(&self) -> TasksetSize {
        match self.rows {
            Rows::Sample => TasksetSize::Finite(SAMPLE.lines().count() as u64),
            Rows::Path(_) | Rows::Hub(_) => TasksetSize::Unknown,
        }
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        static SOLUTIONS: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
            let rows = jsonl::rows("gsm8k/sample.jsonl", SAMPLE.as_bytes());
            rows.flatten()
                .filter_map(|row| Some((row.text("question").ok()?.to_owned(), row.text("answer").ok()?.to_owned())))
                .collect()
        });
        SOLUTIONS.get(said_by_user(conversation).last()?).cloned()
    }
}

fn id(row: &Row) -> Option<String> {
    match row.values.get("id")? {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

fn final_answer(solution: &str) -> Option<&str> {
    after_hashes(solution).filter(|answer| parse_number(answer).is_some())
}

/// The number that a reply gives: the last one behind the last `####`, else in the last `\boxed{}`, else of all.
/// A place that is there but has no number is not passed over.
fn given(reply: &str) -> (&'static str, Option<&str>) {
    let (place, text) = if reply.contains("####") {
        ("behind ####", after_hashes(reply).unwrap_or_default())
    } else if let Some(content) = boxed(reply) {
        ("in \\boxed{}", content)
    } else {
        ("last in the text", reply)
    };
    // A share is written `20%` and meant as 20.
    (place, last_number(text).map(|number| number.trim_end_matches(['%', '\\'])))
}

fn correct(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let expected = super::text(context.task, "answer")?;
    let reply = last_reply(context.trace);
    let (place, number) = given(&reply);
    Ok(match number {
        None => Score::because(0.0, format!("no number {place}; expected {expected}")),
        Some(number) => {
            let score = numeric(number, expected, Tolerance::EXACT);
            Score::because(score.value, format!("{place}: {}", score.why.unwrap_or_default()))
        }
    })
}

/// Whether the answer stands behind `####`, as asked.
fn format(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let reply = last_reply(context.trace);
    Ok(Score::from(f64::from(after_hashes(&reply).is_some_and(|answer| parse_number(answer).is_some()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_in_its_place() {
        assert_eq!(given("1 + 1 = 2\n#### 2").1, Some("2"));
        assert_eq!(given("#### $1,234 dollars").1, Some("$1,234"));
        assert_eq!(given("#### 20%").1, Some("20"));
        assert_eq!(given("so \\boxed{\\$42} of 50").1, Some("$42"));
        assert_eq!(given("It is 3 and then 4.").1, Some("4"));
        assert_eq!(given("It is 3\n####").1, None);
        assert_eq!(given("#### none of the 3").1, Some("3"));
        assert_eq!(given("").1, None);
    }

    #[test]
    fn the_same_number_is_right_however_it_is_written_and_no_other_is() {
        let earns = |reply: &str, expected: &str| {
            given(reply).1.is_some_and(|number| numeric(number, expected, Tolerance::EXACT).value == 1.0)
        };
        for (reply, expected) in [
            ("#### 1234.5", "1,234.50"),
            ("#### $1,234.50 in all.", "1,234.50"),
            ("#### -5", "-5"),
            ("#### \u{2212}5 degrees", "-5"),
            ("#### 3/4", "0.75"),
            ("#### 1 1/2 cups", "1.5"),
            ("#### **12** apples", "12"),
            ("it is \\boxed{12}.", "12"),
            ("<b>#### 12</b>", "12"),
            ("#### 12.", "12"),
        ] {
            assert!(earns(reply, expected), "{reply} for {expected}: {:?}", given(reply));
        }
        for (reply, expected) in [
            ("#### 5", "-5"),
            ("#### -5", "5"),
            ("#### 1,5", "5"),
            ("#### 3/4", "4"),
            ("#### 3:30", "30"),
            ("#### 2^10", "10"),
            ("#### 4\u{200b}2", "2"),
            ("#### 1\u{a0}234", "234"),
            ("#### ٤٢", "42"),
            ("#### 42\n#### 43", "42"),
            ("#### NaN", "42"),
            ("#### inf", "42"),
            ("#### 1e999", "42"),
            ("#### 1.234", "1234"),
            ("#### 42e1", "42"),
        ] {
            assert!(!earns(reply, expected), "{reply} for {expected}: {:?}", given(reply));
        }
    }
}
