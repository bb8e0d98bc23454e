//! What the store promises: a finished rollout is never lost, torn or counted twice, and one run has one writer.
#![allow(clippy::disallowed_methods, reason = "tests prepare files of their own")]

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use futures::{StreamExt, stream};
use proptest::prelude::*;
use rollhouse::{
    config::{Redactor, Secret},
    eval::Plan,
    store::{Index, Journal, JournalFile, Opening, Row, RunDir, RunState, StoreError, compact, read_line, scan},
    trace::{Episode, TaskData, TraceTask},
};
use serde_json::{Value, json};

/// A task of a small taskset.
fn task(index: u64) -> Arc<TraceTask> {
    let hash = Some(format!("{index:032x}{index:032x}"));
    let data = TaskData { idx: Some(index), ..TaskData::default() };
    Arc::new(TraceTask { kind: "NumberTask".to_owned(), data, key: hash.clone(), hash })
}

/// An episode as JSON: finished with a reward, or failed without one.
fn line(id: &str, task: &TraceTask, reward: Option<f64>) -> Value {
    let agent = json!({"config": {}, "name": "agent", "trainable": true});
    let nodes = json!([{"message": {"role": "user", "content": "töt"}},
                       {"parent": 0, "sampled": true, "message": {"role": "assistant", "content": "done"}}]);
    let fault = json!({"type": "ProviderError", "message": "the endpoint answered 503", "status_code": 503});
    let (rewards, errors) = match reward {
        Some(score) => (json!({"exact": {"score": score, "weight": 1.0}}), json!([])),
        None => (json!({}), json!([fault])),
    };
    json!({
        "id": id, "env": {"id": "numbers"}, "task": task, "ok": reward.is_some(), "errors": [], "unknown": {"kept": true},
        "traces": [{
            "id": id, "task": task, "agent": agent, "nodes": nodes, "rewards": rewards, "errors": errors,
            "ok": reward.is_some(), "is_completed": true, "stop_condition": "agent_completed",
        }],
    })
}

fn episode(id: &str, task: &TraceTask, reward: Option<f64>) -> Episode {
    serde_json::from_str(&line(id, task, reward).to_string()).unwrap()
}

fn rows(path: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    scan(path, |row| rows.push(row)).unwrap();
    rows
}

fn journal_of(folder: &Path, lines: &[String]) -> PathBuf {
    let path = folder.join("traces.jsonl");
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    path
}

/// Runs a plan over `tasks` tasks to its end and returns task index to missing episodes, the counts and what is left over.
fn missing(path: &Path, tasks: u64, num_rollouts: u32) -> (BTreeMap<u64, u32>, rollhouse::eval::PlanCounts, usize) {
    let index = Index::open(path, &path.with_file_name("pending.jsonl")).unwrap();
    let tasks = stream::iter((0..tasks).map(|index| Ok(task(index)))).boxed();
    let mut plan = Plan::new(tasks, num_rollouts, index);
    let mut missing = BTreeMap::new();
    futures::executor::block_on(async {
        while let Some(assignment) = plan.next().await {
            let assignment = assignment.unwrap();
            missing.insert(assignment.task.data.idx.unwrap(), assignment.missing);
        }
    });
    let counts = plan.counts();
    (missing, counts, plan.leftovers().unwrap().len())
}

#[tokio::test]
async fn appended_lines_are_whole_episodes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traces.jsonl");
    let journal = Journal::open(&path, Redactor::default()).unwrap();
    let first = journal.append(episode("a", &task(0), Some(0.5))).await.unwrap();
    // Acknowledged means written, not merely queued.
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.ends_with('\n') && written.lines().count() == 1);
    let second = journal.append(episode("b", &task(1), None)).await.unwrap();
    journal.close().await.unwrap();

    let rows = rows(&path);
    assert_eq!([rows[0].span, rows[1].span], [first, second]);
    assert_eq!((rows[0].finished, rows[0].reward, rows[0].turns, rows[0].task_idx), (true, 0.5, 1, Some(0)));
    assert_eq!(rows[1].fault.as_ref().unwrap().message, "the endpoint answered 503");
    assert!(!rows[1].finished);
    let text = read_line(&path, second).unwrap();
    assert_eq!(serde_json::from_str::<Episode>(&text).unwrap().id, "b");
}

