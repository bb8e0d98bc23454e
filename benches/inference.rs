//! The hot paths of the inference client that need no network: request bodies, answers, events.

use std::hint::black_box;

use divan::{Bencher, counter::BytesCount};
use rollhouse::{
    inference::{ChatCall, read_completion, sse::SseReader, write_request},
    trace::Message,
};
use serde_json::{Map, json};

fn main() {
    divan::main();
}

/// A stream of small events, as a token each gives.
fn stream() -> Vec<u8> {
    let event = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1796038887,"model":"m","choices":[{"index":0,"delta":{"content":" capital"},"logprobs":null,"finish_reason":null}]}"#;
    format!("{event}\n\n").repeat(1000).into_bytes()
}

#[divan::bench(args = [64, 1460, 65536])]
fn events(bencher: Bencher, piece: usize) {
    let stream = stream();
    bencher.counter(BytesCount::new(stream.len())).bench(|| {
        let mut reader = SseReader::new(1 << 20);
        let mut events = 0;
        for mut bytes in stream.chunks(piece) {
            while let Some(data) = reader.next(&mut bytes).unwrap() {
                events += usize::from(!black_box(data).data.is_empty());
            }
        }
        assert_eq!(events, 1000);
    });
}

/// A conversation of so many turns, each of about 600 bytes.
#[divan::bench(args = [1, 10, 100])]
fn write(bencher: Bencher, turns: usize) {
    let turn = [
        Message::user("What does the next file say? ".repeat(10)),
        Message::assistant("It says \"hello\"\n".repeat(20)),
    ];
    let messages: Vec<Message> = turn.iter().cycle().take(2 * turns).cloned().collect();
    let sampling = Map::from_iter([("temperature".to_owned(), json!(0.7)), ("max_tokens".to_owned(), json!(64))]);
    let call = ChatCall { model: "m", messages: &messages, tools: &[], sampling: &sampling, tokens: false };
    let size = write_request(&call, false).unwrap().len();
    bencher.counter(BytesCount::new(size)).bench(|| write_request(black_box(&call), false).unwrap());
}

/// An answer of so many tokens, with ids and logprobs.
#[divan::bench(args = [8, 1000])]
fn read(bencher: Bencher, tokens: usize) {
    let entry =
        json!({"token": " capital", "logprob": -1.864286184310913, "bytes": [32, 99, 97, 112], "top_logprobs": []});
    let body = json!({
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": " capital".repeat(tokens), "tool_calls": null},
            "logprobs": {"content": vec![entry; tokens]},
            "finish_reason": "stop",
            "token_ids": vec![3575; tokens],
        }],
        "usage": {"prompt_tokens": 37, "completion_tokens": tokens},
        "prompt_token_ids": vec![504; 1000],
    });
    let body = body.to_string().into_bytes();
    bencher.counter(BytesCount::new(body.len())).bench(|| read_completion(black_box(&body), true).unwrap());
}
