//! From the words of the command line to a replay: the run, the taskset that scores it, and the place of the result.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::ReplayArgs;
use crate::{
    cli::{
        exit::Failure,
        output,
        taskset::{instructed, open_taskset, weighed},
    },
    config::{Document, EvalConfig, Layer, Tasksets},
    report,
    store::{Opening, RunDir, RunState, STATE_VERSION, SourceRun, saved_config_of, state_of, traces_of},
    taskset::Taskset,
    tasksets,
};

/// Where runs lie.
const OUTPUTS: &str = "outputs";

/// A replay that is asked for, with everything read and checked.
pub(super) struct Request {
    /// The folder of the source.
    pub(super) source: PathBuf,
    /// What scores.
    pub(super) taskset: Arc<dyn Taskset>,
    /// The replay as a run.
    pub(super) state: RunState,
    /// Where it goes.
    pub(super) place: Option<Place>,
    /// Its resolved config.
    pub(super) config: Value,
    /// Deadline of one scoring.
    pub(super) scoring_deadline: Option<Duration>,
}

/// A folder that is not there yet, or holds no run.
pub(super) struct Place {
    parent: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// Makes it and takes its lock.
    pub(super) fn open(&self) -> Result<RunDir, Failure> {
        RunDir::open(&self.parent, &self.folder, Opening::Fresh).map_err(Failure::failed)
    }
}

/// Reads what is asked for.
pub(super) fn read(args: &ReplayArgs) -> Result<Request, Failure> {
    let source = find(&args.run)?;
    let known = state_of(&source).map_err(Failure::failed)?;
    let saved = match saved_config_of(&source) {
        Some(path) => Layer::read(&path).map_err(Failure::usage)?.to_value(),
        None => Value::Null,
    };
    let mut block = match &args.taskset {
        Some(id) => json!({ "id": id }),
        None => stored_block(&saved, &source)?,
    };
    if let (None, None, Some(block)) = (&args.taskset, &known, block.as_object_mut()) {
        fit(block);
    }
    let scoring = ["/env/agent/timeout/scoring", "/scoring_timeout"].iter().find_map(|path| saved.pointer(path));
    let text = |path: &str| saved.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let model = match &known {
        Some(state) => state.model.clone(),
        None => text("/model").or_else(|| text("/env/agent/model")).unwrap_or_else(|| "unknown".to_owned()),
    };
    let base = json!({"model": model, "env": {"taskset": block, "agent": {"timeout": {"scoring": scoring}}}});
    let over = Layer::from_json("--env-args", &args.arguments).map_err(Failure::usage)?.under("env.taskset");
    let mut opened = None;
    let document = Document::new([Layer::from_value(&base), over]);
    let (asked, resolved) =
        EvalConfig::from_document(document, &mut Tasksets(|id, block| opened = open_taskset(id, block)))
            .map_err(Failure::usage)?;
    let mut taskset = match opened {
        Some(Ok(taskset)) => weighed(taskset, &asked.weights)?,
        Some(Err(error)) => return Err(Failure::usage(error)),
        None => return Err(Failure::usage(anyhow::anyhow!("the run names no taskset; name one with `--taskset`"))),
    };
    match &asked.system_prompt {
        // It matters to rows only, and the run may have come from elsewhere.
        Some(file) if !file.is_file() => output::note(&format!(
            "warning: the run's system prompt {} is not there; rows are compared without it",
            file.display()
        )),
        Some(file) => taskset = instructed(taskset, file)?,
        None => {}
    }
    output::warn(&resolved.warnings);

    let source_run = SourceRun {
        run_dir: source.display().to_string(),
        id: known.as_ref().map(|state| state.id.clone()),
        name: known.as_ref().map(|state| state.name.clone()),
    };
    let dump = resolved.dump();
    let taskset_files = dump.pointer("/env/taskset/id").and_then(Value::as_str).map(tasksets::fingerprint);
    let taskset_files = taskset_files.unwrap_or_default();
    let id = uuid::Uuid::new_v4().simple().to_string();
    let (name, place) = place(args, &asked.taskset, &id[..8])?;
    let planned = |path: &str| saved.pointer(path).and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
    let state = RunState {
        version: STATE_VERSION,
        id,
        name: name.clone(),
        taskset: asked.taskset.clone(),
        model,
        simulated: known.as_ref().is_some_and(|state| state.simulated),
        num_rollouts: known.as_ref().map_or_else(|| planned("/num_rollouts").unwrap_or(1), |state| state.num_rollouts),
        tasks: known.and_then(|state| state.tasks),
        taskset_files,
        attempts: Vec::new(),
        source: Some(source_run.clone()),
    };
    let config = json!({
        "taskset": dump.pointer("/env/taskset"),
        "scoring_timeout": dump.pointer("/env/agent/timeout/scoring"),
        "stored_rows": args.stored_rows,
        "max_concurrent": args.max_concurrent,
        "run": { "name": name },
        "model": state.model,
        "num_rollouts": state.num_rollouts,
        "source": source_run,
    });
    let scoring_deadline =
        resolved.key("env.agent.timeout.scoring").and_then(|key| Duration::try_from_secs_f64(key.value.as_f64()?).ok());
    Ok(Request { source, taskset, state, place, config, scoring_deadline })
}

