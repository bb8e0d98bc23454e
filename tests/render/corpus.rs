//! Conversations as people and programs hold them, made from a seed: the same ones on every machine.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use rollhouse::trace::{AssistantMessage, Message, Tool, ToolCall, ToolCallKind, ToolMessage};
use serde_json::{Value, json};

/// Where a conversation comes from.
pub(crate) struct Corpus {
    random: StdRng,
}

/// One conversation and how it goes on.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub generate: bool,
    /// What is said after an answer that follows the messages.
    pub new: Vec<Message>,
    /// That answer.
    pub answer: AssistantMessage,
}

/// What a corpus holds of what a format can say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub tools: bool,
    pub reasoning: bool,
    /// System messages only at the beginning.
    pub system_first: bool,
}

const TEXTS: &[&str] = &[
    "Hello!",
    "What is 2+2? Answer with a number.",
    "",
    " ",
    "\n",
    "\n\n",
    "  leading and trailing  ",
    "\nnewlines around\n",
    "tab\tand\r\nwindows lines\r\n",
    "naïve café, e\u{301}galité, Ｆｕｌｌｗｉｄｔｈ",
    "日本語の文章です。中文也可以。한국어도.",
    "مرحبا بالعالم שלום",
    "emoji 🙂👩‍👩‍👧‍👦🇩🇪 and \u{1d11e}",
    "def f(x):\n    return {\n        'a': [1, 2, 3],\n    }\n",
    "{\"json\": {\"nested\": [true, null, 1.5e10]}}",
    "1234567890 3.14159 1,000,000 0x1F",
    "a.b.c/d\\e:f;g",
    "**bold** _it_ `code` ```python\nprint(1)\n```",
    "<b>html &amp; tags</b> < > </",
    "zero\u{200b}width and nbsp\u{a0}end",
    "The quick brown fox jumps over the lazy dog. ",
    "Sentence one.\n\nSentence two.\n\n\nSentence three.",
    "$x^2 + \\frac{1}{2}$ = \\boxed{42}",
    "'quotes' \"double\" ‘curly’ “curly”",
    "null\u{0}byte? \u{7f} del",
];

const NAMES: &[&str] = &["search", "get_weather", "run_python", "a", "snake_case_name", "kebab-name"];

impl Corpus {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    pub(crate) fn text(&mut self) -> String {
        let parts = self.random.random_range(1..4);
        let mut text = String::new();
        for _ in 0..parts {
            text.push_str(TEXTS.choose(&mut self.random).unwrap());
            if self.random.random_bool(0.3) {
                text.push_str(["\n", " ", "\n\n"].choose(&mut self.random).unwrap());
            }
        }
        text
    }

    /// Any number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end.max(1))
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.random.random_bool(share)
    }

    pub(crate) fn conversation(&mut self, shape: Shape) -> Conversation {
        let tools = if shape.tools && self.chance(0.5) { self.tools() } else { Vec::new() };
        let mut messages = Vec::new();
        if self.chance(0.5) {
            messages.push(Message::system(self.text()));
        }
        messages.push(Message::user(self.text()));
        let turns = if self.chance(0.1) { self.below(20) } else { self.below(4) };
        for _ in 0..turns {
            let answer = self.answer(shape);
            let follows = self.following(&answer, shape);
            messages.push(Message::Assistant(answer));
            messages.extend(follows);
        }
        let answer = self.answer(shape);
        let new = self.following(&answer, shape);
        let generate = self.chance(0.6);
        if !generate && self.chance(0.7) {
            messages.push(Message::Assistant(self.answer(shape)));
        }
        Conversation { messages, tools, generate, new, answer }
    }

    fn following(&mut self, answer: &AssistantMessage, shape: Shape) -> Vec<Message> {
        let mut messages = Vec::new();
        for call in answer.tool_calls.iter().flatten() {
            messages.push(Message::Tool(ToolMessage {
                tool_call_id: call.id.clone(),
                content: rollhouse::trace::Content::Text(self.text()),
                name: self.chance(0.3).then(|| call.name.clone()),
            }));
        }
        if messages.is_empty() || self.chance(0.3) {
            messages.push(Message::user(self.text()));
            if self.chance(0.1) {
                messages.push(Message::user(self.text()));
            }
        }
        if !shape.system_first && self.chance(0.05) {
            messages.push(Message::system(self.text()));
        }
        messages
    }

    pub(crate) fn answer(&mut self, shape: Shape) -> AssistantMessage {
        let reasoning = if shape.reasoning && self.chance(0.5) { Some(self.text()) } else { None };
        let calls = if shape.tools && self.chance(0.35) { 1 + self.below(3) } else { 0 };
        let calls: Vec<ToolCall> = (0..calls).map(|at| self.call(at)).collect();
        let content = if calls.is_empty() || self.chance(0.5) { Some(self.text()) } else { None };
        AssistantMessage {
            content,
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then_some(calls),
            provider_state: None,
        }
    }

    fn call(&mut self, at: usize) -> ToolCall {
        let name = (*NAMES.choose(&mut self.random).unwrap()).to_owned();
        let arguments = self.arguments().to_string();
        ToolCall {
            id: format!("functions.{name}:{at}"),
            kind: ToolCallKind::Function,
            name,
            namespace: None,
            arguments,
        }
    }

    fn arguments(&mut self) -> Value {
        match self.below(6) {
            0 => json!({}),
            1 => json!({ "query": self.text() }),
            2 => json!({ "city": "Köln", "days": 3, "metric": true }),
            3 => json!({ "code": "print('a')\nprint(\"b\")", "timeout": 1.5 }),
            4 => json!({ "list": [1, "two", null, { "three": [3.0] }], "empty": {} }),
            _ => json!({ "text": "true", "n": null, "unicode": "🙂 日本" }),
        }
    }

    fn tools(&mut self) -> Vec<Tool> {
        let count = 1 + self.below(3);
        NAMES
            .sample(&mut self.random, count)
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
            .into_iter()
            .map(|name| self.tool(name))
            .collect()
    }

    fn tool(&mut self, name: String) -> Tool {
        let parameters = match self.below(4) {
            0 => json!({}),
            1 => {
                json!({ "type": "object", "properties": { "query": { "type": "string", "description": "What — to find" } }, "required": ["query"] })
            }
            2 => json!({ "type": "object", "properties": {
                "city": { "type": "string" }, "days": { "type": "integer", "minimum": 1, "default": 1 },
                "metric": { "type": "boolean" }, "unit": { "enum": ["c", "f"] } }, "additionalProperties": false }),
            _ => json!({ "type": "object", "properties": {
                "list": { "type": "array", "items": { "type": "object", "properties": { "a": { "type": ["string", "null"] } } } },
                "text": { "anyOf": [{ "type": "string" }, { "type": "number" }] }, "code": { "type": "string" } } }),
        };
        Tool {
            kind: "function".to_owned(),
            name,
            namespace: None,
            description: if self.chance(0.8) { self.text() } else { String::new() },
            parameters: parameters.as_object().cloned().unwrap_or_default(),
            strict: self.chance(0.2).then_some(true),
            extra: Default::default(),
        }
    }
}
