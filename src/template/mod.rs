//! Texts made of rows: minijinja templates and conditions with one set of rules.
//!
//! What enters is a template and named values; what leaves is a text, or an error that names the template and the line. A
//! name that is not there is an error, never an empty text. Nothing is escaped. Templates cannot include one another. One
//! that takes too many steps or writes too much is an error, too.

mod expression;
mod text;

pub use expression::Expression;
pub use text::Template;

/// What is wrong with a template or with the values it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}, line {line}: {problem}")]
pub struct TemplateError {
    /// What the template is called.
    pub name: String,
    /// The line in it, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}
