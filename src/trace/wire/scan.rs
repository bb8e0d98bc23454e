//! Msgpack looked at without decoding it.

/// What stands at one place: a container says how many items follow it, everything else is whole.
#[derive(Debug, PartialEq)]
enum Item<'a> {
    Map(u64),
    Array(u64),
    Text(&'a [u8]),
    Bool(bool),
    /// A number, binary data, an extension or nil.
    Other,
}

/// The items of a frame one after another, whatever their nesting.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    /// A big-endian number of some bytes.
    fn number(&mut self, bytes: u64) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// The next item; `None` at the end and where the frame is broken.
    fn next(&mut self) -> Option<Item<'a>> {
        let marker = *self.take(1)?.first()?;
        Some(match marker {
            0x80..=0x8f => Item::Map(u64::from(marker & 0x0f)),
            0x90..=0x9f => Item::Array(u64::from(marker & 0x0f)),
            0xa0..=0xbf => Item::Text(self.take(u64::from(marker & 0x1f))?),
            0xc1 => return None,
            0xc2 | 0xc3 => Item::Bool(marker == 0xc3),
            // Binary data, then extensions, whose kind takes a byte more.
            0xc4..=0xc9 => {
                let length = self.number(1 << ((marker - 0xc4) % 3))?;
                self.take(length + u64::from(marker >= 0xc7))?;
                Item::Other
            }
            0xca | 0xcb => {
                self.take(4 << (marker - 0xca))?;
                Item::Other
            }
            0xcc..=0xd3 => {
                self.take(1 << ((marker - 0xcc) % 4))?;
                Item::Other
            }
            0xd4..=0xd8 => {
                self.take((1 << (marker - 0xd4)) + 1)?;
                Item::Other
            }
            0xd9..=0xdb => {
                let length = self.number(1 << (marker - 0xd9))?;
                Item::Text(self.take(length)?)
            }
            0xdc | 0xdd => Item::Array(self.number(2 << (marker - 0xdc))?),
            0xde | 0xdf => Item::Map(self.number(2 << (marker - 0xde))?),
            0x00..=0x7f | 0xc0 | 0xe0..=0xff => Item::Other,
        })
    }

    /// Passes over one item and all that is in it.
    fn skip(&mut self) -> Option<()> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            match self.next()? {
                Item::Map(entries) => left += 2 * entries,
                Item::Array(items) => left += items,
                Item::Text(_) | Item::Bool(_) | Item::Other => {}
            }
        }
        Some(())
    }
}

/// The trace that a delta is about, and whether the delta discards it, without decoding the rest; `None` when the frame is
/// not a delta.
pub fn trace_of(frame: &[u8]) -> Option<(&str, bool)> {
    let mut scan = Scan { rest: frame };
    let Item::Map(entries) = scan.next()? else { return None };
    let (mut trace, mut discard) = (None, false);
    for _ in 0..entries {
        // Only the two entries of a discard are all looked at: what grows a trace may be large.
        if entries > 2 && trace.is_some() {
            break;
        }
        let Item::Text(key) = scan.next()? else {
            scan.skip()?;
            continue;
        };
        match key {
            b"trace" => match scan.next()? {
                Item::Text(id) => trace = Some(std::str::from_utf8(id).ok()?),
                _ => return None,
            },
            b"discard" if entries == 2 => discard = scan.next()? == Item::Bool(true),
            _ => scan.skip()?,
        }
    }
    trace.map(|trace| (trace, discard))
}

/// The same frame with every text made valid UTF-8, as [`crate::trace::readable_json`] does for JSON; `None` when there is
/// nothing to repair.
pub(super) fn readable(frame: &[u8]) -> Option<Vec<u8>> {
    let mut scan = Scan { rest: frame };
    let mut repaired: Option<Vec<u8>> = None;
    loop {
        let before = scan.rest;
        let Some(item) = scan.next() else { break };
        match item {
            Item::Text(text) if std::str::from_utf8(text).is_err() => {
                let out = repaired.get_or_insert_with(|| frame[..frame.len() - before.len()].to_vec());
                let text = String::from_utf8_lossy(text);
                out.push(0xdb);
                out.extend_from_slice(&u32::try_from(text.len()).ok()?.to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            _ => {
                if let Some(out) = &mut repaired {
                    out.extend_from_slice(&before[..before.len() - scan.rest.len()]);
                }
            }
        }
    }
    repaired
}
