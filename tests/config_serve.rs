//! The block `serve`, and the block of an env that another house reads.

use std::{path::Path, time::Duration};

use rollhouse::config::{
    Document, EnvReader, EvalConfig, Layer, Resolved, Section, ServeConfig, ServeRuntime, Tasksets, Workers,
    differences,
};
use serde_json::{Value, json};

fn read(text: &str) -> Result<(EvalConfig, Resolved), String> {
    let text = format!("{text}\n[env.taskset]\nid = \"rows\"\n");
    read_layer(Layer::from_toml("a.toml", &text).map_err(|faults| faults.to_string())?)
}

fn read_layer(layer: Layer) -> Result<(EvalConfig, Resolved), String> {
    EvalConfig::from_document(Document::new([layer]), &mut Tasksets(|_, _| {})).map_err(|faults| faults.to_string())
}

#[track_caller]
fn check_faults(text: &str, expected: &[&str]) {
    assert_eq!(read(text).unwrap_err().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn without_the_block_an_env_is_served_as_verifiers_would() {
    let (config, resolved) = read("").unwrap();
    let ServeConfig { asks_for_workers, workers, address, max_concurrent, runtime, max_redos, .. } = config.serve;
    assert_eq!(workers, Workers::Elastic { max_workers: None, multiplex: 128 });
    assert_eq!((asks_for_workers, address, max_concurrent, max_redos), (false, None, None, 2));
    assert_eq!(runtime, ServeRuntime::Subprocess);
    let dump = resolved.dump();
    assert_eq!(dump["serve"]["pool"], json!(null));
    let again = read_layer(Layer::from_value(&dump)).unwrap();
    assert!(!again.0.serve.asks_for_workers, "a run that is resumed stays where it was");
    assert_eq!(again.1.dump(), dump);
    assert!(!config.foreign);
}

#[test]
fn the_block_says_how_many_workers_there_are_what_they_may_and_how_long_they_have() {
    let text = "[serve]\naddress = \"tcp://127.0.0.1:5000\"\nmax_concurrent = 3\non_lost = \"fail\"\npass_env = [\"HF_TOKEN\", \"A\"]\n\
                startup = 9.5\nidle = \"None\"\npython = \".venv\"\npool = { type = \"static\", num_workers = 2 }\n\
                [serve.runtime]\ntype = \"sandbox\"\nmemory = 1.5\npids = 64\nread_only = [\"/usr\"]\n\
                routes = [\"db:5432\", \"[::1]:80\"]\n";
    let (config, _) = read(text).unwrap();
    let serve = config.serve;
    assert!(serve.asks_for_workers);
    assert_eq!((serve.workers, serve.max_redos), (Workers::Static(2), 0));
    assert_eq!((serve.startup, serve.idle), (Some(Duration::from_millis(9500)), None));
    assert_eq!((serve.stalled, serve.grace), (Some(Duration::from_secs(60)), Duration::from_secs(10)));
    assert_eq!(serve.pass_env, ["A", "HF_TOKEN"]);
    assert_eq!(serve.python.as_deref(), Some(Path::new(".venv")));
    let ServeRuntime::Sandbox { memory, pids, read_only, routes, .. } = serve.runtime else { panic!() };
    assert_eq!((memory, pids), (Some(1_500_000_000), Some(64)));
    assert_eq!(read_only, [Path::new("/usr")]);
    assert_eq!(routes, [("db".to_owned(), 5432), ("::1".to_owned(), 80)]);
}

#[test]
fn all_faults_of_the_block_come_with_their_places() {
    check_faults(
        "[serve]\naddress = \"localhost\"\non_lost = \"retry\"\npass_env = [\"sk-123\"]\nmax_concurent = 2\n\
         [serve.pool]\ntype = \"static\"\nmax_workers = 2\nnum_workers = 0\n\
         [serve.runtime]\ntype = \"sandbox\"\nwritable = [\"/\"]\nroutes = [\"db\"]\nread_only = [\"/no/such\"]\nmemory = 0\n",
        &[
            "a.toml:2:11: serve.address: not an address; expected `tcp://HOST:PORT` or `ipc://PATH`",
            "a.toml:3:11: serve.on_lost: unknown choice `retry`; expected one of redo, fail",
            "a.toml:4:12: serve.pass_env: not the name of an environment variable; export it and name it here",
            "a.toml:5:1: serve.max_concurent: unknown key; did you mean `serve.max_concurrent`?",
            "a.toml:8:1: serve.pool.max_workers: unknown key; a static pool has `num_workers`",
            "a.toml:9:15: serve.pool.num_workers: out of bounds: 0; expected a whole number from 1 to 1024",
            "a.toml:12:12: serve.runtime.writable: `/` is everything; name the folder that it shall write to",
            "a.toml:13:10: serve.runtime.routes: `db` is no address; expected `HOST:PORT`",
            "a.toml:14:13: serve.runtime.read_only: there is no `/no/such`; make it, or leave it out",
            "a.toml:15:10: serve.runtime.memory: out of bounds: 0; expected a number from 0.05 to 16384",
        ],
    );
    check_faults(
        "[serve.runtime]\nmemory = 2\n[serve.pool]\nnum_workers = 2\n",
        &[
            "a.toml:2:1: serve.runtime.memory: unknown key; a subprocess has no walls; write `type = \"sandbox\"`",
            "a.toml:4:1: serve.pool.num_workers: unknown key; an elastic pool has `max_workers`; or write `type = \"static\"`",
        ],
    );
}

/// Takes the env `theirs`, whose `limit` must be below 9 and whose `label` is text.
#[derive(Default)]
struct Theirs {
    told: Vec<Value>,
}

impl EnvReader for Theirs {
    fn taskset(&mut self, _id: &str, _block: &mut Section<'_>) {}

    fn is_foreign(&mut self, id: &str, serve: &ServeConfig) -> bool {
        id == "theirs" && serve.address.is_none()
    }

    fn foreign(&mut self, _id: &str, _serve: &ServeConfig, env: &mut Section<'_>) -> Value {
        let mut block = Value::Object(env.whole());
        self.told.push(block.clone());
        let path = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        if block["taskset"]["limit"].as_u64() > Some(8) {
            env.fault_within(&path(&["taskset", "limit"]), "input should be less than 9");
            env.fault_within(&path(&["judge", "rules", "1", "type"]), "field required");
            env.fault_within(&path(&["solver", "absent"]), "field required");
        }
        if let Some(text) = env.typed_at(&path(&["taskset", "label"])) {
            block["taskset"]["label"] = text.into();
        }
        block["solver"]["max_turns"] = 7.into();
        env.resolve_whole(&block);
        block
    }
}

#[test]
fn the_block_of_another_house_goes_through_as_it_is() {
    let words = "theirs --env.id best-of-n --env.taskset.label 5 --env.taskset.hard --env.taskset.names a --env.taskset.names b \
                 --env.taskset.power=0.5 --env.solver.model m -a {\"limit\":3}";
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut theirs = Theirs::default();
    let (config, resolved, _) = EvalConfig::from_args(&words, None, &mut theirs).unwrap_or_else(|e| panic!("{e}"));
    let taskset = json!({"id": "theirs", "label": 5, "hard": true, "names": ["a", "b"], "power": 0.5, "limit": 3});
    assert_eq!(theirs.told, [json!({"taskset": taskset, "id": "best-of-n", "solver": {"model": "m"}})]);
    assert!(config.foreign);
    assert_eq!(config.taskset, "best-of-n+theirs");
    // What the other house made of it is shown, key by key, and can be read again.
    let dump = resolved.dump();
    assert_eq!(dump["env"]["solver"], json!({"model": "m", "max_turns": 7}));
    assert_eq!(dump["env"]["taskset"]["label"], "5");
    assert!(resolved.explain().contains("env.solver.max_turns = 7"), "{}", resolved.explain());
    let (_, again) =
        EvalConfig::from_document(Document::new([Layer::from_value(&dump)]), &mut Theirs::default()).unwrap();
    assert_eq!(differences(&dump, &again.dump()), []);
}

#[test]
fn what_another_house_finds_wrong_stands_where_it_was_written() {
    let text = "[env.taskset]\nid = \"theirs\"\nlimit = 9\n[env.judge]\nrules = [{ type = \"a\" }, { kind = \"b\" }]\n[env.solver]\n";
    let layer = Layer::from_toml("a.toml", text).unwrap();
    let faults = EvalConfig::from_document(Document::new([layer]), &mut Theirs::default()).unwrap_err().to_string();
    let expected = [
        "a.toml:3:9: env.taskset.limit: input should be less than 9",
        "a.toml:5:26: env.judge.rules[1].type: field required",
        "a.toml:6:1: env.solver.absent: field required",
    ];
    assert_eq!(faults.lines().collect::<Vec<_>>(), expected);
}

/// A resumed run may be served elsewhere.
#[test]
fn where_an_env_is_served_changes_no_result() {
    let dump = |text: &str| read(text).unwrap().1.dump();
    let elsewhere = dump("[serve]\naddress = \"ipc:///tmp/x\"\npool = { type = \"static\" }\n");
    assert_eq!(differences(&dump(""), &elsewhere), []);
}
