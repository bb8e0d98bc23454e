//! What passes between us and a worker: a head (length of the body, number of the call, kind, flags; 14 bytes, big-endian) and
//! a body of JSON. `bridge.py` holds the other half.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The kinds of frames to a worker.
pub(super) const CALL: u8 = b'c';
pub(super) const CANCEL: u8 = b'x';

/// The longest answer, bytes.
pub(super) const LARGEST: usize = 64 << 20;

const HEAD: usize = 14;

/// An answer as it came.
#[derive(Debug)]
pub(super) struct Frame {
    /// Of the call; 0 answers the start.
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// The worker should take no more calls, and why.
    pub(super) spent: Option<&'static str>,
    pub(super) body: Vec<u8>,
}

/// The kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Value,
    Raised,
    Unreadable,
}

/// A frame to a worker.
pub(super) fn frame(number: u64, kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend(length.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend([kind, 0]);
    frame.extend(body);
    frame
}

/// The body of a call.
pub(super) fn call(op: &str, body: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(body.len() + op.len() + 24);
    text.extend(br#"{"op":"#);
    text.extend(serde_json::Value::from(op).to_string().bytes());
    text.extend(br#","body":"#);
    text.extend(body);
    text.push(b'}');
    text
}

/// What a worker reads before anything else: the program that makes it a worker, and what that needs.
pub(super) fn opening(bridge: &str, start: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = format!("{}\n{bridge}", bridge.len()).into_bytes();
    serde_json::to_writer(&mut text, start)?;
    text.push(b'\n');
    Ok(text)
}

/// The next answer; `None` at the end.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut head = [0; HEAD];
    match from.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    };
    let [a, b, c, d, number @ .., kind, flags] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    let kind = match kind {
        b'v' => Kind::Value,
        b'r' => Kind::Raised,
        b'u' => Kind::Unreadable,
        _ => return Err(io::Error::other("something else was written where answers are")),
    };
    let spent = match flags {
        0 => None,
        flags if flags & 1 != 0 => Some("it left processes behind"),
        _ => Some("its memory has grown"),
    };
    // Memory comes with the bytes: a broken head may promise too many.
    let mut body = Vec::new();
    if from.take(length as u64).read_to_end(&mut body).await? < length {
        return Ok(None);
    }
    Ok(Some(Frame { number: u64::from_be_bytes(number), kind, spent, body }))
}

/// Reads away whatever stands before the mark, such as what an interpreter prints at its start.
pub(super) async fn skip_to(mark: &[u8], from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut seen = 0;
    while seen < mark.len() {
        let byte = from.read_u8().await?;
        // The mark begins with a byte that it holds nowhere else.
        seen = if byte == mark[seen] { seen + 1 } else { usize::from(byte == mark[0]) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_read_whole_or_not_at_all() {
        let bytes = frame(7, b'v', b"[1]");
        let answer = read(&mut &bytes[..]).await.unwrap().unwrap();
        assert_eq!((answer.number, answer.kind, answer.spent, &answer.body[..]), (7, Kind::Value, None, &b"[1]"[..]));
        for cut in 0..bytes.len() {
            assert!(read(&mut &bytes[..cut]).await.unwrap().is_none(), "{cut}");
        }
        let garbage = frame(7, b'?', b"[1]");
        assert!(read(&mut &garbage[..]).await.is_err());
    }

    #[tokio::test]
    async fn the_mark_is_found_behind_garbage() {
        let mut bytes = &b"hello\x00\x00\x00rol\x00rollrest"[..];
        skip_to(b"\x00roll", &mut bytes).await.unwrap();
        assert_eq!(bytes, b"rest");
        assert!(skip_to(b"\x00roll", &mut &b"nothing"[..]).await.is_err());
    }

    #[test]
    fn a_call_is_json_around_the_callers_text() {
        assert_eq!(call("a\"b", b"[1, 2]"), br#"{"op":"a\"b","body":[1, 2]}"#);
    }
}
