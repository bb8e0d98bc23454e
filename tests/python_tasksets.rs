//! What a taskset in Python promises its author: every function gets what it asks for, keys come from `load`, rows come
//! lazily, and whatever goes wrong costs one rollout and says where.
#![allow(clippy::disallowed_methods, reason = "tests write the scripts that they run")]

mod program;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _};
use program::{Folder, episodes};
use rollhouse::{
    config::{Document, Layer, Reader},
    taskset::{Exchange, State, Task, Taskset, TasksetError, TasksetSize, UserTurn},
    tasksets::find,
    trace::{AgentInfo, AssistantMessage, FaultClass, Message, Trace},
};
use serde_json::{Value, json, value::RawValue};

fn python() -> String {
    std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter: run the tests with `tests/run`")
}

/// A taskset in a folder of its own.
struct Script {
    folder: Folder,
    path: PathBuf,
}

impl Script {
    fn new(text: &str) -> Self {
        let folder = Folder::new();
        let path = folder.write("adding/taskset.py", text);
        Self { folder, path }
    }

    fn try_open(&self, mut keys: Value) -> Result<Arc<dyn Taskset>, String> {
        keys["python"] = python().into();
        let layer = Layer::from_json("keys", &keys.to_string()).unwrap();
        let mut reader = Reader::new(Document::new([layer]));
        let found = find(self.path.to_str().unwrap()).unwrap();
        let opened = (found.open)(&mut reader.root());
        reader.finish().map_err(|faults| faults.to_string())?;
        opened.map_err(|error: TasksetError| error.to_string())
    }

