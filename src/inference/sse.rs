//! Server-sent events, read as they come: any line ending, any cut, bounded memory.
//!
//! Format: WHATWG HTML, section "Server-sent events". Only the `data` and the name of an event matter to chat streams;
//! ids and comments are skipped.

/// Reads events out of chunks of bytes.
#[derive(Debug)]
pub struct SseReader {
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// The data of the event that is not complete yet, or of the one just handed out.
    data: Vec<u8>,
    has_data: bool,
    /// The name of that event; empty for one without.
    name: Vec<u8>,
    handed_out: bool,
    /// The last byte was a CR: a LF right after it belongs to the same line ending.
    after_cr: bool,
    /// Nothing was read yet: a byte order mark may follow.
    at_start: bool,
    limit: usize,
}

/// One event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'reader> {
    /// What the server calls it (`event:`); empty when it gives no name.
    pub name: &'reader [u8],
    /// Its data, lines joined by line feeds.
    pub data: &'reader [u8],
}

/// An event is larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct EventTooLarge {
    /// The limit, in bytes.
    pub limit: usize,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl SseReader {
    /// A reader that refuses events of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            name: Vec::new(),
            handed_out: false,
            after_cr: false,
            at_start: true,
            limit,
        }
    }

    /// The next event with data that `input` completes; `input` is advanced behind it. `None` when all of `input` is
    /// used up.
    pub fn next<'reader>(&'reader mut self, input: &mut &[u8]) -> Result<Option<SseEvent<'reader>>, EventTooLarge> {
        self.clear_handed_out();
        while let Some(&first) = input.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                *input = &input[1..];
                continue;
            }
            let Some(end) = input.iter().position(|&byte| byte == b'\n' || byte == b'\r') else {
                self.grow(input)?;
                *input = &[];
                break;
            };
            let (piece, rest) = input.split_at(end);
            self.after_cr = rest[0] == b'\r';
            *input = &rest[1..];
            if self.take_line(piece)? {
                self.handed_out = true;
                return Ok(Some(self.event()));
            }
        }
        Ok(None)
    }

    /// An event that the end of the stream left without its blank line.
    pub fn finish(&mut self) -> Result<Option<SseEvent<'_>>, EventTooLarge> {
        self.clear_handed_out();
        let ended = self.take_line(&[])?;
        let found = std::mem::take(&mut self.has_data) || ended;
        self.handed_out = true;
        Ok(found.then(|| self.event()))
    }

    fn event(&self) -> SseEvent<'_> {
        SseEvent { name: &self.name, data: &self.data }
    }

    fn clear_handed_out(&mut self) {
        if std::mem::take(&mut self.handed_out) {
            self.data.clear();
            self.name.clear();
        }
    }

    fn grow(&mut self, piece: &[u8]) -> Result<(), EventTooLarge> {
        if self.line.len() + self.data.len() + piece.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(piece);
        Ok(())
    }

    /// Ends the current line with `piece`; true when it was the blank line that ends an event with data.
    fn take_line(&mut self, piece: &[u8]) -> Result<bool, EventTooLarge> {
        if self.line.len() + self.data.len() + piece.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        let whole = if self.line.is_empty() {
            piece
        } else {
            self.line.extend_from_slice(piece);
            &self.line
        };
        let line = if std::mem::take(&mut self.at_start) {
            whole.strip_prefix(BYTE_ORDER_MARK).unwrap_or(whole)
        } else {
            whole
        };
        let ended = line.is_empty() && std::mem::take(&mut self.has_data);
        if let Some(value) = line.strip_prefix(b"data")
            && let Some(value) = value.strip_prefix(b":").or(value.is_empty().then_some(value))
        {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        } else if let Some(value) = line.strip_prefix(b"event:") {
            self.name.clear();
            self.name.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        } else if line.is_empty() && !ended {
            // An event without data is none; its name ends with it.
            self.name.clear();
        }
        self.line.clear();
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::new(1 << 20);
        let mut events = Vec::new();
        for chunk in chunks {
            let mut input = *chunk;
            while let Some(event) = reader.next(&mut input).unwrap() {
                events.push(String::from_utf8_lossy(event.data).into_owned());
            }
        }
        if let Some(event) = reader.finish().unwrap() {
            events.push(String::from_utf8_lossy(event.data).into_owned());
        }
        events
    }

    const STREAM: &str = "\u{feff}: hello\nevent: x\ndata: {\"a\":1}\n\ndata:two\ndata:  lines\ndata\n\n: ping\n\nid: 7\n\n\
                          database: no\n\ndata: né\n\ndata: [DONE]\n\n";

    fn expected() -> Vec<&'static str> {
        vec!["{\"a\":1}", "two\n lines\n", "né", "[DONE]"]
    }

    #[test]
    fn every_cut_and_every_line_ending_reads_the_same() {
        for ending in ["\n", "\r", "\r\n"] {
            let stream = STREAM.replace('\n', ending);
            let bytes = stream.as_bytes();
            for first in 0..=bytes.len() {
                assert_eq!(read(&[&bytes[..first], &bytes[first..]]), expected(), "{ending:?} cut at {first}");
                for second in (first..=bytes.len()).step_by(7) {
                    let chunks = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    assert_eq!(read(&chunks), expected(), "{ending:?} cut at {first} and {second}");
                }
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&single), expected());
        }
    }

    #[test]
    fn an_event_without_its_blank_line_is_found_at_the_end() {
        assert_eq!(read(&[b"data: a\n\ndata: [DONE]"]), ["a", "[DONE]"]);
        assert_eq!(read(&[b"data: a\n\ndata: b\n"]), ["a", "b"]);
        assert!(read(&[b": only a comment"]).is_empty());
    }

    #[test]
    fn names_belong_to_their_event_alone() {
        let stream = b"event: lost\n\nevent: error\ndata: a\n\ndata: b\n\nevent:x\nevent:error\ndata: c";
        let mut reader = SseReader::new(64);
        let mut names = Vec::new();
        for chunk in stream.chunks(1) {
            let mut input = chunk;
            while let Some(event) = reader.next(&mut input).unwrap() {
                names.push((event.name.to_vec(), event.data.to_vec()));
            }
        }
        names.extend(reader.finish().unwrap().map(|event| (event.name.to_vec(), event.data.to_vec())));
        let expected: [(&[u8], &[u8]); 3] = [(b"error", b"a"), (b"", b"b"), (b"error", b"c")];
        assert_eq!(names, expected.map(|(name, data)| (name.to_vec(), data.to_vec())));
    }

    #[test]
    fn memory_is_bounded() {
        let mut reader = SseReader::new(64);
        let mut input: &[u8] = &[b'x'; 65];
        assert_eq!(reader.next(&mut input), Err(EventTooLarge { limit: 64 }));
        let mut reader = SseReader::new(64);
        let endless = b"data: 0123456789\n".repeat(8);
        let mut input = endless.as_slice();
        assert_eq!(reader.next(&mut input), Err(EventTooLarge { limit: 64 }));
    }

    proptest! {
        #[test]
        fn events_survive_any_framing(
            events in prop::collection::vec("[^\r\n\u{feff}]{0,12}(\n[^\r\n]{0,6}){0,2}", 0..8),
            endings in prop::collection::vec(0usize..3, 1..16),
            cuts in prop::collection::vec(1usize..9, 1..32),
        ) {
            let mut endings = endings.iter().cycle().map(|&index| ["\n", "\r", "\r\n"][index]).peekable();
            let mut stream = String::new();
            for event in &events {
                for line in event.split('\n') {
                    stream.push_str("data: ");
                    stream.push_str(line);
                    stream.push_str(endings.next().unwrap());
                }
                // A CR that ends a line and a LF that ends the next, empty one would read as one ending.
                let ending = if stream.ends_with('\r') && *endings.peek().unwrap() == "\n" { "\r" } else { endings.peek().unwrap() };
                stream.push_str(ending);
                endings.next();
            }
            let mut chunks = Vec::new();
            let mut rest = stream.as_bytes();
            for &cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(head);
                rest = tail;
            }
            prop_assert_eq!(read(&chunks), events);
        }
    }
}
