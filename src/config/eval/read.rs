//! The layout of an evaluation's configuration, as verifiers 0.4.0 has it, with rollhouse's own keys beside.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::{
    AgentConfig, EvalConfig, RetryRules, ServeConfig,
    aliases::EVAL_ALIASES,
    client::read_client,
    sampling::lay_sampling,
    seat::{Seat, read_retries, read_seat},
    selection::read_select,
    serve::read_serve,
};
use crate::config::{Document, Faults, Grammar, Key, Layer, Parsed, Reader, Resolved, Section, parse_args};

/// More failed rollouts than scored ones: what was scored no longer stands for what was planned. A share of transient
/// failures, even a third, is reported and does not fail the run.
const MAX_ERROR_RATE: f64 = 0.5;
/// Episodes in flight.
const MAX_CONCURRENT: usize = 128;
/// Name of the model where none is asked for and none is served.
pub const SIMULATED_MODEL: &str = "simulator";

/// Reads what the block `env` holds of somebody else's; [`Tasksets`] where that is tasksets alone.
pub trait EnvReader {
    /// Reads what belongs to the taskset of this id, as it was given, from the block `env.taskset`, the judges in
    /// `task.judges` among it; records a fault at `id` where there is no such taskset.
    fn taskset(&mut self, id: &str, block: &mut Section<'_>);

    /// Whether the env with the taskset of this id is of another house. Its block is not read key by key then, but by
    /// [`Self::foreign`].
    fn is_foreign(&mut self, _id: &str, _serve: &ServeConfig) -> bool {
        false
    }

    /// Reads the whole block of an env of another house: takes it as it is ([`Section::whole`]), and tells its faults
    /// ([`Section::fault_within`]) or what it comes to ([`Section::resolve_whole`]), which it hands back, too.
    fn foreign(&mut self, _id: &str, _serve: &ServeConfig, env: &mut Section<'_>) -> Value {
        Value::Object(env.whole())
    }

    /// Names the keys of such a block that are known before it is read, so that their flags can be told apart.
    fn foreign_keys(&mut self, _id: &str, _serve: &ServeConfig, env: &mut Section<'_>) {
        env.whole();
    }
}

/// What a document is read for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// What it comes to.
    Values,
    /// Which keys there are.
    Keys,
}

