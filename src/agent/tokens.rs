//! Speaking in exact tokens: what the model saw and sampled, turn after turn, never tokenized twice.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use crate::{
    config::{TokenRoute, TrainClient},
    inference::{ChatReply, GenerateReply, Pool},
    render::{Choice, Previous, RenderError, Rendered, open},
    store::Event,
    telemetry::aside,
    trace::{AssistantMessage, FinishReason, Message, TurnTokens, Usage},
};

/// Bytes of text whose rendering takes more than a few milliseconds.
const LONG_TEXT: usize = 32 << 10;

/// How an agent speaks in exact tokens. Shared by its rollouts.
pub struct TokenIn {
    choice: Choice,
    route: TokenRoute,
    window: OnceCell<Option<usize>>,
    tally: Tally,
}

/// What became of the turns so far.
#[derive(Debug, Default)]
struct Tally {
    turns: AtomicU64,
    extended: AtomicU64,
    drifted: AtomicU64,
    malformed_calls: AtomicU64,
}

/// What became of the turns of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenTurns {
    /// All of them.
    pub turns: u64,
    /// Those whose prompt extends the turn before, token by token.
    pub extended: u64,
    /// Those whose prompt the endpoint wrote otherwise than the renderer: each began a new branch.
    pub drifted: u64,
    /// Tool calls that could not be read.
    pub malformed_calls: u64,
}

impl TokenIn {
    /// Opens the renderer of a model; `sampling` may have `chat_template_kwargs` for it. Blocks for up to seconds.
    ///
    /// # Errors
    /// No renderer can be made.
    pub fn open(client: &TrainClient, model: &str, sampling: &Map<String, Value>) -> Result<Self, RenderError> {
        let none = Map::new();
        let variables = match sampling.get("chat_template_kwargs") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(variables)) => variables,
            Some(_) => {
                let told = "`sampling.chat_template_kwargs` must be a table of variables of the template";
                return Err(RenderError::Unresolved(told.to_owned()));
            }
        };
        let choice = open(&client.renderer, model, client.renderer_model.as_deref(), variables)?;
        if choice.fell_back {
            tracing::warn!("{}; nothing that was sampled can be extended by it", choice.reason);
        }
        Ok(Self { choice, route: client.route, window: OnceCell::new(), tally: Tally::default() })
    }

    /// The renderer, and why it is this one.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Which way the tokens go.
    pub fn route(&self) -> TokenRoute {
        self.route
    }

    /// What became of the turns so far.
    pub fn turns(&self) -> TokenTurns {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TokenTurns {
            turns: read(&self.tally.turns),
            extended: read(&self.tally.extended),
            drifted: read(&self.tally.drifted),
            malformed_calls: read(&self.tally.malformed_calls),
        }
    }

    /// The model's window in tokens, asked once; `None` where the endpoint does not say.
    pub(super) async fn window(&self, pool: &Pool, model: &str) -> Option<usize> {
        let ask = || async {
            let served = pool.check_model(model).await.ok().flatten()?;
            served.max_model_len.and_then(|window| usize::try_from(window).ok())
        };
        *self.window.get_or_init(ask).await
    }

    pub(super) fn stop_ids(&self) -> &[u32] {
        self.choice.renderer.stop_ids()
    }
}

/// The tokens of a rollout's branch: what was sent, and what was sampled after it.
#[derive(Debug, Default)]
pub(super) struct Stream {
    ids: Vec<u32>,
    /// How many of them were sent.
    prompt: usize,
}

/// A prompt, and what is known of its tokens.
#[derive(Debug)]
pub(super) struct Prompt {
    /// The ids from `start` on.
    added: Vec<u32>,
    /// How many ids of the stream stay; 0 where the conversation was rendered anew.
    start: usize,
    spans: Option<Vec<Option<(usize, usize)>>>,
    is_content: Vec<bool>,
    extends: bool,
}

