//! What went wrong, and by whose fault.

use std::{any::Any, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

/// Whose fault a failure is. A failed rollout has exactly one class and never a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultClass {
    /// The inference endpoint refused or failed.
    Provider,
    /// The program that drives the model failed.
    Harness,
    /// The task's own setup, user or stop code failed.
    Task,
    /// A reward or metric failed or was not finite.
    Scoring,
    /// A reward that asks a model failed or could not be parsed.
    Judge,
    /// Disk, process, sandbox or env server.
    Infrastructure,
    /// Stopped on purpose before it finished.
    Cancelled,
}

impl FaultClass {
    /// All classes, in reporting order.
    pub const ALL: [Self; 7] =
        [Self::Provider, Self::Harness, Self::Task, Self::Scoring, Self::Judge, Self::Infrastructure, Self::Cancelled];

    /// The name used in results and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Harness => "harness",
            Self::Task => "task",
            Self::Scoring => "scoring",
            Self::Judge => "judge",
            Self::Infrastructure => "infrastructure",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it befell the scoring: the agents' work is whole, and only its scores are missing.
    pub fn is_of_scoring(self) -> bool {
        matches!(self, Self::Scoring | Self::Judge)
    }

    /// The error type name that traces carry; the first five are verifiers' own.
    fn kind(self) -> &'static str {
        match self {
            Self::Provider => "ProviderError",
            Self::Harness => "HarnessError",
            Self::Task => "TaskError",
            Self::Scoring => "ScoringError",
            Self::Judge => "JudgeError",
            Self::Infrastructure => "SandboxError",
            Self::Cancelled => "CancelledError",
        }
    }

    /// The class of an error type name written by any producer.
    fn of_kind(kind: &str) -> Self {
        match kind {
            "ProviderError" => Self::Provider,
            "HarnessError" | "ToolsetError" => Self::Harness,
            "ScoringError" => Self::Scoring,
            "JudgeError" => Self::Judge,
            "SandboxError" | "InterceptionError" | "TunnelError" | "EnvError" => Self::Infrastructure,
            "CancelledError" => Self::Cancelled,
            _ => Self::Task,
        }
    }
}

/// Whether trying again can help with a fault of which only the class and the HTTP status are known. A provider that does
/// not say why is one that could not be reached.
fn may_pass(class: FaultClass, status: Option<u16>) -> bool {
    match class {
        FaultClass::Infrastructure | FaultClass::Cancelled => true,
        FaultClass::Provider => {
            status.is_none_or(|status| matches!(status, 408 | 409 | 425 | 429) || status >= 500 && status != 501)
        }
        FaultClass::Harness | FaultClass::Task | FaultClass::Scoring | FaultClass::Judge => false,
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One recorded failure. In JSON it is verifiers' `Error` (`type`, `message`, `status_code`, `traceback`) with
/// `class` and `retryable` beside, which verifiers ignores.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Error type name, for example `ProviderError`.
    pub kind: String,
    /// Whose fault.
    pub class: FaultClass,
    /// Whether trying again can help.
    pub retryable: bool,
    /// What happened and what to change, one line.
    pub message: String,
    /// HTTP status, for provider faults that have one.
    pub status_code: Option<u16>,
    /// The causes, outermost first; written as `traceback`, one a line.
    pub causes: Vec<String>,
}

impl Fault {
    /// A fault of a class.
    pub fn new(class: FaultClass, message: impl Into<String>) -> Self {
        let retryable = matches!(class, FaultClass::Infrastructure | FaultClass::Cancelled);
        Self {
            kind: class.kind().to_owned(),
            class,
            retryable,
            message: message.into(),
            status_code: None,
            causes: Vec::new(),
        }
    }

    /// A fault of an error type of any producer, such as an exception of Python.
    pub fn of_kind(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), ..Self::new(FaultClass::of_kind(kind), message) }
    }

    /// A fault of a class from an error and its sources.
    pub fn from_error(class: FaultClass, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut fault = Self::new(class, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            fault.causes.push(cause.to_string());
            source = cause.source();
        }
        fault
    }

    /// A fault of a class from a caught panic; `who` panicked.
    pub fn from_panic(class: FaultClass, who: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(class, format!("{who} panicked: {}", text.unwrap_or("no message")))
    }

    /// The same fault, marked as worth retrying or not.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// The same fault with an HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: Option<u16>) -> Self {
        self.status_code = status;
        self
    }

    /// The stop condition that this fault gives a rollout, for example `provider_error` (verifiers 0.4.0: the type
    /// name less `Error`, lowercased; `error` for untyped failures).
    pub fn stop_condition(&self) -> String {
        match self.kind.strip_suffix("Error") {
            Some(name) if !name.is_empty() => format!("{}_error", name.to_lowercase()),
            _ => "error".to_owned(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("message", &self.message)?;
        if let Some(status) = self.status_code {
            map.serialize_entry("status_code", &status)?;
        }
        if !self.causes.is_empty() {
            map.serialize_entry("traceback", &self.causes.join("\n"))?;
        }
        map.serialize_entry("class", &self.class)?;
        map.serialize_entry("retryable", &self.retryable)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Record {
            #[serde(rename = "type")]
            kind: String,
            message: String,
            #[serde(default)]
            status_code: Option<u16>,
            #[serde(default)]
            traceback: Option<String>,
            #[serde(default)]
            class: Option<FaultClass>,
            #[serde(default)]
            retryable: Option<bool>,
        }
        let record = Record::deserialize(deserializer)?;
        let class = record.class.unwrap_or_else(|| FaultClass::of_kind(&record.kind));
        let causes = record.traceback.map(|text| text.split('\n').map(str::to_owned).collect()).unwrap_or_default();
        Ok(Self {
            kind: record.kind,
            class,
            retryable: record.retryable.unwrap_or_else(|| may_pass(class, record.status_code)),
            message: record.message,
            status_code: record.status_code,
            causes,
        })
    }
}
