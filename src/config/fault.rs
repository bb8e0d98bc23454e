//! Where a value came from, and what is wrong with it.

use std::{fmt, sync::Arc};

use thiserror::Error;

/// Where a value came from. Ordered by position: files by name, line and column, then flags as typed, then defaults.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A place in a file.
    File {
        /// The file, as the user named it.
        file: Arc<str>,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        column: u32,
    },
    /// The command line.
    Flag {
        /// Position among the arguments, from 0.
        index: usize,
        /// The flag as typed, without its value.
        flag: Arc<str>,
    },
    /// Given nowhere.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(formatter, "{file}:{line}:{column}"),
            Self::Flag { flag, .. } => formatter.write_str(flag),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// One thing to put right in a configuration; also used for warnings.
///
/// Displays as `file:line:column: dotted.key: problem; expected …; did you mean …`, parts that are unknown left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The place; `Origin::Default` where nothing was given, as for a required key.
    pub at: Origin,
    /// Dotted key; empty for a fault of the whole source, such as bad syntax.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What is allowed, in words.
    pub expected: Option<String>,
    /// What to write instead, as a whole phrase.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault with neither expectation nor hint.
    #[must_use]
    pub fn new(at: Origin, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { at, key: key.into(), problem: problem.into(), expected: None, hint: None }
    }

    /// Says what is allowed.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Says what to write instead.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != Origin::Default {
            write!(formatter, "{}: ", self.at)?;
        }
        if !self.key.is_empty() {
            write!(formatter, "{}: ", self.key)?;
        }
        formatter.write_str(&self.problem)?;
        if let Some(expected) = &self.expected {
            write!(formatter, "; expected {expected}")?;
        }
        if let Some(hint) = &self.hint {
            write!(formatter, "; {hint}")?;
        }
        Ok(())
    }
}

/// All faults of a configuration, sorted by position; displays one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts the faults and drops exact repetitions.
    #[must_use]
    pub fn new(mut faults: Vec<Fault>) -> Self {
        faults.sort();
        faults.dedup();
        Self(faults)
    }

    /// Passes the value on if there is no fault.
    ///
    /// # Errors
    /// The faults, if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// The faults in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl IntoIterator for Faults {
    type Item = Fault;
    type IntoIter = std::vec::IntoIter<Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{fault}")?;
        }
        Ok(())
    }
}