impl Stream {
    /// The prompt of the next turn: an extension of the last one where that can be, else the whole conversation rendered
    /// anew. The last `new` messages of the conversation are new.
    pub(super) fn next(&self, tokens: &TokenIn, conversation: &[Message], new: usize) -> Result<Prompt, RenderError> {
        let renderer = &tokens.choice.renderer;
        let tail = &conversation[conversation.len() - new..];
        let long = |messages: &[Message]| messages.iter().map(Message::heap_size).sum::<usize>() > LONG_TEXT;
        if !self.ids.is_empty() && can_follow(tail) {
            let previous = Previous { prompt: &self.ids[..self.prompt], completion: &self.ids[self.prompt..] };
            match aside(long(tail), || renderer.bridge(previous, tail, &[])) {
                Ok(extension) => {
                    let start = self.ids.len();
                    let shifted = |span: Option<(usize, usize)>| span.map(|(from, to)| (from + start, to + start));
                    return Ok(Prompt {
                        start,
                        spans: Some(extension.spans(tail.len()).into_iter().map(shifted).collect()),
                        is_content: extension.is_content().iter().collect(),
                        added: extension.ids,
                        extends: true,
                    });
                }
                Err(reason) => tracing::debug!(%reason, "a turn is rendered anew"),
            }
        }
        let rendered = aside(long(conversation), || renderer.render(conversation, &[], true))?;
        let Rendered { ids, .. } = &rendered;
        Ok(Prompt {
            start: 0,
            spans: rendered.spans(conversation.len()).filter(|spans| in_order(spans)),
            is_content: rendered.is_content().iter().collect(),
            added: ids.clone(),
            extends: false,
        })
    }

    /// How many ids a prompt has in all.
    pub(super) fn length(&self, prompt: &Prompt) -> usize {
        prompt.start + prompt.added.len()
    }

    /// Puts the prompt in place of what it does not keep; the whole of it.
    pub(super) fn take(&mut self, prompt: &Prompt) -> &[u32] {
        self.ids.truncate(prompt.start);
        self.ids.extend_from_slice(&prompt.added);
        self.prompt = self.ids.len();
        &self.ids
    }

    /// The first prompt position whose router rows are wanted: that of the last id before what is new.
    pub(super) fn routed_from(prompt: &Prompt) -> Option<usize> {
        prompt.extends.then(|| prompt.start.saturating_sub(1))
    }

    /// The turn of a prompt that was sent as tokens.
    pub(super) fn generated(&mut self, tokens: &TokenIn, prompt: Prompt, reply: &GenerateReply) -> Spoken {
        let generation = &reply.generation;
        let sampled = &generation.ids;
        let renderer = &tokens.choice.renderer;
        let parsed = aside(sampled.len() > LONG_TEXT / 4, || renderer.parse(sampled, &self.ids, &[]));
        let malformed = parsed.malformed() as u64;
        let called = parsed.calls.len() as u64 > malformed;
        let finish_reason = match generation.finish_reason {
            Some(FinishReason::Stop) if called => Some(FinishReason::ToolCalls),
            other => other,
        };
        let usage =
            Usage { prompt_tokens: self.ids.len() as u64, completion_tokens: sampled.len() as u64, ..Usage::default() };
        self.ids.extend_from_slice(sampled);
        let kept = tokens.count(prompt.extends, false, malformed);
        Spoken {
            kept,
            message: parsed.into_message(),
            finish_reason,
            usage: Some(usage),
            tokens: TurnTokens {
                prompt_ids: prompt.added,
                prompt_start: prompt.start,
                completion_ids: sampled.clone(),
                completion_logprobs: generation.logprobs.clone(),
                message_spans: prompt.spans,
                is_content: prompt.is_content,
                bridged: prompt.extends,
                routed_experts: generation.routed_experts.clone(),
                sampling_mask: generation.sampling_mask.clone(),
                ..TurnTokens::default()
            },
        }
    }

    /// The turn of a chat whose answer came with its tokens. `expected` is what the renderer makes of the prompt, if it can.
    pub(super) fn answered(&mut self, tokens: &TokenIn, expected: Option<Prompt>, reply: ChatReply) -> Option<Spoken> {
        let mut given = reply.tokens?;
        let drifted = match &expected {
            Some(prompt) => {
                let (kept, added) = given.prompt_ids.split_at_checked(prompt.start).unwrap_or((&given.prompt_ids, &[]));
                kept != &self.ids[..prompt.start] || added != prompt.added
            }
            None => false,
        };
        let expected = expected.filter(|_| !drifted);
        let kept = tokens.count(expected.as_ref().is_some_and(|prompt| prompt.extends), drifted, 0);
        self.ids.clear();
        self.ids.extend_from_slice(&given.prompt_ids);
        self.prompt = self.ids.len();
        self.ids.extend_from_slice(&given.completion_ids);
        if let Some(prompt) = expected {
            given.prompt_start = prompt.start;
            given.prompt_ids = prompt.added;
            given.message_spans = prompt.spans;
            given.is_content = prompt.is_content;
            given.bridged = prompt.extends;
        }
        let ChatReply { message, finish_reason, usage, .. } = reply;
        Some(Spoken { message, finish_reason, usage, tokens: given, kept })
    }
}