/// The folder of the run.
fn find(run: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(run);
    if path.is_file() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return match traces_of(folder).file_name() == path.file_name() {
            true => Ok(folder.to_owned()),
            false => Err(Failure::usage(anyhow::anyhow!("`{run}` is no run folder and no traces.jsonl"))),
        };
    }
    report::find_run(run, Path::new(OUTPUTS)).map_err(Failure::usage)
}

/// The block of the run's own taskset. A replay has it at the root, as verifiers' replays do.
fn stored_block(saved: &Value, source: &Path) -> Result<Value, Failure> {
    let block = saved.get("taskset").filter(|block| block.is_object()).or_else(|| saved.pointer("/env/taskset"));
    block.filter(|block| block.is_object()).cloned().ok_or_else(|| {
        let problem = "has no resolved config that names its taskset; name one with `--taskset`";
        Failure::usage(anyhow::anyhow!("{} {problem}", source.display()))
    })
}

/// Makes the block of a run of verifiers fit: its tasksets have keys that ours of the same name lack. What is left out
/// and says something is told.
fn fit(block: &mut Map<String, Value>) {
    let id = block.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let keys = EvalConfig::keys(&id, &mut Tasksets(|id, block| drop(open_taskset(id, block))));
    let known: BTreeSet<String> = keys.iter().map(|key| key.path.clone()).collect();
    let mut left_out = Vec::new();
    block.shift_remove("task").filter(says_something).inspect(|_| left_out.push("task".to_owned()));
    block.retain(|key, value| {
        let path = format!("env.taskset.{key}");
        let keep = known.contains(&path) || known.iter().any(|known| known.starts_with(&format!("{path}.")));
        if !keep && says_something(value) {
            left_out.push(key.clone());
        }
        keep
    });
    if !left_out.is_empty() {
        output::note(&format!("warning: left out, as `{id}` has no such keys here: {}", left_out.join(", ")));
    }
}

/// Whether a value is more than the absence of one.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.iter().any(|(key, value)| key != "runtime" && says_something(value)),
        _ => true,
    }
}

/// The replay's name, and its place unless nothing is saved.
fn place(args: &ReplayArgs, label: &str, id: &str) -> Result<(String, Option<Place>), Failure> {
    let (name, place) = match &args.output_dir {
        None => {
            let group = format!("{label}--replay");
            let name = format!("{group}--{id}");
            (name, Place { parent: PathBuf::from(OUTPUTS), folder: Path::new(&group).join(id) })
        }
        Some(folder) => {
            let Some(name) = folder.file_name() else {
                let problem =
                    format!("`{}` names no folder of its own; give one that is not there yet", folder.display());
                return Err(Failure::usage(anyhow::anyhow!(problem)));
            };
            if traces_of(folder).exists() {
                let problem = format!("{} holds a run already; name another folder with `-o`", folder.display());
                return Err(Failure::usage(anyhow::anyhow!(problem)));
            }
            let parent = folder.parent().map(Path::to_owned).unwrap_or_default();
            (name.to_string_lossy().into_owned(), Place { parent, folder: PathBuf::from(name) })
        }
    };
    Ok((name, (!args.no_save).then_some(place)))
}
