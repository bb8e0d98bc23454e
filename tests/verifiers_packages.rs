//! Packages of verifiers: found, described, checked, read and served.
#![allow(clippy::disallowed_methods, reason = "tests make folders and processes of their own")]

mod support;
#[path = "support/venv.rs"]
mod venv;

use std::{fs, io::Read as _, os::unix::process::CommandExt as _, path::Path, process, sync::LazyLock, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use rollhouse::{
    runtime::{Child, Program, Signal, Stream},
    serve::{Client, RunRequest},
    sim::{Settings as SimSettings, Simulator},
    taskset::{
        Task, Taskset, TasksetSize,
        verifiers::{BlockFault, BridgeError, Environment, FindError, OpenError, Package, Search},
    },
    trace::Episode,
    zmtp::{Address, Settings},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// An environment with verifiers and the packages of `tests/python/rh_env`; it stays until the process ends.
static VENV: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    venv::with_test_packages(folder.path());
    folder
});

fn search() -> Search {
    Search { python: Some(VENV.path().to_owned()), ..Search::default() }
}

fn find(id: &str) -> Package {
    search().find(id).unwrap_or_else(|error| panic!("{id}: {error}"))
}

fn open(package: &Package, block: &Value) -> Environment {
    package.open(block).unwrap_or_else(|error| panic!("{}: {error}", package.id))
}

fn faults(package: &Package, block: &Value) -> Vec<String> {
    match package.open(block) {
        Err(OpenError::Faults(faults)) => {
            faults.iter().map(|BlockFault { path, problem }| format!("{}: {problem}", path.join("."))).collect()
        }
        Err(OpenError::Bridge(error)) => panic!("{error}"),
        Ok(_) => Vec::new(),
    }
}

fn refused(id: &str) -> BridgeError {
    match find(id).open(&json!({})) {
        Err(OpenError::Bridge(error)) => error,
        Err(OpenError::Faults(faults)) => panic!("{faults:?}"),
        Ok(_) => panic!("{id} opened"),
    }
}

async fn first(environment: &Environment, count: usize) -> Vec<Task> {
    environment.tasks().take(count).try_collect().await.unwrap()
}

#[test]
fn a_package_says_what_it_is() {
    let package = find("owner/Rh_Pair@1.0");
    assert_eq!((package.id.as_str(), package.module.as_str()), ("rh-pair", "rh_pair"));
    let described = package.describe().unwrap();
    assert_eq!(
        described.summary,
        "Two seats at one task: a solver and a critic, and the better of the solver's attempts."
    );
    assert_eq!((described.env.as_str(), described.task.as_str(), described.infinite), ("PairEnv", "SayTask", false));
    let seats: Vec<_> =
        described.seats.iter().map(|seat| (seat.name.as_str(), seat.max_turns, seat.doc.as_str())).collect();
    assert_eq!(
        seats,
        [
            ("solver", None, "Attempts the task."),
            ("critic", Some(1), "Says what it thinks of the attempts; it is not trained.")
        ]
    );
    assert!(described.seats.iter().all(|seat| seat.harness == "rh-pair" && !seat.needs_container));
    let key = |name: &str| described.keys.iter().chain(&described.env_keys).find(|key| key.name == name).unwrap();
    assert_eq!((&key("count").default, key("count").kind.as_str()), (&json!(8), "int"));
    assert_eq!(key("task.slow").doc, "Seconds that the setup waits, and can be cancelled in.");
    assert_eq!(key("attempts").default, json!(2));
    assert!(find("rh-talk").describe().unwrap().infinite);
    assert!(described.card.unwrap().starts_with("# rh-env"));
    let installed = search().installed().unwrap().remove(0).tasksets.unwrap();
    let names: Vec<_> = installed.iter().filter(|taskset| !taskset.ships).map(|taskset| taskset.id.as_str()).collect();
    assert_eq!(
        names,
        ["rh-env", "rh-no-key", "rh-pair", "rh-rude", "rh-talk", "rh-tools"],
        "those that name a taskset"
    );
    let ships: Vec<_> = installed.iter().filter(|taskset| taskset.ships).map(|taskset| taskset.id.as_str()).collect();
    assert_eq!(ships, ["harbor", "nemo-gym", "openenv", "textarena"]);
}

