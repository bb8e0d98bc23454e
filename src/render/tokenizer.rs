//! A model's tokenizer: text to ids and back, with text and control tokens kept apart.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    io::ErrorKind,
    ops::Range,
    path::Path,
    sync::{Arc, LazyLock},
};

use regex::Regex;
use serde_json::Value;
use tokenizers::{
    AddedToken, Encoding, Model as _, NormalizedString, Normalizer as _, OffsetType, PreTokenizedString,
    PreTokenizer as _, Token, pre_tokenizers::byte_level::ByteLevel, tokenizer::normalizer::Range as Bounds,
};

use super::{error::RenderError, ranks, rendered::Place, writer::Piece};

/// A tokenizer of the library `tokenizers`, as `tokenizer.json` describes it, or one of tiktoken's ranks.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Ranks say what is joined, rather than a list of merges.
    ranked: bool,
    /// Every token that the vocabulary adds to those of text.
    controls: HashMap<String, Arc<Control>>,
    finder: Option<Regex>,
    /// For the text as it comes, and for normalized text.
    finders: [Finder; 2],
}

/// A token that the vocabulary adds to those of text.
struct Control {
    id: u32,
    token: AddedToken,
}

impl Control {
    /// It is only text, such as a run of spaces: nothing is hidden in it, and engines find it in everybody's text.
    fn is_text(&self) -> bool {
        let text = &self.token.content;
        text.chars().nth(1).is_none() || !self.token.special && text.trim().is_empty()
    }
}

