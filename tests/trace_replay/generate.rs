//! Turn sequences from a few bytes each: continued, forked, resampled and retokenised conversations, with and without
//! tokens. Few different texts, so that prefixes meet often.

use serde_json::{Value, json};

/// The bytes that decide one turn.
pub(crate) type Step = [u8; 8];

#[derive(Clone, Default)]
struct Conversation {
    messages: Vec<Value>,
    /// Token ids of each message as the last prompt had them.
    ids: Vec<Vec<u32>>,
    tools: Value,
}

/// A case in the form of the recorded graph vectors. With `plain`, every turn has tokens and spans.
pub(crate) fn turns(steps: &[Step], plain: bool) -> Value {
    let mut conversations: Vec<Conversation> = Vec::new();
    let mut ops = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        let [pick, keep, add, mode, variant, choice, routing, text] = *step;
        let mut conversation = match conversations.get(pick as usize % (conversations.len() + 1)) {
            Some(known) => known.clone(),
            None => Conversation { tools: json!([]), ..Conversation::default() },
        };
        if keep % 4 == 0 && !conversation.messages.is_empty() {
            let kept = (keep / 4) as usize % conversation.messages.len();
            conversation.messages.truncate(kept);
            conversation.ids.truncate(kept);
        }
        if choice % 7 == 0 {
            conversation.tools = json!([{"type": "function", "name": (["f", "g"][choice as usize / 7 % 2]),
                "description": "", "parameters": {"x": null}}]);
        }
        let kept = conversation.messages.len();
        for extra in 0..=(add % 3) {
            let word = ["a", "b"][(text >> extra & 1) as usize];
            let message = match (add / 3 + extra) % 4 {
                0 | 1 => json!({"role": "user", "content": word}),
                2 => json!({"role": "tool", "tool_call_id": word, "content": [{"type": "text", "text": word}]}),
                _ => json!({"role": "assistant", "content": word}),
            };
            conversation.ids.push(vec![7, 60 + u32::from(word == "a"), 9]);
            conversation.messages.push(message);
        }
        // A renderer that writes one message of the history differently now.
        if variant % 5 == 0 {
            let changed = (variant / 5) as usize % conversation.ids.len();
            conversation.ids[changed] = vec![7, 50, 51, 9];
        }
        let reply = json!({"role": "assistant", "content": (["x", "y", "z"][text as usize / 8 % 3])});
        let id = format!("t{position}");
        ops.push(json!({"op": "prepare", "id": id, "prompt": conversation.messages, "tools": conversation.tools}));

        let prompt_ids: Vec<u32> = conversation.ids.iter().flatten().copied().chain([1]).collect();
        let completion_ids: Vec<u32> = match text / 32 % 3 {
            0 => vec![80, 9],
            1 => vec![81, 82, 9],
            _ => vec![83],
        };
        let mut end = 0;
        let spans: Vec<Value> = conversation
            .ids
            .iter()
            .enumerate()
            .map(|(message, ids)| {
                let start = end + usize::from(ids.len() > 1);
                end += ids.len();
                let unknown = !plain
                    && (mode % 4 == 1 && message < kept
                        || mode % 4 == 2 && (variant as usize + message).is_multiple_of(3));
                if unknown { Value::Null } else { json!([start, end]) }
            })
            .collect();
        let logprobs: Vec<f64> =
            (0..completion_ids.len()).map(|token| -(token as f64) - f64::from(text) / 8.0).collect();
        let total = prompt_ids.len() + completion_ids.len();
        let mut tokens = json!({
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "completion_logprobs": logprobs,
            "message_spans": if mode % 4 == 3 && !plain { Value::Null } else { Value::from(spans) },
        });
        if routing % 2 == 0 {
            tokens["is_content"] =
                (0..prompt_ids.len()).map(|token| Value::from(token * usize::from(variant) % 3 > 0)).collect();
        }
        if routing % 3 == 0 {
            let start = routing as usize / 3 % 4;
            let missing = routing as usize / 12 % 3;
            let rows: Vec<Value> = (start..total.saturating_sub(missing).max(start + 1))
                .map(|row| json!([[row % 256, position % 256], [mode, row % 3]]))
                .collect();
            tokens["routed_experts"] = json!({"rows": rows, "start": start});
            let rows = completion_ids.len() - usize::from(missing == 2);
            tokens["sampling_mask"] = (0..rows).map(|row| Value::from(vec![row; row])).collect();
        }
        if mode % 8 == 7 && !plain {
            tokens = Value::Null;
        }
        ops.push(json!({"op": "commit", "id": id, "response": reply, "tokens": tokens,
            "usage": {"prompt_tokens": total, "completion_tokens": completion_ids.len()}}));
        conversation.messages.push(reply);
        conversation.ids.push([vec![1], completion_ids].concat());
        conversations.push(conversation);
    }
    json!({"ops": ops})
}
