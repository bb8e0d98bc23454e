//! What an author's taskset is promised while its rollouts wait for their scores: a dying process costs the scoring, no more.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and end processes of their own")]

mod program;
mod support;

use std::{
    fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use program::{Done, Folder, Simulator, episodes, metrics};
use serde_json::{Value, json};
use support::{Server, Step, answer};

/// A judge that answers nobody until it is told to.
async fn judge(sits: &Arc<AtomicBool>) -> Server {
    let sits = Arc::clone(sits);
    Server::start(move |request| {
        if request.path.ends_with("/models") {
            return answer(404, "", "{}");
        }
        if !sits.load(Ordering::SeqCst) {
            return vec![Step::Hang];
        }
        let body = json!({
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 30, "completion_tokens": 5},
        });
        answer(200, "", body.to_string())
    })
    .await
}

async fn output(mut command: Command) -> Done {
    Done::of(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

fn lines(text: &str) -> usize {
    text.matches('\n').count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_judges_think_costs_no_request_of_the_model() {
    let sits = Arc::new(AtomicBool::new(false));
    let (judge, model) = (judge(&sits).await, Simulator::start(&[]));
    let folder = Folder::new();
    let taskset = format!(
        "prompt = \"Say {{{{ word }}}}\"\n[data]\nrows = [{{ word = \"a\" }}, {{ word = \"b\" }}]\n[[judge]]\n\
         name = \"polite\"\nprompt = \"Is this polite? {{{{ reply }}}}\"\nmodel = \"m\"\nbase_url = \"{}\"\n\
         api_key_var = \"JUDGE_KEY\"\n",
        judge.base_url()
    );
    folder.write("words/taskset.toml", &taskset);
    let start = ["eval", "./words", "-m", "sim", "-b", &model.base_url, "-r", "2", "--run.name", "one"];
    let key = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.env("JUDGE_KEY", "sk-judge-secret").env("OPENAI_API_KEY", "sk-model-secret");
        command
    };
    let mut child = key(&start).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let run = folder.path().join("outputs/one");
    let pending = run.join("pending.jsonl");
    let started = Instant::now();
    while fs::read_to_string(&pending).map_or(0, |text| lines(&text)) < 4 {
        assert!(started.elapsed() < Duration::from_secs(60), "no rollout waits for its judge");
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(run.join("traces.jsonl")).unwrap(), "");
    let waiting = fs::read_to_string(&pending).unwrap();
    assert!(!waiting.contains("secret"));
    let first: Value = serde_json::from_str(waiting.lines().next().unwrap()).unwrap();
    let id = first["id"].as_str().unwrap();
    output(key(&["why", "one", id])).await.expect(1).says("only lacks its scores").says("--resume");
    output(key(&["replay", "one"])).await.expect(2).says("holds no rollout");
    let asked = metrics(&model.base_url)["vllm:request_success_total"];
    assert_eq!(asked, 4.0);
    output(key(&start)).await.expect(1).says("already holds finished rollouts").says("--resume");

    sits.store(true, Ordering::SeqCst);
    let done = output(key(&["eval", "--resume", "outputs/one", "--json"])).await.expect(0);
    let done = done.says("to be scored: 4 rollouts that need not run again");
    let results = done.json();
    assert_eq!((&results["scored"], &results["not_run"]), (&json!(4), &json!(0)), "{results:#}");
    assert_eq!(metrics(&model.base_url)["vllm:request_success_total"], asked);
    assert!(!pending.exists());
    assert_eq!(episodes(&run).len(), 4);
}

const HOOKS: &str = r#"
from rollhouse import load, reward, setup, stop, finalize, group_reward

@load
def tasks():
    for number in range(3):
        yield {"prompt": f"say {number}", "number": number}

@setup
def prepare(state, number):
    if number == 1:
        raise RuntimeError("no world for this one")
    state["seen"] = ["setup"]

@stop
def enough(reply, state):
    state["seen"].append("stop")
    return reply == "say 2"

@finalize
def close(state):
    state["seen"].append("finalize")

@reward
def whole(state):
    return state["seen"] == ["setup", "stop", "finalize"]

@group_reward(weight=0.5)
def members(group):
    return [len(group)] * len(group)
"#;

#[test]
fn hooks_and_group_rewards_of_a_script_run_and_a_failing_one_costs_its_rollouts_only() {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter: run the tests with `tests/run`");
    let (folder, model) = (Folder::new(), Simulator::start(&["--policy", "echo"]));
    folder.write("hooked/taskset.py", HOOKS);
    let eval = ["eval", "./hooked", "--env.taskset.python", &python, "-m", "sim", "-b", &model.base_url];
    let rest = ["-r", "2", "--json", "--max-error-rate", "1", "--run.name", "one"];
    let results = folder.run(&[&eval[..], &rest].concat()).expect(0).json();
    assert_eq!((&results["scored"], &results["errors"]), (&json!(4), &json!({"task": 2})), "{results:#}");
    let run = folder.path().join("outputs/one");
    for episode in episodes(&run) {
        let trace = &episode["traces"][0];
        let number = trace["task"]["data"]["number"].as_u64().unwrap();
        if number == 1 {
            assert!(trace["errors"][0]["message"].as_str().unwrap().contains("no world for this one"), "{trace:#}");
            assert_eq!(trace["rewards"], json!({}));
            continue;
        }
        let score = |name: &str| trace["rewards"][name]["score"].clone();
        assert_eq!((score("whole"), score("members")), (Value::from(1.0), Value::from(2.0)));
        let condition = if number == 2 { "enough" } else { "agent_completed" };
        assert_eq!(trace["stop_condition"], condition);
    }
    assert!(!run.join("pending.jsonl").exists());
}
