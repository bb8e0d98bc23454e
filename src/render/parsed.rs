//! What a completion says.

use crate::trace::{AssistantMessage, ToolCall, ToolCallKind};

/// A completion, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The visible text; possibly empty.
    pub content: String,
    /// The reasoning; `None` where there was none.
    pub reasoning: Option<String>,
    /// Whether the reasoning was closed at the end; `None` where the format cannot tell.
    pub reasoning_complete: Option<bool>,
    /// Every attempt to call a tool, in order, the malformed ones too.
    pub calls: Vec<ParsedCall>,
}

/// One attempt to call a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedCall {
    /// The block's text as the model wrote it, without its delimiters where the format has such.
    pub raw: String,
    /// The tool's name, if one was given.
    pub name: Option<String>,
    /// JSON text of the arguments; the text as written where it is no JSON. `None` where none were given.
    pub arguments: Option<String>,
    /// Place in the completion, half-open, stop tokens not counted; `None` where it is not known.
    pub span: Option<(usize, usize)>,
    /// How it went.
    pub status: CallStatus,
    /// The call's own id, where the format carries one.
    pub id: Option<String>,
}

/// How the reading of a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// Well.
    Ok,
    /// The arguments are no JSON.
    InvalidJson,
    /// The turn ended inside the call.
    Unclosed,
    /// No name.
    MissingName,
    /// The format was broken in another way.
    Malformed,
    /// The name is not one of the tools offered.
    UnknownTool,
}

impl CallStatus {
    /// The name that the package `renderers` gives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::InvalidJson => "invalid_json",
            Self::Unclosed => "unclosed_block",
            Self::MissingName => "missing_name",
            Self::Malformed => "malformed_structure",
            Self::UnknownTool => "unknown_tool",
        }
    }
}

impl Parsed {
    /// How many calls were malformed.
    pub fn malformed(&self) -> usize {
        self.calls.iter().filter(|call| call.status != CallStatus::Ok).count()
    }

    /// The message as a trace holds it. A malformed call that names a tool stays a call with its text as it was
    /// written, so that it can be answered; one without a name stays in the content.
    pub fn into_message(self) -> AssistantMessage {
        let mut content = self.content;
        let mut calls = Vec::new();
        for (position, call) in self.calls.into_iter().enumerate() {
            match call.name {
                Some(name) if call.status != CallStatus::UnknownTool => calls.push(ToolCall {
                    id: call.id.unwrap_or_else(|| format!("call_{position}")),
                    kind: ToolCallKind::Function,
                    name,
                    namespace: None,
                    arguments: call.arguments.unwrap_or_else(|| "{}".to_owned()),
                }),
                _ => content.push_str(&call.raw),
            }
        }
        AssistantMessage {
            content: (!content.is_empty()).then_some(content),
            reasoning_content: self.reasoning,
            tool_calls: (!calls.is_empty()).then_some(calls),
            provider_state: None,
        }
    }
}
