//! The body of a chat completions request, written without a tree in between.

use serde::{
    Serialize, Serializer,
    de::IgnoredAny,
    ser::{SerializeMap, SerializeSeq},
};

use crate::{
    inference::ChatCall,
    trace::{AssistantMessage, Content, Message, Tool, ToolCall, ToolCallKind},
};

/// Fields that the call fills itself; the same names in the sampling settings are left out.
const OWN_FIELDS: [&str; 5] = ["model", "messages", "tools", "stream", "stream_options"];
/// Fields that a call for tokens fills itself.
const TOKEN_FIELDS: [&str; 2] = ["logprobs", "return_token_ids"];
/// What stands for tool arguments that are not a JSON object. The trace keeps the model's text; a server that renders
/// the history would refuse the whole conversation because of it.
const NO_ARGUMENTS: &str = "{}";

/// A request body.
#[derive(Clone, Copy)]
pub(in crate::inference) struct RequestBody<'a> {
    pub(in crate::inference) call: &'a ChatCall<'a>,
    pub(in crate::inference) stream: bool,
}

impl Serialize for RequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let call = self.call;
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("model", call.model)?;
        body.serialize_entry("messages", &List(call.messages, WireMessage))?;
        if !call.tools.is_empty() {
            body.serialize_entry("tools", &List(call.tools, WireTool))?;
        }
        for (name, value) in call.sampling {
            let own = OWN_FIELDS.contains(&name.as_str()) || (call.tokens && TOKEN_FIELDS.contains(&name.as_str()));
            if !own {
                body.serialize_entry(name, value)?;
            }
        }
        if call.tokens {
            body.serialize_entry("logprobs", &true)?;
            body.serialize_entry("return_token_ids", &true)?;
        }
        if self.stream {
            #[derive(Serialize)]
            struct StreamOptions {
                include_usage: bool,
            }
            body.serialize_entry("stream", &true)?;
            body.serialize_entry("stream_options", &StreamOptions { include_usage: true })?;
        }
        body.end()
    }
}

/// A slice, each item seen through a wrapper.
struct List<'a, T, W>(&'a [T], fn(&'a T) -> W);

impl<T, W: Serialize> Serialize for List<'_, T, W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for item in self.0 {
            list.serialize_element(&(self.1)(item))?;
        }
        list.end()
    }
}

struct WireMessage<'a>(&'a Message);

impl Serialize for WireMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            // These have the API's own shape.
            Message::System(_) | Message::User(_) => self.0.serialize(serializer),
            Message::Tool(message) => {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("role", "tool")?;
                map.serialize_entry("tool_call_id", &message.tool_call_id)?;
                map.serialize_entry::<_, Content>("content", &message.content)?;
                if let Some(name) = message.name.as_deref().filter(|name| !name.is_empty()) {
                    map.serialize_entry("name", name)?;
                }
                map.end()
            }
            Message::Assistant(message) => write_assistant(message, serializer),
        }
    }
}

fn write_assistant<S: Serializer>(message: &AssistantMessage, serializer: S) -> Result<S::Ok, S::Error> {
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("role", "assistant")?;
    match &message.content {
        // Strict servers refuse a null without tool calls.
        None if calls.is_empty() => map.serialize_entry("content", "")?,
        content => map.serialize_entry("content", content)?,
    }
    match (&message.provider_state, &message.reasoning_content) {
        (Some(state), _) if !state.is_empty() => map.serialize_entry("reasoning_details", state)?,
        (_, Some(reasoning)) => map.serialize_entry("reasoning_content", reasoning)?,
        _ => {}
    }
    if !calls.is_empty() {
        map.serialize_entry("tool_calls", &List(calls, WireToolCall))?;
    }
    map.end()
}

struct WireToolCall<'a>(&'a ToolCall);

impl Serialize for WireToolCall<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Inner<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            namespace: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            arguments: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            input: Option<&'a str>,
        }
        let call = self.0;
        let (kind, arguments, input) = match call.kind {
            ToolCallKind::Function => ("function", Some(sendable_arguments(&call.arguments)), None),
            ToolCallKind::Custom => ("custom", None, Some(call.arguments.as_str())),
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("id", &call.id)?;
        map.serialize_entry("type", kind)?;
        map.serialize_entry(kind, &Inner { name: &call.name, namespace: call.namespace.as_deref(), arguments, input })?;
        map.end()
    }
}

