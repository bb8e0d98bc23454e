//! Worked examples that stand before each prompt.

use super::{
    data::Data,
    names::Names,
    row::{Example, Mould},
};
use crate::{
    taskset::{TasksetError, dataset::Row},
    template::Template,
    trace::{Message, Prompt},
};

/// Where worked examples come from, and how many stand before a prompt.
pub(super) struct FewShot {
    pub source: Examples,
    pub count: usize,
}

pub(super) enum Examples {
    /// As they are written.
    Written(Vec<Example>),
    /// Made of the rows of a source of their own.
    Rows {
        data: Box<Data>,
        /// What is asked; the task's own prompt without it.
        user: Option<Template>,
        assistant: Template,
    },
}

impl FewShot {
    /// The examples to choose from: one more than are shown, so that a task which is among them has enough others.
    /// Blocking.
    ///
    /// # Errors
    /// Data that cannot be read, a row that does not fit.
    pub(super) fn examples(&self, mould: &Mould) -> Result<Vec<Example>, TasksetError> {
        match &self.source {
            Examples::Written(examples) => Ok(examples.clone()),
            Examples::Rows { data, user, assistant } => {
                let spare = self.count.saturating_add(1);
                let rows = data.rows(&mould.config)?.rows;
                rows.take(spare)
                    .map(|row| {
                        let (file, row) = row?;
                        example(mould, &row, user.as_ref(), assistant).map_err(|problem| TasksetError::Row {
                            file: file.to_string(),
                            row: row.number,
                            problem,
                        })
                    })
                    .collect()
            }
        }
    }
}

fn example(mould: &Mould, row: &Row, user: Option<&Template>, assistant: &Template) -> Result<Example, String> {
    let mut columns = row.values.clone();
    if let Some(answer) = mould.answer(&columns)? {
        columns.insert("answer".to_owned(), answer.into());
    }
    let fill =
        |template: &Template| template.render(Names::of(&columns, &mould.config)).map_err(|error| error.to_string());
    let user = match user {
        Some(user) => fill(user)?,
        None => match mould.prompt(&columns)? {
            Some(Prompt::Text(text)) => text,
            Some(Prompt::Messages(messages)) => {
                let asked = messages.iter().rfind(|message| matches!(message, Message::User(_)));
                asked.map(Message::text).unwrap_or_default()
            }
            None => return Err("there is no prompt to show: give `few_shot.user`".to_owned()),
        },
    };
    Ok(Example { user, assistant: fill(assistant)? })
}