    #[track_caller]
    fn open(&self, keys: Value) -> Arc<dyn Taskset> {
        self.try_open(keys).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs an evaluation against the simulator and gives its summary.
    fn eval(&self, flags: &[&str]) -> Value {
        let python = python();
        let start = ["eval", "./adding", "--env.taskset.python", &python, "--json", "--max-error-rate", "1"];
        self.folder.run(&[&start, flags].concat()).expect(0).json()
    }
}

async fn rows(taskset: &dyn Taskset, count: usize) -> Result<Vec<Task>, String> {
    taskset.tasks().take(count).try_collect().await.map_err(|error: TasksetError| error.to_string())
}

/// A finished rollout of a task with these replies, scored.
async fn scored(taskset: &dyn Taskset, task: &Task, replies: &[&str], state: Value) -> (Trace, Option<String>) {
    let agent = AgentInfo {
        config: Arc::from(RawValue::from_string("{}".to_owned()).unwrap()),
        runtime: None,
        name: "agent".to_owned(),
        trainable: true,
    };
    let mut trace = Trace::new(Arc::clone(task), agent);
    let mut conversation = task.data.opening();
    for (position, reply) in replies.iter().enumerate() {
        if position > 0 {
            conversation.push(Message::user("go on"));
        }
        let reply = AssistantMessage { content: Some((*reply).to_owned()), ..AssistantMessage::default() };
        let turn = trace.graph.prepare(&conversation, Arc::from([]));
        trace.graph.commit(turn, reply.clone(), None).unwrap();
        conversation.push(Message::Assistant(reply));
    }
    trace.keep_state(state.as_object().unwrap().clone());
    let failed = taskset.rubric().score(&mut trace).await.err();
    (trace, failed.map(|fault| format!("{fault}")))
}

/// Every feature at once; each function checks what it gets.
const ALL: &str = r##"
"""Add two numbers."""
import asyncio
from typing import Literal, Optional
from rollhouse import *

@load(size="count")
async def tasks(count: int = 4, level: Literal["easy", "hard"] = "easy", rate: float = 1, ops=("+",),
                path: Optional[str] = None):
    assert isinstance(ops, tuple) or level == "hard", ops
    for i in range(count):
        await asyncio.sleep(0)
        yield {"prompt": f"{i} + 1?", "answer": i + 1, "level": level, "long": 2 ** 70, "none": None}

@setup
def begin(state, answer):
    state["secret"] = answer

@user
async def talk(state, replies, messages, task):
    await asyncio.sleep(0)
    assert messages[0] == {"role": "user", "content": task["prompt"]}, messages
    state["turns"] = len(replies)
    if len(replies) == 2:
        return None
    return [{"role": "user", "content": "again"}, "please"]

@stop
def never(): return False

@stop(name="enough")
def said_enough(reply, state):
    state["asked"] = True
    return reply == "enough"

@finalize
def end(state, trace, reply):
    state["final"] = [reply, trace["version"]]

@metric
def length(reply): return len(reply)

@metric
async def turns(replies):
    await asyncio.sleep(0)
    return len(replies)

@reward
def correct(reply, answer, long, none, missing="default"):
    assert long == 2 ** 70 and none is None and missing == "default"
    return reply == str(answer), f"said {reply}"

@reward(weight=0.5, bounds=(0, 10), name="measured")
async def by_metrics(metrics, state, config):
    await asyncio.sleep(0)
    assert config == {"count": 4, "level": "easy", "rate": 1, "ops": ["+"], "path": None} or config["ops"] == ("+",), config
    assert state == {"secret": 1}, state
    return metrics["length"] + metrics["turns"]

@reward(timeout=20)
def whole(trace, task):
    return 1.0 if trace["task"]["data"]["answer"] == task["answer"] else 0.0

@group_reward
def shortest(group, answer):
    lengths = [len(member.reply) for member in group]
    assert all(member.rewards["whole"] == 1 and member.metrics["turns"] == 1 for member in group)
    return [(length == min(lengths), "the shortest" if length == min(lengths) else "longer") for length in lengths]

@reference
def perfect(answer, messages): return str(answer)
"##;

#[tokio::test]
async fn every_function_gets_what_it_asks_for() {
    let script = Script::new(ALL);
    let taskset = script.open(json!({}));
    assert_eq!(taskset.size(), TasksetSize::Finite(4));
    let tasks = rows(&*taskset, 9).await.unwrap();
    assert_eq!(tasks.len(), 4);
    assert_eq!(tasks[2].data.idx, Some(2));
    assert_eq!(tasks[0].kind, "AddingTask");
    assert_eq!(&*tasks[0].data.exact["long"], (1_u128 << 70).to_string());
    let later: Vec<Task> = taskset.tasks_from(3).try_collect().await.unwrap();
    assert_eq!(later, tasks[3..]);

    let (trace, failed) = scored(&*taskset, &tasks[0], &["1"], json!({"secret": 1})).await;
    assert_eq!(failed, None);
    assert_eq!(
        trace.metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(),
        [("length", Some(1.0)), ("turns", Some(1.0))]
    );
    assert_eq!(trace.reward(), 1.0 + 0.5 * 2.0 + 1.0);
    assert_eq!(trace.info["scoring"]["correct"], "said 1");

    let (mut other, _) = scored(&*taskset, &tasks[0], &["one"], json!({"secret": 1})).await;
    let mut trace = trace;
    taskset.rubric().score_group(&tasks[0].data, &mut [&mut trace, &mut other]).await.unwrap();
    assert_eq!(trace.rewards["shortest"].unwrap().score, 1.0);
    assert_eq!(other.rewards["shortest"].unwrap().score, 0.0);
    assert_eq!(other.info["scoring"]["shortest"], "longer");

    let opening = tasks[0].data.opening();
    assert_eq!(taskset.reference(&tasks[0], &opening).await, Ok(Some("1".to_owned())));
}

#[tokio::test]
async fn state_goes_in_with_a_call_and_comes_out_again() {
    let script = Script::new(ALL);
    let taskset = script.open(json!({}));
    let task = rows(&*taskset, 1).await.unwrap().remove(0);
    let hooks = taskset.hooks().unwrap();
    let mut state = State::new();
    hooks.setup(&task, &mut state).await.unwrap();
    assert_eq!(Value::from(state.clone()), json!({"secret": 1}));

    let mut conversation = task.data.opening();
    let mut user = taskset.user(&task).unwrap();
    conversation.push(Message::assistant("2"));
    let asked = Exchange { conversation: &conversation, state: &mut state };
    assert_eq!(hooks.stop(&task, asked).await, Ok(None));
    let said = user.reply(Exchange { conversation: &conversation, state: &mut state }).await.unwrap();
    assert_eq!(said, UserTurn::Say(vec![Message::user("again"), Message::user("please")]));
    conversation.push(Message::assistant(" enough "));
    let asked = Exchange { conversation: &conversation, state: &mut state };
    assert_eq!(hooks.stop(&task, asked).await, Ok(Some("enough".to_owned())));
    let said = user.reply(Exchange { conversation: &conversation, state: &mut state }).await.unwrap();
    assert_eq!(said, UserTurn::Close);
    assert_eq!(Value::from(state.clone()), json!({"secret": 1, "asked": true, "turns": 2}));

    let (trace, _) = scored(&*taskset, &task, &["1"], json!({})).await;
    hooks.finalize(&trace, &mut state).await.unwrap();
    assert_eq!(state["final"], json!(["1", 1]));
}

#[test]
fn the_parameters_of_load_are_the_keys() {
    let script = Script::new(ALL);
    assert_eq!(script.open(json!({"count": 2})).size(), TasksetSize::Finite(2));
    let faults = script.try_open(json!({"count": "two", "levle": "hard"})).err().unwrap();
    assert!(faults.contains("count: wrong type") && faults.contains("did you mean `level`"), "{faults}");
    let faults = script.try_open(json!({"level": "odd", "timeout": 0})).err().unwrap();
    assert!(faults.contains("one of easy, hard") && faults.contains("timeout: out of bounds"), "{faults}");
}

/// Opens a script that cannot be opened, and reads its rows where it can.
#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let script = Script::new(text);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let problem = match script.try_open(json!({})) {
        Err(problem) => problem,
        Ok(taskset) => runtime.block_on(rows(&*taskset, 100)).expect_err(text),
    };
    for part in parts {
        assert!(problem.contains(part), "`{part}` is missing in: {problem}");
    }
}

