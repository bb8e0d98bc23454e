//! Ids, and whose they are.

use crate::trace::TokenFlags;

/// Where a token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the message it belongs to; `None` for what the template puts between messages.
    pub message: Option<u32>,
    /// The model would have sampled it.
    pub sampled: bool,
    /// It is message text rather than template.
    pub content: bool,
}

impl Place {
    /// Template outside of all messages.
    pub const BETWEEN: Self = Self { message: None, sampled: false, content: false };

    /// Template of a message.
    pub fn template(message: impl Into<Option<u32>>) -> Self {
        Self { message: message.into(), sampled: false, content: false }
    }

    /// Text of a message that nobody sampled.
    pub fn content(message: impl Into<Option<u32>>) -> Self {
        Self { message: message.into(), sampled: false, content: true }
    }

    /// What the model sampled of an answer.
    pub fn sampled(message: impl Into<Option<u32>>) -> Self {
        Self { message: message.into(), sampled: true, content: true }
    }
}

/// Ids in a row that come from the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many ids.
    pub length: u32,
    /// Where they come from.
    pub place: Place,
}

/// A conversation as ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The ids.
    pub ids: Vec<u32>,
    /// The places of the ids in order; `None` where the template is opaque.
    pub runs: Option<Vec<Run>>,
}

/// What a bridge adds after the ids of the turn before. Places count the new messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extension {
    /// The ids.
    pub ids: Vec<u32>,
    /// Their places.
    pub runs: Vec<Run>,
}

impl Rendered {
    /// From the first to behind the last id of each of `messages` messages; `None` for one without ids. Nothing at all
    /// where the template is opaque.
    pub fn spans(&self, messages: usize) -> Option<Vec<Option<(usize, usize)>>> {
        self.runs.as_deref().map(|runs| spans(runs, messages))
    }

    /// One flag per id: message text rather than template. Empty where the template is opaque.
    pub fn is_content(&self) -> TokenFlags {
        flags(self.runs.as_deref().unwrap_or_default(), |place| place.content)
    }

    /// One flag per id: the model would have sampled it. Empty where the template is opaque.
    pub fn sampled(&self) -> TokenFlags {
        flags(self.runs.as_deref().unwrap_or_default(), |place| place.sampled)
    }
}

impl Extension {
    /// From the first to behind the last id of each of `messages` new messages, counted from the extension's begin.
    pub fn spans(&self, messages: usize) -> Vec<Option<(usize, usize)>> {
        spans(&self.runs, messages)
    }

    /// One flag per id: message text rather than template.
    pub fn is_content(&self) -> TokenFlags {
        flags(&self.runs, |place| place.content)
    }
}

fn spans(runs: &[Run], messages: usize) -> Vec<Option<(usize, usize)>> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; messages];
    let mut at = 0;
    for run in runs {
        let end = at + run.length as usize;
        if let Some(span) = run.place.message.and_then(|message| spans.get_mut(message as usize)) {
            *span = Some((span.map_or(at, |(start, _)| start), end));
        }
        at = end;
    }
    spans
}

fn flags(runs: &[Run], flag: impl Fn(Place) -> bool) -> TokenFlags {
    TokenFlags::new(runs.iter().flat_map(|run| std::iter::repeat_n(flag(run.place), run.length as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_reach_from_the_first_to_the_last_id_of_a_message() {
        let run = |length, place| Run { length, place };
        let rendered = Rendered {
            ids: vec![0; 9],
            runs: Some(vec![
                run(2, Place::template(0)),
                run(1, Place::content(0)),
                run(1, Place::BETWEEN),
                run(3, Place::sampled(2)),
                run(2, Place::template(0)),
            ]),
        };
        assert_eq!(rendered.spans(3), Some(vec![Some((0, 9)), None, Some((4, 7))]));
        assert_eq!(
            rendered.is_content().iter().collect::<Vec<_>>(),
            [false, false, true, false, true, true, true, false, false]
        );
        assert_eq!(rendered.sampled().count(), 3);
        assert_eq!(Rendered { ids: vec![1], runs: None }.spans(1), None);
    }
}
