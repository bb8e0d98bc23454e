//! Bytes to frames to messages, and back.
//!
//! A frame is a flag byte, its length in one byte or eight, and its body. Both directions are plain state that any stream
//! fills and drains, so they can be cut at every byte.

use std::{collections::VecDeque, io, io::IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::{Frames, LinkError, MAX_FRAMES};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Bytes that are read at once; smaller frames are taken out of it, larger ones are read where they stay.
const BUFFER: usize = 64 << 10;
/// Memory that a frame gets before its bytes came; it gets more as they come.
const HEAD_START: usize = 1 << 20;
/// Bytes of a command at most: READY with its metadata is the longest there is.
const MAX_COMMAND: usize = 8 << 10;
/// Bodies up to here are copied behind their headers, so that small messages share one write.
const COPY: usize = 4 << 10;

/// What a peer sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Message(Frames),
    Command(Bytes),
}

/// Bytes to messages. Each frame owns its bytes and nothing else: a short id that is kept for hours pins no buffer. A frame
/// that does not fit the buffer is read into its own memory, which grows as its bytes come, not as its length is announced.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// What was read, from `start`; never given away.
    buffer: Vec<u8>,
    start: usize,
    /// The frame that is being read into its own memory.
    body: Option<Body>,
    /// The frames of the message that is under way, and their bytes.
    frames: Frames,
    size: usize,
    max_message: usize,
}

#[derive(Debug)]
struct Body {
    flags: u8,
    length: usize,
    bytes: Vec<u8>,
}

/// A header, and what it is long itself.
struct Header {
    flags: u8,
    length: u64,
    size: usize,
}

impl Decoder {
    /// One that takes commands only, until [`Decoder::allow`].
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Takes messages, up to so many bytes.
    pub(super) fn allow(&mut self, max_message: usize) {
        self.max_message = max_message;
    }

    /// Reads what there is; 0 at the end of the stream. To be called when [`Decoder::next`] has nothing more. Cancel-safe.
    pub(super) async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        if let Some(Body { length, bytes, .. }) = &mut self.body {
            let missing = *length - bytes.len();
            if bytes.len() == bytes.capacity() {
                bytes.reserve_exact(missing.min(bytes.len()));
            }
            let room = missing.min(bytes.capacity() - bytes.len());
            return reader.read_buf(&mut bytes.limit(room)).await;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.reserve_exact(BUFFER - self.buffer.len());
        let room = BUFFER - self.buffer.len();
        reader.read_buf(&mut (&mut self.buffer).limit(room)).await
    }

    /// The next message or command, if it is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Unit>, LinkError> {
        loop {
            let Some((flags, bytes)) = self.frame()? else { return Ok(None) };
            if flags & COMMAND != 0 {
                // Peers put them between the frames of a message too.
                return Ok(Some(Unit::Command(bytes)));
            }
            self.size += bytes.len();
            self.frames.push(bytes);
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Unit::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, LinkError> {
        if let Some(body) = self.body.take_if(|body| body.bytes.len() == body.length) {
            return Ok(Some((body.flags, body.bytes.into())));
        }
        if self.body.is_some() {
            return Ok(None);
        }
        let read = &self.buffer[self.start..];
        let Some(Header { flags, length, size }) = header(read)? else { return Ok(None) };
        let length = self.check(flags, length)?;
        let here = &read[size..];
        if let Some(body) = here.get(..length) {
            let body = Bytes::copy_from_slice(body);
            self.start += size + length;
            return Ok(Some((flags, body)));
        }
        if size + length > BUFFER {
            let mut bytes = Vec::with_capacity(length.min(HEAD_START));
            bytes.extend_from_slice(here);
            self.start = self.buffer.len();
            self.body = Some(Body { flags, length, bytes });
        }
        Ok(None)
    }

    /// Whether a frame may be so long, before any of it is read.
    fn check(&self, flags: u8, length: u64) -> Result<usize, LinkError> {
        if flags & COMMAND != 0 {
            let length = usize::try_from(length).ok().filter(|length| *length <= MAX_COMMAND);
            return length.ok_or(LinkError::Malformed("a command is too long"));
        }
        if self.frames.len() >= MAX_FRAMES {
            return Err(LinkError::TooManyFrames(MAX_FRAMES));
        }
        let size = length.saturating_add(self.size as u64);
        if size > self.max_message as u64 {
            return Err(LinkError::TooBig { size, limit: self.max_message });
        }
        usize::try_from(length).map_err(|_| LinkError::TooBig { size, limit: self.max_message })
    }
}

fn header(bytes: &[u8]) -> Result<Option<Header>, LinkError> {
    let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(LinkError::Malformed("a frame with flags that do not exist"));
    }
    if flags & LONG == 0 {
        return Ok(rest.first().map(|length| Header { flags, length: u64::from(*length), size: 2 }));
    }
    Ok(rest.first_chunk().map(|length| Header { flags, length: u64::from_be_bytes(*length), size: 9 }))
}

