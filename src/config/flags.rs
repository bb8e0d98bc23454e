//! The command line as a layer: dotted kebab-case flags, short and older spellings, and files named by `@`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;
use toml::de::DeValue;

use super::{
    fault::{Fault, Faults, Origin},
    grammar::{Alias, Grammar, Target},
    layer::Layer,
    nearest::did_you_mean,
    node::{Content, Node, Table, Word, unset},
    value::Shape,
};

/// A command line taken apart.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Bare words that no key takes.
    pub positional: Vec<String>,
    /// Files in order, then the flags.
    pub layers: Vec<Layer>,
    /// The files, in order.
    pub files: Vec<PathBuf>,
    /// Options of the command that were given, with their values.
    pub switches: BTreeMap<&'static str, Option<String>>,
}

/// Takes a command line apart: `@ file`, `--section @ file`, `--a.b-c v`, `--a.b-c=v`, `--flag`, `--no-flag`, `-n 5`,
/// `-n5`, `-vs`, repeated and listed values, JSON for lists and maps. Files are read here.
///
/// # Errors
/// All faults: unknown flags with the nearest known one, missing values, files that cannot be read or parsed.
pub fn parse_args(args: &[String], grammar: &Grammar) -> Result<Parsed, Faults> {
    let mut parser = Parser {
        args,
        next: 0,
        grammar,
        parsed: Parsed::default(),
        flags: Table::new(),
        last: Table::new(),
        faults: Vec::new(),
    };
    while parser.next < args.len() {
        parser.argument();
    }
    let Parser { mut parsed, flags, last, faults, .. } = parser;
    for table in [flags, last] {
        if !table.is_empty() {
            parsed.layers.push(Layer { root: Node::new(Origin::Default, Content::Table(table)) });
        }
    }
    Faults::new(faults).or(parsed)
}

/// Whether a file is no configuration of a run but a taskset: it says where its rows are.
fn declares_taskset(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "taskset.toml")
        || Layer::read(file).is_ok_and(|layer| layer.to_value().get("data").is_some())
}

struct Parser<'a> {
    args: &'a [String],
    next: usize,
    grammar: &'a Grammar,
    parsed: Parsed,
    flags: Table,
    /// Laid over `flags`.
    last: Table,
    faults: Vec<Fault>,
}