#[test]
fn what_is_wrong_with_a_script_is_said_with_its_place() {
    let load = "from rollhouse import *\n@load\ndef tasks(): return [{'prompt': 'x', 'answer': 'y'}]\n";
    let with = |more: &str| format!("{load}{more}");
    refused("import nothing_like_it\n", &["adding/taskset.py", "No module named 'nothing_like_it'", "line 1"]);
    refused("def f(:\n", &["SyntaxError: invalid syntax (taskset.py, line 1)\n", "  def f(:"]);
    refused("raise KeyboardInterrupt\n", &["KeyboardInterrupt (taskset.py, line 1"]);
    refused("x = 1\n", &["no function with @load"]);
    refused("import sys\nsys.exit(3)\n", &["sys.exit(3)", "line 2"]);
    refused(&with("@load\ndef again(): return []\n"), &["2 functions with @load"]);
    refused(&with("@reward(weight='x')\ndef f(reply): return 1\n"), &["weight='x'", "finite number", "line 4"]);
    refused(&with("@reward\ndef f(**all): return 1\n"), &["@reward f", "**all"]);
    refused(&with("@stop\ndef f(trace): return True\n"), &["@stop f asks for `trace`", "`messages`", "columns"]);
    refused(&with("@reward\ndef f(reply): return 1\n@metric\ndef f(reply): return 1\n"), &["names `f` twice"]);
    let twice = "@reward\ndef f(reply): return 1\n@reward\ndef f(answer): return 1\n";
    refused(&with(twice), &["names `f` twice"]);
    refused(&with(&twice.replace("reward", "metric")), &["names `f` twice"]);
    refused(&with("class A:\n  @reward\n  def f(self, reply): return 1\n"), &["@reward f is a method"]);
    refused("from rollhouse import *\n@load\ndef tasks(timeout=1): return []\n", &["`timeout` is a key of every"]);
    refused("from rollhouse import *\n@load\ndef tasks(x={1}): return [{'prompt': 'x'}]\n", &["default of `x`"]);
    // Rows.
    refused(&with("@reward\ndef f(anwser): return 1\n"), &["row 0", "no column `anwser`", "@reward f", "`answer`"]);
    let row =
        |row: &str| format!("from rollhouse import *\n@load\ndef tasks():\n  yield {{'prompt': 'x'}}\n  yield {row}\n");
    refused(&row("3"), &["row 1", "dict of columns, not int"]);
    refused(&row("{'prompt': 'x', 'seen': {1}}"), &["row 1", "`seen` must be JSON"]);
    refused(&row("{'prompt': 'x', 'seen': float('nan')}"), &["row 1", "`seen` must be JSON"]);
    refused(&row("{'prompt': 'x', 'seen': '\\ud835'}"), &["row 1", "`seen` must be JSON"]);
    refused(&row("{'prompt': 3}"), &["row 1", "`prompt` must be a text"]);
    refused(&row("{'question': 'x'}"), &["row 1", "no `prompt`"]);
    refused(&row("{'prompt': 'x', 'name': 3}"), &["row 1", "name"]);
    refused(&row("{'prompt': 'x', 'timeout': {'agent': 'long'}}"), &["row 1", "timeout"]);
    refused(&row("{}[0]"), &["row 1", "KeyError", "taskset.py, line 5, in tasks"]);
    refused("from rollhouse import *\n@load\ndef tasks(): return None\n", &["gave nothing"]);
    refused("from rollhouse import *\n@load\ndef tasks(): return []\n", &["no rows"]);
    refused(
        "from rollhouse import *\n@load(size=3)\ndef tasks(): return [{'prompt': 'x'}]\n",
        &["3 rows", "there are 1"],
    );
    refused(
        "from rollhouse import *\n@load(infinite=True)\ndef tasks(): return [{'prompt': 'x'}]\n",
        &["ended after 1"],
    );
}