/// Reads tasksets, and knows no env of another house.
pub struct Tasksets<F: FnMut(&str, &mut Section<'_>)>(pub F);

impl<F: FnMut(&str, &mut Section<'_>)> EnvReader for Tasksets<F> {
    fn taskset(&mut self, id: &str, block: &mut Section<'_>) {
        (self.0)(id, block);
    }
}

impl EvalConfig {
    /// Reads the whole document; `reader` reads what of it belongs to the env and its taskset.
    pub fn read(root: &mut Section<'_>, reader: &mut impl EnvReader) -> Self {
        Self::read_for(Purpose::Values, root, reader)
    }

    fn read_for(purpose: Purpose, root: &mut Section<'_>, reader: &mut impl EnvReader) -> Self {
        let model: Option<String> =
            root.doc("Model name sent to the endpoint; required once client.base_url is given").get("model");
        let num_rollouts = root.doc("Episodes per task").get_in("num_rollouts", 1.., 1_u32);
        let max_concurrent = root.doc("Episodes in flight").limit_in("max_concurrent", 1.., Some(MAX_CONCURRENT));
        let max_error_rate = root
            .doc("Share of failed rollouts above which the run fails; more than half by default")
            .get_in("max_error_rate", 0.0..=1.0, MAX_ERROR_RATE);
        let output_dir = root.doc("Parent of the run directory").get_or("output_dir", PathBuf::from("outputs"));
        let mut run = root.child("run");
        let run_name: Option<String> = run.doc("Name of the run; generated when absent").get("name");
        let run_dir: Option<PathBuf> =
            run.doc("Directory of the run below output_dir; the name when absent").get("dir");
        check_place(&mut run, "name", run_name.as_deref().map(Path::new));
        check_place(&mut run, "dir", run_dir.as_deref());
        if run.doc("Run on the Prime platform to add to; has no effect").get::<String>("attach").is_some() {
            run.warn("attach", "has no effect: rollhouse uploads nothing");
        }
        let verbose = root.doc("Debug logs").get_or("verbose", false);
        if root.doc("Upload to the Prime platform; has no effect").get_or("push", false) {
            root.warn("push", "has no effect: rollhouse uploads nothing");
        }
        read_rich(root);
        let client = read_client(&mut root.child("client"));
        let mut sampling = Map::new();
        lay_sampling(&mut root.child("sampling"), true, &mut sampling);
        let select = read_select(&mut root.child("select"));
        let serve = read_serve(&mut root.child("serve"), purpose);
        for (key, hint) in MOVED {
            root.moved(key, hint);
        }

        let mut env = root.child("env");
        let id = env.text_at(&["taskset", "id"]).unwrap_or_default();
        let foreign = !id.is_empty() && reader.is_foreign(&id, &serve);
        let block = match purpose {
            Purpose::Keys if foreign => {
                reader.foreign_keys(&id, &serve, &mut env);
                EnvBlock::default()
            }
            Purpose::Values if foreign => {
                let resolved = reader.foreign(&id, &serve, &mut env);
                EnvBlock::foreign(&id, &resolved)
            }
            _ => read_env(&mut env, &mut sampling, reader),
        };
        let EnvBlock { label, system_prompt, weights, episode_deadline, retries, seat } = block;
        sampling.retain(|_, value| !value.is_null());

        let client = seat.client.or(client);
        let model = seat.model.or(model);
        if model.is_none() && client.is_some() {
            root.fault_hint("model", "missing", "name a model of the endpoint with `-m` or `model`");
        }
        Self {
            taskset: label,
            system_prompt,
            weights,
            model: model.unwrap_or_else(|| SIMULATED_MODEL.to_owned()),
            client,
            sampling,
            select,
            num_rollouts,
            max_concurrent,
            agent: AgentConfig {
                harness: seat.harness,
                limits: seat.limits,
                deadlines: seat.deadlines,
                retries: seat.retries,
            },
            episode_deadline,
            retries,
            max_error_rate,
            output_dir,
            run_name,
            run_dir,
            verbose,
            serve,
            foreign,
        }
    }

    /// Reads a document to its end: the values and the resolved configuration.
    ///
    /// # Errors
    /// All faults of all layers.
    pub fn from_document(document: Document, reader: &mut impl EnvReader) -> Result<(Self, Resolved), Faults> {
        let mut document = Reader::new(document);
        let config = Self::read(&mut document.root(), reader);
        document.finish().map(|resolved| (config, resolved))
    }

    /// Takes a command line apart, reads the files it names and the flags, lays them over `base` (the configuration of a run
    /// that is resumed), and resolves them. `reader` is asked more than once: the keys of the taskset that the first pass
    /// finds tell its flags with and without value apart.
    ///
    /// # Errors
    /// All faults of the command line, or else all faults of the files and values.
    pub fn from_args(
        args: &[String],
        base: Option<Layer>,
        reader: &mut impl EnvReader,
    ) -> Result<(Self, Resolved, Parsed), Faults> {
        Self::from_words(args, base, std::convert::identity, reader)
    }

    /// The same for a server of an env, whose files may also be the env's block itself, as prime-rl has them: what stands in
    /// such a file beside `serve` belongs to `env`.
    ///
    /// # Errors
    /// As [`Self::from_args`].
    pub fn from_env_args(args: &[String], reader: &mut impl EnvReader) -> Result<(Self, Resolved, Parsed), Faults> {
        Self::from_words(args, None, Layer::env_in_place, reader)
    }

    fn from_words(
        args: &[String],
        base: Option<Layer>,
        placed: fn(Layer) -> Layer,
        reader: &mut impl EnvReader,
    ) -> Result<(Self, Resolved, Parsed), Faults> {
        let mut parsed = parse_args(args, &Self::grammar("", &mut Tasksets(|_, _| {})))?;
        let layers = |parsed: &Parsed| Document::new(base.iter().chain(&parsed.layers).cloned().map(placed));
        let given = layers(&parsed);
        if given.root.to_value()["env"]["taskset"]["id"].as_str().is_some_and(|id| !id.is_empty()) {
            let known = given.keep(&["serve", "env.id", "env.taskset"]);
            parsed = parse_args(args, &Self::grammar_of(known, reader))?;
        }
        let (config, resolved) = Self::from_document(layers(&parsed), reader)?;
        Ok((config, resolved, parsed))
    }

    /// The flags of `rollhouse eval` for a taskset; without an id, flags below `env.taskset` take all words that follow.
    #[must_use]
    pub fn grammar(id: &str, reader: &mut impl EnvReader) -> Grammar {
        Self::grammar_of(named(id), reader)
    }

    /// The flags for a taskset with its block as far as it is known: which keys it has may depend on it.
    fn grammar_of(known: Document, reader: &mut impl EnvReader) -> Grammar {
        // The seat's own endpoint is read when it is given; its flags are known in any case.
        let seat = Layer::from_value(&json!({"env": {"agent": {"client": {}, "sampling": {}}}}));
        let keys = keys_of(Document::new([Layer { root: known.root }, seat]), reader);
        Grammar::new(EVAL_ALIASES.iter().copied(), &keys).with_positional("env.taskset.id")
    }

    /// Every key with its default and meaning for what a command line has named so far: a taskset, an interpreter.
    #[must_use]
    pub fn keys_of(parsed: &Parsed, reader: &mut impl EnvReader) -> Vec<Key> {
        let given = Document::new(parsed.layers.iter().cloned().map(Layer::env_in_place));
        keys_of(given.keep(&["serve", "env.id", "env.taskset"]), reader)
    }

    /// Every key with its default and meaning, for `--help`; without an id, none of a taskset.
    #[must_use]
    pub fn keys(id: &str, reader: &mut impl EnvReader) -> Vec<Key> {
        keys_of(named(id), reader)
    }
}

/// A document that names a taskset and says nothing else.
fn named(id: &str) -> Document {
    Document::new([Layer::from_value(&json!({"env": {"taskset": {"id": id}}}))])
}

fn keys_of(document: Document, reader: &mut impl EnvReader) -> Vec<Key> {
    let mut document = Reader::new(document);
    EvalConfig::read_for(Purpose::Keys, &mut document.root(), reader);
    document.keys().cloned().collect()
}

/// Keys of other generations at the root, and where they went.
const MOVED: &[(&str, &str)] = &[
    ("env_id", "write `env.taskset.id`"),
    ("env_args", "write the taskset's fields below `env.taskset`"),
    ("num_examples", "write `select.limit`"),
    ("rollouts_per_example", "write `num_rollouts`"),
    ("group_size", "write `num_rollouts`"),
    ("api_base_url", "write `client.base_url`"),
    ("sampling_args", "write `sampling`"),
    ("shuffle_seed", "write `select.seed`"),
    ("save_results", "results are always saved; leave it out"),
];

/// The run directory lies below the output directory, so that `--clean` can delete nothing else.
fn check_place(run: &mut Section<'_>, key: &str, place: Option<&Path>) {
    let Some(place) = place else { return };
    let inside = place.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || place.as_os_str().is_empty() {
        run.fault(key, "leaves the output directory; expected a relative path without `..`");
    }
}

fn read_rich(root: &mut Section<'_>) {
    let rich =
        root.doc("The live display of verifiers; has no effect").value("rich", Value::Null, "true, false or a table");
    match &rich {
        Value::Null | Value::Bool(_) => {}
        Value::Object(table) => {
            let known = table.iter().all(|(key, value)| key == "show_logs" && value.is_boolean());
            if !known {
                root.fault("rich", "unknown content; expected `show_logs = true` or `false`");
            } else if table.values().any(|value| *value == Value::Bool(true)) {
                root.warn("rich", "has no effect: the display of rollhouse follows the terminal");
            }
        }
        _ => root.fault("rich", "wrong type; expected true, false or a table"),
    }
}

/// What is read of the block `env`.
#[derive(Default)]
struct EnvBlock {
    label: String,
    system_prompt: Option<PathBuf>,
    weights: BTreeMap<String, f64>,
    episode_deadline: Option<Duration>,
    retries: RetryRules,
    seat: Seat,
}

impl EnvBlock {
    /// An env of another house: only what runs call it, which is the env's own name before that of its taskset.
    fn foreign(id: &str, resolved: &Value) -> Self {
        let taskset = taskset_label(id);
        let label = match resolved["id"].as_str() {
            None | Some("") => taskset,
            Some(env) => format!("{}+{taskset}", taskset_label(env)),
        };
        let harness = resolved["agent"]["harness"]["id"].as_str().unwrap_or("default").to_owned();
        Self { label, seat: Seat { harness, ..Seat::default() }, ..Self::default() }
    }
}

fn read_env(env: &mut Section<'_>, sampling: &mut Map<String, Value>, reader: &mut impl EnvReader) -> EnvBlock {
    let TasksetBlock { label, system_prompt, weights } = read_taskset(env, reader);
    read_env_id(env);
    let mut timeout = env.child("timeout");
    let episode_deadline = timeout.doc("Seconds for a whole episode, teardown included").duration("episode", None);
    if timeout.doc("Seconds for the env's own finish; has no effect").duration("finalize", None).is_some() {
        timeout.warn("finalize", "has no effect: the single-agent env has no finish of its own");
    }
    let retries = read_retries(&mut env.child("retries"));
    let agents = env.doc("Agents of one episode at once").limit_in("max_concurrent_agents", 1.., Some(1_u64));
    if agents.is_some_and(|agents| agents > 1) {
        env.warn("max_concurrent_agents", "has no effect: the single-agent env has one agent");
    }
    read_interception(&mut env.child("interception"));
    env.moved("harness", "the harness belongs to the agent: `env.agent.harness`");
    let seat = read_seat(&mut env.child("agent"), sampling);
    EnvBlock { label, system_prompt, weights, episode_deadline, retries, seat }
}

/// What is read of the block `env.taskset` beside the taskset's own keys.
struct TasksetBlock {
    label: String,
    system_prompt: Option<PathBuf>,
    weights: BTreeMap<String, f64>,
}

fn read_taskset(env: &mut Section<'_>, reader: &mut impl EnvReader) -> TasksetBlock {
    let mut block = env.child("taskset");
    let id: String = block.doc("Taskset; the first argument is short for it").get("id").unwrap_or_default();
    if id.is_empty() {
        block.fault_hint("id", "missing", "name a taskset as the first argument or with `env.taskset.id`");
    }
    let system_prompt =
        block.doc("File whose text takes the place of every task's system prompt").get::<PathBuf>("system_prompt");
    let mut task = block.child("task");
    let weights = read_weights(&mut task);
    for key in ["stops", "metrics"] {
        let value =
            task.doc("Overrides of the task's own scoring; not supported yet").value(key, json!({}), "a table of keys");
        if !value.is_null() && !value.is_object() {
            task.fault(key, "wrong type; expected a table of keys");
        } else if value.as_object().is_some_and(|table| !table.is_empty()) {
            task.fault(key, "not supported yet: rollhouse scores a task with the rubric of its taskset; leave it out");
        }
    }
    reader.taskset(&id, &mut block);
    if id.is_empty() {
        // Its keys cannot be judged before it has a name.
        block.accept_rest();
    }
    TasksetBlock { label: taskset_label(&id), system_prompt, weights }
}

/// The weights given to rewards of the taskset, by name; whether it has them is for its opener to say.
fn read_weights(task: &mut Section<'_>) -> BTreeMap<String, f64> {
    let given = task.doc("Other weights for rewards of the taskset: `rewards.NAME.weight`").open("rewards");
    let mut weights = BTreeMap::new();
    for (name, entry) in given {
        let Value::Object(entry) = entry else {
            task.fault_below("rewards", &name, "wrong type", format!("write `rewards.{name}.weight = 0.5`"));
            continue;
        };
        for (key, value) in entry {
            let problem = match (key.as_str(), value.as_f64()) {
                (_, None) if value.is_null() => continue,
                ("weight", Some(weight)) if weight.is_finite() => {
                    weights.insert(name.clone(), weight);
                    continue;
                }
                ("weight", _) => "wrong type; expected a number",
                ("fn" | "priority", _) => {
                    "not supported: a reward belongs to its taskset; only its `weight` can be set"
                }
                _ => "unknown key; expected `weight`",
            };
            task.fault_below("rewards", &name, format!("`{key}`: {problem}"), "leave it out or set `weight`");
        }
    }
    weights
}

/// Families of tasksets, which stand before the slash and are part of the name.
const FAMILIES: &[&str] = &["reasoning-gym"];

/// What runs call a taskset: `owner/name@version` without owner and version, but with the family where the owner is one
/// (`reasoning-gym/leg_counting` is `reasoning-gym-leg-counting`); a path by its last part, without `.toml` or `.py`, or by
/// the folder where that is `taskset.toml` or `taskset.py`; in kebab case.
#[must_use]
pub fn taskset_label(id: &str) -> String {
    if let Some((family, name)) = id.split_once('/')
        && FAMILIES.contains(&kebab(family).as_str())
    {
        return kebab(&format!("{family}-{name}"));
    }
    let path = Path::new(id);
    let path = match path.file_name().and_then(|name| name.to_str()) {
        Some("taskset.toml" | "taskset.py") => path.parent().filter(|folder| !folder.as_os_str().is_empty()),
        _ => Some(path),
    };
    let path = path.unwrap_or(Path::new("."));
    // `.` and `..` are named after the folder they stand for.
    let whole = if path.file_name().is_none() && !id.is_empty() { path.canonicalize().ok() } else { None };
    let name = whole.as_deref().unwrap_or(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.split('@').next().unwrap_or_default();
    let name = name.strip_suffix(".toml").or_else(|| name.strip_suffix(".py")).unwrap_or(name);
    kebab(name)
}

fn kebab(name: &str) -> String {
    name.to_lowercase().replace(['_', ' '], "-")
}

fn read_env_id(env: &mut Section<'_>) {
    let id: String =
        env.doc("Env class; rollhouse has the single-agent env, which stands for no id").get_or("id", String::new());
    if !id.is_empty() && taskset_label(&id) != "single-agent" {
        env.fault("id", format!("the env `{id}` is not supported yet; expected \"\", the single-agent env"));
    }
}

fn read_interception(block: &mut Section<'_>) {
    let kinds = [("elastic", 0), ("server", 1), ("static", 2)];
    let kind = block.doc("How harness programs reach the model; has no effect").choose("type", &kinds, 0);
    let mut changed = kind != 0;
    match kind {
        0 => {
            changed |=
                block.doc("Rollouts per interception server; has no effect").get_in("multiplex", 1.., 32_u64) != 32
        }
        1 => {
            block.open("tunnel");
        }
        _ => {
            block.list("servers", |server| {
                server.get::<String>("type");
                server.open("tunnel");
            });
        }
    }
    if changed {
        block.warn("type", "has no effect: the null harness runs in process and is not intercepted");
    }
}