/// Finds control tokens of one kind by their texts.
struct Finder {
    regex: Option<Regex>,
    controls: HashMap<String, Arc<Control>>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("controls", &self.controls.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json`. Takes up to seconds: large vocabularies are read and indexed.
    ///
    /// # Errors
    /// The file is not there or not a tokenizer.
    pub fn from_file(path: &Path) -> Result<Self, RenderError> {
        let fault = |reason: String| RenderError::File { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
        Self::from_bytes(&bytes).map_err(|error| fault(format!("not a tokenizer: {error}")))
    }

    /// Reads the tokenizer of a folder with `tokenizer.json`, or Kimi's `tiktoken.model`, and, as a rule,
    /// `tokenizer_config.json`.
    ///
    /// Engines load tokenizers with transformers, and its version 5 does not take every `tokenizer.json` at its word: for the
    /// class `GPT2Tokenizer` it splits text as GPT-2 does, whatever the file says. So do we, for the ids of both to be the
    /// same.
    ///
    /// # Errors
    /// A file is missing or not what it should be.
    pub fn from_folder(folder: &Path) -> Result<Self, RenderError> {
        let path = folder.join("tokenizer_config.json");
        let fault = |reason: String| RenderError::File { path: path.clone(), reason };
        let config = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Value>(&bytes).map_err(|error| fault(error.to_string()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Value::Null,
            Err(error) => return Err(fault(error.to_string())),
        };
        let class = config["tokenizer_class"].as_str();
        let ranks = folder.join(ranks::FILE);
        // Where both are there, the class reads its own.
        if ranks.is_file() && (class == Some(ranks::CLASS) || !folder.join("tokenizer.json").is_file()) {
            let fault = |reason: String| RenderError::File { path: ranks.clone(), reason };
            if class != Some(ranks::CLASS) {
                return Err(fault(format!(
                    "how it splits text is known for the class `{}` only, and `tokenizer_config.json` names {}; give a \
                     folder with `tokenizer.json`",
                    ranks::CLASS,
                    class.map_or_else(|| "none".to_owned(), |class| format!("`{class}`"))
                )));
            }
            let bytes = std::fs::read(&ranks).map_err(|error| fault(error.to_string()))?;
            return ranks::read(&bytes, &config).and_then(|inner| Self::new(inner, true)).map_err(fault);
        }
        let mut tokenizer = Self::from_file(&folder.join("tokenizer.json"))?;
        if matches!(class, Some("GPT2Tokenizer" | "GPT2TokenizerFast")) {
            let prefix = config["add_prefix_space"].as_bool().unwrap_or(false);
            tokenizer.inner.with_pre_tokenizer(Some(ByteLevel::new(prefix, true, true)));
        }
        Ok(tokenizer)
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// It is not a tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        Self::new(inner, false)
    }

    fn new(inner: tokenizers::Tokenizer, ranked: bool) -> Result<Self, String> {
        let added = inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| !token.content.is_empty());
        let controls: HashMap<String, Arc<Control>> =
            added.map(|(id, token)| (token.content.clone(), Arc::new(Control { id, token }))).collect();
        let regex = longest_first(controls.keys())?;
        let finders = [false, true].map(|normalized| {
            let own = controls.values().filter(|control| control.token.normalized == normalized);
            let controls = own.map(|control| {
                let mut text = NormalizedString::from(control.token.content.as_str());
                if let Some(normalizer) = inner.get_normalizer().filter(|_| normalized) {
                    normalizer.normalize(&mut text).map_err(|error| error.to_string())?;
                }
                Ok((text.get().to_owned(), Arc::clone(control)))
            });
            let controls = controls.collect::<Result<HashMap<_, _>, String>>()?;
            Ok::<_, String>(Finder { regex: longest_first(controls.keys())?, controls })
        });
        let [raw, normalized] = finders;
        Ok(Self { inner, ranked, controls, finder: regex, finders: [raw?, normalized?] })
    }

    /// Whether a folder holds a tokenizer.
    pub(super) fn is_in(folder: &Path) -> bool {
        ["tokenizer.json", ranks::FILE].into_iter().any(|file| folder.join(file).is_file())
    }

    /// The id of a token by its text: a control token, else one of the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A text with a mark inside of everything that would be a control token.
    pub(super) fn broken<'a>(&self, text: &'a str, mark: char) -> Cow<'a, str> {
        let Some(finder) = &self.finder else { return text.into() };
        let (mut broken, mut rest, mut from) = (String::new(), 0, 0);
        // They may overlap: what is left of a broken one must not complete another.
        while let Some(found) = finder.find_at(text, from) {
            from = found.start() + found.as_str().chars().next().map_or(1, char::len_utf8);
            if !self.controls[found.as_str()].is_text() {
                broken.push_str(&text[rest..from]);
                broken.push(mark);
                rest = from;
            }
        }
        if rest == 0 {
            return text.into();
        }
        broken.push_str(&text[rest..]);
        broken.into()
    }

    /// The id of a control token that a family needs.
    ///
    /// # Errors
    /// The vocabulary does not have it.
    pub(super) fn control(&self, token: &str, renderer: &'static str) -> Result<u32, RenderError> {
        self.id(token).ok_or_else(|| RenderError::NoToken { token: token.to_owned(), renderer })
    }

    /// How many ids there are, control tokens included.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The ids of a template's text, in which control tokens are recognized.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.write(&[Piece::template(text, Place::BETWEEN)], false, |id, _| ids.push(id));
        ids
    }

    /// The ids of somebody's text: what looks like a control token is text too.
    pub fn encode_plain(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.write(&[Piece::message(text, Place::BETWEEN)], false, |id, _| ids.push(id));
        ids
    }

    /// The text of ids, control tokens included; bytes that are no text become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }

    /// Tokenizes pieces as one text and hands on each id with the place of its first character. A control token is only
    /// what stands whole in one piece of template. With `whole`, an id that holds any content at all is content.
    pub(super) fn write(&self, pieces: &[Piece<'_>], whole: bool, mut take: impl FnMut(u32, Place)) {
        let mut text = String::with_capacity(pieces.iter().map(|piece| piece.text.len()).sum());
        let mut ends = Vec::with_capacity(pieces.len());
        let mut templates = Vec::with_capacity(pieces.len());
        for piece in pieces.iter().filter(|piece| !piece.text.is_empty()) {
            text.push_str(piece.text);
            ends.push((text.len(), piece.place));
            templates.push((text.len(), piece.template));
        }
        if text.is_empty() {
            return;
        }
        let encoding = self.tokenize(&text, &templates).unwrap_or_else(|error| {
            tracing::error!(%error, "a text cannot be tokenized");
            Encoding::default()
        });
        let mut at = 0;
        for (id, (start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            while at + 1 < ends.len() && ends[at].0 <= *start {
                at += 1;
            }
            let reached = ends[at + 1..].iter().take_while(|_| whole).zip(&ends[at..]);
            let mut content = reached.take_while(|(_, (before, _))| before < end).map(|(piece, _)| piece.1);
            take(*id, content.find(|place| place.content).unwrap_or(ends[at].1));
        }
    }

    /// The tokenizer's own steps, but that control tokens are found by whose text it is. `pieces` say where each ends, and
    /// whether it is template. Nothing in them fails on text.
    fn tokenize(&self, text: &str, pieces: &[(usize, bool)]) -> tokenizers::Result<Encoding> {
        let mut splits = PreTokenizedString::from(text);
        self.finders[0].split(&mut splits, pieces)?;
        if self.ranked {
            splits.split(|_, whole| {
                let parts = ranks::parts(whole.get_original()).into_iter();
                Ok(parts.filter_map(|part| whole.slice(Bounds::Original(part))).collect::<Vec<_>>())
            })?;
        }
        if let Some(normalizer) = self.inner.get_normalizer() {
            splits.normalize(|part| normalizer.normalize(part))?;
        }
        // Only after the text around them is normalized, which may begin otherwise than a text in the middle.
        self.finders[1].split(&mut splits, pieces)?;
        if let Some(splitter) = self.inner.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut splits)?;
        }
        let model = self.inner.get_model();
        splits.tokenize(|part| match self.ranked {
            true => Ok(ranks::merge(part.get(), |token| model.token_to_id(token))),
            false => model.tokenize(part.get()),
        })?;
        self.inner.post_process(splits.into_encoding(None, 0, OffsetType::Byte)?, None, false)
    }
}

impl Finder {
    /// Splits what is no token yet at control tokens, by the flags of each. `pieces` say where each piece of the whole text
    /// ends, and whether it is template.
    fn split(&self, splits: &mut PreTokenizedString, pieces: &[(usize, bool)]) -> tokenizers::Result<()> {
        let Some(regex) = &self.regex else { return Ok(()) };
        splits.split(|_, part| {
            let text = part.get();
            let mut parts: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::new();
            let mut add = |range: Range<usize>, token| {
                parts.extend(part.slice(Bounds::Normalized(range)).map(|text| (text, token)));
            };
            let (mut taken, mut from) = (0, 0);
            while let Some(found) = regex.find_at(text, from) {
                let control = &self.controls[found.as_str()];
                let whole = || {
                    let place = part.slice(Bounds::Normalized(found.range())).map(|found| found.offsets_original());
                    place.is_some_and(|place| control.is_text() || is_template(pieces, place))
                };
                if !whole() {
                    // Another may begin inside of what is only text.
                    from = found.start() + found.as_str().chars().next().map_or(1, char::len_utf8);
                    continue;
                }
                // Not behind the white space that it takes: the library finds that again where it is a token.
                from = found.end();
                let Some(range) = flagged(&control.token, text, found.range(), taken) else { continue };
                if taken < range.start {
                    add(taken..range.start, None);
                }
                taken = range.end;
                let token = Token::new(control.id, control.token.content.clone(), (0, range.len()));
                add(range, Some(vec![token]));
            }
            if taken < text.len() {
                add(taken..text.len(), None);
            }
            Ok(parts)
        })
    }
}

/// What a found token takes: nothing where it must be a single word and is none; with the white space beside it, but for what
/// is `taken` already, where its flags say so.
fn flagged(token: &AddedToken, text: &str, found: Range<usize>, taken: usize) -> Option<Range<usize>> {
    static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\w").expect("a valid expression"));
    let is_word = |c: char| WORD.is_match(c.encode_utf8(&mut [0; 4]));
    let (before, after) = (&text[..found.start], &text[found.end..]);
    let joined = before.chars().next_back().is_some_and(is_word) || after.chars().next().is_some_and(is_word);
    if token.single_word && joined {
        return None;
    }
    let start = if token.lstrip { before.trim_end().len().max(taken) } else { found.start };
    let end = if token.rstrip { text.len() - after.trim_start().len() } else { found.end };
    (start < end).then_some(start..end)
}

/// Whether a stretch lies whole in a piece of template.
fn is_template(pieces: &[(usize, bool)], (start, end): (usize, usize)) -> bool {
    let piece = pieces.partition_point(|(piece, _)| *piece <= start);
    pieces.get(piece).is_some_and(|(piece, template)| *template && end <= *piece)
}

/// An expression that finds the longest of the texts first.
fn longest_first<'a>(texts: impl Iterator<Item = &'a String>) -> Result<Option<Regex>, String> {
    let mut texts: Vec<&String> = texts.collect();
    if texts.is_empty() {
        return Ok(None);
    }
    texts.sort_by_key(|text| (std::cmp::Reverse(text.len()), text.as_str()));
    let pattern = texts.iter().map(|text| regex::escape(text)).collect::<Vec<_>>().join("|");
    Regex::new(&pattern).map(Some).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
    use serde_json::json;

    use super::*;

    const TEXTS: [&str; 14] =
        ["<a>", "<ab>", "<b>", "<c>", "<d>", "  ", " ", "\n", "x", "_", "yé", "\u{a0}", "1", "e\u{301}"];

    /// Added tokens count from here.
    const FIRST: usize = 18;

    /// A vocabulary of single characters, in which `added` are tokens of their own.
    fn tokenizer(normalizer: &Value, added: &[Value]) -> Tokenizer {
        let characters: std::collections::BTreeSet<char> = TEXTS.concat().chars().chain(['▁', '?', 'é']).collect();
        let vocabulary: serde_json::Map<String, Value> =
            characters.into_iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
        assert_eq!(vocabulary.len(), FIRST);
        let added: Vec<Value> = added
            .iter()
            .enumerate()
            .map(|(at, flags)| {
                let mut token = json!({
                    "id": FIRST + at, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
                });
                token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
                token
            })
            .collect();
        let splitter =
            json!({ "type": "Split", "pattern": { "Regex": "(?s)." }, "behavior": "Isolated", "invert": false });
        let model = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" });
        let whole = json!({
            "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": splitter, "model": model,
        });
        Tokenizer::from_bytes(whole.to_string().as_bytes()).unwrap()
    }

    /// The library itself says what the flags of a token do.
    #[test]
    fn control_tokens_are_found_as_the_library_finds_them() {
        let mut random = StdRng::seed_from_u64(1);
        let prepend = json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] });
        for normalizer in [Value::Null, json!({ "type": "NFC" }), prepend] {
            for _ in 0..200 {
                let mut flag = || random.random_bool(0.3);
                let added: Vec<Value> = TEXTS[..5 + usize::from(flag())]
                    .iter()
                    .map(|text| {
                        json!({
                            "content": text, "single_word": flag(), "normalized": flag(),
                            "lstrip": flag() && *text != "  ", "rstrip": flag(),
                        })
                    })
                    .collect();
                let tokenizer = tokenizer(&normalizer, &added);
                for _ in 0..20 {
                    let text: String = (0..8).map(|_| TEXTS[random.random_range(0..TEXTS.len())]).collect();
                    let theirs = tokenizer.inner.encode(&*text, false).unwrap();
                    assert_eq!(tokenizer.encode(&text), theirs.get_ids(), "{text:?} with {normalizer} and {added:?}");
                }
            }
        }
    }

    #[test]
    fn normalized_tokens_do_not_begin_a_text() {
        let prepend = json!({ "type": "Prepend", "prepend": "▁" });
        let tokenizer = tokenizer(&prepend, &[json!({ "content": "<a>", "normalized": true })]);
        for text in ["x<a>x", "<a>", "x", "<a><a>x x"] {
            assert_eq!(tokenizer.encode(text), tokenizer.inner.encode(text, false).unwrap().get_ids(), "{text}");
        }
    }

    #[test]
    fn text_never_becomes_a_control_token_but_its_spaces_are_tokens() {
        let flags = [
            json!({ "content": "<a>", "rstrip": true }),
            json!({ "content": "<b>", "special": false }),
            json!({ "content": "  ", "special": false }),
        ];
        let tokenizer = tokenizer(&Value::Null, &flags);
        let text = "<a>  x<b>";
        let plain = tokenizer.encode_plain(text);
        let id = |token| tokenizer.id(token).unwrap();
        assert_eq!(plain.iter().filter(|at| **at >= FIRST as u32).collect::<Vec<_>>(), [&id("  ")]);
        assert_eq!(tokenizer.decode(&plain).replace(' ', ""), "<a>x<b>");
        assert_eq!(tokenizer.encode("<a> x<b>"), [id("<a>"), id("x"), id("<b>")]);
        assert_eq!(tokenizer.broken(text, '|'), "<|a>  x<|b>");
    }
}