#[tokio::test]
async fn secrets_are_taken_out_before_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traces.jsonl");
    let redactor = Redactor::new(&[Secret::new("an agent key".to_owned())]);
    let journal = Journal::open(&path, redactor).unwrap();
    let mut written = episode("a", &task(0), Some(1.0));
    written.env.name = Some("with an agent key in it".to_owned());
    journal.append(written).await.unwrap();
    journal.close().await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("with [redacted] in it") && !text.contains("agent key"));
    assert_eq!(rows(&path).len(), 1);
}

#[tokio::test]
async fn a_line_cut_at_any_byte_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [line("a", &task(0), Some(1.0)).to_string(), line("b", &task(1), Some(0.0)).to_string()];
    let path = journal_of(folder.path(), &lines);
    let whole = fs::read(&path).unwrap();
    let second = lines[0].len() + 1;
    for length in second..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let index = Index::open(&path, &path.with_file_name("pending.jsonl")).unwrap();
        // All but the line feed is a whole episode; anything shorter is torn.
        let finished = if length >= whole.len() - 1 { 2 } else { 1 };
        assert_eq!(index.finished(), finished, "cut at {length}");
        let expected = if finished == 2 { &whole[..] } else { &whole[..second] };
        assert_eq!(fs::read(&path).unwrap(), expected, "cut at {length}");
    }
    // A new writer mends the end too.
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let journal = Journal::open(&path, Redactor::default()).unwrap();
    journal.append(episode("c", &task(1), Some(1.0))).await.unwrap();
    journal.close().await.unwrap();
    let ids: Vec<String> = rows(&path).into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["a", "c"]);
}

#[test]
fn resume_keeps_finished_lines_byte_for_byte_and_drops_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut null_score = line("null", &task(2), Some(1.0));
    null_score["traces"][0]["rewards"]["exact"]["score"] = Value::Null;
    let mut never_scored = line("never", &task(2), Some(1.0));
    never_scored["traces"][0]["rewards"]["exact"] = Value::Null;
    let mut without_traces = line("without", &task(2), Some(1.0));
    without_traces.as_object_mut().unwrap().remove("traces");
    let mut truncated = line("truncated", &task(1), Some(0.0));
    truncated["traces"][0]["stop_condition"] = json!("max_turns");
    let lines = [
        line("failed", &task(0), None).to_string(),
        line("a", &task(0), Some(1.0)).to_string(),
        String::new(),
        "not json".to_owned(),
        line("a", &task(0), Some(0.0)).to_string(),
        null_score.to_string(),
        never_scored.to_string(),
        without_traces.to_string(),
        truncated.to_string(),
    ];
    let path = journal_of(folder.path(), &lines);
    // What only lacks scores is not redone.
    assert_eq!(missing(&path, 3, 2).0, BTreeMap::from([(0, 1), (1, 1), (2, 0)]));
    let pending = fs::read_to_string(path.with_file_name("pending.jsonl")).unwrap();
    assert_eq!(pending.lines().collect::<Vec<_>>(), [&lines[5], &lines[6]]);
    let kept = fs::read_to_string(&path).unwrap();
    let kept: Vec<&str> = kept.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(kept, [&lines[4], &lines[8]], "of two lines of one episode the last");
    assert!(rows(&path)[1].truncated);
}

fn open(path: &Path) -> Index {
    Index::open(path, &path.with_file_name("pending.jsonl")).unwrap()
}

/// A finished episode of a group is written anew when the group grows; the run may die before the old line is taken out.
#[test]
fn the_last_finished_line_of_an_episode_stays() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [("a", 0.25), ("b", 0.5), ("a", 1.0)].map(|(id, reward)| line(id, &task(0), Some(reward)).to_string());
    let path = journal_of(folder.path(), &lines);
    let mut index = open(&path);
    assert_eq!((index.finished(), index.reward()), (2, 1.5));
    let kept = [index.take(rows(&path)[0].task), index.take(rows(&path)[0].task)];
    assert_eq!(kept.map(|span| read_line(&path, span.unwrap()).unwrap()), [lines[1].clone(), lines[2].clone()]);
}

