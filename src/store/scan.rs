//! A streaming reader of the journal: memory in proportion to the number of lines, never to their size.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::mpsc,
    thread,
};

use indexmap::IndexMap;
use serde::{Deserialize, de::IgnoredAny};

use super::{Fingerprint, Row, RowFault, Span, StoreError, UsageTotals, atomic};
use crate::trace::{Episode, Fault, FaultClass, Trace, Usage, truncates};

/// Bytes of whole lines that one worker parses at a time; longer lines travel alone.
const BATCH: usize = 1 << 20;

/// Parsing is the dear part; two workers keep pace with the disk.
const WORKERS: usize = 2;

/// Batches that wait for a worker, and for their visitor: with none waiting, each would wait for the scheduler instead,
/// which on a busy machine takes longer than the work.
const AHEAD: usize = 4;

/// What a pass over a journal met, beside its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Lines, blank ones included.
    pub lines: u64,
    /// Lines that are no episode, a torn last one included.
    pub malformed: Vec<Span>,
}

/// Reads every line of a journal once, in file order; `visit` sees those that are episodes. A missing file is empty. Only
/// what a [`Row`] needs is checked: message bodies and tokens are skipped as JSON.
pub fn scan(path: &Path, mut visit: impl FnMut(Row)) -> Result<Scan, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scan::default()),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let mut found = Scan::default();
    thread::scope(|scope| {
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for _ in 0..WORKERS {
            let (input, batches) = mpsc::sync_channel::<Batch>(AHEAD);
            let (rows, output) = mpsc::sync_channel(AHEAD);
            inputs.push(input);
            outputs.push(output);
            scope.spawn(move || {
                for batch in batches {
                    if rows.send(batch.parse()).is_err() {
                        return;
                    }
                }
            });
        }
        let reader = scope.spawn(move || read_batches(file, &inputs));
        // Batches went out in turn, so they come back in turn: rows arrive in file order.
        for output in outputs.iter().cycle() {
            let Ok(lines) = output.recv() else { break };
            for (span, row) in lines {
                let line = found.lines;
                found.lines += 1;
                match row {
                    Parsed::Blank => {}
                    Parsed::Malformed => found.malformed.push(span),
                    Parsed::Row(mut row) => {
                        row.line = line;
                        visit(*row);
                    }
                }
            }
        }
        let read = reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        read.map_err(StoreError::io("read", path))
    })?;
    Ok(found)
}

/// Reads one line's text.
pub fn read_line(path: &Path, span: Span) -> Result<String, StoreError> {
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(span.offset))?;
        let mut text = String::new();
        file.take(span.length).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(StoreError::io("read", path))
}

/// Rewrites a journal without some of its lines, atomically; the others stay byte for byte and in order.
pub fn compact(path: &Path, discard: &[Span]) -> Result<(), StoreError> {
    let mut discard = discard.to_vec();
    discard.sort_unstable();
    discard.dedup();
    let mut source = File::open(path).map_err(StoreError::io("read", path))?;
    atomic::replace(path, |target| {
        let mut position = 0;
        for span in &discard {
            copy(&mut source, target, position, span.offset)?;
            position = span.offset + span.length + 1;
        }
        let end = source.metadata()?.len();
        copy(&mut source, target, position, end)
    })
}

