//! Episodes round generated traces.

use std::sync::Arc;

use rand::{RngExt, rngs::StdRng};
use rollhouse::trace::{
    CreditStream, EnvInfo, Episode, Fault, FaultClass, GroupInfo, RewardScore, RunInfo, TaskData, Trace, TraceTask,
    Usage,
};
use serde_json::json;

use crate::trace_replay::typed;

/// Texts that JSON writers disagree about.
pub(crate) const TEXTS: [&str; 7] =
    ["plain", "naïve 🙂 日本", "a\u{0}\u{1f}\u{7f}b", "\u{2028}\"\\/", "tab\tnl\n", "", " \u{1c}x\u{a0}"];

/// An episode round a trace, with something in every field.
pub(crate) fn dress(random: &mut StdRng, mut trace: Trace) -> Episode {
    let text = |random: &mut StdRng| TEXTS[random.random_range(0..7)].to_owned();
    let data = TaskData {
        idx: Some(random.random_range(0..100)),
        name: random.random::<bool>().then(|| text(random)),
        prompt: typed(&json!([{"role": "user", "content": [{"type": "text", "text": text(random)}]}])),
        extra: typed(&json!({"answer": text(random), "nested": {"none": null, "score": random.random::<f64>()}})),
        ..typed(&json!({"exact": 0}))
    };
    let data: TaskData = serde_json::from_str(
        &serde_json::to_string(&data).unwrap().replace("\"exact\":0", "\"long\":[123456789012345678901234567890]"),
    )
    .unwrap();
    let task = Arc::new(TraceTask::new("DemoTask", data));
    trace.task = Arc::clone(&task);
    let nodes = trace.graph.nodes().len() as u32;
    for node in 0..nodes {
        let tokens = trace.graph.tokens_mut(node).unwrap();
        if random.random_range(0..3) == 0 {
            let values = (0..tokens.mask().count()).map(|_| random.random_range(-3.0..3.0)).collect();
            tokens.set_credit(CreditStream::Advantages, Some(values)).unwrap();
            let weights = tokens.ids().iter().map(|_| random.random_range(0.0..1.0)).collect();
            tokens.set_loss_weights("policy", weights).unwrap();
        }
    }
    trace.rewards.insert("exact".to_owned(), Some(RewardScore { score: random.random(), weight: 0.5 }));
    trace.rewards.insert("due".to_owned(), None);
    trace.metrics.insert("words".to_owned(), Some(f64::from(random.random_range(0..9))));
    trace.metrics.insert("bad".to_owned(), Some(f64::NAN));
    trace.info = typed(&json!({"note": text(random), "kept": {"none": null}}));
    trace.root_reply = random.random::<bool>().then(|| text(random));
    trace.extra_usage.push(Usage { prompt_tokens: 3, cost: Some(0.25), ..Usage::default() });
    match random.random_range(0..4) {
        0 => trace.record_fault(Fault::new(FaultClass::Provider, text(random)).with_status(Some(503))),
        1 => trace.record_timeout("agent"),
        2 => trace.stop("max_turns"),
        _ => trace.stop("agent_completed"),
    }
    trace.ok = trace.errors.is_empty();
    let run = RunInfo::Eval { id: "run".to_owned(), name: None };
    let mut episode = Episode::new(EnvInfo { id: "demo".to_owned(), name: None }, task, Some(run));
    episode.group = random.random::<bool>().then(|| GroupInfo { id: "g".to_owned() });
    episode.ok = trace.ok;
    episode.traces.push(trace);
    episode
}
