//! Rubrics by configuration: the tables `[[reward]]` and `[[metric]]`.
//!
//! What enters is a block of configuration; what leaves is a [`Rubric`]. The scorers and what each takes are told by the
//! code that reads them: [`catalogue`] is made by the same reading that makes a rubric, so that documentation, messages and
//! what runs cannot disagree.
//!
//! ```toml
//! parse = ["strip_think", "hashes"]     # for every table that has no `parse` of its own
//!
//! [[reward]]
//! scorer = "number"                     # its name, too, without `name`
//! weight = 1.0
//! expected = "answer"                   # a field of the row; a list in it: any of them counts
//!
//! [[metric]]
//! name = "short"
//! scorer = "length"
//! unit = "words"
//! max = 100
//! ```

mod catalogue;
mod parse;
mod scorer;
mod seat;

pub use catalogue::{ScorerEntry, ScorerOption, StepEntry, catalogue, catalogue_text, parser_steps};

use super::{Answer, Expected, RewardLine, Rubric};
use crate::config::Section;

/// What a block declares.
#[derive(Clone)]
pub struct Declared {
    /// Its rewards and metrics; more can be added before it is built.
    pub rubric: Rubric,
    /// What the first reward that wants an answer expects, and how it takes it from the reply; the field `answer` where none
    /// does. Through the parser's inverse what is expected becomes a perfect reply.
    pub expected: Expected,
    /// That parser.
    pub answer: Answer,
    /// How many tables there are, faulty ones too.
    pub tables: usize,
}

/// Reads `parse`, `[[reward]]` and `[[metric]]` of a block. What is wrong is recorded in the section; what is wrong has no
/// place in the rubric, and reading goes on.
pub fn read(section: &mut Section<'_>) -> Declared {
    let default = parse::read(section, &Answer::whole());
    let mut names = Vec::new();
    let rewards = section
        .doc("Weighted scorers; their sum is the reward of a rollout")
        .list("reward", |table| seat::reward(table, &default, &mut names));
    let metrics = section
        .doc("Scorers that are recorded beside the reward and do not count in it")
        .list("metric", |table| seat::metric(table, &default, &mut names));
    // What is punished or does not count is nothing to aim at.
    let wanted: Vec<&seat::Seat> = rewards.iter().flatten().filter(|reward| reward.weight > 0.0).collect();
    let (expected, answer) = wanted.iter().find_map(|reward| reward.aim.clone()).unwrap_or_else(|| {
        let first = wanted.first().map_or(default, |reward| reward.answer.clone());
        (Expected::field("answer"), first)
    });
    let mut declared = Declared { rubric: Rubric::new(), expected, answer, tables: rewards.len() };
    for reward in rewards.into_iter().flatten() {
        let line = RewardLine { name: reward.name, weight: reward.weight, bounds: reward.bounds };
        declared.rubric = declared.rubric.seat_reward(line, reward.scorer);
    }
    for metric in metrics.into_iter().flatten() {
        declared.rubric = declared.rubric.seat_metric(&metric.name, metric.scorer);
    }
    declared
}
