//! Vocabularies of the library tiktoken: a file of tokens, as bytes, and their ranks. Kimi's models ship theirs as
//! `tiktoken.model`; how text is split, and what the control tokens are called, the class `TikTokenTokenizer` in Moonshot's
//! `tokenization_kimi.py` says.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokenizers::{
    AddedToken, SplitDelimiterBehavior, Token,
    models::bpe::{BPE, Vocab},
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::python::is_space;

/// Name of the file.
pub(super) const FILE: &str = "tiktoken.model";

/// The class whose rules are known.
pub(super) const CLASS: &str = "TikTokenTokenizer";

/// Where the class splits text: Han is apart from other letters, numbers go in threes.
const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// How many ids after those of text are control tokens, named or not.
const CONTROLS: usize = 256;

/// The class cuts text into parts of so many characters, each tokenized by itself.
const PART: usize = 400_000;

/// It cuts, too, where so many characters in a row are white space, or are not.
const STRETCH: usize = 25_000;

/// Reads a file of ranks; `config` is what `tokenizer_config.json` says. Its model holds the vocabulary alone: [`merge`] knows
/// the rule.
pub(super) fn read(file: &[u8], config: &Value) -> Result<tokenizers::Tokenizer, String> {
    let vocabulary = vocabulary(file)?;
    let controls = controls(config, vocabulary.len())?;
    let first = vocabulary.len() as u32;
    let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new()).build().map_err(|error| error.to_string())?;
    let split = Split::new(SplitPattern::Regex(PATTERN.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| error.to_string())?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
    tokenizer.with_decoder(Some(bytes));
    let tokens = controls.iter().map(|name| AddedToken::from(name.as_str(), true));
    tokenizer.add_special_tokens(tokens).map_err(|error| error.to_string())?;
    match (first..).zip(&controls).find(|(id, name)| tokenizer.token_to_id(name) != Some(*id)) {
        None => Ok(tokenizer),
        Some((id, name)) => Err(format!("the token `{name}` with id {id} is there twice")),
    }
}

/// The tokens of text by their ids, which are the ranks. Bytes are written as the characters that stand for them.
fn vocabulary(file: &[u8]) -> Result<Vocab, String> {
    let file = std::str::from_utf8(file).map_err(|error| error.to_string())?;
    let letters = letters();
    let mut tokens = Vocab::default();
    let mut count = 0;
    for (at, line) in file.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let fault = || format!("line {}: not a token in base64 and its rank", at + 1);
        let (token, rank) = line.split_once(' ').ok_or_else(fault)?;
        let bytes = STANDARD.decode(token).map_err(|_| fault())?;
        let rank: u32 = rank.trim().parse().map_err(|_| fault())?;
        tokens.insert(bytes.iter().map(|byte| letters[usize::from(*byte)]).collect(), rank);
        count += 1;
    }
    let mut seen = vec![false; count];
    tokens.values().for_each(|rank| seen.get_mut(*rank as usize).into_iter().for_each(|seen| *seen = true));
    if seen.contains(&false) {
        return Err(format!("its {count} ranks are not the numbers from 0 to {}", count.saturating_sub(1)));
    }
    match letters.iter().position(|letter| !tokens.contains_key(letter.to_string().as_str())) {
        None => Ok(tokens),
        Some(byte) => Err(format!("the byte {byte} is no token")),
    }
}

/// The control tokens, in the order of their ids; `first` is the id of the first.
fn controls(config: &Value, first: usize) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = (first..first + CONTROLS).map(|id| format!("<|reserved_token_{id}|>")).collect();
    let added = config["added_tokens_decoder"].as_object();
    for (id, token) in added.ok_or("`tokenizer_config.json` names no control tokens in `added_tokens_decoder`")? {
        let place = id.parse::<usize>().ok().and_then(|id| id.checked_sub(first)).and_then(|at| names.get_mut(at));
        let (Some(place), Some(name)) = (place, token["content"].as_str()) else {
            let last = first + CONTROLS - 1;
            return Err(format!("its control tokens have the ids {first} to {last}, but one is `{id}`: {token}"));
        };
        if ["lstrip", "rstrip", "single_word"].into_iter().any(|flag| token[flag] == true) {
            return Err(format!("the control token `{name}` takes white space with it, which is not supported"));
        }
        name.clone_into(place);
    }
    Ok(names)
}

