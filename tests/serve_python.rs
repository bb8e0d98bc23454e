//! The real verifiers on the other side, each way: its servers with our client, its client with our server.

mod served;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use nix::sys::signal::Signal;
use rollhouse::{
    agent::Watch,
    serve::{Client, RunError, RunRequest},
    sim::{self, Oracle, Policy, Simulator},
    trace::{Content, Episode, FaultClass, Message},
    zmtp::Settings,
};
use serde_json::{Map, Value, json};
use served::{
    Running, Seen, Told, client_block, host, map, python::Python, request, solver, tasks, taskset, until, within,
};

/// Says the last message back; asked for a page, it looks it up with the tool.
struct Model;

impl Oracle for Model {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        let answer = match conversation.last() {
            Some(Message::User(user)) => {
                let text = text(&user.content);
                let page = text.strip_prefix("what stands on page ").and_then(|rest| rest.strip_suffix('?'));
                Some(page.map_or(text.clone(), |page| {
                    format!("<tool_call>\n{{\"name\": \"page\", \"arguments\": {{\"number\": {page}}}}}\n</tool_call>")
                }))
            }
            Some(Message::Tool(tool)) => Some(text(&tool.content)),
            _ => None,
        };
        Box::pin(std::future::ready(answer))
    }
}

fn text(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(_) => String::new(),
    }
}

fn block(id: &str, seats: &[&str], more: Value) -> Value {
    let mut block = json!({"taskset": {"id": id}});
    for seat in seats {
        block[*seat] = json!({"runtime": {"type": "subprocess"}});
    }
    merge(&mut block, more);
    block
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn run_of(task_data: Value, base_url: &str) -> RunRequest {
    let client = client_block(base_url);
    RunRequest { task_data: map(task_data), client, model: "sim".to_owned(), sampling: Map::new() }
}

/// The simulator's tokenizer with the control tokens of Qwen3 beside.
#[allow(clippy::disallowed_methods, reason = "a folder of the test")]
fn tokenizer_of_qwen3() -> tempfile::TempDir {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sim-model");
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(format!("{model}/{name}")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for token in ["<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"] {
        let mut entry = added[0].clone();
        entry["id"] = (256 + added.len()).into();
        entry["content"] = token.into();
        added.push(entry);
    }
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), read("tokenizer_config.json")).unwrap();
    folder
}