impl Parser<'_> {
    fn argument(&mut self) {
        let index = self.next;
        let arg = self.args[index].as_str();
        self.next += 1;
        if let Some(file) = arg.strip_prefix('@') {
            self.file(file, "", index, "@");
        } else if let Some(long) = arg.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            self.long(name, value, index);
        } else if let Some(letters) = arg.strip_prefix('-').filter(|_| !is_value(arg)) {
            self.short(letters, index);
        } else {
            self.bare(arg, index);
        }
    }

    fn bare(&mut self, word: &str, index: usize) {
        let at = flag(index, &format!("argument `{word}`"));
        let looks_like_file = [".toml", ".json"].iter().any(|ending| word.ends_with(ending));
        if looks_like_file && Path::new(word).is_file() && !declares_taskset(Path::new(word)) {
            let fault = Fault::new(at, "", "a file among the arguments").hint(format!("to read it write `@ {word}`"));
            self.faults.push(fault);
            return;
        }
        let key = self.grammar.positional.filter(|_| self.parsed.positional.is_empty());
        match key {
            Some(key) => {
                let path = self.grammar.path(key);
                let text = Value::String(word.to_owned());
                insert(&mut self.flags, &path, Node::new(at, Content::Scalar(text)));
            }
            None if self.grammar.positional.is_some() => {
                let fault = Fault::new(at, "", "unexpected argument");
                self.faults.push(fault.hint("a value that starts with `-` is given as `--key=value`"));
            }
            None => {}
        }
        self.parsed.positional.push(word.to_owned());
    }

    fn file(&mut self, name: &str, under: &str, index: usize, shown: &str) {
        let name = if name.is_empty() { self.take_value().unwrap_or_default() } else { name.to_owned() };
        if name.is_empty() {
            self.faults.push(Fault::new(flag(index, shown), "", "names no file").expected("`@ file`"));
            return;
        }
        match Layer::read(Path::new(&name)) {
            Ok(layer) => self.parsed.layers.push(layer.under(under)),
            Err(faults) => self.faults.extend(faults),
        }
        self.parsed.files.push(PathBuf::from(name));
    }

    fn short(&mut self, letters: &str, index: usize) {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let shown = format!("-{letter}");
            let Some(alias) = self.grammar.short(letter) else {
                let known: Vec<String> = self
                    .grammar
                    .aliases
                    .iter()
                    .filter_map(|alias| alias.short)
                    .map(|known| format!("-{known}"))
                    .collect();
                let fault = Fault::new(flag(index, &shown), "", "unknown flag");
                self.faults.push(fault.expected(format!("one of {}", known.join(", "))));
                return;
            };
            let bare = matches!(alias.target, Target::Switch(_))
                || self.grammar.target_shape(alias.target) == Some(Shape::Bool);
            if bare && !rest.starts_with('=') {
                // The word after the last letter may still say true or false.
                let value = if rest.is_empty() { None } else { Some("true".to_owned()) };
                self.alias(alias, value, index, &shown);
            } else {
                let value = (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest).to_owned());
                self.alias(alias, value, index, &shown);
                return;
            }
        }
    }

    fn long(&mut self, name: &str, value: Option<String>, index: usize) {
        let shown = format!("--{name}");
        if value.is_none()
            && let Some(word) = self.args.get(self.next).and_then(|word| word.strip_prefix('@'))
            && let Some(under) = self.grammar.section(name)
        {
            self.next += 1;
            self.file(word, &under, index, &shown);
            return;
        }
        if let Some(alias) = self.grammar.long(name) {
            self.alias(alias, value, index, &shown);
            return;
        }
        let mut path = self.grammar.path(name);
        if path.is_empty() {
            self.faults.push(Fault::new(flag(index, &shown), "", "names no key"));
            return;
        }
        if self.grammar.shape(&path).is_none()
            && let Some(positive) = self.negated(name)
        {
            path = positive;
            if value.is_some() {
                self.faults.push(Fault::new(flag(index, &shown), "", "takes no value"));
            }
            insert(&mut self.flags, &path, Node::new(flag(index, &shown), Content::Scalar(Value::Bool(false))));
            return;
        }
        if path.len() == 1 && self.grammar.shape(&path).is_none() && !self.grammar.is_block(&path[0]) {
            let fault = Fault::new(flag(index, &shown), "", "unknown flag");
            self.faults.push(Fault { hint: did_you_mean(&self.grammar.nearest_flags(name)), ..fault });
            self.skip_values();
            return;
        }
        let shape = self.grammar.shape(&path);
        self.set(&path, shape, value, index, &shown);
    }

    /// The path that `--no-a.b` or `--a.no-b` denies, if it is known.
    fn negated(&self, name: &str) -> Option<Vec<String>> {
        let (parents, last) = name.rsplit_once('.').map_or(("", name), |(parents, last)| (parents, last));
        let whole = name.strip_prefix("no-").map(|rest| self.grammar.path(rest));
        let inner = last.strip_prefix("no-").map(|rest| self.grammar.path(&format!("{parents}.{rest}")));
        let known = |path: &Vec<String>| self.grammar.shape(path).is_some() || self.grammar.is_block(&path.join("."));
        whole.filter(known).or(inner.filter(known))
    }

    fn alias(&mut self, alias: Alias, value: Option<String>, index: usize, shown: &str) {
        match alias.target {
            Target::Key(key) => {
                let path = self.grammar.path(key);
                let shape = self.grammar.shape(&path).or(Some(Shape::One));
                self.set(&path, shape, value, index, shown);
            }
            Target::Block(key) | Target::BlockLast(key) => {
                let path = self.grammar.path(key);
                let Some(text) = value.or_else(|| self.take_value()) else {
                    self.faults.push(Fault::new(flag(index, shown), key, "needs a value").expected("a JSON object"));
                    return;
                };
                let at = flag(index, shown);
                match serde_json::from_str::<Value>(&text) {
                    Ok(object @ Value::Object(_)) => {
                        let target =
                            if matches!(alias.target, Target::Block(_)) { &mut self.flags } else { &mut self.last };
                        insert(target, &path, Node::from_value(object, &at));
                    }
                    Ok(_) => self.faults.push(Fault::new(at, key, "wrong type").expected("a JSON object")),
                    Err(error) => self.faults.push(Fault::new(at, key, format!("invalid JSON: {error}"))),
                }
            }
            Target::Switch(name) => {
                if value.as_deref().is_some_and(|value| value != "true") {
                    self.faults.push(Fault::new(flag(index, shown), "", "takes no value"));
                }
                self.parsed.switches.insert(name, None);
            }
            Target::SwitchOr(name) => {
                let value = value.or_else(|| self.take_value());
                self.parsed.switches.insert(name, value);
            }
        }
    }

    fn set(&mut self, path: &[String], shape: Option<Shape>, value: Option<String>, index: usize, shown: &str) {
        let at = flag(index, shown);
        let texts = match (value, shape) {
            (Some(value), _) => vec![value],
            (None, Some(Shape::Bool)) => {
                let said = self
                    .args
                    .get(self.next)
                    .filter(|word| matches!(word.as_str(), "true" | "false" | "True" | "False" | "1" | "0"));
                let said = said.cloned();
                self.next += usize::from(said.is_some());
                vec![said.unwrap_or_else(|| "true".to_owned())]
            }
            (None, Some(Shape::One | Shape::Open | Shape::Map)) => self.take_value().into_iter().collect(),
            (None, Some(Shape::Any)) => vec![self.take_value().unwrap_or_else(|| "true".to_owned())],
            (None, Some(Shape::List)) => std::iter::from_fn(|| self.take_value()).collect(),
            (None, None) => {
                let texts: Vec<String> = std::iter::from_fn(|| self.take_value()).collect();
                if texts.is_empty() { vec!["true".to_owned()] } else { texts }
            }
        };
        if texts.is_empty() {
            let fault = Fault::new(at, path.join("."), "needs a value");
            self.faults.push(fault.expected(format!("`{shown} VALUE`; `{shown}=VALUE` if it starts with `-`")));
            return;
        }
        if let [text] = texts.as_slice()
            && let Some(structure) = structure(text)
        {
            match structure {
                Ok(value) => insert(&mut self.flags, path, Node::from_value(value, &at)),
                // A string may well start with a bracket.
                Err(_) if matches!(shape, None | Some(Shape::One | Shape::Any)) => {
                    self.words(path, shape, texts, at, index)
                }
                Err(problem) => self.faults.push(Fault::new(at, path.join("."), format!("invalid JSON: {problem}"))),
            }
            return;
        }
        self.words(path, shape, texts, at, index);
    }

    fn words(&mut self, path: &[String], shape: Option<Shape>, texts: Vec<String>, at: Origin, turn: usize) {
        let words = texts
            .into_iter()
            .map(|text| {
                let value = match (shape, text.as_str()) {
                    (Some(Shape::Bool), "1" | "True") => Value::Bool(true),
                    (Some(Shape::Bool), "0" | "False") => Value::Bool(false),
                    (_, text) => typed(text),
                };
                Word { text, value, turn }
            })
            .collect();
        insert(&mut self.flags, path, Node::new(at, Content::Words(words)));
    }

    fn take_value(&mut self) -> Option<String> {
        let word = self.args.get(self.next).filter(|word| is_value(word))?;
        self.next += 1;
        Some(word.clone())
    }

    fn skip_values(&mut self) {
        while self.take_value().is_some() {}
    }
}