#[test]
fn a_failure_in_scoring_costs_no_agents_work_and_any_other_does() {
    let folder = tempfile::tempdir().unwrap();
    let with = |id: &str, stop: &str, classes: &[&str]| {
        let mut line = line(id, &task(0), None);
        let errors = classes.iter().map(|class| json!({"type": class, "message": "no"})).collect::<Vec<_>>();
        line["traces"][0]["errors"] = errors.into();
        line["traces"][0]["stop_condition"] = stop.into();
        line
    };
    let mut grouped = line("group", &task(0), Some(1.0));
    grouped["ok"] = false.into();
    grouped["errors"] = json!([{"type": "ScoringError", "message": "group reward `best`: no"}]);
    let mut unsaid = line("unsaid", &task(0), Some(1.0));
    unsaid["ok"] = false.into();
    let lines = [
        with("judge", "agent_completed", &["JudgeError"]),
        with("retried", "max_turns", &["ProviderError", "ScoringError"]),
        grouped,
        with("provider", "provider_error", &["ProviderError"]),
        with("finalize", "agent_completed", &["TaskError"]),
        with("user", "judge_error", &["JudgeError"]),
        with("later", "agent_completed", &["ScoringError", "ProviderError"]),
        unsaid,
    ]
    .map(|line| line.to_string());
    let path = journal_of(folder.path(), &lines);
    let pending = path.with_file_name("pending.jsonl");
    for _ in 0..2 {
        let index = open(&path);
        assert_eq!((index.finished(), index.pending()), (0, 3));
        let text = fs::read_to_string(&pending).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), lines[..3].iter().collect::<Vec<_>>());
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }
}

#[test]
fn pending_episodes_are_thinned_out_and_a_file_of_none_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal_of(folder.path(), &[line("a", &task(0), Some(1.0)).to_string()]);
    let pending = path.with_file_name("pending.jsonl");
    let waits = |id: &str, part: &str| {
        let mut waits = line(id, &task(0), Some(1.0));
        waits["part"] = part.into();
        waits.to_string()
    };
    let lines = [waits("a", "old"), waits("b", "played"), waits("c", "played"), waits("b", "scored")];
    fs::write(&pending, format!("{}\nhalf a li", lines.join("\n"))).unwrap();
    let mut index = open(&path);
    let spans = [index.take_pending(rows(&path)[0].task), index.take_pending(rows(&path)[0].task)];
    assert_eq!(spans.map(|span| read_line(&pending, span.unwrap()).unwrap()), [lines[2].clone(), lines[3].clone()]);
    assert_eq!(fs::read_to_string(&pending).unwrap(), format!("{}\n{}\n", lines[2], lines[3]));
    fs::write(&pending, format!("{}\n", lines[0])).unwrap();
    assert_eq!((open(&path).pending(), pending.exists()), (0, false));
}

#[test]
fn a_run_with_pending_episodes_is_not_begun_afresh() {
    let folder = tempfile::tempdir().unwrap();
    drop(RunDir::open(folder.path(), Path::new("run"), Opening::Fresh).unwrap());
    fs::write(folder.path().join("run/pending.jsonl"), "{}\n").unwrap();
    let refused = RunDir::open(folder.path(), Path::new("run"), Opening::Fresh).unwrap_err();
    assert!(matches!(refused, StoreError::NotEmpty { .. }), "{refused}");
    drop(RunDir::open(folder.path(), Path::new("run"), Opening::Clean).unwrap());
    assert!(!folder.path().join("run/pending.jsonl").exists());
}

#[test]
fn a_journal_of_finished_lines_is_not_rewritten() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> =
        (0..3).map(|index| line(&index.to_string(), &task(index), Some(1.0)).to_string()).collect();
    let path = journal_of(folder.path(), &lines);
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(missing(&path, 4, 1).0, BTreeMap::from([(3, 1)]));
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}