fn say(number: u64) -> Value {
    let text = format!("say {number} and nothing else");
    json!({"idx": number, "prompt": text, "answer": text, "name": format!("say-{number}")})
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_runs_what_verifiers_serves_and_verifiers_reads_it() {
    let settings = sim::Settings { policy: Policy::Oracle, ..sim::Settings::default() };
    let simulator = Simulator::start(settings, Some(Arc::new(Model))).await.unwrap();
    let url = simulator.base_url();
    let own = |task: Value| block("rh-env", &["agent"], json!({"taskset": {"task": task}}));
    let blocks = [
        own(json!({})),
        own(json!({"slow": 3600})),
        own(json!({"big": 10})),
        own(json!({"fail": "reward"})),
        own(json!({"fail": "setup"})),
        block("rh-talk", &["player"], json!({})),
        block("rh-pair", &["solver", "critic"], json!({})),
        block("rh-pair", &["solver", "critic"], json!({"fail_run": true})),
        block("rh-tools", &["agent"], json!({})),
    ];
    let mut python = tokio::task::spawn_blocking(move || Python::start(&blocks)).await.unwrap();
    let clients: Vec<Client> =
        python.addresses.iter().map(|address| Client::connect(address.clone(), Settings::default())).collect();
    let [plain, slow, big, no_reward, no_setup, talk, pair, half, tools] = clients.try_into().unwrap();
    plain.wait_ready(Duration::from_secs(60)).await.unwrap();
    let mut lines = Vec::new();
    let mut keep = |episode: &Episode| episode.write_line(&mut lines).unwrap();

    // Single-turn, many at once, seen live.
    let seen = Arc::new(Seen::default());
    let asked: Vec<RunRequest> = (0..20).map(|number| run_of(say(number), &url)).collect();
    let watch = Arc::clone(&seen) as Arc<dyn Watch>;
    let runs = asked.iter().map(|asked| plain.run(asked, Some(Arc::clone(&watch))));
    for (number, episode) in within(futures::future::join_all(runs)).await.into_iter().enumerate() {
        let episode = episode.unwrap();
        assert_eq!((episode.ok, episode.reward(), episode.traces.len()), (true, 1.0, 1));
        assert_eq!(episode.task.data.idx, Some(number as u64));
        assert_eq!(episode.env.id, "rh-env");
        assert_eq!(
            episode.traces[0].metrics["length"],
            Some(say(number as u64)["answer"].as_str().unwrap().len() as f64)
        );
        keep(&episode);
    }
    assert!(seen.states.lock().unwrap().iter().any(|state| state.pending > 0));

    // A talk of several turns, two seats, tools.
    let episode =
        within(talk.run(&run_of(json!({"idx": 0, "prompt": "count on from 5", "number": 5}), &url), None)).await;
    let episode = episode.unwrap();
    assert_eq!((episode.traces[0].calls.len(), episode.reward()), (3, 1.0), "{:?}", episode.fault());
    keep(&episode);
    let episode = within(pair.run(&run_of(say(3), &url), None)).await.unwrap();
    let seats: Vec<(&str, bool)> =
        episode.traces.iter().map(|trace| (trace.agent.name.as_str(), trace.agent.trainable)).collect();
    assert_eq!(seats, [("solver", true), ("solver", true), ("critic", false)]);
    assert_eq!(episode.traces[0].metrics["best"], Some(1.0));
    keep(&episode);
    let page = json!({"idx": 0, "prompt": "what stands on page 2?", "answer": "word-2"});
    let episode = within(tools.run(&run_of(page, &url), None)).await.unwrap();
    assert_eq!(
        (episode.reward(), episode.traces[0].metrics["tool_messages"]),
        (1.0, Some(1.0)),
        "{:?}",
        episode.fault()
    );
    assert_eq!(episode.traces[0].graph.tools()[0].name, "page");
    keep(&episode);

    // Ten megabytes.
    let episode = within(big.run(&run_of(say(0), &url), None)).await.unwrap();
    assert_eq!(episode.traces[0].info["blob"].as_str().unwrap().len(), 10 << 20);
    keep(&episode);

    // Failures of a rollout are data; those of an episode stand in its head.
    for (client, traces, class) in
        [(&no_reward, 1, FaultClass::Task), (&no_setup, 1, FaultClass::Task), (&half, 1, FaultClass::Infrastructure)]
    {
        let episode = within(client.run(&run_of(say(0), &url), None)).await.unwrap();
        assert!(!episode.ok);
        assert_eq!(episode.traces.len(), traces);
        let fault = episode.fault().unwrap();
        assert!(fault.class == class && fault.message.contains("was told to fail"), "{fault:?}");
        keep(&episode);
    }

    // A row that is none of this taskset.
    let error = within(plain.run(&run_of(json!({"idx": 0, "answer": ["no", "text"]}), &url), None)).await.unwrap_err();
    let RunError::Refused(refused) = &error else { panic!("{error:?}") };
    assert_eq!(refused.class, "ValidationError");
    assert!(refused.message.contains("answer") && !error.retry_helps(), "{error}");
    assert_eq!(error.fault().kind, "ValidationError");
    let mut keyless = run_of(say(0), &url);
    keyless.client.insert("base_ulr".to_owned(), "x".into());
    let error = within(plain.run(&keyless, None)).await.unwrap_err();
    assert!(error.to_string().contains("base_ulr"), "{error}");

    // A run that is given up ends over there, and the server goes on.
    let (seen, asked) = (Arc::new(Seen::default()), run_of(say(0), &url));
    let run = tokio::spawn({
        let (slow, watch) = (slow.clone(), Arc::clone(&seen) as Arc<dyn Watch>);
        async move { slow.run(&asked, Some(watch)).await }
    });
    until(|| !seen.states.lock().unwrap().is_empty()).await;
    run.abort();
    slow.health(Duration::from_secs(20)).await.unwrap();

    // A server that hangs is lost within seconds, and found again.
    let (seen, asked) = (Arc::new(Seen::default()), run_of(say(0), &url));
    let run = tokio::spawn({
        let (slow, watch) = (slow.clone(), Arc::clone(&seen) as Arc<dyn Watch>);
        async move { slow.run(&asked, Some(watch)).await }
    });
    until(|| !seen.states.lock().unwrap().is_empty()).await;
    python.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let error = within(run).await.unwrap().unwrap_err();
    let noticed = stopped.elapsed();
    python.signal(Signal::SIGCONT);
    assert!(error.is_lost() && error.retry_helps(), "{error:?}");
    // The promise is two seconds; the rest is for a busy machine.
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
    slow.wait_ready(Duration::from_secs(30)).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traces.jsonl");
    let written = lines.len();
    #[allow(clippy::disallowed_methods, reason = "a file of the test")]
    std::fs::write(&file, lines).unwrap();
    let read = tokio::task::spawn_blocking(move || {
        let read = python.ask("read", json!({"file": file}));
        python.end();
        read
    });
    let read = read.await.unwrap();
    assert_eq!(read.as_array().unwrap().len(), 20 + 3 + 1 + 3, "{written} bytes");
    assert_eq!(read[20]["traces"][0]["turns"], 3);
    assert_eq!(read[21]["traces"].as_array().unwrap().len(), 3);
    assert!(read[26]["errors"].as_array().unwrap().len() == 1, "{}", read[26]);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_verifiers_runs_what_we_serve() {
    let mut python = tokio::task::spawn_blocking(|| Python::start(&[])).await.unwrap();
    let mut ask = |what: &'static str, request: Value| tokio::task::block_in_place(|| python.ask(what, request));
    let of = |server: &Running, request: &RunRequest| {
        let mut asked = serde_json::to_value(request).unwrap();
        asked["address"] = server.address.to_string().into();
        asked
    };
    for (id, config) in [("reverse-text", json!({})), ("alphabet-sort", json!({"min_turns": 3, "max_turns": 3}))] {
        let taskset = taskset(id, config);
        let simulator = solver(&taskset, sim::Settings::default()).await;
        let server = Running::start(host(&taskset, id)).await;
        let task = &tasks(taskset.as_ref(), 1).await[0];
        let mut asked = request(task, &simulator.base_url());
        asked.sampling = map(json!({"temperature": 0.5, "top_k": 4}));
        let end = ask("run", of(&server, &asked));
        assert_eq!((&end["ok"], &end["traces"][0]["reward"]), (&json!(true), &json!(1.0)), "{end}");
        assert_eq!(end["traces"][0]["turns"], if id == "alphabet-sort" { 3 } else { 1 });
        assert_eq!(end["traces"][0]["runtime"], "subprocess");
        assert!(end["deltas"].as_u64() > Some(2) && end["previews"].as_u64() > Some(0), "{end}");
        // What it keeps of the episode is ours again.
        let episode = Episode::from_line(end["line"].as_str().unwrap().as_bytes()).unwrap();
        assert_eq!((episode.reward(), &episode.env.id[..], &episode.task.hash), (1.0, id, &task.hash));

        let mut bad = asked.clone();
        bad.task_data.insert("prompt".to_owned(), 5.into());
        let end = ask("run", of(&server, &bad));
        let error = end["error"].as_str().unwrap();
        assert!(error.starts_with("ValidationError: 1 validation error for ") && error.contains("\nprompt\n"), "{end}");
        server.stop().await;
        simulator.shutdown().await;
    }

    // In exact tokens, by a renderer that comes over the wire with all of its fields.
    let tokenizer = tokenizer_of_qwen3();
    let taskset = served::taskset("alphabet-sort", json!({"min_turns": 3, "max_turns": 3}));
    let random = sim::Settings { policy: Policy::Random, ..sim::Settings::default() };
    let simulator = Simulator::start(random, None).await.unwrap();
    let server = Running::start(host(&taskset, "alphabet-sort")).await;
    let task = &tasks(taskset.as_ref(), 1).await[0];
    let mut train = request(task, &simulator.base_url());
    train.client = map(json!({
        "type": "train", "base_url": simulator.base_url(), "renderer_model_name": tokenizer.path(),
        "renderer": {"name": "qwen3", "thinking_retention": "all"},
    }));
    let end = ask("run", of(&server, &train));
    assert_eq!((&end["ok"], &end["traces"][0]["turns"]), (&json!(true), &json!(3)), "{end}");
    // What verifiers read of it has the tokens: one branch, in which every answer has its logprobs.
    let episode = Episode::from_line(end["line"].as_str().unwrap().as_bytes()).unwrap();
    let nodes = episode.traces[0].graph.nodes();
    assert_eq!(nodes.len(), 6);
    for (at, node) in nodes.iter().enumerate() {
        assert_eq!(node.parent, (at as u32).checked_sub(1));
        assert_eq!(node.sampled, node.tokens.mask().count() > 0);
        assert_eq!(node.tokens.logprobs().len(), node.tokens.mask().count());
    }
    // Every renderer's whole block is understood, whether or not this tokenizer has its tokens.
    for name in ["auto", "default", "qwen3.5", "llama-3", "gpt-oss", "deepseek-v3", "glm-4.5", "kimi-k2", "minimax-m2"]
    {
        train.client.insert("renderer".to_owned(), json!({"name": name}));
        let end = ask("run", of(&server, &train));
        let told = end["error"].as_str().unwrap_or_default();
        assert!(!told.contains("unknown key") && !told.contains("wrong type"), "{name}: {end}");
    }
    train.client.insert("renderer".to_owned(), Value::Null);
    let end = ask("run", of(&server, &train));
    assert_eq!(end["ok"], true, "{end}");
    server.stop().await;
    simulator.shutdown().await;

    // A failed model call is data.
    let taskset = served::taskset("reverse-text", json!({}));
    let server = Running::start(host(&taskset, "reverse-text")).await;
    let task = &tasks(taskset.as_ref(), 1).await[0];
    let refusing = sim::Settings { api_key: Some(sim::ApiKey::new("k")), ..sim::Settings::default() };
    let simulator = solver(&taskset, refusing).await;
    let end = ask("run", of(&server, &request(task, &simulator.base_url())));
    assert_eq!((&end["ok"], &end["traces"][0]["errors"]), (&json!(false), &json!(["ProviderError"])), "{end}");
    simulator.shutdown().await;

    // A cancel, and a client that just goes, end the run down to the model call.
    let slow = sim::Settings { time_to_first_token: Duration::from_secs(3600), ..sim::Settings::default() };
    let simulator = solver(&taskset, slow).await;
    let asked = of(&server, &request(task, &simulator.base_url()));
    let end = ask("cancel", asked.clone());
    assert_eq!(end, json!({"raised": "CancelledError", "healthy": true}));
    until(|| simulator.stats().running == 0).await;
    ask("leave", asked);
    until(|| simulator.stats().running == 0).await;

    // By hand: ids that are no text, messages that are no requests.
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let answers = ask(
        "raw",
        json!({"address": server.address.to_string(), "answers": 2, "messages": [
            [hex(b"two"), hex(b"frames")], [hex(b"four"), hex(b"run"), "80", "80"],
            ["ff00fe", hex(b"health"), "80"], [hex(b"id"), hex(b"health"), "c1"],
        ]}),
    );
    let mut ids: Vec<&str> = answers.as_array().unwrap().iter().map(|answer| answer[0].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [&hex(b"id"), "ff00fe"]);
    server.stop().await;
    simulator.shutdown().await;

    // Thousands at once.
    let taskset = served::taskset("reverse-text", json!({}));
    let simulator = solver(&taskset, sim::Settings::default()).await;
    let told = Told::new(|_, _, _| async { Err(rollhouse::serve::Refused::new("OSError", "no")) });
    let refusing = Running::start(told).await;
    let server = Running::start(host(&taskset, "reverse-text")).await;
    let mut asked = of(&server, &request(task, &simulator.base_url()));
    asked["count"] = 1000.into();
    let end = ask("many", asked);
    assert_eq!((&end["ended"], &end["failed"]), (&json!(1000), &json!([])));
    let mut asked = of(&refusing, &request(task, &simulator.base_url()));
    asked["count"] = 5000.into();
    let end = ask("many", asked);
    assert_eq!((&end["ended"], &end["failed"][0]), (&json!(0), &json!("OSError: no")));
    tokio::task::spawn_blocking(move || python.end()).await.unwrap();
    server.stop().await;
    refusing.stop().await;
    simulator.shutdown().await;
}
