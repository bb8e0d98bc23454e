//! What the way to an env server and back costs in CPU time: client and server in one process, a run of one turn with
//! five states, over one connection.
//!
//!     cargo bench --bench serve [-- RUNS [IN_FLIGHT]]
//!
//! By default 20,000 runs, 256 in flight, over TCP and over a Unix socket. Prints a line of JSON for each: CPU of both sides
//! together and wall time, in microseconds for each run.
#![allow(clippy::print_stdout, reason = "a measuring program of its own")]

use std::{sync::Arc, time::Instant};

use futures::{StreamExt as _, future::BoxFuture, stream};
use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::{
    agent::Watch,
    serve::{Client, Host, Refused, RunRequest, Server, ServerSettings},
    trace::{AgentInfo, AssistantMessage, EnvInfo, Episode, Message, ModelCall, TaskData, Trace, TraceTask},
    zmtp::{Address, Settings},
};
use serde_json::{Map, json, value::RawValue};
use tokio_util::sync::CancellationToken;

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let runs = arguments.first().copied().unwrap_or(20_000);
    let in_flight = arguments.get(1).copied().unwrap_or(256);
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for (name, address) in
        [("tcp", "tcp://127.0.0.1:0".parse().unwrap()), ("ipc", Address::Ipc(folder.path().join("socket")))]
    {
        let (cpu, wall) = runtime.block_on(measured(&address, runs, in_flight));
        let each = |seconds: f64| (seconds * 1e7 / runs as f64).round() / 10.0;
        println!(
            "{}",
            json!({ "over": name, "runs": runs, "in_flight": in_flight, "cpu_us": each(cpu), "wall_us": each(wall) })
        );
    }
}

async fn measured(address: &Address, runs: usize, in_flight: usize) -> (f64, f64) {
    let server = Server::bind(address, ServerSettings::default(), Arc::new(Trivial)).await.unwrap();
    let (address, stop) = (server.address().clone(), CancellationToken::new());
    let serving = tokio::spawn(server.run(stop.clone()));
    let client = Client::connect(address, Settings::default());
    let data = TaskData { idx: Some(0), prompt: None, ..TaskData::default() };
    let request = RunRequest::new(&data, Map::new(), "m", Map::new()).unwrap();
    // Once, for whatever is made at first.
    client.run(&request, None).await.unwrap();
    let (before, started) = (cpu(), Instant::now());
    let done = stream::iter(0..runs)
        .map(|_| {
            let (client, request) = (client.clone(), request.clone());
            async move { tokio::spawn(async move { client.run(&request, None).await }).await.unwrap() }
        })
        .buffer_unordered(in_flight)
        .filter(|episode| std::future::ready(episode.as_ref().is_ok_and(|episode| episode.traces.len() == 1)))
        .count()
        .await;
    let spent = (cpu() - before, started.elapsed().as_secs_f64());
    assert_eq!(done, runs);
    stop.cancel();
    serving.await.unwrap();
    spent
}

/// A run of one turn that asks no model.
struct Trivial;

impl Host for Trivial {
    fn run<'a>(&'a self, request: RunRequest, watch: Arc<dyn Watch>) -> BoxFuture<'a, Result<Episode, Refused>> {
        Box::pin(async move {
            let data: TaskData = serde_json::from_value(request.task_data.into()).unwrap();
            let task = Arc::new(TraceTask::new("PlainTask", data));
            let agent = AgentInfo {
                config: Arc::from(RawValue::from_string(r#"{"model":"m"}"#.to_owned()).unwrap()),
                runtime: None,
                name: "agent".to_owned(),
                trainable: true,
            };
            let mut trace = Trace::new(Arc::clone(&task), agent);
            watch.changed(&trace, &[]);
            let prompt = [Message::user("What is two and two?")];
            watch.changed(&trace, &prompt);
            let turn = trace.graph.prepare(&prompt, Arc::default());
            let reply = AssistantMessage { content: Some("Four.".to_owned()), ..AssistantMessage::default() };
            let node = trace.graph.commit(turn, reply, None).unwrap();
            trace.calls.push(ModelCall { node: Some(node), ..ModelCall::default() });
            watch.changed(&trace, &[]);
            trace.stop("agent_completed");
            watch.changed(&trace, &[]);
            trace.ok = true;
            let mut episode = Episode::new(EnvInfo::default(), task, None);
            episode.ok = true;
            episode.traces.push(trace);
            Ok(episode)
        })
    }
}

/// User and system seconds of this process.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}