#[tokio::test]
async fn rows_are_read_no_further_than_they_are_needed() {
    let script = Script::new(
        "from rollhouse import *\n\
         @load(infinite=True)\n\
         def tasks():\n  i = 0\n  while True:\n    assert i < 4\n    yield {'prompt': str(i)}\n    i += 1\n",
    );
    let taskset = script.open(json!({}));
    assert_eq!(taskset.size(), TasksetSize::Infinite);
    // Batches of one, two, four.
    assert_eq!(rows(&*taskset, 3).await.unwrap().len(), 3);
    let problem = rows(&*taskset, 5).await.unwrap_err();
    assert!(problem.contains("row 4") && problem.contains("AssertionError"), "{problem}");
}

#[tokio::test]
async fn large_rows_come_one_by_one() {
    let script = Script::new(
        "from rollhouse import *\n\
         @load\n\
         def tasks():\n  for i in range(30):\n    assert i < 4\n    yield {'prompt': 'x' * 5_000_000}\n",
    );
    let taskset = script.open(json!({}));
    // A batch of four would fail for its third row.
    assert_eq!(rows(&*taskset, 4).await.unwrap().len(), 4);
}

#[tokio::test]
async fn one_failing_function_does_not_hide_the_others() {
    let script = Script::new(
        r#"
from rollhouse import *
@load
def tasks(): return [{"prompt": "x"}]
@reward
def good(reply): return 1, "fine"
@reward
def raises(reply): return helper(reply)
def helper(reply): raise ValueError("broken\nthing")
@reward
def none(reply): pass
@reward
def text(reply): return "1"
@reward
async def nan(reply): return float("nan")
@reward(bounds=(0, 1))
def large(reply): return 3
@reward
def quits(reply):
    import sys
    sys.exit(2)
@reward
def interrupts(reply): raise KeyboardInterrupt
@reward
def halves(reply): raise ValueError("half \ud800 of it")
@reward
def babbles(reply): return 1, "y" * 1_000_000
@reward
def shouts(reply): raise ValueError("y" * 1_000_000)
"#,
    );
    let taskset = script.open(json!({}));
    let task = rows(&*taskset, 1).await.unwrap().remove(0);
    let (trace, failed) = scored(&*taskset, &task, &["1"], json!({})).await;
    let failed = failed.unwrap();
    assert!(
        failed.starts_with("scoring: reward `raises`: ValueError: broken thing (taskset.py, line 9, in helper)"),
        "{failed}"
    );
    let reasons = &trace.info["scoring"];
    assert_eq!(reasons["good"], "fine");
    for (name, part) in [
        ("none", "is a `return` missing?"),
        ("text", "returned '1'"),
        ("nan", "NaN is not a finite number"),
        ("large", "outside its declared bounds"),
        ("quits", "called sys.exit(2)"),
        ("interrupts", "KeyboardInterrupt"),
        ("halves", "ValueError: half ? of it"),
        ("shouts", "y… (1000012 characters) (taskset.py"),
    ] {
        let why = reasons[name].as_str().unwrap();
        assert!(why.starts_with("failed: ") && why.contains(part), "{name}: {why}");
    }
    let told = reasons["babbles"].as_str().unwrap();
    assert!(told.len() < 2100 && told.ends_with("y… (1000000 characters)"), "{}", told.len());
    assert!(serde_json::to_string(&trace).unwrap().len() < 50_000);
}