/// A command as a frame.
pub(super) fn command(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 9);
    put_header(&mut frame, COMMAND, body.len());
    frame.extend_from_slice(body);
    frame
}

fn put_header(into: &mut impl BufMut, flags: u8, length: usize) {
    match u8::try_from(length) {
        Ok(short) => into.put_slice(&[flags, short]),
        Err(_) => {
            into.put_u8(flags | LONG);
            into.put_u64(length as u64);
        }
    }
}

/// Messages to bytes. A large body is written from where it lies; a message takes its room until its last byte is written.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    /// What is to be written first, in order.
    parts: VecDeque<Bytes>,
    /// What is to be written after it, and grows.
    tail: BytesMut,
    /// Bytes that ever entered, and left.
    entered: u64,
    left: u64,
    /// Where each message and command ends.
    ends: VecDeque<(u64, End)>,
    commands: usize,
}

#[derive(Debug)]
enum End {
    /// With the room it takes until then.
    Message {
        _room: Option<OwnedSemaphorePermit>,
    },
    Command,
}

impl Encoder {
    /// Puts a message behind what waits.
    pub(super) fn message(&mut self, frames: Frames, room: Option<OwnedSemaphorePermit>) {
        let last = frames.len().saturating_sub(1);
        for (at, frame) in frames.into_iter().enumerate() {
            let before = self.tail.len();
            put_header(&mut self.tail, if at < last { MORE } else { 0 }, frame.len());
            self.entered += (self.tail.len() - before + frame.len()) as u64;
            if frame.len() <= COPY {
                self.tail.extend_from_slice(&frame);
            } else {
                self.parts.push_back(self.tail.split().freeze());
                self.parts.push_back(frame);
            }
        }
        self.ends.push_back((self.entered, End::Message { _room: room }));
    }

    /// Puts a command behind what waits.
    pub(super) fn command(&mut self, body: &[u8]) {
        let frame = command(body);
        self.tail.extend_from_slice(&frame);
        self.entered += frame.len() as u64;
        self.ends.push_back((self.entered, End::Command));
        self.commands += 1;
    }

    /// Commands that are not written yet.
    pub(super) fn commands(&self) -> usize {
        self.commands
    }
}

