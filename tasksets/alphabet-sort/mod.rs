//! Multi-turn: keep a growing list of names in alphabetical order.

mod episode;
mod reward;

use std::sync::Arc;

use futures::future::BoxFuture;

use self::{
    episode::{Bounds, Episode, names_said, sort_by},
    reward::Grading,
};
use super::conversation::{said_by_user, turns};
use crate::{
    config::Section,
    rubric::Rubric,
    taskset::{Exchange, Shipped, TaskStream, Taskset, TasksetError, TasksetSize, User, UserTurn, generated},
    trace::{Fault, Message, TraceTask},
};

pub(super) const SHIPPED: Shipped = Shipped {
    id: "alphabet-sort",
    summary: "keep a list of names in alphabetical order while the user adds more each turn",
    readme: include_str!("README.md"),
    open,
};

const KIND: &str = "AlphabetSortTask";
const SEED: u64 = 1_337_420;

struct AlphabetSort {
    bounds: Bounds,
    num_tasks: Option<u64>,
    seed: u64,
    rubric: Rubric,
}

fn open(section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let min_turns = section.doc("Fewest turns of a task").get_in("min_turns", 1..=50, 1_u64);
    let max_turns = section.doc("Most turns of a task").get_in("max_turns", 1..=50, 3_u64);
    let min_names = section.doc("Fewest names that a turn brings").get_in("min_names_per_turn", 1..=50, 1_u64);
    let max_names = section.doc("Most names that a turn brings").get_in("max_names_per_turn", 1..=50, 5_u64);
    if min_turns > max_turns {
        section.fault("min_turns", format!("is {min_turns}, above max_turns, which is {max_turns}"));
    }
    if min_names > max_names {
        section.fault("min_names_per_turn", format!("is {min_names}, above max_names_per_turn, which is {max_names}"));
    }
    if max_turns * max_names > episode::MOST_NAMES {
        section.fault(
            "max_names_per_turn",
            format!(
                "a task could need {} different names (max_turns times max_names_per_turn) and there are {}",
                max_turns * max_names,
                episode::MOST_NAMES
            ),
        );
    }
    let grading = Grading {
        power: section
            .doc("Power that the similarity is raised to: the higher, the less a nearly right list earns")
            .get_in("similarity_power", 1..=64, 4_u32),
        per_turn: section
            .doc("Raise each turn's similarity to the power, then average; or average first (false)")
            .get_or("power_per_turn", true),
    };
    let rubric = Rubric::new()
        .reward("alphabet_sort", 1.0, move |context: crate::rubric::ScoreContext<'_>| grading.score(context))
        .metric("perfect_turns", reward::perfect_turns)
        .metric("format", reward::format);
    Ok(Arc::new(AlphabetSort {
        bounds: Bounds { turns: (min_turns.min(max_turns), max_turns), names: (min_names.min(max_names), max_names) },
        num_tasks: super::num_tasks(section),
        seed: section.doc("Which tasks are made").get_or("seed", SEED),
        rubric,
    }))
}

impl Taskset for AlphabetSort {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        let (bounds, seed) = (self.bounds, self.seed);
        generated(KIND, position, self.num_tasks, move |idx| Episode::draw(seed, idx, bounds).into_row())
    }

    fn size(&self) -> TasksetSize {
        self.num_tasks.map_or(TasksetSize::Infinite, TasksetSize::Finite)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        let follow_ups = super::texts(&task.data, "follow_ups").unwrap_or_default();
        Some(Box::new(ScriptedUser { follow_ups }))
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        let said = said_by_user(conversation);
        let by = sort_by(said.first()?)?;
        let turns: Vec<Vec<String>> = said.iter().map(|text| names_said(text)).collect();
        Some(episode::perfect_reply(&turns, by))
    }
}

/// Reads its lines in order, one after each answer, then leaves.
struct ScriptedUser {
    follow_ups: Vec<String>,
}

impl User for ScriptedUser {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        let next = turns(exchange.conversation).checked_sub(1).and_then(|turn| self.follow_ups.get(turn));
        let turn = next.map_or(UserTurn::Close, |text| UserTurn::Say(vec![Message::user(text)]));
        Box::pin(std::future::ready(Ok(turn)))
    }
}
