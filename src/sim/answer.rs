//! What the simulated model says.

use std::sync::Arc;

use super::{
    Oracle, hash::Hash, model::Model, request::OfferedTool, schema, settings::Policy, template::push_call, words::words,
};
use crate::trace::Message;

/// Said where the oracle has no answer.
pub(super) const UNKNOWN: &str = "I am a simulated model and do not know an answer to this.";

/// What all choices of one request are drawn from.
pub(super) enum Source {
    /// The right answer, and who knows wrong ones.
    Right(String, Arc<dyn Oracle>),
    /// One text for all.
    Same(String),
    /// Random words.
    Words,
}

impl Source {
    /// Asks the policy. The closures are called only where the policy looks at the conversation.
    pub(super) async fn of(
        model: &Model,
        last_user: impl FnOnce() -> String,
        all: impl FnOnce() -> Vec<Message>,
    ) -> Self {
        match &model.settings.policy {
            Policy::Echo => Self::Same(last_user()),
            Policy::Fixed(text) => Self::Same(text.clone()),
            Policy::Random => Self::Words,
            Policy::Oracle => {
                let unknown = || Self::Same(UNKNOWN.to_owned());
                let Some(oracle) = &model.oracle else { return unknown() };
                let conversation = all();
                match oracle.certain(&conversation) {
                    Some(certain) => Self::Same(certain),
                    None => {
                        let right = oracle.solve(&conversation).await;
                        right.map_or_else(unknown, |right| Self::Right(right, Arc::clone(oracle)))
                    }
                }
            }
        }
    }

    /// The text of one choice.
    pub(super) fn text(&self, error_rate: f64, draw: Hash) -> String {
        match self {
            Self::Right(answer, oracle) if draw.number(1).unit() < error_rate => {
                oracle.spoiled(answer, &|bound| draw.number(2).below(bound)).unwrap_or_else(|| UNKNOWN.to_owned())
            }
            Self::Right(text, _) | Self::Same(text) => text.clone(),
            Self::Words => words(8 + draw.number(3).below(56), draw.number(4)),
        }
    }
}

/// A call of a tool with arguments that its schema allows.
pub(super) fn call(tool: &OfferedTool, draw: Hash) -> String {
    let arguments = match &tool.function.parameters {
        Some(parameters) => schema::fill(parameters, draw),
        None => serde_json::Value::Object(serde_json::Map::new()),
    };
    let mut text = String::new();
    push_call(&mut text, &tool.function.name, &arguments.to_string());
    text
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;

    /// Knows no wrong answer.
    struct Sure;

    impl Oracle for Sure {
        fn solve<'a>(&'a self, _: &'a [Message]) -> BoxFuture<'a, Option<String>> {
            Box::pin(std::future::ready(None))
        }
    }

    #[test]
    fn wrong_answers_come_at_the_rate() {
        let source = Source::Right("olleh".to_owned(), Arc::new(Sure));
        let wrong = (0..10_000).filter(|index| source.text(0.3, Hash::new(*index)) != "olleh").count();
        assert!((2_800..3_200).contains(&wrong), "{wrong}");
        assert_eq!(source.text(0.0, Hash::new(1)), "olleh");
    }
}