fn copy(source: &mut File, target: &mut File, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    source.seek(SeekFrom::Start(from))?;
    let copied = io::copy(&mut Read::by_ref(source).take(to - from), target)?;
    if copied == to - from { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Mends what a killed writer leaves: a torn last line is cut off, a whole one without its line feed gets it. Costs the
/// length of the last line, not of the file. A missing file is fine.
pub(crate) fn mend_tail(path: &Path) -> Result<(), StoreError> {
    let mend = || {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        let start = last_line(&mut file, length)?;
        if start == length {
            return Ok(());
        }
        file.seek(SeekFrom::Start(start))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        if matches!(parse(&tail, Span { offset: start, length: tail.len() as u64 }), Parsed::Row(_)) {
            return file.write_all(b"\n");
        }
        tracing::warn!(path = %path.display(), bytes = tail.len(), "cut off a torn last line");
        file.set_len(start)
    };
    mend().map_err(StoreError::io("mend", path))
}

/// Where the bytes after the last line feed begin.
fn last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut block = vec![0; 64 << 10];
    while end > 0 {
        let size = end.min(block.len() as u64);
        file.seek(SeekFrom::Start(end - size))?;
        let bytes = &mut block[..size as usize];
        file.read_exact(bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(end - size + at as u64 + 1);
        }
        end -= size;
    }
    Ok(0)
}

/// The finished episodes of a journal, by task, for a resumed plan.
#[derive(Debug, Default)]
pub struct Index {
    by_task: HashMap<Fingerprint, VecDeque<Span>>,
    finished: u64,
    reward: f64,
}

impl Index {
    /// Mends the journal's end, indexes its finished episodes and takes every other line out of the file: failed ones,
    /// malformed ones, and repetitions of an episode id, of which the first finished one stays. If all lines are finished
    /// the file is not rewritten.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        mend_tail(path)?;
        let mut kept: Vec<(Fingerprint, Span)> = Vec::new();
        let mut seen = HashSet::new();
        let mut discard = Vec::new();
        let mut reward = 0.0;
        let found = scan(path, |row| {
            if row.finished && seen.insert(Fingerprint::of(&row.id)) {
                reward += row.reward;
                kept.push((row.task, row.span));
            } else {
                discard.push(row.span);
            }
        })?;
        discard.extend(found.malformed);
        discard.sort_unstable();
        if !discard.is_empty() {
            tracing::info!(lines = discard.len(), "taking out lines that are not finished");
            compact(path, &discard)?;
        }
        let mut index = Self { reward, ..Self::default() };
        let mut gone = discard.iter().peekable();
        let mut shift = 0;
        for (task, mut span) in kept {
            while let Some(line) = gone.next_if(|line| line.offset < span.offset) {
                shift += line.length + 1;
            }
            span.offset -= shift;
            index.by_task.entry(task).or_default().push_back(span);
            index.finished += 1;
        }
        Ok(index)
    }

    /// Finished episodes in the journal when it was opened.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// The sum of their rewards.
    pub fn reward(&self) -> f64 {
        self.reward
    }

    /// Gives a finished episode of the task away, the first in the file; `None` when there is none left.
    pub fn take(&mut self, task: Fingerprint) -> Option<Span> {
        self.by_task.get_mut(&task)?.pop_front()
    }

    /// What nobody took, in file order.
    pub fn into_rest(self) -> Vec<Span> {
        let mut rest: Vec<Span> = self.by_task.into_values().flatten().collect();
        rest.sort_unstable();
        rest
    }
}

/// Whole lines of the file.
struct Batch {
    offset: u64,
    bytes: Vec<u8>,
}

enum Parsed {
    Blank,
    Malformed,
    Row(Box<Row>),
}

fn read_batches(file: File, workers: &[mpsc::SyncSender<Batch>]) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(BATCH, file);
    let mut offset = 0;
    for worker in workers.iter().cycle() {
        let mut bytes = Vec::with_capacity(BATCH + (64 << 10));
        while bytes.len() < BATCH {
            if reader.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
        }
        if bytes.is_empty() {
            break;
        }
        let batch = Batch { offset, bytes };
        offset += batch.bytes.len() as u64;
        if worker.send(batch).is_err() {
            break;
        }
    }
    Ok(())
}

impl Batch {
    fn parse(self) -> Vec<(Span, Parsed)> {
        let mut offset = self.offset;
        let mut lines = Vec::new();
        for line in self.bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            let span = Span { offset, length: text.len() as u64 };
            offset += line.len() as u64;
            lines.push((span, parse(text, span)));
        }
        lines
    }
}

fn parse(text: &[u8], span: Span) -> Parsed {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Parsed::Blank;
    }
    let Ok(text) = std::str::from_utf8(text) else { return Parsed::Malformed };
    let Ok(line) = serde_json::from_str::<EpisodeLine<'_>>(text) else { return Parsed::Malformed };
    match line.into_row(span, text) {
        Some(row) => Parsed::Row(Box::new(row)),
        None => Parsed::Malformed,
    }
}

#[derive(Deserialize)]
struct EpisodeLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    task: TaskLine<'a>,
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    errors: Vec<Fault>,
    #[serde(borrow)]
    traces: Vec<TraceLine<'a>>,
}

