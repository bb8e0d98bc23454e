//! What resume, summary and search need of one journal line, without the episode itself.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{JudgeUsage, UsageTotals};
use crate::trace::FaultClass;

/// Where a line lies in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Bytes, line feed not counted.
    pub length: u64,
}

/// 16 bytes that stand for an id or a hash: its first 32 hex digits, or the beginning of its SHA-256 if it is no hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of an episode id or a task hash.
    pub fn of(text: &str) -> Self {
        let hex = text.get(..32).filter(|_| matches!(text.len(), 32 | 64));
        let lowercase = |digits: &&str| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = hex.filter(lowercase).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        Self(number.unwrap_or_else(|| {
            let digest = Sha256::digest(text.as_bytes());
            digest.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
        }))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One line of the journal that is an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where it lies.
    pub span: Span,
    /// Number of the line, from 0.
    pub line: u64,
    /// Its id.
    pub id: String,
    /// The task's hash.
    pub task: Fingerprint,
    /// The task's key, else its hash.
    pub task_key: String,
    /// The task's position in its taskset.
    pub task_idx: Option<u64>,
    /// The task's durable id from its source.
    pub task_id: Option<String>,
    /// Finished: it is ok, has traces, and every due score is there. What is not finished is redone.
    pub finished: bool,
    /// Not finished, but its agents are done and only its scores are missing: it is scored, not redone.
    pub rescorable: bool,
    /// Mean over the traces that count of score times weight; only for finished rows.
    pub reward: f64,
    /// The reward's upper bound, for scores of at most 1: the sum of the positive weights, mean over the same traces.
    pub full_reward: f64,
    /// Raw score of each reward, one entry for each trace that counts.
    pub rewards: Vec<(String, f64)>,
    /// Each metric, likewise.
    pub metrics: Vec<(String, f64)>,
    /// Model turns.
    pub turns: u64,
    /// Tokens of all its calls.
    pub usage: UsageTotals,
    /// What its judges took.
    pub judge_usage: JudgeUsage,
    /// A trace hit a budget or the window.
    pub truncated: bool,
    /// A stage deadline expired.
    pub timed_out: bool,
    /// Why each trace ended.
    pub stop_conditions: Vec<String>,
    /// Calls and rollouts that were tried again.
    pub retries: u64,
    /// The failure that decided a row that is not finished.
    pub fault: Option<RowFault>,
}

/// A failure, in a line.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFault {
    /// Whose fault.
    pub class: FaultClass,
    /// What happened.
    pub message: String,
}
