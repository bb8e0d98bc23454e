//! Whatever a taskset's Python function does costs the one call that did it, names the reason, and leaves nothing behind.
#![allow(clippy::disallowed_methods, reason = "tests make files and processes of their own")]

use std::{
    env,
    fs::File,
    io::{Read as _, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures::future::join_all;
use nix::{sys::stat::Mode, unistd::mkfifo};
use rollhouse::{
    config::Redactor,
    taskset::python::{Call, CallFailure, FailureKind, Interpreter, Lane, WorkerSettings, Workers},
    telemetry,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Calls the function of a script that the operation names.
const MODULE: &str = r#"
import importlib.util

def open(script, arguments):
    global taskset
    spec = importlib.util.spec_from_file_location("taskset", script)
    taskset = importlib.util.module_from_spec(spec)
    taskset.arguments = arguments
    spec.loader.exec_module(taskset)

def handle(op, body):
    return getattr(taskset, op)(*body)
"#;

const SCRIPT: &str = r#"
import asyncio, ctypes, os, signal, subprocess, sys, threading, time

def double(x): return 2 * x
def raises(): raise ValueError("bad\nnews")
def chained():
    try: {}["key"]
    except KeyError as error: raise RuntimeError("wrapped") from error
def unprintable():
    class Odd(Exception):
        def __str__(self): raise ValueError
    raise Odd
def exits(): sys.exit(3)
def interrupts(): raise KeyboardInterrupt
def ends(): os._exit(4)
def crashes(): ctypes.string_at(0)
def kills_itself(): os.kill(os.getpid(), signal.SIGKILL)
def recurses(): return recurses()
def hangs():
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
    while True:
        try: time.sleep(1000)
        except BaseException: pass
def spins():
    while True: pass
def stops(): os.kill(os.getpid(), signal.SIGSTOP)
def leaks():
    kept = []
    while True: kept.append(bytearray(1 << 24))
def nan(): return {"scores": [1.0, float("nan")]}
def infinite(): return -float("inf")
def thing(): return {"a": [object()]}
def odd_key(): return {(1, 2): 3}
def half(): return "\ud800"
def endless():
    inner = []
    inner.append(inner)
    return inner
def gigantic(): return "x" * (65 << 20)

class Number:
    ndim = 0
    def item(self): return 0.5
def numpy_like(): return [Number(), Number()]

def closes():
    for number in (0, 1, 2): os.close(number)
    sys.stdout.close()
    return 1
def garbage():
    os.write(1, b"\0\xff\r\n{}" * 1000)
    sys.__stdout__.buffer.write(b"more\n")
    return 1
def moves():
    os.chdir("/")
    return os.getcwd()
def folder(): return os.getcwd()
def reads(): return sys.stdin.read()
def prints(text):
    print(text)
    return text
def prints_and_raises():
    for number in range(20): print("line", number)
    raises()
def starts_thread():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return threading.active_count()
def sets_a_trap():
    threading.Timer(0.1, os._exit, [9]).start()
    return os.getpid()
def sleeps(seconds):
    time.sleep(seconds)
    return os.getpid()
def forks():
    return "parent" if os.fork() else "child"
def forks_and_raises():
    if not os.fork(): sys.exit(1)
    return "parent"
def floods(stream):
    text = ("x" * 1023 + "\n") * 1024
    for _ in range(1024): getattr(sys, stream).write(text)
    return "dry"
def grows(size):
    global kept
    kept = bytearray(b"x" * size)
    return os.getpid()
def pid(): return os.getpid()
def hold(path, *command):
    file = open(path, "w")
    for group in (False, True):
        if command: subprocess.Popen(command, stdout=file, start_new_session=group)
    file.write("ready\n")
    file.flush()
    return 1
def keep(path):
    global kept
    kept = open(path, "w")
    kept.write("ready\n")
    kept.flush()
def hold_and_hang(path):
    hold(path, "sleep", "1000")
    spins()
def meet(here, there):
    open(here, "w").close()
    while not os.path.exists(there): time.sleep(0.001)
    return 1

count = 0
def counts():
    global count
    count += 1
    return count

async def adouble(x):
    await asyncio.sleep(0.01)
    return 2 * x
async def araises(): raise ValueError("bad")
async def aends(): await asyncio.sleep(0.001); os._exit(4)
async def aspins(): await asyncio.sleep(0.001); spins()
async def awaits(): await asyncio.sleep(1000)
async def anan(): return float("nan")
async def ainterrupts(): raise KeyboardInterrupt
async def aquits_the_loop():
    async def quits(): sys.exit(1)
    asyncio.ensure_future(quits())
    await asyncio.sleep(0.1)
async def acancels_all():
    for task in asyncio.all_tasks(): task.cancel()
    await asyncio.sleep(1)
async def acancels_itself(): raise asyncio.CancelledError
async def aforks(): return forks()
async def stubborn():
    while True:
        try: await asyncio.sleep(1000)
        except asyncio.CancelledError: pass

present = 0
async def gather(many):
    global present
    present += 1
    while present < many: await asyncio.sleep(0.001)
    return present
"#;

struct Taskset {
    folder: TempDir,
    workers: Workers,
}

fn python() -> PathBuf {
    env::var_os("ROLLHOUSE_TEST_PYTHON").expect("run tests through `tests/run`, which sets up Python").into()
}

impl Taskset {
    fn new() -> Self {
        Self::of(SCRIPT, |_| {})
    }

    fn of(script: &str, change: impl FnOnce(&mut WorkerSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("taskset.py"), script).unwrap();
        let mut settings = WorkerSettings {
            name: "test".to_owned(),
            interpreter: Interpreter::find(Some(&python()), folder.path(), &[]).unwrap(),
            script: folder.path().join("taskset.py"),
            module: MODULE,
            arguments: json!({ "seed": 1 }),
            count: 1,
            start_deadline: Duration::from_secs(60),
            memory_limit: 1 << 30,
        };
        change(&mut settings);
        Self { folder, workers: Workers::new(settings) }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    async fn call(&self, op: &str, arguments: Value) -> Result<Value, CallFailure> {
        self.within(60.0, Lane::Exclusive, op, arguments).await
    }

    async fn beside(&self, op: &str, arguments: Value) -> Result<Value, CallFailure> {
        self.within(60.0, Lane::Shared, op, arguments).await
    }

    async fn within(&self, seconds: f64, lane: Lane, op: &str, arguments: Value) -> Result<Value, CallFailure> {
        let body = arguments.to_string();
        let deadline = Duration::from_secs_f64(seconds);
        self.workers.call(Call { op, body: body.as_bytes(), deadline, lane }).await
    }
}

/// A named pipe; reading it to its end waits for all that hold it.
struct Held(String);

impl Held {
    fn new(taskset: &Taskset) -> Self {
        let path = taskset.path("pipe");
        mkfifo(path.as_str(), Mode::S_IRWXU).unwrap();
        Self(path)
    }

    /// Waits until somebody holds it.
    async fn ready(&self) -> File {
        let path = self.0.clone();
        let open = tokio::task::spawn_blocking(move || {
            let mut file = File::open(path).unwrap();
            let mut line = [0; 6];
            file.read_exact(&mut line).unwrap();
            file
        });
        open.await.unwrap()
    }

    /// Waits until nobody does.
    async fn gone(mut file: File) {
        tokio::task::spawn_blocking(move || assert_eq!(file.read(&mut [0]).unwrap(), 0)).await.unwrap();
    }
}

#[track_caller]
fn check(answer: Result<Value, CallFailure>, kind: FailureKind, message: &str) -> CallFailure {
    let failure = answer.unwrap_err();
    assert_eq!(failure.kind, kind, "{failure:?}");
    assert!(failure.message.contains(message), "{failure:?} lacks {message}");
    assert!(!failure.message.contains('\n'), "{failure:?}");
    assert!(!failure.traceback.iter().any(|line| line.contains("<rollhouse")), "{failure:?}");
    failure
}

#[tokio::test]
async fn every_misdeed_costs_one_call_and_is_named() {
    use FailureKind::{Died, Raised, TimedOut, Unreadable};
    let taskset = Taskset::new();
    for (op, kind, message) in [
        ("raises", Raised, "ValueError: bad news (taskset.py:5 in raises)"),
        ("chained", Raised, "RuntimeError: wrapped (taskset.py:8 in chained)"),
        ("unprintable", Raised, "Odd: no message"),
        ("exits", Raised, "SystemExit: sys.exit(3)"),
        ("interrupts", Raised, "KeyboardInterrupt (taskset.py:"),
        ("recurses", Raised, "RecursionError"),
        ("leaks", Raised, "MemoryError"),
        ("ends", Died, "exit status 4"),
        ("crashes", Died, "SIGSEGV"),
        ("kills_itself", Died, "SIGKILL"),
        ("nan", Unreadable, "the value['scores'][1] is nan"),
        ("infinite", Unreadable, "the value is -inf"),
        ("thing", Unreadable, "the value['a'][0] is of type object"),
        ("odd_key", Unreadable, "a key of the value is of type tuple"),
        ("half", Unreadable, "half a character"),
        ("endless", Unreadable, "nested too deeply"),
        ("gigantic", Unreadable, "it takes 68157442 bytes"),
    ] {
        let failure = check(taskset.call(op, json!([])).await, kind, message);
        assert!(failure.traceback.len() < 50, "{failure:?}");
        assert_eq!(taskset.call("double", json!([21])).await, Ok(json!(42)), "after {op}");
    }
    for op in ["hangs", "spins", "stops"] {
        let late = taskset.within(0.2, Lane::Exclusive, op, json!([])).await;
        check(late, TimedOut, "no answer within 0.2 s");
        assert_eq!(taskset.call("double", json!([21])).await, Ok(json!(42)), "after {op}");
    }
}

#[tokio::test]
async fn a_failure_shows_the_authors_lines_only() {
    let taskset = Taskset::new();
    let chained = taskset.call("chained", json!([])).await.unwrap_err();
    let text = chained.traceback.join("\n");
    assert!(text.contains("KeyError: 'key'") && text.contains("direct cause"), "{text}");
    for (op, line) in [("crashes", "(taskset.py:16 in crashes)"), ("spins", "in spins)")] {
        let failure = taskset.within(1.0, Lane::Exclusive, op, json!([])).await.unwrap_err();
        assert!(failure.message.ends_with(line), "{failure:?}");
        assert!(failure.traceback[0].contains("taskset.py\", line"), "{failure:?}");
    }
    check(taskset.call("raises", json!([1])).await, FailureKind::Raised, "takes 0 positional arguments");
    check(taskset.beside("araises", json!([])).await, FailureKind::Raised, "ValueError: bad (taskset.py:");
    let fault = chained.into_fault(rollhouse::trace::FaultClass::Scoring, "reward `r`");
    assert_eq!(fault.message, "reward `r`: RuntimeError: wrapped (taskset.py:8 in chained)");
    let number: Result<String, _> = taskset
        .workers
        .call(Call { op: "double", body: b"[1]", deadline: Duration::from_secs(60), lane: Lane::Exclusive })
        .await;
    assert_eq!(number.unwrap_err().kind, FailureKind::Unreadable);
}

#[tokio::test]
async fn what_is_only_odd_costs_nothing() {
    let taskset = Taskset::new();
    let pid = taskset.call("pid", json!([])).await.unwrap();
    for op in ["closes", "garbage", "starts_thread", "moves", "reads", "numpy_like"] {
        taskset.call(op, json!([])).await.unwrap();
        assert_eq!(taskset.call("prints", json!([op])).await, Ok(json!(op)));
    }
    let folder = taskset.call("folder", json!([])).await.unwrap();
    assert_eq!(Path::new(folder.as_str().unwrap()), taskset.folder.path().canonicalize().unwrap());
    assert_eq!(taskset.call("numpy_like", json!([])).await, Ok(json!([0.5, 0.5])));
    assert_eq!(taskset.call("pid", json!([])).await, Ok(pid), "the same worker all along");
}

#[tokio::test]
async fn a_failure_has_the_last_output_of_its_own_call() {
    let taskset = Taskset::new();
    taskset.call("prints", json!(["another call"])).await.unwrap();
    let failure = taskset.call("prints_and_raises", json!([])).await.unwrap_err();
    let expected: Vec<String> = (10..20).map(|number| format!("line {number}")).collect();
    assert_eq!(failure.output, expected);
    let failure = taskset.call("raises", json!([])).await.unwrap_err();
    assert!(failure.output.is_empty(), "{failure:?}");
}

#[tokio::test]
async fn a_fork_answers_once_and_what_is_left_behind_is_ended() {
    let taskset = Taskset::new();
    for op in ["forks", "forks_and_raises"] {
        assert_eq!(taskset.call(op, json!([])).await, Ok(json!("parent")));
        assert_eq!(taskset.call("double", json!([1])).await, Ok(json!(2)));
    }
    assert_eq!(taskset.beside("aforks", json!([])).await, Ok(json!("parent")));
    assert_eq!(taskset.beside("adouble", json!([1])).await, Ok(json!(2)));
    let held = Held::new(&taskset);
    let (ready, answer) = tokio::join!(held.ready(), taskset.call("hold", json!([held.0, "sleep", "1000"])));
    assert_eq!(answer, Ok(json!(1)));
    Held::gone(ready).await;
}

#[tokio::test]
async fn a_worker_whose_memory_has_grown_is_replaced() {
    let taskset = Taskset::new();
    let first = taskset.call("grows", json!([1000])).await.unwrap();
    assert_eq!(taskset.call("grows", json!([200 << 20])).await, Ok(first.clone()));
    assert_ne!(taskset.call("pid", json!([])).await, Ok(first));
}

#[tokio::test]
async fn a_worker_spoilt_by_an_earlier_call_does_not_fail_the_next() {
    let taskset = Taskset::new();
    let first = taskset.call("sets_a_trap", json!([])).await.unwrap();
    assert_ne!(taskset.call("sleeps", json!([0.5])).await.unwrap(), first);
}

#[tokio::test]
async fn calls_in_flight_are_untouched_by_others() {
    let taskset = Taskset::of(SCRIPT, |settings| settings.count = 3);
    let guilty = ["ends", "raises", "spins", "nan", "crashes", "forks_and_raises"];
    let calls = (0..60).map(|number| {
        let (taskset, op) = (&taskset, guilty[number / 10]);
        async move {
            if number % 10 == 0 {
                let _ = taskset.within(0.3, Lane::Exclusive, op, json!([])).await;
            } else {
                assert_eq!(taskset.call("double", json!([number])).await, Ok(json!(2 * number)));
            }
        }
    });
    join_all(calls).await;
}

#[tokio::test]
async fn exclusive_calls_run_side_by_side_up_to_their_count() {
    let taskset = Taskset::of(SCRIPT, |settings| settings.count = 2);
    let (a, b) = (taskset.path("a"), taskset.path("b"));
    let (one, other) = tokio::join!(taskset.call("meet", json!([a, b])), taskset.call("meet", json!([b, a])));
    assert_eq!((one, other), (Ok(json!(1)), Ok(json!(1))));
}

#[tokio::test]
async fn shared_calls_are_all_in_one_process_at_once() {
    let taskset = Taskset::new();
    let answers = join_all((0..100).map(|_| taskset.beside("gather", json!([100])))).await;
    assert_eq!(answers, vec![Ok(json!(100)); 100]);
}

#[tokio::test]
async fn a_guilty_shared_call_fails_alone() {
    use FailureKind::{Died, Raised, TimedOut, Unreadable};
    let taskset = Taskset::of(SCRIPT, |settings| settings.count = 2);
    for (op, kind) in [
        ("aends", Died),
        ("aspins", TimedOut),
        ("awaits", TimedOut),
        ("stubborn", TimedOut),
        ("anan", Unreadable),
        ("ainterrupts", Raised),
        ("aquits_the_loop", Raised),
        ("acancels_all", Raised),
        ("acancels_itself", Raised),
    ] {
        let innocent = join_all((0..30).map(|number| taskset.beside("adouble", json!([number]))));
        let (guilty, innocent) = tokio::join!(taskset.within(0.5, Lane::Shared, op, json!([])), innocent);
        check(guilty, kind, "");
        let expected: Vec<_> = (0..30).map(|number| Ok(json!(2 * number))).collect();
        assert_eq!(innocent, expected, "beside {op}");
    }
}

#[tokio::test]
async fn a_gigabyte_of_output_fills_neither_memory_nor_log() {
    static LOG: OnceLock<Log> = OnceLock::new();
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = LOG.get_or_init(Log::default).clone();
    telemetry::start_logging(Box::new(log.clone()), false, Some("rollhouse=info"), Redactor::default()).unwrap();
    let taskset = Taskset::of(SCRIPT, |settings| settings.name = "flood".to_owned());
    for stream in ["stdout", "stderr"] {
        assert_eq!(taskset.call("floods", json!([stream])).await, Ok(json!("dry")));
    }
    taskset.call("prints", json!(["hello"])).await.unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let flood: Vec<&str> = text.lines().filter(|line| line.contains("taskset=flood")).collect();
    assert_eq!(flood.len(), 2 * (20 + 1) + 1, "{flood:#?}");
    assert!(flood.iter().all(|line| line.len() < 600));
    let left_out = 1024 * 1024 * 1024 - 20 * (500 + 1);
    assert!(flood[20].contains(&format!("... {left_out} more bytes printed in this call")), "{}", flood[20]);
    assert!(flood[42].contains("hello"), "{}", flood[42]);
}

#[tokio::test]
async fn a_script_that_cannot_be_imported_fails_the_calls_that_needed_it() {
    use FailureKind::CannotStart;
    let broken = |script: &str| Taskset::of(script, |settings| settings.start_deadline = Duration::from_secs(2));
    for lane in [Lane::Exclusive, Lane::Shared] {
        let check = async |script: &str, message: &str| {
            let taskset = broken(script);
            check(taskset.within(60.0, lane, "double", json!([1])).await, CannotStart, message)
        };
        check("import nothing_like_it", "taskset.py cannot be imported: ModuleNotFoundError: No module named").await;
        check("\n\ndef (", "SyntaxError: invalid syntax (taskset.py:3)").await;
        check("import sys\nsys.exit('no')", "SystemExit: sys.exit(no)").await;
        check("import os\nos._exit(5)", "the Python process ended: exit status 5").await;
        let failure = check("print('so far')\nwhile True: pass", "no answer within 2 s").await;
        assert_eq!(failure.output, ["so far"]);
        assert!(failure.traceback.last().unwrap().contains("line 2 in <module>"), "{failure:?}");
    }
    let taskset =
        broken("import os, sys\nif os.path.exists('broken'): sys.exit('for now')\ndef double(x): return 2 * x");
    std::fs::write(taskset.path("broken"), "").unwrap();
    check(taskset.call("double", json!([1])).await, CannotStart, "for now");
    std::fs::remove_file(taskset.path("broken")).unwrap();
    assert_eq!(taskset.call("double", json!([1])).await, Ok(json!(2)));
}

#[tokio::test]
async fn an_interpreter_that_is_none_is_named() {
    for (program, message) in [("/no/python", "`/no/python`"), ("/bin/true", "exit status 0")] {
        let taskset = Taskset::of(SCRIPT, |settings| settings.interpreter.program = program.into());
        check(taskset.call("double", json!([1])).await, FailureKind::CannotStart, message);
    }
}

#[tokio::test]
async fn what_an_interpreter_prints_at_its_start_disturbs_nothing() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("sitecustomize.py"), "print('hello from the site')").unwrap();
    let taskset = Taskset::of(SCRIPT, |settings| {
        settings.interpreter.environment.push(("PYTHONPATH".into(), place.path().into()));
    });
    assert_eq!(taskset.call("double", json!([1])).await, Ok(json!(2)));
}

#[test]
fn a_call_needs_no_runtime_and_its_worker_serves_later_ones() {
    let taskset = Taskset::new();
    let call = |op| Call { op, body: b"[]", deadline: Duration::from_secs(60), lane: Lane::Exclusive };
    let pid: u32 = taskset.workers.call_blocking(call("pid")).unwrap();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(taskset.workers.call::<u32>(call("pid"))), Ok(pid));
    }
    let failure = taskset.workers.call_blocking::<Value>(call("raises")).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Raised);
}

