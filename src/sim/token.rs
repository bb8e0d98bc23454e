//! The simulated model's tokenizer and chat template.

use super::hash::Hash;

/// Opens a message; followed by the role and a newline.
pub(super) const START: u32 = 256;
/// Ends a message; what the model samples at the end of its turn.
pub(super) const END: u32 = 257;
/// Stands for a part of an image.
pub(super) const IMAGE: u32 = 258;
/// How many tokens an image takes, whatever its size.
pub(super) const IMAGE_TOKENS: usize = 64;

/// The tokenizer of the simulated model: ids 0 to 255 are bytes, and above them stand the marks of the chat template.
///
/// | id | text |
/// |---|---|
/// | 256 | `<\|im_start\|>` |
/// | 257 | `<\|im_end\|>` |
/// | 258 | `<\|image\|>` (64 of them for each image) |
///
/// A message is `<|im_start|>role\ncontent<|im_end|>\n`, the prompt ends in `<|im_start|>assistant\n`, and the model ends its
/// turn with `<|im_end|>`; thus the next turn's prompt begins with this turn's prompt and completion, except after a
/// stop string, which is cut from the text and not from the tokens. Offered tools stand before the conversation as a
/// message of the role `tools`, an assistant's tool calls in its content in Hermes form. A mark that a user types is
/// just its bytes. Decoding is the inverse of encoding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokenizer;

/// A token id that the simulated model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token id {0} is not in the vocabulary of {size} ids", size = Tokenizer::VOCABULARY)]
pub struct UnknownToken(pub u32);

impl Tokenizer {
    /// How many ids there are.
    pub const VOCABULARY: u32 = 259;

    /// One id a byte.
    pub fn encode(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// The bytes that ids stand for.
    ///
    /// # Errors
    /// The first id outside the vocabulary.
    pub fn decode(ids: &[u32]) -> Result<Vec<u8>, UnknownToken> {
        let mut bytes = Vec::with_capacity(ids.len());
        for id in ids {
            match u8::try_from(*id) {
                Ok(byte) => bytes.push(byte),
                Err(_) => bytes.extend_from_slice(mark(*id).ok_or(UnknownToken(*id))?.as_bytes()),
            }
        }
        Ok(bytes)
    }
}

/// The text of a mark of the template.
pub(super) fn mark(id: u32) -> Option<&'static str> {
    match id {
        START => Some("<|im_start|>"),
        END => Some("<|im_end|>"),
        IMAGE => Some("<|image|>"),
        _ => None,
    }
}

/// Receives a rendered prompt piece by piece, so that counting, hashing and listing ids share one template.
pub(super) trait Sink {
    fn mark(&mut self, id: u32);
    fn bytes(&mut self, bytes: &[u8]);
    /// An image: its tokens, and what tells it from another.
    fn image(&mut self, url: &str);
    /// The end of a message (or of a whole text prompt).
    fn boundary(&mut self) {}
}

/// Lists the ids.
impl Sink for Vec<u32> {
    fn mark(&mut self, id: u32) {
        self.push(id);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend(bytes.iter().map(|byte| u32::from(*byte)));
    }

    fn image(&mut self, _url: &str) {
        self.extend([IMAGE; IMAGE_TOKENS]);
    }
}

/// Counts the tokens and hashes them, and remembers both at the end of each message.
#[derive(Debug)]
pub(super) struct Outline {
    /// Tokens so far.
    pub(super) tokens: usize,
    /// Hash so far.
    pub(super) hash: Hash,
    /// Hash and length at each boundary, shortest first.
    pub(super) boundaries: Vec<(u64, usize)>,
}

impl Outline {
    /// An outline that starts from a hash (of the seed, a cache salt, …).
    pub(super) fn new(start: Hash) -> Self {
        Self { tokens: 0, hash: start, boundaries: Vec::new() }
    }
}

impl Sink for Outline {
    fn mark(&mut self, id: u32) {
        self.tokens += 1;
        self.hash = self.hash.number(u64::from(id));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.tokens += bytes.len();
        self.hash = self.hash.bytes(bytes);
    }

    fn image(&mut self, url: &str) {
        self.tokens += IMAGE_TOKENS;
        self.hash = self.hash.bytes(url.as_bytes());
    }

    fn boundary(&mut self) {
        self.boundaries.push((self.hash.value(), self.tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_the_inverse_of_encoding() {
        for text in ["", "plain", "Grüße, 世界 🌍", "<|im_end|>"] {
            let ids = Tokenizer::encode(text);
            assert_eq!(ids.len(), text.len());
            assert_eq!(Tokenizer::decode(&ids).expect("known ids"), text.as_bytes());
        }
        assert_eq!(Tokenizer::decode(&[256, 104, 105, 257]).expect("known ids"), b"<|im_start|>hi<|im_end|>");
        assert_eq!(Tokenizer::decode(&[259]), Err(UnknownToken(259)));
    }
}