/// A turn, read.
pub(super) struct Spoken {
    pub(super) message: AssistantMessage,
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) usage: Option<Usage>,
    pub(super) tokens: TurnTokens,
    /// What became of its tokens.
    pub(super) kept: Event,
}

impl TokenIn {
    fn count(&self, extended: bool, drifted: bool, malformed_calls: u64) -> Event {
        let add = |count: &AtomicU64, more: u64| count.fetch_add(more, Ordering::Relaxed);
        add(&self.tally.turns, 1);
        add(&self.tally.extended, u64::from(extended));
        add(&self.tally.drifted, u64::from(drifted));
        add(&self.tally.malformed_calls, malformed_calls);
        Event::TokensKept { extended, drifted, malformed_calls }
    }
}

/// What may follow an answer without rendering anew, as verifiers 0.4.0 has it: results of tools, and then perhaps the user.
fn can_follow(tail: &[Message]) -> bool {
    let Some((last, before)) = tail.split_last() else { return false };
    let is_tool = |message: &Message| matches!(message, Message::Tool(_));
    before.iter().all(is_tool) && (is_tool(last) || matches!(last, Message::User(_)))
}

/// Some templates write messages in another order than they were said; their tokens then have no message each.
fn in_order(spans: &[Option<(usize, usize)>]) -> bool {
    let mut end = 0;
    spans.iter().flatten().all(|(from, to)| *from >= std::mem::replace(&mut end, *to))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests prepare files")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        config::{FamilyConfig, RendererConfig},
        inference::Generation,
        render::ModelFiles,
        trace::{Content, Graph, TimeSpan, ToolMessage},
    };

    const HE: u32 = 256;
    const END: u32 = 258;

    /// The simulator's tokenizer, with one token for `he`: what an engine samples letter by letter, a tokenizer would not.
    fn speech(retold: &tempfile::TempDir) -> TokenIn {
        let files = ModelFiles::find(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sim-model")).unwrap();
        let file = std::fs::read(files.folder().join("tokenizer.json")).unwrap();
        let mut tokenizer: Value = serde_json::from_slice(&file).unwrap();
        tokenizer["model"]["vocab"]["he"] = HE.into();
        for (at, token) in tokenizer["added_tokens"].as_array_mut().unwrap().iter_mut().enumerate() {
            token["id"] = (HE as usize + 1 + at).into();
        }
        tokenizer["model"]["merges"] = json!([["h", "e"]]);
        std::fs::write(retold.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let client = TrainClient {
            renderer: RendererConfig { family: FamilyConfig::SmolLm2, thinking_retention: None },
            renderer_model: Some(retold.path().to_string_lossy().into_owned()),
            route: TokenRoute::Generate,
        };
        TokenIn::open(&client, "m", &Map::new()).unwrap()
    }

    fn letters(text: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = text.bytes().map(u32::from).collect();
        ids.push(END);
        ids
    }

    fn generated(ids: Vec<u32>) -> GenerateReply {
        let generation = Generation {
            logprobs: vec![-0.5; ids.len()],
            ids,
            finish_reason: Some(FinishReason::Stop),
            ..Generation::default()
        };
        GenerateReply { generation, endpoint: "x".into(), time: TimeSpan::begin(), failed: Vec::new() }
    }

    /// Commits a turn, and checks that the path to it is what was sent and sampled.
    fn commit(graph: &mut Graph, leaf: Option<u32>, tail: &[Message], spoken: Spoken, whole: &[u32]) -> u32 {
        let turn = graph.at(leaf, tail.to_vec(), [].into());
        let leaf = graph.commit(turn, spoken.message, Some(spoken.tokens)).unwrap();
        let mut path = Vec::new();
        let mut at = Some(leaf);
        while let Some(node) = at {
            path.push(graph.nodes()[node as usize].tokens.ids());
            at = graph.nodes()[node as usize].parent;
        }
        path.reverse();
        assert_eq!(path.concat(), whole);
        leaf
    }

    #[test]
    fn tokens_that_no_tokenizer_would_write_stay_as_they_were_sampled() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = speech(&folder);
        let renderer = &tokens.choice.renderer;
        assert_eq!(renderer.tokenizer().encode_plain("he"), [HE]);
        assert_eq!(renderer.stop_ids(), [END]);
        let (mut stream, mut graph, mut leaf) = (Stream::default(), Graph::default(), None);
        let mut conversation = vec![Message::system("s"), Message::user("hehe")];
        let mut new = 2;
        for turn in 0..4 {
            let before = stream.ids.clone();
            let prompt = stream.next(&tokens, &conversation, new).unwrap();
            assert_eq!(prompt.extends, turn > 0);
            assert_eq!(Stream::routed_from(&prompt), (turn > 0).then(|| before.len() - 1));
            assert_eq!(stream.length(&prompt), stream.take(&prompt).len());
            assert!(stream.ids.starts_with(&before));
            let sampled = letters("hehe");
            let spoken = stream.generated(&tokens, prompt, &generated(sampled.clone()));
            assert_eq!(spoken.message.content.as_deref(), Some("hehe"));
            let usage = spoken.usage.as_ref().unwrap();
            assert_eq!(usage.prompt_tokens + usage.completion_tokens, stream.ids.len() as u64);
            assert!(stream.ids.ends_with(&sampled));
            let tail = conversation[conversation.len() - new..].to_vec();
            conversation.push(Message::Assistant(spoken.message.clone()));
            leaf = Some(commit(&mut graph, leaf, &tail, spoken, &stream.ids));
            conversation.push(Message::user("he again"));
            new = 1;
        }
        // Written anew, the same conversation has other ids: only extending keeps what was sampled.
        let anew = renderer.render(&conversation, &[], true).unwrap().ids;
        assert!(!anew.starts_with(&stream.ids));
        assert_eq!(graph.nodes().len(), 2 + 4 + 3);
        assert_eq!(tokens.turns(), TokenTurns { turns: 4, extended: 3, drifted: 0, malformed_calls: 0 });
    }

    #[test]
    fn a_prompt_that_the_endpoint_wrote_otherwise_stands_and_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = speech(&folder);
        let (mut stream, mut graph) = (Stream::default(), Graph::default());
        let mut conversation = vec![Message::system("s"), Message::user("u")];
        let answer = |prompt_ids: Vec<u32>, text: &str| {
            let completion_ids = letters(text);
            let given = TurnTokens {
                prompt_ids,
                completion_logprobs: vec![-0.5; completion_ids.len()],
                completion_ids,
                ..TurnTokens::default()
            };
            ChatReply {
                message: AssistantMessage { content: Some(text.to_owned()), ..AssistantMessage::default() },
                finish_reason: Some(FinishReason::Stop),
                usage: None,
                tokens: Some(given),
                endpoint: "x".into(),
                time: TimeSpan::begin(),
                failed: Vec::new(),
            }
        };
        let prompt = stream.next(&tokens, &conversation, 2).unwrap();
        let first = prompt.added.clone();
        let spoken = stream.answered(&tokens, Some(prompt), answer(first.clone(), "he")).unwrap();
        assert!(matches!(spoken.kept, Event::TokensKept { drifted: false, .. }));
        let mut leaf = commit(&mut graph, None, &conversation, spoken, &stream.ids);
        conversation.push(Message::assistant("he"));
        conversation.push(Message::user("more"));
        // The server tokenizes the answer anew: `he` in one.
        let anew = tokens.choice.renderer.render(&conversation, &[], true).unwrap().ids;
        let prompt = stream.next(&tokens, &conversation, 1).unwrap();
        assert!(prompt.extends);
        let tail = [Message::user("more")];
        let spoken = stream.answered(&tokens, Some(prompt), answer(anew.clone(), "x")).unwrap();
        assert!(matches!(spoken.kept, Event::TokensKept { extended: false, drifted: true, .. }));
        leaf = commit(&mut graph, Some(leaf), &tail, spoken, &[anew, letters("x")].concat());
        // The first answer stays, once, in its own branch.
        assert_eq!(graph.nodes().iter().filter(|node| node.sampled).count(), 2);
        assert_ne!(graph.nodes()[leaf as usize].parent, None);
        assert_eq!(tokens.turns(), TokenTurns { turns: 2, extended: 0, drifted: 1, malformed_calls: 0 });
        let without = ChatReply { tokens: None, ..answer(Vec::new(), "x") };
        assert!(stream.answered(&tokens, None, without).is_none());
    }

    #[test]
    fn only_results_of_tools_and_then_the_user_follow_an_answer() {
        let tool = || {
            Message::Tool(ToolMessage {
                tool_call_id: "c".to_owned(),
                content: Content::Text("done".to_owned()),
                name: None,
            })
        };
        assert!(can_follow(&[Message::user("u")]));
        assert!(can_follow(&[tool(), tool()]));
        assert!(can_follow(&[tool(), Message::user("u")]));
        assert!(!can_follow(&[]));
        assert!(!can_follow(&[Message::user("u"), tool()]));
        assert!(!can_follow(&[Message::user("u"), Message::user("v")]));
        assert!(!can_follow(&[Message::system("s")]));
    }
}