/// The arguments as the server may see them: the model's text when it is a JSON object, else an empty object.
fn sendable_arguments(arguments: &str) -> &str {
    let object = arguments.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(arguments).is_ok();
    if object { arguments } else { NO_ARGUMENTS }
}

struct WireTool<'a>(&'a Tool);

impl Serialize for WireTool<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Inner<'a>(&'a Tool);
        impl Serialize for Inner<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let tool = self.0;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("name", &tool.name)?;
                if let Some(namespace) = &tool.namespace {
                    map.serialize_entry("namespace", namespace)?;
                }
                if !tool.description.is_empty() {
                    map.serialize_entry("description", &tool.description)?;
                }
                if !tool.parameters.is_empty() {
                    map.serialize_entry("parameters", &tool.parameters)?;
                }
                if let Some(strict) = tool.strict {
                    map.serialize_entry("strict", &strict)?;
                }
                for (name, value) in &tool.extra {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("type", &self.0.kind)?;
        map.serialize_entry(&self.0.kind, &Inner(self.0))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    fn body(messages: &[Message], tools: &[Tool], sampling: Value, tokens: bool, stream: bool) -> Value {
        let Value::Object(sampling) = sampling else { panic!("sampling must be an object") };
        let call = ChatCall { model: "m", messages, tools, sampling: &sampling, tokens };
        let text = serde_json::to_string(&RequestBody { call: &call, stream }).unwrap();
        let keys: Vec<String> =
            serde_json::from_str::<Map<String, Value>>(&text).unwrap().into_iter().map(|(key, _)| key).collect();
        for key in &keys {
            assert_eq!(text.matches(&format!("\"{key}\":")).count(), 1, "{key} twice in {text}");
        }
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn messages_take_the_api_s_form() {
        let call = |id: &str, arguments: &str| ToolCall {
            id: id.into(),
            kind: ToolCallKind::Function,
            name: "look".into(),
            namespace: None,
            arguments: arguments.into(),
        };
        let messages: Vec<Message> = serde_json::from_value(json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
            {"role": "assistant"},
            {"role": "tool", "tool_call_id": "a", "content": "found", "name": "look"},
        ]))
        .unwrap();
        let mut messages = messages;
        messages.push(Message::Assistant(AssistantMessage {
            reasoning_content: Some("hm".into()),
            tool_calls: Some(vec![
                call("a", "{\"q\": 1}"),
                call("b", "{\"q\": "),
                call("c", "\"Paris\""),
                call("d", ""),
            ]),
            ..AssistantMessage::default()
        }));
        let sent = body(&messages, &[], json!({}), false, false);
        let wire_call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
        assert_eq!(
            sent,
            json!({"model": "m", "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
                {"role": "assistant", "content": ""},
                {"role": "tool", "tool_call_id": "a", "content": "found", "name": "look"},
                {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                    wire_call("a", "{\"q\": 1}"), wire_call("b", "{}"), wire_call("c", "{}"), wire_call("d", "{}")]},
            ]})
        );
    }

    #[test]
    fn sampling_is_at_the_top_and_own_fields_stand_once() {
        let tool: Tool = serde_json::from_value(
            json!({"name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": true}),
        )
        .unwrap();
        let sampling = json!({"temperature": 0.5, "top_k": 3, "cache_salt": "7", "model": "other", "stream": false,
            "logprobs": false, "stream_options": {}});
        let sent = body(&[Message::user("hi")], std::slice::from_ref(&tool), sampling, true, true);
        assert_eq!(
            sent,
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"type": "function", "function": {"name": "look", "description": "looks",
                    "parameters": {"type": "object"}, "strict": true}}],
                "temperature": 0.5, "top_k": 3, "cache_salt": "7", "logprobs": true, "return_token_ids": true,
                "stream": true, "stream_options": {"include_usage": true}})
        );
        let sent = body(&[], &[], json!({"logprobs": true}), false, false);
        assert_eq!(sent, json!({"model": "m", "messages": [], "logprobs": true}));
    }
}