#[tokio::test]
async fn what_a_user_says_is_refused_in_the_authors_words() {
    for (said, part) in [
        ("5", "must be a text, a message"),
        ("[]", "is an empty list"),
        ("{'role': 'user', 'content': 5}", "the `content` of a message is a text or a list of parts, not 5"),
        ("{'role': 'tool', 'content': 'x'}", "needs a `tool_call_id`"),
        (
            "{'role': 'user', 'content': 'x', 'at': {1}}",
            "it returned no JSON: the value['said'][0]['at'] is of type set",
        ),
        ("'\\ud800'", "the value['said'][0]['content'] holds half a character"),
    ] {
        let script = Script::new(&format!(
            "from rollhouse import *\n@load\ndef tasks(): return [{{'prompt': 'x'}}]\n@user\ndef more(): return {said}\n"
        ));
        let taskset = script.open(json!({}));
        let task = rows(&*taskset, 1).await.unwrap().remove(0);
        let mut user = taskset.user(&task).unwrap();
        let conversation = [Message::user("x"), Message::assistant("y")];
        let asked = Exchange { conversation: &conversation, state: &mut State::new() };
        let fault = user.reply(asked).await.unwrap_err();
        assert_eq!(fault.class, FaultClass::Task);
        assert!(fault.message.contains(part), "{said}: {}", fault.message);
    }
}

#[tokio::test]
async fn a_rollout_is_written_down_before_what_takes_its_time() {
    for (reward, waits) in [
        ("@reward\ndef f(reply): return 1\n@group_reward\ndef g(group): return [1]", false),
        ("@reward\nasync def f(reply): return 1", true),
        ("@reward(timeout=600)\ndef f(reply): return 1", true),
        ("@metric\nasync def f(reply): return 1", true),
    ] {
        let load = "from rollhouse import *\n@load\ndef tasks(): return [{'prompt': 'x'}]\n";
        let taskset = Script::new(&format!("{load}{reward}\n")).open(json!({}));
        assert_eq!(taskset.rubric().waits(), waits, "{reward}");
    }
}

#[tokio::test]
async fn a_state_that_is_not_json_is_refused_by_its_key() {
    let script = Script::new(
        r#"
from rollhouse import *
class Array:
    def tolist(self): return [1, 2]
def nested(depth): return [] if depth == 1 else [nested(depth - 1)]
KEPT = {"set": {1}, "half": "\ud800", "deep": nested(101), "array": {"in": Array()}, "high": nested(100)}
@load
def tasks(): return [{"prompt": "x", "kind": kind} for kind in KEPT]
@setup
def begin(state, kind): state["seen"] = KEPT[kind]
"#,
    );
    let taskset = script.open(json!({}));
    let hooks = taskset.hooks().unwrap();
    for task in rows(&*taskset, 9).await.unwrap() {
        let mut state = State::new();
        let done = hooks.setup(&task, &mut state).await;
        match task.data.extra["kind"].as_str().unwrap() {
            "array" => assert_eq!(state["seen"], json!({"in": [1, 2]})),
            "high" => done.unwrap(),
            kind => {
                let fault = done.unwrap_err();
                assert_eq!(fault.class, FaultClass::Task);
                assert!(fault.message.contains("state['seen'] must be JSON"), "{kind}: {fault}");
            }
        }
    }
}