#[tokio::test]
async fn a_dedicated_worker_keeps_its_state_and_ends_with_it() {
    let taskset = Taskset::new();
    let call = |op| Call { op, body: b"[]", deadline: Duration::from_secs(60), lane: Lane::Exclusive };
    let (mut one, mut other) = (taskset.workers.dedicated(), taskset.workers.dedicated());
    for count in 1..4 {
        assert_eq!(one.call(call("counts")).await, Ok(count));
    }
    assert_eq!(other.call(call("counts")).await, Ok(1));
    check(one.call(call("raises")).await, FailureKind::Raised, "bad");
    assert_eq!(one.call(call("counts")).await, Ok(4));
    check(one.call(call("ends")).await, FailureKind::Died, "exit status 4");
    check(one.call(call("counts")).await, FailureKind::Died, "what it kept is lost");
    assert_eq!(other.call(call("counts")).await, Ok(2));
}

#[tokio::test]
async fn a_call_that_is_dropped_is_stopped() {
    let taskset = Taskset::new();
    let held = Held::new(&taskset);
    let call = taskset.call("hold_and_hang", json!([held.0]));
    let ready = tokio::select! {
        ready = held.ready() => ready,
        answer = call => panic!("{answer:?}"),
    };
    Held::gone(ready).await;
    assert_eq!(taskset.call("double", json!([1])).await, Ok(json!(2)));
}

#[tokio::test]
async fn dropping_the_pool_ends_its_workers() {
    let taskset = Taskset::new();
    let held = Held::new(&taskset);
    let (ready, _) = tokio::join!(held.ready(), taskset.call("keep", json!([held.0])));
    drop(taskset);
    Held::gone(ready).await;
}

/// The parent of the test below, in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn parent() {
    let taskset = Taskset::new();
    let path = env::var("HELD").unwrap();
    let _ = taskset.call("hold_and_hang", json!([path])).await;
}

#[tokio::test]
async fn killing_the_parent_leaves_no_process() {
    let taskset = Taskset::new();
    let held = Held::new(&taskset);
    let mut parent = std::process::Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "parent"])
        .env("HELD", &held.0)
        .env("TMPDIR", taskset.folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let ready = held.ready().await;
    parent.kill().unwrap();
    parent.wait().unwrap();
    Held::gone(ready).await;
}