#[test]
fn what_is_not_there_says_where_it_was_looked_for() {
    let message = |search: &Search| match search.find("owner/no-such@2") {
        Err(error @ FindError::NotInstalled { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let text = message(&search());
    assert!(text.contains("has verifiers 0.4.0, but not it"), "{text}");
    assert!(text.contains("`rollhouse env install owner/no-such@2`"), "{text}");
    let bare = tempfile::tempdir().unwrap();
    venv::make(bare.path(), &[]);
    let text = message(&Search { python: Some(bare.path().to_owned()), ..Search::default() });
    assert!(text.contains("has neither it nor verifiers"), "{text}");
    let wrong = Search { python: Some("/no/python".into()), ..Search::default() }.find("rh-env").unwrap_err();
    assert!(wrong.to_string().contains("no Python at `/no/python`"), "{wrong}");
    // Names of Python's own are no packages.
    for id in ["json", "os", "a b", "../rh-env", "--help"] {
        let found = search().find(id);
        assert!(matches!(found, Err(FindError::NotInstalled { .. })), "{id}: {found:?}");
    }
}

#[test]
fn all_faults_of_a_block_are_told_with_their_places() {
    let package = find("rh-env");
    let block = json!({
        "taskset": {"id": "rh-env", "cuont": 3, "task": {"fail": "x", "slwo": 1}},
        "agent": {"runtime": {"type": "subprocess", "foo": 1}, "harness": {"id": "null", "nope": 1}, "timeout": {"setup": -1}, "max_trns": 1},
        "timeot": 3,
    });
    let mut found = faults(&package, &block);
    found.sort();
    assert_eq!(
        found,
        [
            "agent.harness.nope: unknown key",
            "agent.max_trns: unknown key; did you mean `max_turns`?",
            "agent.runtime.foo: unknown key",
            "agent.timeout.setup: input should be greater than 0",
            "taskset.cuont: unknown key; did you mean `count`?",
            "taskset.task.fail: input should be 'no', 'setup', 'reward' or 'finalize'",
            "taskset.task.slwo: unknown key; did you mean `slow`?",
            "timeot: unknown key; did you mean `timeout`?",
        ]
    );
    let one = |block: Value| faults(&package, &block).join("\n");
    assert_eq!(one(json!({"agent": {"harness": {"id": "nulll"}}})), "agent.harness.id: harness 'nulll' not found");
    let several = json!({"agent": {"harness": {"id": "nulll"}, "max_trns": 1}, "taskset": {"cuont": 3}});
    assert_eq!(faults(&package, &several).len(), 3, "a name that is not there hides no other fault");
    assert_eq!(one(json!({"id": "best-off-n"})), "id: environment 'best-off-n' not found");
    assert_eq!(one(json!({"taskset": 3})), "taskset: expected a table of keys");
    let text = one(json!({"taskset": {"task": {"judges": [{"id": "reference", "x": 2}]}}}));
    assert!(text.starts_with("taskset.task.judges.0.x: unknown key"), "{text}");
    let text = one(json!({"agent": {"harness": {"id": "codex"}}}));
    assert!(text.starts_with("agent.runtime: the harness `codex` needs a container"), "{text}");
    let text = one(json!({"agent": {"runtime": {"type": "sub"}}}));
    assert!(text.starts_with("agent.runtime: ") && text.contains("'subprocess'"), "{text}");
    let text = one(json!({"harness": {"id": "null"}}));
    assert!(text.contains("a harness belongs to a seat"), "{text}");

    let environment =
        open(&package, &json!({"taskset": {"id": "PrimeIntellect/Rh_Env@1", "count": 5}, "agent": {"max_turns": 2}}));
    let resolved = environment.resolved();
    assert_eq!(resolved["taskset"]["id"], "PrimeIntellect/Rh_Env@1");
    assert_eq!((&resolved["taskset"]["count"], &resolved["agent"]["max_turns"]), (&json!(5), &json!(2)));
    assert_eq!(resolved["agent"]["runtime"], json!({"type": "subprocess"}), "where the block says nothing");
    assert_eq!(environment.seats(), ["agent"]);
    let again = open(&package, resolved);
    assert_eq!(again.resolved(), resolved, "what it comes to comes to the same");
    let paired = open(&package, &json!({"id": "best-of-n", "n": 3}));
    assert_eq!((paired.label(), &paired.resolved()["n"]), ("best-of-n+rh-env", &json!(3)));
}

#[test]
fn packages_that_cannot_be_imported_say_why() {
    let error = refused("rh-broken");
    assert!(error.message.starts_with("FileNotFoundError: no data at /nowhere/rows.parquet ("), "{error}");
    assert!(error.message.ends_with("rh_broken/__init__.py:10 in load)"), "{error}");
    assert!(error.traceback.iter().any(|line| line.contains("in <module>")), "{error}");
    assert_eq!(error.output.last().map(String::as_str), Some("looking for the data"), "{error}");
    let error = refused("rh-exits");
    assert!(error.message.starts_with("SystemExit: sys.exit(4) ("), "{error}");
    assert_eq!(error.output, ["this package wants a GPU"]);
    let error = refused("rh-no-key");
    assert!(
        error.message.starts_with("KeyError: the environment variable 'RH_ENV_KEY' is missing; `--serve"),
        "{error}"
    );
    let error = refused("rh-no-taskset");
    assert!(error.message.contains("exports no Taskset subclass"), "{error}");
}

#[tokio::test]
async fn rows_come_as_they_are_asked_for_with_verifiers_hashes() {
    let package = find("rh-env");
    let environment = open(&package, &json!({"taskset": {"count": 3000, "wordy": true}}));
    assert_eq!(environment.size(), TasksetSize::Unknown);
    let tasks: Vec<Task> = environment.tasks().try_collect().await.unwrap();
    assert_eq!(tasks.len(), 3000);
    for (position, task) in tasks.iter().enumerate() {
        assert_eq!(task.data.idx, Some(position as u64));
        assert_eq!(task.kind, "SayTask");
        assert_eq!(task.hash.as_deref(), Some(task.data.hash().as_str()), "as verifiers computes it");
    }
    assert_eq!(environment.class(), "SayTask");
    let rest: Vec<Task> = environment.tasks_from(2998).try_collect().await.unwrap();
    assert_eq!(rest, tasks[2998..], "the same again, from any position");

    let broken = open(&package, &json!({"taskset": {"broken_at": 2}}));
    let read: Vec<_> = broken.tasks().collect().await;
    let [Ok(_), Ok(_), Err(error)] = &read[..] else { panic!("{read:?}") };
    let text = error.to_string();
    assert!(text.starts_with("rh-env: row 2: ValueError: row 2 was told to be broken ("), "{text}");
    for oddity in ["nan", "surrogate"] {
        let odd = open(&find("rh-rude"), &json!({"taskset": {"odd": oddity}}));
        let read: Vec<_> = odd.tasks().collect().await;
        let [Ok(_), Err(error)] = &read[..] else { panic!("{read:?}") };
        assert!(error.to_string().starts_with("rh-rude: row 1: ValueError: odd cannot be said in JSON: "), "{error}");
    }

    let endless = open(&find("rh-talk"), &json!({}));
    assert_eq!(endless.size(), TasksetSize::Infinite);
    assert_eq!(first(&endless, 3).await.len(), 3);
    let far: Vec<Task> = endless.tasks_from(5000).take(2).try_collect().await.unwrap();
    assert_eq!(far[1].data.extra["number"], 5001);
}

/// An env that is served.
struct Served {
    child: Child,
    client: Client,
    _folder: TempDir,
}

impl Served {
    async fn start(environment: &Environment) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address: Address = format!("ipc://{}", folder.path().join("socket").display()).parse().unwrap();
        let program = environment.server(&address.to_string(), None, &[]);
        let mut child = Child::start(Program { stderr: Stream::Piped, ..program }).await.unwrap();
        let log = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = fs::File::from(log).read_to_string(&mut text);
        });
        let client = Client::connect(address, Settings::default());
        client.wait_ready(Duration::from_secs(120)).await.unwrap();
        Self { child, client, _folder: folder }
    }

    async fn run(&self, task: &Task, base_url: &str) -> Episode {
        let client = json!({"type": "eval", "base_url": base_url}).as_object().unwrap().clone();
        let request = RunRequest::new(&task.data, client, "sim", Map::new()).unwrap();
        self.client.run(&request, None).await.unwrap()
    }

    /// Ends it as a pool does; returns its exit status.
    async fn end(self) -> Option<i32> {
        self.child.end(Duration::from_secs(30)).await.unwrap().code()
    }
}