#[test]
fn surplus_and_unselected_rows_are_left_over() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = [0, 0, 0, 7, 1]
        .iter()
        .enumerate()
        .map(|(id, index)| line(&id.to_string(), &task(*index), Some(1.0)).to_string())
        .collect();
    let path = journal_of(folder.path(), &lines);
    let index = Index::open(&path, &path.with_file_name("pending.jsonl")).unwrap();
    let tasks = stream::iter((0..2).map(|index| Ok(task(index)))).boxed();
    let mut plan = Plan::new(tasks, 2, index);
    let assignment = futures::executor::block_on(plan.next()).unwrap().unwrap();
    assert_eq!((assignment.position, assignment.missing), (1, 1));
    assert!(futures::executor::block_on(plan.next()).is_none());
    let leftovers = plan.leftovers().unwrap();
    compact(&path, &leftovers).unwrap();
    let ids: Vec<String> = rows(&path).into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["0", "1", "4"]);
}

#[tokio::test]
async fn leftovers_are_removed_while_others_append() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal_of(folder.path(), &[line("old", &task(9), Some(1.0)).to_string()]);
    let old = rows(&path)[0].span;
    let journal = Journal::open(&path, Redactor::default()).unwrap();
    journal.append(episode("a", &task(0), Some(1.0))).await.unwrap();
    journal.remove(vec![old]).await.unwrap();
    let span = journal.append(episode("b", &task(1), Some(1.0))).await.unwrap();
    journal.close().await.unwrap();
    let rows = rows(&path);
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(rows[1].span, span);
}

#[test]
fn figures_are_those_of_the_peer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/verifiers/traces");
    let derived: Value = serde_json::from_slice(&fs::read(folder.join("derived.json")).unwrap()).unwrap();
    let rows = rows(&folder.join("traces.jsonl"));
    let expected = derived["lines"].as_array().unwrap();
    assert_eq!(rows.len(), expected.len());
    for (row, expected) in rows.iter().zip(expected) {
        let episode = &expected["episode"];
        let trace = &expected["traces"][0];
        assert_eq!(json!(row.id), episode["id"]);
        assert_eq!(json!(row.finished), episode["ok"]);
        assert_eq!(json!(row.turns), episode["num_turns"], "{}", row.id);
        assert_eq!(json!(row.usage.new_input_tokens), episode["num_input_tokens"], "{}", row.id);
        // The peer counts a call on a shared prefix once for every branch; what an endpoint sampled, it sampled once.
        let usage = |key: &str| trace["usage"][key].as_u64().unwrap_or(0);
        assert_eq!(row.usage.output_tokens, usage("completion_tokens"), "{}", row.id);
        assert_eq!(row.usage.input_tokens, usage("prompt_tokens") + usage("cached_input_tokens"), "{}", row.id);
        assert_eq!(json!(row.truncated), trace["is_truncated"]);
        assert_eq!(Some(row.reward), trace["reward"].as_f64());
    }
}

/// A file on a disk with so many bytes left; a write beyond is cut short, as the kernel does it.
struct SmallDisk {
    content: Arc<Mutex<Vec<u8>>>,
    capacity: usize,
}

impl JournalFile for SmallDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        let room = self.capacity - content.len();
        content.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.content.lock().unwrap().truncate(length as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_full_disk_stops_the_journal_with_nothing_torn() {
    let content = Arc::new(Mutex::new(Vec::new()));
    let disk = SmallDisk { content: Arc::clone(&content), capacity: 2_000 };
    let journal = Journal::over(Path::new("traces.jsonl"), Box::new(disk), 0, Redactor::default()).unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match journal.append(episode(&acknowledged.to_string(), &task(acknowledged), Some(1.0))).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("free some space, then resume the run"), "{error}");
    assert!(acknowledged > 0);
    // What would have fitted is refused as well: the run is to stop.
    let later = journal.append(episode("later", &task(0), Some(1.0))).await.unwrap_err();
    assert!(matches!(later, StoreError::JournalFailed { .. }), "{later}");
    journal.close().await.unwrap();
    let content = content.lock().unwrap();
    assert_eq!(content.last(), Some(&b'\n'));
    assert_eq!(content.iter().filter(|byte| **byte == b'\n').count() as u64, acknowledged);
}

