//! Opening a script: what it says of itself, its keys, and the taskset that it makes.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::{
    Call, Interpreter, Lane, WorkerSettings, Workers,
    body::Asked,
    description::{Description, Role, docstring_line},
    keys, rows, scoring,
    script::{Answer, Script},
    talk::{ScriptHooks, ScriptUser},
};
use crate::{
    config::{Section, taskset_label},
    rubric::{Rubric, judge::JudgeSpec},
    taskset::{Found, Hooks, TaskStream, Taskset, TasksetError, TasksetSize, User, class::task_class},
    trace::{Fault, FaultClass, Message, TraceTask},
};

/// The module that a script imports.
const MODULE: &str = include_str!("rollhouse.py");
/// How long a call may take where nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(60);

/// As good as none: a year.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Where a script comes from.
#[derive(Clone, Debug)]
pub enum ScriptSource {
    /// A file.
    File(PathBuf),
    /// A text that ships with the program.
    Shipped {
        /// What runs and messages call the taskset.
        name: String,
        /// The script.
        text: &'static str,
        /// Names that stand in the script before it runs.
        globals: Map<String, Value>,
    },
}

/// The taskset of a script, which is not run before it is opened. Its summary is the first line of the docstring, its card
/// the `README.md` beside it.
pub fn found(file: &Path) -> Found {
    let text = fs::read_to_string(file).unwrap_or_default();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let own = |path: &Path| fs::read_to_string(path).ok();
    let card = own(&folder.join("README.md")).unwrap_or_else(|| format!("{}\n", docstring_line(&text)));
    let source = ScriptSource::File(file.to_owned());
    Found {
        id: taskset_label(&file.to_string_lossy()),
        summary: docstring_line(&text).to_owned(),
        card: Cow::Owned(card),
        folder: Some(folder),
        open: Arc::new(move |section| open(&source, section)),
    }
}

/// Opens a script from its block of the configuration: runs it once in a Python of its own to hear what it declares, and
/// reads its keys. No row is read.
///
/// # Errors
/// When there is no interpreter, or the script fails or declares what cannot be.
pub fn open(source: &ScriptSource, section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let settings = Settings::read(section);
    let opened = open_with(source, &settings, section);
    if opened.is_err() {
        // Its own keys are not known; the error says what to change first.
        section.accept_rest();
    }
    opened
}

fn open_with(
    source: &ScriptSource,
    settings: &Settings,
    section: &mut Section<'_>,
) -> Result<Arc<dyn Taskset>, TasksetError> {
    let name = source.name();
    let refused = |problem: String| TasksetError::Source(format!("{name}: {problem}"));
    let (path, folder) = source.place().map_err(|error| refused(error.to_string()))?;
    let mut interpreter = Interpreter::find(settings.python.as_deref(), &folder, &settings.pass_env)
        .map_err(|error| refused(format!("python: {error}")))?;
    // The order of sets, so that rows are the same every time.
    interpreter.environment.push(("PYTHONHASHSEED".into(), "0".into()));
    let workers = |config: &Map<String, Value>| {
        Workers::new(WorkerSettings {
            name: name.clone(),
            interpreter: interpreter.clone(),
            script: path.clone(),
            module: MODULE,
            arguments: source.arguments(config),
            count: settings.workers,
            start_deadline: WorkerSettings::START_DEADLINE,
            memory_limit: settings.memory_mb << 20,
        })
    };
    let content = source.text().map_err(|error| refused(error.to_string()))?;
    let described = describe(&name, &content, &interpreter, &workers).map_err(refused)?;
    let config = keys::read(section, &described.load);
    let workers = workers(&config);
    let script = Arc::new(Script { name, description: described, workers, timeout: settings.timeout });
    let refused = |problem: String| TasksetError::Source(format!("{}: {problem}", script.name));
    let mut rubric = scoring::rubric(&script);
    for judge in &script.description.judges {
        let spec = JudgeSpec::from_json(judge, &folder).map_err(|faults| {
            let name = judge.get("name").and_then(Value::as_str).unwrap_or_default();
            refused(format!("judge({name}): {faults}"))
        })?;
        rubric = rubric.judge(spec.with_config(&config));
    }
    let rubric = rubric.build().map_err(|error| refused(error.to_string()))?;
    Ok(Arc::new(PythonTaskset {
        kind: task_class(&source.label()),
        size: keys::size(&script.description.load, &config),
        hooks: ScriptHooks::of(&script).map(|hooks| Arc::new(hooks) as Arc<dyn Hooks>),
        script,
        rubric,
        passed: settings.pass_env.clone(),
    }))
}

/// The keys that every taskset in Python has.
struct Settings {
    python: Option<PathBuf>,
    workers: usize,
    timeout: Duration,
    memory_mb: u64,
    pass_env: Vec<String>,
}