async fn simulator() -> Simulator {
    Simulator::start(SimSettings::default(), None).await.unwrap()
}

fn errors(episode: &Episode) -> String {
    let of_traces = episode.traces.iter().flat_map(|trace| &trace.errors);
    of_traces.chain(&episode.errors).map(|error| format!("{}: {}", error.kind, error.message)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_env_is_served_as_it_was_opened_and_ends_when_it_is_told() {
    let simulator = simulator().await;
    let base_url = simulator.base_url();
    let environment = open(&find("rh-env"), &json!({"taskset": {"task": {"big": 10}}}));
    let tasks = first(&environment, 4).await;
    let served = Served::start(&environment).await;
    let episodes = futures::future::join_all(tasks.iter().map(|task| served.run(task, &base_url))).await;
    for (episode, task) in episodes.iter().zip(&tasks) {
        assert!(episode.ok, "{}", errors(episode));
        assert_eq!(episode.task.hash, task.hash, "the server knows the same row");
        assert_eq!(episode.traces[0].rewards["exact"].as_ref().map(|reward| reward.score), Some(1.0));
        assert_eq!(episode.traces[0].info["blob"].as_str().map(str::len), Some(10 << 20));
    }
    assert_eq!(served.end().await, Some(0));

    let rude = open(&find("rh-rude"), &json!({}));
    let served = Served::start(&rude).await;
    let status = served.end().await;
    assert_eq!(status, Some(0), "a thread that never ends holds nothing up, closed streams fail nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_seats_of_an_env_play() {
    let simulator = simulator().await;
    let base_url = simulator.base_url();
    let talk = open(&find("rh-talk"), &json!({"turns": 4}));
    let served = Served::start(&talk).await;
    let episode = served.run(&first(&talk, 1).await[0], &base_url).await;
    assert!(episode.ok, "{}", errors(&episode));
    assert_eq!(episode.traces[0].calls.len(), 4);
    assert_eq!(episode.traces[0].rewards["turns"].as_ref().map(|reward| reward.score), Some(1.0));
    assert_eq!(served.end().await, Some(0));

    let pair = open(&find("rh-pair"), &json!({"attempts": 3}));
    assert_eq!(pair.seats(), ["critic", "solver"]);
    let served = Served::start(&pair).await;
    let episode = served.run(&first(&pair, 1).await[0], &base_url).await;
    assert!(episode.ok, "{}", errors(&episode));
    let names: Vec<_> = episode.traces.iter().map(|trace| trace.agent.name.as_str()).collect();
    assert_eq!(names, ["solver", "solver", "solver", "critic"]);
    assert_eq!(served.end().await, Some(0));
}

/// A model that opens the book where it is told to, and says what it read.
async fn reader() -> support::Server {
    support::Server::start(|request| {
        let asked = request.json();
        let last = asked["messages"].as_array().unwrap().last().unwrap();
        let message = if last["role"] == "tool" {
            json!({"role": "assistant", "content": format!("there stands {}", last["content"])})
        } else {
            let tool = asked["tools"][0]["function"]["name"].as_str().unwrap();
            let call = json!({"id": "call-1", "type": "function", "function": {"name": tool, "arguments": "{\"number\": 2}"}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        };
        let reason = if last["role"] == "tool" { "stop" } else { "tool_calls" };
        let choice = json!({"index": 0, "message": message, "finish_reason": reason});
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
        let body = json!({"id": "c", "object": "chat.completion", "created": 0, "model": "sim", "choices": [choice], "usage": usage});
        support::answer(200, "Content-Type: application/json\r\n", body.to_string())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_an_env_are_called() {
    let model = reader().await;
    let tools = open(&find("rh-tools"), &json!({}));
    let served = Served::start(&tools).await;
    let tasks = first(&tools, 3).await;
    let episode = served.run(&tasks[2], &model.base_url()).await;
    assert!(episode.ok, "{}", errors(&episode));
    let trace = &episode.traces[0];
    assert_eq!(trace.rewards["found"].as_ref().map(|reward| reward.score), Some(1.0));
    assert_eq!(trace.metrics["tool_messages"], Some(1.0));
    assert_eq!(served.end().await, Some(0));
}

/// A game of TextArena, which ships with verifiers: its list of words comes from us, for want of a network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_game_that_ships_with_verifiers_is_played() {
    let data = tempfile::tempdir().unwrap();
    let words = data.path().join("corpora/words");
    fs::create_dir_all(&words).unwrap();
    for list in ["en", "en-basic"] {
        fs::write(words.join(list), "planet\nforest\ngarden\nwindow\nsilver\n").unwrap();
    }
    let mut package = find("textarena");
    package.rest();
    // Nothing is fetched: it would take the place of our words.
    let own = ["NLTK_DATA", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    package.interpreter.environment.retain(|(name, _)| !own.iter().any(|own| name == own));
    let nowhere = "http://127.0.0.1:9";
    for (name, value) in [
        ("NLTK_DATA", data.path().to_str().unwrap()),
        ("http_proxy", nowhere),
        ("https_proxy", nowhere),
        ("no_proxy", "127.0.0.1"),
    ] {
        package.interpreter.environment.push((name.into(), value.into()));
    }
    assert_eq!(faults(&package, &json!({})), ["taskset.game: field required"]);
    let block = json!({"taskset": {"game": "Hangman-v0"}, "player": {"harness": {"id": "rh-env"}, "max_turns": 3}});
    let game = open(&package, &block);
    assert_eq!((game.size(), game.seats()), (TasksetSize::Infinite, &["player".to_owned()][..]));
    let tasks = first(&game, 2).await;
    assert!(tasks[0].data.opening().iter().any(|message| message.text().contains("Hangman")));
    let simulator = simulator().await;
    let served = Served::start(&game).await;
    let episode = served.run(&tasks[1], &simulator.base_url()).await;
    assert!(episode.ok, "{}", errors(&episode));
    assert!(episode.traces[0].rewards.contains_key("game_reward"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_raises_in_a_rollout_stands_in_its_record() {
    let simulator = simulator().await;
    let base_url = simulator.base_url();
    let run = open(&find("rh-pair"), &json!({"fail_run": true}));
    let reward = open(&find("rh-env"), &json!({"taskset": {"task": {"fail": "reward"}}}));
    for (environment, expected) in [(run, "the run was told to fail"), (reward, "the reward was told to fail")] {
        let served = Served::start(&environment).await;
        let episode = served.run(&first(&environment, 1).await[0], &base_url).await;
        assert!(!episode.ok && errors(&episode).contains(expected), "{}", errors(&episode));
    }
}

/// How a server program ends, and what its log says last.
async fn ends(program: Program) -> (Option<i32>, String) {
    let mut child = Child::start(Program { stderr: Stream::Piped, ..program }).await.unwrap();
    let log = child.stderr.take().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        fs::File::from(log).read_to_string(&mut text).unwrap();
        text
    });
    (child.wait().await.unwrap().code(), reading.await.unwrap())
}

#[tokio::test]
async fn a_server_that_cannot_start_ends_at_once_and_says_why() {
    let environment = open(&find("rh-env"), &json!({}));
    let (status, log) = ends(environment.server("ipc:///no/such/folder/socket", None, &[])).await;
    assert_eq!(status, Some(1));
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("ZMQError: No such file or directory"), "{log}");
}

#[test]
fn a_server_ends_with_its_parent() {
    let environment = open(&find("rh-env"), &json!({}));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let program = environment.server(&format!("ipc://{}", socket.display()), None, &[]);
    // A parent that takes no care of its children.
    let mut parent = process::Command::new("/bin/sh")
        .args(["-c", "\"$@\" & echo $!; wait", "sh"])
        .arg(&program.path)
        .args(&program.arguments)
        .env_clear()
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .stdout(process::Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(parent.stdout.take().unwrap()), &mut line).unwrap();
    let status = Path::new("/proc").join(line.trim()).join("status");
    let wait = |over: &dyn Fn() -> bool| {
        for _ in 0..1200 {
            if over() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    };
    assert!(wait(&|| socket.exists()), "it serves");
    parent.kill().unwrap();
    parent.wait().unwrap();
    let gone = || fs::read_to_string(&status).map_or(true, |status| status.contains("State:\tZ"));
    let ended = wait(&gone);
    if !ended {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(line.trim().parse().unwrap()), Signal::SIGKILL);
    }
    assert!(ended);
}