impl Buf for Encoder {
    fn remaining(&self) -> usize {
        (self.entered - self.left) as usize
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&self.tail, |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&*self.tail);
        let chunks = self.parts.iter().map(|part| &**part).chain(tail);
        slices.iter_mut().zip(chunks).map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.left += count as u64;
        while let Some(part) = self.parts.front_mut() {
            if count < part.len() {
                part.advance(count);
                count = 0;
                break;
            }
            count -= part.len();
            self.parts.pop_front();
        }
        self.tail.advance(count);
        while self.ends.front().is_some_and(|(end, _)| *end <= self.left) {
            if let Some((_, End::Command)) = self.ends.pop_front() {
                self.commands -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;
    use proptest::prelude::*;
    use tokio::sync::Semaphore;

    use super::*;

    fn message(sizes: &[usize]) -> Frames {
        sizes.iter().enumerate().map(|(at, size)| vec![(at + size) as u8; *size].into()).collect()
    }

    fn encoded(messages: &[Frames]) -> Vec<u8> {
        let mut encoder = Encoder::default();
        for frames in messages {
            encoder.message(frames.clone(), None);
        }
        drained(&mut encoder, &[usize::MAX])
    }

    /// What an encoder gives, written in steps of such sizes over and over.
    fn drained(encoder: &mut Encoder, steps: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut steps = steps.iter().cycle();
        while encoder.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = encoder.chunks_vectored(&mut slices);
            assert!(count > 0 && slices[..count].iter().all(|slice| !slice.is_empty()));
            assert_eq!(&*slices[0], encoder.chunk());
            let mut step = *steps.next().unwrap();
            let before = bytes.len();
            for slice in &slices[..count] {
                let taken = slice.len().min(step);
                bytes.extend_from_slice(&slice[..taken]);
                step -= taken;
            }
            encoder.advance(bytes.len() - before);
        }
        assert!(encoder.ends.is_empty() && encoder.parts.is_empty() && encoder.commands == 0);
        bytes
    }

    /// What a decoder makes of bytes that come in such pieces, and the error that ends it.
    fn decoded(mut decoder: Decoder, bytes: &[u8], pieces: &[usize]) -> (Vec<Unit>, Option<LinkError>) {
        let mut units = Vec::new();
        let mut pieces = pieces.iter().cycle();
        let mut rest = bytes;
        loop {
            match decoder.next() {
                Ok(Some(unit)) => units.push(unit),
                Err(fault) => return (units, Some(fault)),
                Ok(None) if rest.is_empty() => return (units, None),
                Ok(None) => {
                    let (mut piece, _) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
                    let read = decoder.fill(&mut piece).now_or_never().unwrap().unwrap();
                    assert!(read > 0);
                    rest = &rest[read..];
                }
            }
        }
    }

    fn taking(max_message: usize) -> Decoder {
        let mut decoder = Decoder::new();
        decoder.allow(max_message);
        decoder
    }

    #[test]
    fn frames_have_the_bytes_of_the_protocol() {
        let long = vec![9; 256];
        let bytes = encoded(&[vec![Bytes::new(), Bytes::from_static(b"ab")], vec![long.clone().into()]]);
        let mut expected = vec![1, 0, 0, 2, b'a', b'b', 2, 0, 0, 0, 0, 0, 0, 1, 0];
        expected.extend(long);
        assert_eq!(bytes, expected);
        assert_eq!(encoded(&[message(&[255])])[..2], [0, 255]);
        assert_eq!(command(b"\x04PONG"), b"\x04\x05\x04PONG");
        assert_eq!(command(&[1; 300])[..9], [6, 0, 0, 0, 0, 0, 0, 1, 44]);
    }

    #[test]
    fn a_stream_cut_at_any_byte_gives_the_same_messages() {
        let messages = [message(&[0, 3, 0]), message(&[300, 1]), message(&[0])];
        let mut bytes = encoded(&messages[..2]);
        // A command between the frames of a message, as libzmq puts it.
        let between = [encoded(&[message(&[5, 6])])[..7].to_vec(), command(b"\x04PONG")].concat();
        bytes.extend(between);
        bytes.extend(&encoded(&[message(&[5, 6])])[7..]);
        bytes.extend(encoded(&messages[2..]));
        let whole = decoded(taking(1_000), &bytes, &[usize::MAX]).0;
        assert_eq!(whole.len(), 5);
        assert_eq!(whole[2], Unit::Command(Bytes::from_static(b"\x04PONG")));
        assert_eq!(whole[3], Unit::Message(message(&[5, 6])));
        for cut in 1..bytes.len() {
            let (units, fault) = decoded(taking(1_000), &bytes, &[cut, usize::MAX]);
            assert!(fault.is_none() && units == whole, "cut at {cut}");
        }
        assert_eq!(decoded(taking(1_000), &bytes, &[1]).0, whole);
    }

    #[test]
    fn what_is_too_much_is_refused_before_it_is_read() {
        let long = |flags: u8, length: u64| [&[flags | LONG][..], &length.to_be_bytes()].concat();
        let fault = |bytes: &[u8]| decoded(taking(1_000), bytes, &[usize::MAX]).1;
        assert!(fault(&encoded(&[message(&[500, 500])])).is_none());
        assert!(matches!(
            fault(&encoded(&[message(&[500, 501])])[..513 + 8]),
            Some(LinkError::TooBig { size: 1_001, limit: 1_000 })
        ));
        assert!(matches!(fault(&long(0, u64::MAX)), Some(LinkError::TooBig { size: u64::MAX, .. })));
        assert!(matches!(fault(&long(COMMAND, 8_193)), Some(LinkError::Malformed(_))));
        assert!(fault(&[1, 0].repeat(MAX_FRAMES)).is_none());
        assert!(matches!(fault(&[1, 0].repeat(MAX_FRAMES + 1)), Some(LinkError::TooManyFrames(MAX_FRAMES))));
        for flags in [8, 16, 128, MORE | COMMAND] {
            assert!(matches!(fault(&[flags]), Some(LinkError::Malformed(_))), "{flags}");
        }
        // Before the handshake is over nothing but commands.
        assert!(matches!(decoded(Decoder::new(), &[0, 1, 7], &[3]).1, Some(LinkError::TooBig { limit: 0, .. })));
    }

    #[test]
    fn memory_grows_with_what_came_not_with_what_was_announced() {
        let mut decoder = taking(usize::MAX);
        let header = [&[LONG][..], &(1_u64 << 40).to_be_bytes()].concat();
        decoder.fill(&mut &header[..]).now_or_never().unwrap().unwrap();
        assert!(decoder.next().unwrap().is_none());
        let held = |decoder: &Decoder| decoder.body.as_ref().unwrap().bytes.capacity();
        assert!(held(&decoder) <= HEAD_START);
        let mut came = 0;
        while came < 10 * HEAD_START {
            came += decoder.fill(&mut &[0; BUFFER][..]).now_or_never().unwrap().unwrap();
            assert!(decoder.next().unwrap().is_none());
            assert!(held(&decoder) <= HEAD_START.max(2 * came), "{came}");
        }
        assert!(decoder.buffer.capacity() <= BUFFER);
    }

    #[test]
    fn a_frame_owns_its_bytes_and_no_more() {
        let bytes = encoded(&[message(&[100, 70_000, 200_000])]);
        let (units, _) = decoded(taking(1 << 20), &bytes, &[usize::MAX]);
        let Unit::Message(frames) = units.into_iter().next().unwrap() else { panic!("a message") };
        for frame in frames {
            let size = frame.len();
            let owned: Vec<u8> = frame.try_into_mut().unwrap().into();
            assert_eq!((owned.len(), owned.capacity()), (size, size));
        }
    }

    #[test]
    fn a_message_takes_its_room_until_its_last_byte_is_written() {
        let room = Arc::new(Semaphore::new(2));
        let mut encoder = Encoder::default();
        for size in [3, 10_000] {
            encoder.message(message(&[size]), Some(Arc::clone(&room).try_acquire_owned().unwrap()));
        }
        encoder.command(b"\x04PONG");
        assert_eq!(encoder.remaining(), 5 + 9 + 10_000 + 7);
        encoder.advance(4);
        assert_eq!(room.available_permits(), 0);
        encoder.advance(1);
        assert_eq!(room.available_permits(), 1);
        encoder.advance(9 + 9_999);
        assert_eq!(room.available_permits(), 1);
        encoder.advance(1);
        assert_eq!((room.available_permits(), encoder.commands()), (2, 1));
        encoder.advance(7);
        assert_eq!((encoder.commands(), encoder.remaining()), (0, 0));
    }

    #[test]
    fn large_bodies_are_not_copied() {
        let body = Bytes::from(vec![1; COPY + 1]);
        let mut encoder = Encoder::default();
        encoder.message(vec![Bytes::from_static(b"id"), body.clone(), Bytes::from_static(b"end")], None);
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(encoder.chunks_vectored(&mut slices), 3);
        assert_eq!(slices[1].as_ptr(), body.as_ptr());
    }

    /// Sizes on both sides of every limit of the codec.
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![
            8 => 0..300_usize,
            2 => COPY - 4..COPY + 4,
            1 => BUFFER - 20..BUFFER + 20,
            1 => 2 * BUFFER - 4..4 * BUFFER,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read(
            sizes in proptest::collection::vec(proptest::collection::vec(size(), 1..5), 1..12),
            written in proptest::collection::vec(1..40_000_usize, 1..4),
            read in proptest::collection::vec(1..100_000_usize, 1..4),
        ) {
            let mut encoder = Encoder::default();
            let mut expected = Vec::new();
            for sizes in &sizes {
                encoder.message(message(sizes), None);
                expected.push(Unit::Message(message(sizes)));
                if sizes.len() == 2 {
                    encoder.command(b"\x04PONG");
                    expected.push(Unit::Command(Bytes::from_static(b"\x04PONG")));
                }
            }
            let bytes = drained(&mut encoder, &written);
            let (units, fault) = decoded(taking(1 << 20), &bytes, &read);
            prop_assert!(fault.is_none());
            prop_assert!(units == expected);
        }

        #[test]
        fn garbage_harms_nothing(bytes in proptest::collection::vec(any::<u8>(), 1..2_000), read in 1..100_usize) {
            let _ = decoded(taking(10_000), &bytes, &[read]);
        }
    }
}