/// The character that stands for each byte in vocabularies of bytes, as GPT-2 has it: itself where it can be seen.
fn letters() -> [char; 256] {
    let mut unseen = 0x100..;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as u8 as char,
        _ => unseen.next().and_then(char::from_u32).unwrap_or_default(),
    })
}

/// Tokenizes one piece of text by ranks, as tiktoken does: of all neighbours that make a token together, those with the
/// lowest rank are joined first, and of equal ones those farthest to the left.
pub(super) fn merge(text: &str, rank: impl Fn(&str) -> Option<u32>) -> Vec<Token> {
    if let Some(id) = rank(text) {
        return vec![Token::new(id, text.to_owned(), (0, text.len()))];
    }
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let count = borders.len() - 1;
    // Where the part that begins at a border ends, and where the one that ends there begins; 0 where no part begins.
    let mut ends: Vec<usize> = (1..=count).collect();
    let mut begins: Vec<usize> = (0..=count).map(|end| end.saturating_sub(1)).collect();
    let joined =
        |begin: usize, end: usize| rank(&text[borders[begin]..borders[end]]).map(|rank| Reverse((rank, begin, end)));
    let mut waiting: BinaryHeap<_> = (2..=count).filter_map(|end| joined(end - 2, end)).collect();
    while let Some(Reverse((_, begin, end))) = waiting.pop() {
        let middle = ends[begin];
        // Other joins came first, so that these are no longer two neighbours.
        if middle == 0 || middle >= end || ends[middle] != end {
            continue;
        }
        ends[begin] = end;
        ends[middle] = 0;
        begins[end] = begin;
        if begin > 0 {
            waiting.extend(joined(begins[begin], end));
        }
        if end < count {
            waiting.extend(joined(begin, ends[end]));
        }
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < count {
        let range = borders[at]..borders[ends[at]];
        let token = &text[range.clone()];
        tokens.extend(rank(token).map(|id| Token::new(id, token.to_owned(), (range.start, range.end))));
        at = ends[at];
    }
    tokens
}

/// The parts of a text that are tokenized by themselves. A cut is where a token ends, so that it belongs to the rule.
pub(super) fn parts(text: &str) -> Vec<Range<usize>> {
    // Without this many bytes nothing is cut.
    if text.len() <= STRETCH {
        return std::iter::once(0..text.len()).collect();
    }
    let (mut parts, mut begin, mut stretch, mut space) = (Vec::new(), 0, 0, false);
    for (count, (at, letter)) in text.char_indices().enumerate() {
        let begins_part = count % PART == 0;
        stretch = if begins_part || is_space(letter) != space { 1 } else { stretch + 1 };
        space = is_space(letter);
        if at > 0 && (begins_part || stretch > STRETCH) {
            parts.push(begin..at);
            begin = at;
            stretch = 1;
        }
    }
    parts.push(begin..text.len());
    parts
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
    use serde_json::json;

    use super::*;

    /// All bytes, then these.
    fn file(tokens: &[&str]) -> Vec<u8> {
        let bytes = (0..=255).map(|byte| vec![byte]);
        let tokens = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
        let lines = tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token)));
        lines.collect::<String>().into_bytes()
    }

    fn named(id: usize, name: &str) -> Value {
        json!({ "added_tokens_decoder": { id.to_string(): { "content": name } } })
    }

    fn merged(text: &str, tokens: &[&str]) -> Vec<String> {
        let rank = |part: &str| match part.len() {
            1 => Some(u32::from(part.as_bytes()[0])),
            _ => tokens.iter().position(|token| *token == part).map(|at| at as u32 + 256),
        };
        merge(text, rank).into_iter().map(|token| token.value).collect()
    }

    #[test]
    fn the_lowest_rank_is_joined_first_and_of_equals_the_leftmost() {
        assert_eq!(merged("abc", &["bc", "ab"]), ["a", "bc"]);
        assert_eq!(merged("aaaaa", &["aa", "aaaa"]), ["aaaa", "a"]);
        assert_eq!(merged("1a2a1", &["1a", "a1", "2a", "1a2a"]), ["1a", "2", "a1"]);
        // What is a token as a whole is one, whether or not its parts join to it.
        assert_eq!(merged("wxyz", &["wxyz"]), ["wxyz"]);
        assert_eq!(merged("wxyzw", &["wxyz"]), ["w", "x", "y", "z", "w"]);
    }

    /// The rule word for word.
    fn merged_slowly(text: &str, tokens: &[&str]) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        while !tokens.contains(&text) {
            let pairs = parts.windows(2).enumerate().map(|(at, pair)| (at, pair.concat()));
            let ranked =
                pairs.filter_map(|(at, pair)| Some((tokens.iter().position(|token| *token == pair)?, at, pair)));
            let Some((_, at, pair)) = ranked.min() else { return parts };
            parts.splice(at..at + 2, [pair]);
        }
        vec![text.to_owned()]
    }

    #[test]
    fn any_vocabulary_is_merged_by_the_rule() {
        let mut random = StdRng::seed_from_u64(3);
        let word = |random: &mut StdRng, most: usize| -> String {
            let length = random.random_range(2..=most);
            (0..length).map(|_| random.random_range('a'..='c')).collect()
        };
        for _ in 0..3000 {
            let tokens: Vec<String> = (0..random.random_range(1..24)).map(|_| word(&mut random, 5)).collect();
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let text = word(&mut random, 40);
            assert_eq!(merged(&text, &tokens), merged_slowly(&text, &tokens), "{text} {tokens:?}");
        }
    }

    #[test]
    fn every_byte_has_its_letter() {
        let letters = letters();
        assert_eq!(letters.iter().collect::<std::collections::HashSet<_>>().len(), 256);
        assert!(letters.iter().all(|letter| ByteLevel::alphabet().contains(letter)));
        assert_eq!([letters[b' ' as usize], letters[b'\n' as usize], letters[0xad]], ['Ġ', 'Ċ', 'Ń']);
    }

    #[test]
    fn control_tokens_follow_those_of_text_named_or_not() {
        let tokenizer = read(&file(&["ab"]), &named(259, "<|im_end|>")).unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), 257 + 256);
        assert_eq!(tokenizer.token_to_id("ab"), Some(256));
        assert_eq!(tokenizer.token_to_id("<|reserved_token_257|>"), Some(257));
        assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(259));
        assert_eq!(tokenizer.token_to_id("<|reserved_token_512|>"), Some(512));
    }

    #[test]
    fn what_is_no_vocabulary_is_told() {
        let told = |file: &[u8], config: &Value| read(file, config).err().unwrap();
        let config = named(256, "<|im_end|>");
        assert!(told(b"YQ==", &config).contains("line 1"));
        assert!(told(b"YQ== 0\n!! 1\n", &config).contains("line 2"));
        assert!(told(b"YQ== 0\n", &config).contains("the byte 0 is no token"));
        assert!(told(b"YQ== 0\nYg== 0\n", &config).contains("not the numbers from 0 to 1"));
        assert!(told(&[file(&[]), b"YWI= 300\n".to_vec()].concat(), &config).contains("not the numbers from 0 to 256"));
        assert!(told(&file(&[]), &json!({})).contains("`added_tokens_decoder`"));
        for id in [255, 512] {
            assert!(told(&file(&[]), &named(id, "<|im_end|>")).contains("the ids 256 to 511"));
        }
        assert!(told(&file(&[]), &named(256, "<|reserved_token_257|>")).contains("twice"));
        let greedy = json!({ "added_tokens_decoder": { "256": { "content": "<m>", "lstrip": true } } });
        assert!(told(&file(&[]), &greedy).contains("takes white space with it"));
    }

    #[test]
    fn long_texts_and_long_stretches_are_cut() {
        let lengths = |text: &str| parts(text).into_iter().map(|part| text[part].chars().count()).collect::<Vec<_>>();
        assert_eq!(lengths(&"é".repeat(STRETCH)), [STRETCH]);
        assert_eq!(lengths(&"é".repeat(STRETCH + 1)), [STRETCH, 1]);
        assert_eq!(lengths(&("a".repeat(STRETCH) + " " + &"b".repeat(STRETCH))), [2 * STRETCH + 1]);
        // The separators of ASCII are white space to Python.
        assert_eq!(lengths(&" \u{1c}".repeat(STRETCH)), [STRETCH, STRETCH]);
        let words = "ab ".repeat(PART / 2);
        assert_eq!(lengths(&words), [PART, words.len() - PART]);
        assert_eq!(lengths(""), [0]);
    }
}