/// Whether a word is a value and neither a flag nor a file; negative numbers and a lone dash are values.
fn is_value(word: &str) -> bool {
    let negative = word.strip_prefix('-').is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.')
    });
    negative || !(word.starts_with('-') || word.starts_with('@'))
}

fn flag(index: usize, shown: &str) -> Origin {
    Origin::Flag { index, flag: Arc::from(shown) }
}

/// The value of a word that is a JSON list or object.
fn structure(text: &str) -> Option<Result<Value, String>> {
    let text = text.trim();
    text.starts_with(['{', '[']).then(|| serde_json::from_str(text).map_err(|error| error.to_string()))
}

/// A word as JSON, or as a TOML number (`1_000`, `0x10`), else as the string it is.
fn typed(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return value;
    }
    if text.starts_with(|letter: char| letter.is_ascii_digit() || letter == '+' || letter == '-')
        && let Ok(value) = DeValue::parse(text)
        && let DeValue::Integer(integer) = value.get_ref()
        && let Ok(number) = i64::from_str_radix(integer.as_str(), integer.radix())
    {
        return Value::from(number);
    }
    unset(Value::String(text.to_owned()))
}

/// Lays a node on a table at a path: words of the same key add up, tables merge, everything else is replaced.
fn insert(table: &mut Table, path: &[String], node: Node) {
    let Some((key, rest)) = path.split_first() else {
        if let Content::Table(entries) = node.content {
            for (key, node) in entries {
                insert(table, &[key], node);
            }
        }
        return;
    };
    if !rest.is_empty() {
        let below =
            table.entry(key.clone()).or_insert_with(|| Node::new(node.at.clone(), Content::Table(Table::new())));
        if !matches!(below.content, Content::Table(_)) {
            below.content = Content::Table(Table::new());
        }
        if let Content::Table(inner) = &mut below.content {
            insert(inner, rest, node);
        }
        return;
    }
    match (table.get_mut(key), node) {
        (
            Some(Node { content: Content::Words(known), at, key_at }),
            Node { content: Content::Words(words), at: new_at, key_at: new_key_at },
        ) => {
            known.extend(words);
            (*at, *key_at) = (new_at, new_key_at);
        }
        (Some(known), node) => known.merge(node),
        (None, node) => {
            table.insert(key.clone(), node);
        }
    }
}
