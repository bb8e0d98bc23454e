//! Vocabularies of ranks beside the library tiktoken.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rollhouse::{
    config::{FamilyConfig, RendererConfig},
    render::{self, Tokenizer},
};
use serde_json::{Map, Value, json};

use super::{corpus::Corpus, peer};

/// Kimi's control tokens, at the places they have after the tokens of text.
const CONTROLS: &[(usize, &str)] = &[
    (0, "[BOS]"),
    (1, "[EOS]"),
    (2, "<|im_end|>"),
    (3, "<|im_user|>"),
    (4, "<|im_assistant|>"),
    (10, "<|im_system|>"),
    (11, "<|tool_calls_section_begin|>"),
    (12, "<|tool_calls_section_end|>"),
    (13, "<|tool_call_begin|>"),
    (14, "<|tool_call_argument_begin|>"),
    (15, "<|tool_call_end|>"),
    (17, "<|im_middle|>"),
    (254, "[UNK]"),
    (255, "[PAD]"),
];

/// Writes the vocabulary of a real tokenizer as ranks, and compares the ids of texts.
pub(crate) fn prove(files: &str, texts: usize) {
    let folder = tempfile::tempdir().unwrap();
    let first = write(&peer::folder(files), folder.path());
    let config = RendererConfig { thinking_retention: None, family: FamilyConfig::Auto };
    let opened = render::open(&config, "moonshotai/Kimi-K2-Instruct", folder.path().to_str(), &Map::new()).unwrap();
    assert_eq!(opened.renderer.name(), "kimi-k2");
    assert_eq!(opened.renderer.stop_ids(), [first as u32 + 2]);
    let tokenizer = opened.renderer.tokenizer();
    let texts = self::texts(texts);
    let theirs = ask(folder.path(), &texts);
    for (text, theirs) in texts.iter().zip(&theirs) {
        let shown: String = text.chars().take(200).collect();
        assert_eq!(json!(tokenizer.encode_plain(text)), theirs["plain"], "{files}: plain {shown:?}");
        let ids = tokenizer.encode(text);
        // The class finds controls after it has cut, so that a cut text is compared without.
        if text.len() < 25_000 {
            assert_eq!(json!(ids), theirs["ids"], "{files}: {shown:?}");
            assert_eq!(json!(tokenizer.decode(&ids)), theirs["text"], "{files}: {shown:?}");
        }
    }
}

fn texts(count: usize) -> Vec<String> {
    let mut corpus = Corpus::new(11);
    let mut texts: Vec<String> = (0..count).map(|_| text(&mut corpus)).collect();
    // Repetition, where neighbours can be joined in several ways, and what is so long that it is cut.
    for unit in ["a", "ab", "aba", " ", "\n", "=", "- ", "日本", "é", "0", " \n", "\t ", "🙂", "の"] {
        texts.extend((1..40).map(|times| unit.repeat(times)));
        texts.push(unit.repeat(26_000));
        texts.push(format!("x{}y", unit.repeat(25_001)));
    }
    texts.push("words and words, ".repeat(30_000));
    texts
}

/// Texts of the corpus, strange letters and control tokens.
fn text(corpus: &mut Corpus) -> String {
    let mut text = String::new();
    for _ in 0..1 + corpus.below(4) {
        match corpus.below(4) {
            0 => text.push_str(CONTROLS[corpus.below(CONTROLS.len())].1),
            1 => {
                let blocks = [0x20, 0x300, 0x3400, 0x3000, 0xac00, 0x600, 0x1f600, 0x2000, 0x80, 0x1c, 0x20000];
                let block = blocks[corpus.below(blocks.len())];
                text.extend((0..corpus.below(12)).filter_map(|_| char::from_u32(block + corpus.below(90) as u32)));
            }
            _ => text.push_str(&corpus.text()),
        }
    }
    text
}

/// Returns the id of the first control token.
fn write(source: &Path, folder: &Path) -> usize {
    let whole: Value = serde_json::from_slice(&fs::read(source.join("tokenizer.json")).unwrap()).unwrap();
    let added: Vec<&str> =
        whole["added_tokens"].as_array().unwrap().iter().filter_map(|token| token["content"].as_str()).collect();
    let mut tokens: Vec<(u64, &str)> = whole["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(token, _)| !added.contains(&token.as_str()))
        .map(|(token, id)| (id.as_u64().unwrap(), token.as_str()))
        .collect();
    tokens.sort_unstable();
    let byte = byte_of();
    let lines = tokens.iter().enumerate().map(|(rank, (_, token))| {
        let bytes: Vec<u8> = token.chars().map(|letter| byte[letter as usize]).collect();
        format!("{} {rank}\n", STANDARD.encode(bytes))
    });
    fs::write(folder.join("tiktoken.model"), lines.collect::<String>()).unwrap();
    let first = tokens.len();
    let controls: Map<String, Value> =
        CONTROLS.iter().map(|(at, name)| ((first + at).to_string(), json!({ "content": name }))).collect();
    let config = json!({ "tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": controls });
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    assert!(Tokenizer::from_folder(folder).is_ok());
    first
}

/// Which byte a letter stands for in vocabularies of bytes.
fn byte_of() -> Vec<u8> {
    let mut bytes = vec![0; 0x200];
    let mut unseen = 0x100;
    for byte in 0..=255_u8 {
        let seen = byte.is_ascii_graphic() || (byte >= 0xa1 && byte != 0xad);
        bytes[if seen { usize::from(byte) } else { unseen }] = byte;
        unseen += usize::from(!seen);
    }
    bytes
}

fn ask(folder: &Path, texts: &[String]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/ranks_peer.py");
    let mut child = Command::new(peer::python())
        .arg(script)
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let theirs: Vec<Value> = thread::scope(|scope| {
        scope.spawn(move || texts.iter().for_each(|text| writeln!(input, "{}", json!(text)).unwrap()));
        output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(theirs.len(), texts.len());
    theirs
}
