//! One family beside its peer.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

use rollhouse::{
    config::RendererConfig,
    render::{Extension, Parsed, Previous, Renderer, Run, Tokenizer, Unbridged, family},
    trace::{Message, Tool},
};
use serde_json::{Map, Value, json};

use super::corpus::{Conversation, Corpus, Shape};

/// A family, its tokenizer and what it is compared with.
pub(crate) struct Family {
    /// Folder of the model's files below the tokenizers' folder.
    pub files: &'static str,
    pub model: &'static str,
    pub config: RendererConfig,
    /// Configuration for the package; without it the model's chat template.
    pub peer: Option<Value>,
    /// Control tokens that the vocabulary lacks.
    pub added: &'static [&'static str],
    pub shape: Shape,
}

/// A question to the peer, and our answer.
struct Case {
    asked: Value,
    ours: Value,
}

impl Family {
    /// Compares renderings, parses and bridges of as many conversations.
    pub(crate) fn prove(&self, conversations: usize) {
        let conversations =
            env::var("ROLLHOUSE_TEST_CONVERSATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(conversations);
        let folder = folder(self.files);
        let tokenizer = Arc::new(tokenizer(&folder, self.added));
        let renderer = family::renderer(&self.config, self.model, &folder, Arc::clone(&tokenizer)).unwrap();
        let mut corpus = Corpus::new(7);
        let cases: Vec<Case> = (0..conversations).map(|_| self.case(&*renderer, &mut corpus)).collect();
        let (about, theirs) = self.ask(&folder, &cases);
        if self.peer.is_some() {
            let mut stops: Vec<u64> = about["stops"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
            let mut ours: Vec<u64> = renderer.stop_ids().iter().map(|id| u64::from(*id)).collect();
            stops.sort();
            ours.sort();
            assert_eq!(ours, stops, "stop ids");
            assert_eq!(renderer.is_prefix_stable(), about["stable"].as_bool().unwrap(), "prefix stability");
        }
        for part in ["parse", "bridge"] {
            let compared = cases.iter().filter(|case| case.ours[part].is_object()).count();
            assert!(self.peer.is_none() || compared > conversations / 10, "{compared} cases to {part}");
        }
        let mut faults = Vec::new();
        for (case, theirs) in cases.iter().zip(&theirs) {
            for part in ["render", "parse", "bridge"] {
                let (ours, theirs) = (&case.ours[part], &theirs[part]);
                if !theirs.is_null() || !ours.is_null() {
                    faults.extend(difference(&tokenizer, part, ours, theirs).map(|told| (case, part, told)));
                }
            }
        }
        if let Some((case, part, told)) = faults.first() {
            let count = |part: &str| faults.iter().filter(|(_, other, _)| *other == part).count();
            panic!(
                "{}: {} of {conversations} cases differ (render {}, parse {}, bridge {}), the first in {part}:\n{told}\n{}",
                self.config.family.name(),
                faults.len(),
                count("render"),
                count("parse"),
                count("bridge"),
                case.asked
            );
        }
    }

    fn case(&self, renderer: &dyn Renderer, corpus: &mut Corpus) -> Case {
        let Conversation { messages, tools, generate, new, answer } = corpus.conversation(self.shape);
        let mut asked = json!({
            "messages": messages.iter().map(wire).collect::<Vec<_>>(),
            "tools": tools.iter().map(tool).collect::<Vec<_>>(),
            "generate": generate,
        });
        let mut ours = json!({ "render": rendering(renderer, &messages, &tools, generate) });
        if self.peer.is_some()
            && generate
            && let Ok(prompt) = renderer.render(&messages, &tools, true)
            && let Some(completion) = completion(renderer, corpus, &messages, &tools, answer)
        {
            let previous = Previous { prompt: &prompt.ids, completion: &completion };
            ours["parse"] = parse(renderer.parse(&completion, &prompt.ids, &tools));
            ours["bridge"] = bridge(renderer.bridge(previous, &new, &tools));
            asked["prompt"] = json!(prompt.ids);
            asked["completion"] = json!(completion);
            asked["new"] = new.iter().map(wire).collect();
        }
        Case { asked, ours }
    }

    fn ask(&self, folder: &Path, cases: &[Case]) -> (Value, Vec<Value>) {
        let mut command = Command::new(python());
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/render_peer.py")).arg(folder);
        command.args(["--model", self.model, "--add", &json!(self.added).to_string()]);
        if let Some(peer) = &self.peer {
            command.args(["--renderer", &peer.to_string()]);
        }
        command.env("TIKTOKEN_ENCODINGS_BASE", self::folder("harmony"));
        command.env("HF_HUB_OFFLINE", "1").env("TRANSFORMERS_VERBOSITY", "error");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::scope(|scope| {
            scope.spawn(move || {
                for case in cases {
                    writeln!(input, "{}", case.asked).unwrap();
                }
            });
            let mut lines = output.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
            let about = lines.next().expect("the peer started");
            let theirs: Vec<Value> = lines.collect();
            assert!(child.wait().unwrap().success());
            assert_eq!(theirs.len(), cases.len());
            (about, theirs)
        })
    }
}

/// What the model could have sampled: a well-formed answer as the format has it, or one that went wrong.
fn completion(
    renderer: &dyn Renderer,
    corpus: &mut Corpus,
    messages: &[Message],
    tools: &[Tool],
    answer: rollhouse::trace::AssistantMessage,
) -> Option<Vec<u32>> {
    let mut whole = messages.to_vec();
    whole.push(Message::Assistant(answer));
    let rendered = renderer.render(&whole, tools, false).ok()?;
    let sampled = rendered.sampled();
    let last = whole.len() as u32 - 1;
    let owners = owners(rendered.runs.as_deref().unwrap());
    // From the first to the last that was sampled; formats with blocks have headers in between.
    let own: Vec<bool> =
        sampled.iter().zip(owners).map(|(sampled, owner)| sampled && owner == i64::from(last)).collect();
    let begin = own.iter().position(|own| *own)?;
    let end = own.iter().rposition(|own| *own)?;
    let mut ids = rendered.ids[begin..=end].to_vec();
    match corpus.below(8) {
        // Cut short.
        0 => ids.truncate(corpus.below(ids.len() + 1)),
        // An id lost, doubled or strayed.
        1 if !ids.is_empty() => {
            ids.remove(corpus.below(ids.len()));
        }
        2 if !ids.is_empty() => {
            let at = corpus.below(ids.len());
            ids.insert(at, ids[at]);
        }
        3 if !ids.is_empty() => {
            let (from, to) = (corpus.below(ids.len()), corpus.below(ids.len()));
            let id = ids[from];
            ids.insert(to, id);
        }
        _ => {}
    }
    // What stands behind the end of the turn is never sampled.
    if let Some(end) = ids.iter().position(|id| renderer.stop_ids().contains(id)) {
        ids.truncate(end + 1);
    }
    Some(ids)
}

fn rendering(renderer: &dyn Renderer, messages: &[Message], tools: &[Tool], generate: bool) -> Value {
    match renderer.render(messages, tools, generate) {
        Err(error) => json!({ "error": error.to_string() }),
        Ok(rendered) => match &rendered.runs {
            None => json!({ "ids": rendered.ids }),
            Some(runs) => placed(&rendered.ids, runs),
        },
    }
}

fn bridge(extension: Result<Extension, Unbridged>) -> Value {
    match extension {
        Ok(extension) => placed(&extension.ids, &extension.runs),
        Err(_) => Value::Null,
    }
}

fn placed(ids: &[u32], runs: &[Run]) -> Value {
    let each = |value: &dyn Fn(&Run) -> Value| -> Vec<Value> {
        runs.iter().flat_map(|run| std::iter::repeat_n(value(run), run.length as usize)).collect()
    };
    json!({
        "ids": ids,
        "messages": each(&|run| run.place.message.map_or(json!(-1), Value::from)),
        "sampled": each(&|run| run.place.sampled.into()),
        "content": each(&|run| run.place.content.into()),
    })
}

fn owners(runs: &[Run]) -> Vec<i64> {
    runs.iter()
        .flat_map(|run| std::iter::repeat_n(run.place.message.map_or(-1, i64::from), run.length as usize))
        .collect()
}

fn parse(parsed: Parsed) -> Value {
    let calls: Vec<Value> = parsed
        .calls
        .iter()
        .map(|call| {
            // Arguments are compared as what they say.
            let arguments = call.arguments.as_deref().map(|text| serde_json::from_str(text).unwrap_or(json!(text)));
            json!({
                "raw": call.raw, "name": call.name, "arguments": arguments, "span": call.span,
                "status": call.status.name(), "id": call.id,
            })
        })
        .collect();
    json!({
        "content": parsed.content, "reasoning": parsed.reasoning, "complete": parsed.reasoning_complete, "calls": calls,
    })
}

/// What differs, in words; nothing where both failed.
fn difference(tokenizer: &Tokenizer, part: &str, ours: &Value, theirs: &Value) -> Option<String> {
    let failed = |value: &Value| value.get("error").is_some();
    if failed(ours) && failed(theirs) {
        return None;
    }
    // A bridge that would lose ids is refused by us.
    if part == "bridge" && theirs.get("dropped").is_some() && ours.is_null() {
        return None;
    }
    let theirs = normal(theirs);
    let mut ours = normal(ours);
    if theirs.get("messages").is_none() && theirs.get("ids").is_some() {
        // A chat template does not say whose its tokens are.
        ours.as_object_mut().unwrap().retain(|key, _| key == "ids");
    }
    if ours == theirs {
        return None;
    }
    let mut told = String::new();
    if let (Some(one), Some(other)) = (ours["ids"].as_array(), theirs["ids"].as_array()) {
        let ids = |ids: &[Value]| -> Vec<u32> { ids.iter().map(|id| id.as_u64().unwrap() as u32).collect() };
        let (one, other) = (ids(one), ids(other));
        let at = one.iter().zip(&other).position(|(one, other)| one != other).unwrap_or(one.len().min(other.len()));
        let show = |ids: &[u32]| tokenizer.decode(&ids[at.saturating_sub(10)..(at + 10).min(ids.len())]);
        if one != other {
            let _ = writeln!(told, "ids differ at {at}:\n  ours   {:?}\n  theirs {:?}", show(&one), show(&other));
        } else {
            for key in ["messages", "sampled", "content"] {
                let at = (0..one.len()).find(|at| ours[key][*at] != theirs[key][*at]);
                if let Some(at) = at {
                    let text = tokenizer.decode(&one[at.saturating_sub(6)..(at + 6).min(one.len())]);
                    let (ours, theirs) = (&ours[key][at], &theirs[key][at]);
                    let _ = writeln!(told, "{key} differ at {at}, around {text:?}: ours {ours}, theirs {theirs}");
                }
            }
        }
    } else {
        let _ = writeln!(told, "  ours   {ours}\n  theirs {theirs}");
    }
    Some(told)
}

/// What counts the same in both: a field that was not given and one that is null.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept: Map<String, Value> = map
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key.clone(), normal(value)))
                .collect();
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Number(number) if number.is_f64() && number.as_f64().is_some_and(|value| value.fract() == 0.0) => {
            json!(number.as_f64())
        }
        other => other.clone(),
    }
}