#[tokio::test]
async fn lines_that_are_written_together_are_kept_as_far_as_they_fit() {
    let content = Arc::new(Mutex::new(Vec::new()));
    let disk = SmallDisk { content: Arc::clone(&content), capacity: 20_000 };
    let journal = Journal::over(Path::new("traces.jsonl"), Box::new(disk), 0, Redactor::default()).unwrap();
    let appends = (0..100).map(|id| journal.append(episode(&id.to_string(), &task(id), Some(1.0))));
    let spans: Vec<_> = futures::future::join_all(appends).await.into_iter().map_while(Result::ok).collect();
    journal.close().await.unwrap();
    let content = content.lock().unwrap();
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), spans.len());
    for (id, (line, span)) in lines.iter().zip(&spans).enumerate() {
        let text = &content[span.offset as usize..(span.offset + span.length) as usize];
        assert_eq!(text, line.strip_suffix(b"\n").unwrap());
        assert_eq!(serde_json::from_slice::<Episode>(text).unwrap().id, id.to_string());
    }
    let room = 20_000 - content.len();
    assert!(!lines.is_empty() && room < lines[0].len() + 10, "{room} bytes were left for the next line");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_kernel_says_full_the_same_way() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let journal = Journal::over(Path::new("/dev/full"), Box::new(full), 0, Redactor::default()).unwrap();
    let error = journal.append(episode("a", &task(0), Some(1.0))).await.unwrap_err();
    assert!(error.to_string().contains("free some space"), "{error}");
}

#[test]
fn a_run_directory_has_one_writer() {
    let output = tempfile::tempdir().unwrap();
    let run = RunDir::open(output.path(), Path::new("run"), Opening::Fresh).unwrap();
    for opening in [Opening::Fresh, Opening::Clean, Opening::Resume] {
        let error = RunDir::open(output.path(), Path::new("run"), opening).unwrap_err();
        let expected = format!("is in use by process {} on", std::process::id());
        assert!(error.to_string().contains(&expected), "{error}");
    }
    drop(run);
    RunDir::open(output.path(), Path::new("run"), Opening::Resume).unwrap();
}

#[test]
fn a_finished_run_is_not_overwritten_by_chance() {
    let output = tempfile::tempdir().unwrap();
    let open = |opening| RunDir::open(output.path(), Path::new("a/run"), opening);
    let run = open(Opening::Fresh).unwrap();
    fs::write(run.traces(), "{}\n").unwrap();
    fs::create_dir(run.path().join("logs")).unwrap();
    drop(run);
    let error = open(Opening::Fresh).unwrap_err().to_string();
    assert!(error.contains("--resume") && error.contains("--clean"), "{error}");
    drop(open(Opening::Resume).unwrap());
    assert_eq!(fs::read(output.path().join("a/run/traces.jsonl")).unwrap(), b"{}\n");
    let run = open(Opening::Clean).unwrap();
    assert_eq!(fs::read(run.traces()).unwrap(), b"");
    assert!(!run.path().join("logs").exists());
}