#[derive(Deserialize)]
struct TaskLine<'a> {
    #[serde(default, borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    hash: Option<Cow<'a, str>>,
    data: DataLine,
}

#[derive(Deserialize)]
struct DataLine {
    #[serde(default)]
    idx: Option<u64>,
}

#[derive(Deserialize)]
struct TraceLine<'a> {
    agent: AgentLine,
    #[serde(default)]
    nodes: Vec<NodeLine>,
    #[serde(default, borrow)]
    calls: Vec<CallLine<'a>>,
    #[serde(default, borrow)]
    rewards: IndexMap<Cow<'a, str>, Option<RewardLine>>,
    #[serde(default, borrow)]
    metrics: IndexMap<Cow<'a, str>, Option<f64>>,
    #[serde(default)]
    ok: bool,
    #[serde(default, borrow)]
    stop_condition: Option<Cow<'a, str>>,
    #[serde(default)]
    is_timeout: bool,
    #[serde(default)]
    info: Option<InfoLine>,
    #[serde(default)]
    errors: Vec<Fault>,
}

#[derive(Deserialize)]
struct InfoLine {
    #[serde(default)]
    context_overflow: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct AgentLine {
    #[serde(default = "yes")]
    trainable: bool,
}

#[derive(Deserialize)]
struct NodeLine {
    #[serde(default)]
    parent: Option<usize>,
    #[serde(default)]
    sampled: bool,
}

#[derive(Deserialize)]
struct CallLine<'a> {
    #[serde(default)]
    node: Option<usize>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct RewardLine {
    // Null is what a score that was not finite becomes in the file.
    score: Option<f64>,
    #[serde(default = "one")]
    weight: f64,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

impl EpisodeLine<'_> {
    fn into_row(self, span: Span, text: &str) -> Option<Row> {
        let hash = match &self.task.hash {
            Some(hash) => hash.to_string(),
            None => rehash(text)?,
        };
        let trainable = self.traces.iter().any(|trace| trace.agent.trainable);
        let counting: Vec<&TraceLine<'_>> =
            self.traces.iter().filter(|trace| trace.agent.trainable || !trainable).collect();
        let traces = counting.len().max(1) as f64;
        let unscored = self.traces.iter().flat_map(TraceLine::unscored).next();
        let finished = self.ok && !self.traces.is_empty() && unscored.is_none();
        let fault = if finished { None } else { Some(self.fault(unscored)) };
        let mut usage = UsageTotals::default();
        self.traces.iter().for_each(|trace| usage.add(&trace.tokens()));
        Some(Row {
            span,
            line: 0,
            id: self.id.to_string(),
            task: Fingerprint::of(&hash),
            task_key: self.task.key.as_ref().map_or(hash, |key| key.to_string()),
            task_idx: self.task.data.idx,
            finished,
            reward: counting.iter().fold(0.0, |sum, trace| sum + trace.reward()) / traces,
            full_reward: counting.iter().fold(0.0, |sum, trace| sum + trace.full_reward()) / traces,
            rewards: counting.iter().flat_map(|trace| trace.raw_scores()).collect(),
            metrics: counting.iter().flat_map(|trace| trace.measured()).collect(),
            turns: self.traces.iter().map(TraceLine::turns).sum(),
            usage,
            truncated: self.traces.iter().any(TraceLine::is_truncated),
            timed_out: self.traces.iter().any(|trace| trace.is_timeout),
            stop_conditions: self.traces.iter().filter_map(TraceLine::stopped_by).map(str::to_owned).collect(),
            retries: self.retries(finished),
            fault,
        })
    }

    fn fault(&self, unscored: Option<String>) -> RowFault {
        let newest = self
            .errors
            .last()
            .or_else(|| self.traces.iter().filter(|trace| !trace.ok).find_map(|trace| trace.errors.last()));
        match (newest, unscored) {
            (Some(fault), _) => RowFault { class: fault.class, message: fault.message.clone() },
            (None, Some(name)) => {
                RowFault { class: FaultClass::Scoring, message: format!("reward `{name}` was due but has no score") }
            }
            (None, None) => RowFault {
                class: FaultClass::Infrastructure,
                message: "the episode is not ok, and no reason was recorded".to_owned(),
            },
        }
    }

    /// Failed calls that were followed by another one, and earlier attempts, whose errors stay in the record.
    fn retries(&self, finished: bool) -> u64 {
        let calls: usize = self.traces.iter().map(TraceLine::retried_calls).sum();
        let errors = self.errors.len() + self.traces.iter().map(|trace| trace.errors.len()).sum::<usize>();
        (calls + if finished { errors } else { errors.saturating_sub(1) }) as u64
    }
}

/// The task hash of a line that has none.
fn rehash(text: &str) -> Option<String> {
    let episode = Episode::from_line(text.as_bytes()).ok()?;
    Some(episode.task.data.hash())
}

impl TraceLine<'_> {
    fn unscored(&self) -> impl Iterator<Item = String> + '_ {
        let scored = |reward: &Option<RewardLine>| reward.as_ref().is_some_and(|reward| reward.score.is_some());
        self.rewards.iter().filter(move |(_, reward)| !scored(reward)).map(|(name, _)| name.to_string())
    }

    fn scored(&self) -> impl Iterator<Item = (&Cow<'_, str>, f64, f64)> {
        self.rewards.iter().filter_map(|(name, reward)| {
            let reward = reward.as_ref()?;
            Some((name, reward.score?, reward.weight))
        })
    }

    fn reward(&self) -> f64 {
        // Not `sum`, whose empty sum is -0.0.
        self.scored().fold(0.0, |sum, (_, score, weight)| sum + score * weight)
    }

    fn full_reward(&self) -> f64 {
        self.scored().fold(0.0, |sum, (_, _, weight)| sum + weight.max(0.0))
    }

    fn raw_scores(&self) -> impl Iterator<Item = (String, f64)> {
        self.scored().map(|(name, score, _)| (name.to_string(), score))
    }

    fn measured(&self) -> impl Iterator<Item = (String, f64)> {
        self.metrics.iter().filter_map(|(name, value)| Some((name.to_string(), (*value)?)))
    }

    fn turns(&self) -> u64 {
        self.nodes.iter().filter(|node| node.sampled).count() as u64
    }

    /// The stop condition, a full context window by its own name: in the trace it is the budget that verifiers knows.
    fn stopped_by(&self) -> Option<&str> {
        let condition = self.stop_condition.as_deref()?;
        let overflow = self.info.as_ref().is_some_and(|info| info.context_overflow.is_some());
        Some(if overflow && truncates(condition) { Trace::CONTEXT_OVERFLOW } else { condition })
    }

    fn is_truncated(&self) -> bool {
        let last = self.calls.iter().rev().find(|call| call.error.is_none());
        self.stop_condition.as_deref().is_some_and(truncates)
            || last.is_some_and(|call| call.finish_reason.as_deref() == Some("length"))
    }

    fn retried_calls(&self) -> usize {
        let last = self.calls.len().saturating_sub(1);
        self.calls.iter().take(last).filter(|call| call.error.is_some()).count()
    }

    /// Tokens of all calls, each once. New input follows verifiers' rule: a call's prompt counts as far as it exceeds the total
    /// of the call before it on its branch.
    fn tokens(&self) -> UsageTotals {
        let mut totals = UsageTotals::default();
        let mut usage_at: Vec<Option<&Usage>> = vec![None; self.nodes.len()];
        for call in &self.calls {
            let Some(usage) = &call.usage else { continue };
            totals.add(&UsageTotals {
                input_tokens: usage.input_tokens(),
                output_tokens: usage.completion_tokens,
                cached_input_tokens: usage.cached_input_tokens.unwrap_or(0),
                new_input_tokens: 0,
            });
            if let Some(slot) = call.node.and_then(|node| usage_at.get_mut(node)) {
                *slot = Some(usage);
            }
        }
        // Parents stand before their children, so one pass carries totals down.
        let mut total_before = vec![0; self.nodes.len()];
        for (node, line) in self.nodes.iter().enumerate() {
            let before = line.parent.filter(|parent| *parent < node).map_or(0, |parent| total_before[parent]);
            total_before[node] = usage_at[node].map_or(before, |usage| {
                let new = usage.input_tokens().saturating_sub(before);
                totals.new_input_tokens = totals.new_input_tokens.saturating_add(new);
                usage.total_tokens()
            });
        }
        totals
    }
}