/// A message in the form that verifiers hands to renderers.
pub(crate) fn wire(message: &Message) -> Value {
    let mut value = serde_json::to_value(message).unwrap();
    if let Message::Assistant(answer) = message {
        let content = answer.content.clone();
        let empty = answer.tool_calls.as_ref().is_none_or(Vec::is_empty).then(String::new);
        value["content"] = json!(content.or(empty));
        if let Some(calls) = &answer.tool_calls {
            let wired = calls.iter().map(|call| {
                json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
            });
            value["tool_calls"] = wired.collect();
        }
    }
    value
}

/// A tool in the form that verifiers hands to renderers.
pub(crate) fn tool(tool: &Tool) -> Value {
    let mut function = json!({ "name": tool.name, "description": tool.description, "parameters": tool.parameters });
    if let Some(strict) = tool.strict {
        function["strict"] = json!(strict);
    }
    json!({ "type": "function", "function": function })
}

/// The interpreter that has the peers.
pub(crate) fn python() -> String {
    env::var("ROLLHOUSE_TEST_PYTHON").expect("run `tests/run`, which sets up the Python peers")
}

/// Where a model's files lie.
pub(crate) fn folder(files: &str) -> PathBuf {
    let root = env::var("ROLLHOUSE_TEST_TOKENIZERS").expect("run `tests/run`, which fetches the tokenizers");
    Path::new(&root).join(files)
}

fn tokenizer(folder: &Path, added: &[&str]) -> Tokenizer {
    let path = folder.join("tokenizer.json");
    if added.is_empty() {
        return Tokenizer::from_folder(folder).unwrap();
    }
    let mut whole: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut next = 1 + whole["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|token| token["id"].as_u64())
        .max()
        .unwrap_or_else(|| whole["model"]["vocab"].as_object().unwrap().len() as u64 - 1);
    for text in added {
        let known = whole["added_tokens"].as_array().unwrap().iter().any(|token| token["content"] == *text);
        if !known {
            let token = json!({
                "id": next, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            });
            whole["added_tokens"].as_array_mut().unwrap().push(token);
            next += 1;
        }
    }
    Tokenizer::from_bytes(whole.to_string().as_bytes()).unwrap()
}