#[test]
fn clean_deletes_only_runs_below_the_output_folder() {
    let output = tempfile::tempdir().unwrap();
    let source = output.path().join("src");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("main.rs"), "fn main() {}").unwrap();
    for outside in ["", ".", "..", "../other", "/tmp/elsewhere", "a/../.."] {
        let error = RunDir::open(output.path(), Path::new(outside), Opening::Clean).unwrap_err();
        assert!(matches!(error, StoreError::Outside { .. }), "{outside}: {error}");
    }
    let error = RunDir::open(output.path(), Path::new("src"), Opening::Clean).unwrap_err();
    assert!(matches!(error, StoreError::NotOurs { .. }), "{error}");
    assert!(source.join("main.rs").exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_found_at_once() {
    let output = tempfile::tempdir().unwrap();
    fs::write(output.path().join("outputs"), "a file").unwrap();
    let error = RunDir::open(&output.path().join("outputs"), Path::new("run"), Opening::Fresh).unwrap_err();
    assert!(error.to_string().starts_with("cannot create"), "{error}");
    let error = RunDir::resume(&output.path().join("nothing")).unwrap_err();
    assert!(error.to_string().contains("there is no such folder"), "{error}");
}

#[test]
fn each_launch_has_its_log() {
    let output = tempfile::tempdir().unwrap();
    let run = RunDir::open(output.path(), Path::new("run"), Opening::Fresh).unwrap();
    for number in 1..=3 {
        assert_eq!(run.begin_attempt("eval").unwrap().0, number);
        let latest = fs::read_link(run.path().join("logs/latest")).unwrap();
        assert_eq!(latest, Path::new(&format!("attempt_{number}")));
    }
}

#[test]
fn state_files_carry_a_version() {
    let output = tempfile::tempdir().unwrap();
    let run = RunDir::open(output.path(), Path::new("run"), Opening::Fresh).unwrap();
    assert_eq!(run.load_state().unwrap(), None);
    let golden = include_str!("vectors/run_state_v1.json");
    fs::write(run.path().join("run.json"), golden).unwrap();
    let state: RunState = run.load_state().unwrap().unwrap();
    assert_eq!((state.num_rollouts, state.attempts[0].seconds), (4, 12.5));
    run.save_state(&state).unwrap();
    assert_eq!(fs::read_to_string(run.path().join("run.json")).unwrap(), golden);
    fs::write(run.path().join("run.json"), r#"{"version": 2, "other": true}"#).unwrap();
    let error = run.load_state().unwrap_err().to_string();
    assert!(error.contains("format version 2") && error.contains("newer rollhouse"), "{error}");
}

/// One launch: how many episodes it finishes before it is killed, which of them fail, and where the kill cuts the file.
#[derive(Clone, Debug)]
struct Launch {
    episodes: usize,
    failing: Vec<bool>,
    cut: usize,
}

fn launch() -> impl Strategy<Value = Launch> {
    (0..12_usize, prop::collection::vec(any::<bool>(), 12), 0..900_usize).prop_map(|(episodes, failing, cut)| Launch {
        episodes,
        failing,
        cut,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_finished_is_lost_or_repeated(launches in prop::collection::vec(launch(), 1..6), num_rollouts in 1..4_u32) {
        const TASKS: u64 = 5;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traces.jsonl");
        let mut ids = 0;
        for launch in launches {
            let before: Vec<String> = rows(&path).into_iter().filter(|row| row.finished).map(|row| row.id).collect();
            let (todo, counts, leftovers) = missing(&path, TASKS, num_rollouts);
            let after: Vec<String> = rows(&path).into_iter().map(|row| row.id).collect();
            prop_assert_eq!(&before, &after);
            prop_assert_eq!(leftovers, 0);
            prop_assert_eq!(counts.kept, after.len() as u64);
            let open: u64 = todo.values().map(|missing| u64::from(*missing)).sum();
            prop_assert_eq!(counts.kept + open, counts.planned);
            prop_assert_eq!(counts.planned, TASKS * u64::from(num_rollouts));

            let work = todo.iter().flat_map(|(index, missing)| std::iter::repeat_n(*index, *missing as usize));
            let mut text = fs::read_to_string(&path).unwrap_or_default();
            let mut acknowledged = text.len();
            let mut last = 0;
            for (index, failing) in work.take(launch.episodes).zip(launch.failing) {
                ids += 1;
                acknowledged = text.len();
                text += &format!("{}\n", line(&ids.to_string(), &task(index), (!failing).then_some(1.0)));
                last = text.len() - acknowledged;
            }
            // The kill comes in the middle of the last line, or of a character.
            let written = (acknowledged + launch.cut).min(acknowledged + last);
            fs::write(&path, &text.as_bytes()[..written]).unwrap();
        }
    }
}