impl Settings {
    fn read(section: &mut Section<'_>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            python: section
                .doc("Python that runs the taskset: a path, a name on PATH, or the folder of a virtual environment")
                .get("python"),
            workers: section
                .doc("Processes for functions that are not async; one for each processor when absent")
                .limit_in("workers", 1..=1024, None)
                .unwrap_or(processors),
            timeout: section
                .doc("Seconds for a call of a function")
                .duration("timeout", Some(TIMEOUT))
                .unwrap_or(NO_TIMEOUT),
            memory_mb: section.doc("Memory that a process may allocate, in MiB").get_in(
                "memory_mb",
                64..=1 << 24,
                WorkerSettings::MEMORY_LIMIT >> 20,
            ),
            pass_env: section
                .doc("Names of environment variables that the functions may see")
                .get_or("pass_env", Vec::new()),
        }
    }
}

impl ScriptSource {
    /// What messages call it.
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Shipped { name, .. } => name.clone(),
        }
    }

    /// What runs call its taskset.
    fn label(&self) -> String {
        match self {
            Self::File(path) => taskset_label(&path.to_string_lossy()),
            Self::Shipped { name, .. } => name.clone(),
        }
    }

    /// The path by which Python knows it, and the folder where it runs.
    fn place(&self) -> std::io::Result<(PathBuf, PathBuf)> {
        let path = match self {
            Self::File(path) => std::path::absolute(path)?,
            // No file: a name for tracebacks.
            Self::Shipped { name, .. } => std::env::current_dir()?.join(format!("{}.py", name.replace('/', "-"))),
        };
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        Ok((path, folder))
    }

    fn text(&self) -> std::io::Result<Cow<'static, str>> {
        match self {
            Self::File(path) => fs::read_to_string(path).map(Cow::Owned),
            Self::Shipped { text, globals, .. } => Ok(Cow::Owned(format!("{text}{}", Value::from(globals.clone())))),
        }
    }

    fn arguments(&self, config: &Map<String, Value>) -> Value {
        match self {
            Self::File(_) => json!({"config": config}),
            Self::Shipped { text, globals, .. } => json!({"config": config, "source": text, "globals": globals}),
        }
    }
}

/// What a script says of itself, or why it says nothing.
type Described = Result<Arc<Description>, String>;

/// Descriptions of this process: a configuration is read several times, and Python takes long to start. A key is all that
/// a description depends on.
static DESCRIBED: LazyLock<Mutex<HashMap<String, Described>>> = LazyLock::new(Mutex::default);

fn describe(
    name: &str,
    content: &str,
    interpreter: &Interpreter,
    workers: &dyn Fn(&Map<String, Value>) -> Workers,
) -> Described {
    let key = format!("{name}\n{interpreter:?}\n{content}");
    let cache = || DESCRIBED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(described) = cache().get(&key) {
        return described.clone();
    }
    let call = Call { op: "describe", body: b"{}", deadline: WorkerSettings::START_DEADLINE, lane: Lane::Exclusive };
    let described = match workers(&Map::new()).call_blocking::<Answer<Description>>(call) {
        Ok(Answer::Value(description)) => Ok(Arc::new(description)),
        Ok(Answer::Error(error)) => Err(error.in_full()),
        Err(failure) => {
            let fault = failure.into_fault(FaultClass::Task, &interpreter.program.display().to_string());
            Err(std::iter::once(fault.message).chain(fault.causes).collect::<Vec<_>>().join("\n"))
        }
    };
    cache().insert(key, described.clone());
    described
}

/// A taskset whose functions are Python.
struct PythonTaskset {
    kind: String,
    size: TasksetSize,
    script: Arc<Script>,
    rubric: Rubric,
    hooks: Option<Arc<dyn Hooks>>,
    passed: Vec<String>,
}

impl Taskset for PythonTaskset {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        rows::tasks(&self.script, &self.kind, self.size, position)
    }

    fn size(&self) -> TasksetSize {
        self.size
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        ScriptUser::of(&self.script, task).map(|user| Box::new(user) as Box<dyn User>)
    }

    fn passed_variables(&self) -> &[String] {
        &self.passed
    }

    fn hooks(&self) -> Option<Arc<dyn Hooks>> {
        self.hooks.clone()
    }

    fn reference<'a>(
        &'a self,
        task: &'a TraceTask,
        conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(async move {
            let functions = self.script.description.of(Role::Reference);
            if functions.is_empty() {
                return Ok(None);
            }
            let asked = Asked::by(&functions);
            let mut body = asked.of_task(&task.data)?;
            asked.add_conversation(&mut body, &task.data, conversation)?;
            self.script.ask("reference", &functions, &body, FaultClass::Task).await
        })
    }
}