/// A fault for each task, told by its column; the simulated model says what `reference` says.
const FAULTY: &str = r#"
import os, sys, time
from rollhouse import *
FAULTS = ["none", "raise", "hang", "print", "fork", "leak", "nan", "exit", "die", "none"]
@load
def tasks():
    for fault in FAULTS:
        yield {"prompt": f"task {fault}", "fault": fault}
@reward
def faulty(reply, fault):
    if fault == "raise":
        raise ValueError("on purpose")
    if fault == "hang":
        time.sleep(3600)
    if fault == "print":
        for _ in range(1 << 10):
            os.write(1, b"x" * (1 << 20))
    if fault == "fork" and os.fork() == 0:
        time.sleep(3600)
    if fault == "leak":
        kept = [b"x" * (1 << 20) for _ in range(1 << 12)]
    if fault == "nan":
        return float("nan")
    if fault == "exit":
        sys.exit(1)
    if fault == "die":
        os._exit(1)
    return 1
"#;

#[test]
fn whatever_a_reward_does_costs_one_rollout() {
    let script = Script::new(FAULTY);
    let keys = r#"{"timeout": 10, "memory_mb": 1024, "workers": 2}"#;
    let results = script.eval(&["-a", keys]);
    assert_eq!(results["rollouts"], 10, "{results}");
    let mut ended = BTreeMap::new();
    for episode in episodes(&script.folder.only_run()) {
        let trace = &episode["traces"][0];
        let fault = episode["task"]["data"]["fault"].as_str().unwrap().to_owned();
        let message = trace["errors"][0]["message"].as_str().unwrap_or("scored").to_owned();
        if message != "scored" {
            assert_eq!(trace["errors"][0]["class"], "scoring", "{fault}: {message}");
            assert_eq!(trace["rewards"]["faulty"], Value::Null, "{fault}");
        }
        ended.insert(fault, message);
    }
    for (fault, part) in [
        ("none", "scored"),
        ("raise", "ValueError: on purpose (taskset.py, line 12, in faulty)"),
        ("hang", "10 s"),
        ("print", "scored"),
        ("fork", "scored"),
        ("leak", "MemoryError"),
        ("nan", "NaN is not a finite number"),
        ("exit", "sys.exit(1)"),
        ("die", "`faulty`"),
    ] {
        assert!(ended[fault].contains(part), "{fault}: {}", ended[fault]);
    }
}

#[test]
fn a_user_and_a_reference_play_a_whole_run() {
    let script = Script::new(
        r#"
"""Count up."""
from rollhouse import *
@load(size="count")
def tasks(count: int = 6):
    for i in range(count):
        yield {"prompt": f"after {i}?", "start": i}
@user
def more(replies, state, rounds=2):
    state["rounds"] = len(replies)
    return None if len(replies) == 2 else "and then?"
@reference
def counts(start, replies): return str(start + 1 + len(replies))
@reward
def right(replies, start): return sum(reply == str(start + 1 + i) for i, reply in enumerate(replies)) / 2
"#,
    );
    let results = script.eval(&["--env.taskset.count", "5", "-r", "2"]);
    assert_eq!((&results["rollouts"], &results["scored"]), (&json!(10), &json!(10)), "{results}");
    assert_eq!(results["turns"]["mean"], 2.0);
    let reward = results["reward"]["mean"].as_f64().unwrap();
    assert!(reward > 0.5, "the simulator plays with the reference, {reward}");
    for episode in episodes(&script.folder.only_run()) {
        assert_eq!(episode["traces"][0]["info"]["state"], json!({"rounds": 2}));
    }
}
