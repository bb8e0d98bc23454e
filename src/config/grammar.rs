//! What a command line may hold: the known keys, their other spellings, and what is nearest to a mistyped one.

use std::collections::BTreeMap;

use super::{nearest::meant, record::Key, value::Shape};

/// Another spelling of a key, or an option of the command itself.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// The letter after one dash.
    pub short: Option<char>,
    /// Names after two dashes, without them.
    pub long: &'static [&'static str],
    /// What it stands for.
    pub target: Target,
    /// One line for `--help`.
    pub doc: &'static str,
}

/// What an alias stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A dotted key.
    Key(&'static str),
    /// A JSON object that is laid over a block.
    Block(&'static str),
    /// The same, laid over all other flags.
    BlockLast(&'static str),
    /// An option of the command that takes no value.
    Switch(&'static str),
    /// An option of the command with a value that may be left out.
    SwitchOr(&'static str),
}

/// What a command line may hold.
#[derive(Clone, Debug, Default)]
pub struct Grammar {
    pub(super) aliases: Vec<Alias>,
    shapes: BTreeMap<String, Shape>,
    /// The key that the first bare word is for.
    pub(super) positional: Option<&'static str>,
}

impl Grammar {
    /// Aliases and the known keys, which tell flags with and without value apart. A flag for a key that is not among them
    /// takes all words up to the next flag, and is `true` without any.
    #[must_use]
    pub fn new<'a>(aliases: impl IntoIterator<Item = Alias>, keys: impl IntoIterator<Item = &'a Key>) -> Self {
        let shapes = keys.into_iter().map(|key| (key.path.clone(), key.shape)).collect();
        Self { aliases: aliases.into_iter().collect(), shapes, positional: None }
    }

    /// Gives the first bare word to a key.
    #[must_use]
    pub fn with_positional(mut self, key: &'static str) -> Self {
        self.positional = Some(key);
        self
    }

    /// The alias of a letter.
    pub(super) fn short(&self, letter: char) -> Option<Alias> {
        self.aliases.iter().find(|alias| alias.short == Some(letter)).copied()
    }

    /// The alias of a name.
    pub(super) fn long(&self, name: &str) -> Option<Alias> {
        self.aliases.iter().find(|alias| alias.long.contains(&name)).copied()
    }

    /// Key names below a map of the user's own stay as typed; elsewhere `-` is `_`.
    pub(super) fn path(&self, dotted: &str) -> Vec<String> {
        let mut path: Vec<String> = Vec::new();
        let mut rest = dotted;
        while !rest.is_empty() {
            if self.shapes.get(&path.join(".")) == Some(&Shape::Map) {
                path.push(rest.to_owned());
                break;
            }
            let (key, after) = rest.split_once('.').unwrap_or((rest, ""));
            path.push(key.replace('-', "_"));
            rest = after;
        }
        path
    }

    /// How the key of a path takes words; below an open one, in any way.
    pub(super) fn shape(&self, path: &[String]) -> Option<Shape> {
        let below_open = || {
            let parents = (1..path.len()).map(|length| path[..length].join("."));
            parents.into_iter().any(|parent| matches!(self.shapes.get(&parent), Some(Shape::Open | Shape::Map)))
        };
        self.shapes.get(&path.join(".")).copied().or_else(|| below_open().then_some(Shape::Any))
    }

    /// Whether keys stand below this one.
    pub(super) fn is_block(&self, key: &str) -> bool {
        self.shapes.keys().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The block that `--name @ file` reads a file into; `None` when a flag of that name is none, so that the file is one
    /// for itself, as in `--dry-run @ file`.
    pub(super) fn section(&self, name: &str) -> Option<String> {
        match self.long(name).map(|alias| alias.target) {
            Some(Target::Block(key) | Target::BlockLast(key)) => Some(key.to_owned()),
            Some(_) => None,
            None => {
                let key = self.path(name).join(".");
                let open = matches!(self.shapes.get(&key), Some(Shape::Open | Shape::Map));
                (open || self.is_block(&key)).then_some(key)
            }
        }
    }

    /// How what an alias stands for takes words.
    pub(super) fn target_shape(&self, target: Target) -> Option<Shape> {
        match target {
            Target::Key(key) => self.shapes.get(key).copied(),
            Target::Block(_) | Target::BlockLast(_) => Some(Shape::One),
            Target::Switch(_) | Target::SwitchOr(_) => None,
        }
    }

    /// The flags that a mistyped one may have meant.
    pub(super) fn nearest_flags(&self, name: &str) -> Vec<String> {
        let longs = self.aliases.iter().flat_map(|alias| alias.long.iter().copied());
        let roots = self.shapes.keys().map(String::as_str).filter(|path| !path.contains('.'));
        let found = meant(name, self.shapes.keys().map(String::as_str), longs.chain(roots), str::to_owned);
        found.iter().map(|path| format!("--{}", path.replace('_', "-"))).collect()
    }
}
