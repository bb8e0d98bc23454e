//! The agent's seat: harness, runtime, budgets, deadlines, retries, and what it overrides of the run.

use regex::Regex;
use serde_json::{Map, Value};

use super::{
    ClientConfig, Limits, RetryRule, RetryRules, StageDeadlines, StatusMatch, client::read_client,
    sampling::lay_sampling,
};
use crate::config::{FromValue, Section};

/// Ids of the harnesses that verifiers ships.
const OTHER_HARNESSES: &[&str] = &[
    "bash",
    "browser_use",
    "claude_code",
    "codex",
    "hermes_agent",
    "kimi_code",
    "mini_swe_agent",
    "openclaw",
    "pi",
    "prime_agent",
    "rlm",
    "terminus_2",
];

/// What a seat says.
#[derive(Default)]
pub(super) struct Seat {
    pub harness: String,
    pub model: Option<String>,
    pub client: Option<ClientConfig>,
    pub limits: Limits,
    pub deadlines: StageDeadlines,
    pub retries: RetryRules,
}

/// Reads the block; its sampling is laid over the run's.
pub(super) fn read_seat(block: &mut Section<'_>, sampling: &mut Map<String, Value>) -> Seat {
    read_harness(&mut block.child("harness"));
    read_runtime(&mut block.child("runtime"));
    let model = block.doc("Model of this agent; the run's when absent").get("model");
    let client = if block.has("client") && !block.is_unset("client") {
        read_client(&mut block.child("client"))
    } else {
        block.doc("Endpoint of this agent; the run's when absent").open("client");
        block.resolve("client", Value::Null);
        None
    };
    if block.has("sampling") && !block.is_unset("sampling") {
        lay_sampling(&mut block.child("sampling"), false, sampling);
    } else {
        block.doc("Sampling fields laid over the run's").open("sampling");
        block.resolve("sampling", Value::Null);
    }
    let limits = Limits {
        max_turns: block.doc("Model turns of one rollout").limit_in("max_turns", 1.., None),
        max_input_tokens: block.doc("Input tokens of one rollout").limit_in("max_input_tokens", 1.., None),
        max_output_tokens: block.doc("Sampled tokens of one rollout").limit_in("max_output_tokens", 1.., None),
        max_total_tokens: block.doc("Both kinds of tokens").limit_in("max_total_tokens", 1.., None),
    };
    let mut timeout = block.child("timeout");
    let deadlines = StageDeadlines {
        setup: timeout.doc("Seconds for task and harness setup").duration("setup", None),
        rollout: timeout.doc("Seconds for the harness; waiting for the user does not count").duration("rollout", None),
        finalize: timeout.doc("Seconds for collecting results").duration("finalize", None),
        scoring: timeout.doc("Seconds for rewards and metrics").duration("scoring", None),
    };
    let retries = read_retries(&mut block.child("retries"));
    block.doc("Tell the agent about network limits; the null harness has none").get_or("network_notice", true);
    Seat { harness: "null".to_owned(), model, client, limits, deadlines, retries }
}

fn read_harness(block: &mut Section<'_>) {
    let id: String = block.doc("Harness; `null` is chat only").get_or("id", "null".to_owned());
    if id != "null" {
        let known = OTHER_HARNESSES.contains(&id.replace('-', "_").as_str());
        let problem = if known { "is not supported yet" } else { "is unknown" };
        block.fault("id", format!("the harness `{id}` {problem}; expected `null`, which chats in process"));
        block.accept_rest();
        return;
    }
    for key in ["env", "forward_env", "mcp_header_env", "disabled_tools"] {
        let default = match key {
            "env" | "mcp_header_env" => Value::Object(Map::new()),
            "forward_env" => Value::Array(Vec::new()),
            _ => Value::Null,
        };
        let allowed = if default.is_object() { "a table of keys" } else { "a list of strings" };
        let value = block.doc("For harness programs; has no effect on `null`").value(key, default.clone(), allowed);
        let right = match &value {
            Value::Null => true,
            Value::Object(_) => default.is_object(),
            Value::Array(_) => !default.is_object(),
            _ => false,
        };
        if !right {
            block.fault(key, format!("wrong type; expected {allowed}"));
        } else if !value.is_null() && value != default {
            block.warn(key, "has no effect: the null harness starts no program");
        }
    }
    block.doc("Seconds of one tool call; has no effect on `null`").get_in("tool_timeout", 0.001.., 600.0);
    if !block.doc("Skills; the null harness takes none").get_or("skills", Vec::<String>::new()).is_empty() {
        block.fault("skills", "the null harness takes no skills; leave it out");
    }
}

fn read_runtime(block: &mut Section<'_>) {
    let kind: String = block.doc("Where the agent runs").get_or("type", "subprocess".to_owned());
    if kind != "subprocess" {
        block.fault("type", format!("the runtime `{kind}` is not supported yet; expected `subprocess`"));
        block.accept_rest();
    }
}

/// Reads a block of retry rules.
pub(super) fn read_retries(block: &mut Section<'_>) -> RetryRules {
    let doc = "Retries of a failure that no rule matches";
    let max_retries = block.doc(doc).get_or("max_retries", 0_u32);
    let doc = "Rules {type, status_code, message, max_retries}; the first match owns the failure";
    let rules = block.doc(doc).list("rules", |rule| {
        let kind = rule.get("type");
        let status = rule.get::<Vec<StatusMatch>>("status_code").unwrap_or_default();
        let text: Option<String> = rule.get("message");
        let message = text.and_then(|text| match Regex::new(&text) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                rule.fault("message", format!("not a regular expression: {reason}"));
                None
            }
        });
        RetryRule { kind, status, message, max_retries: rule.required("max_retries").unwrap_or_default() }
    });
    RetryRules { max_retries, rules }
}

impl FromValue for StatusMatch {
    const EXPECTED: &'static str = "a status such as 429 or \"5xx\"";
    const EXPECTED_MANY: &'static str = "statuses such as 429 or \"5xx\"";

    fn from_value(value: &Value) -> Option<Self> {
        let is_status = |code: &u16| (100..=599).contains(code);
        if let Some(code) = value.as_u64() {
            return u16::try_from(code).ok().filter(is_status).map(Self::Code);
        }
        let class: u16 = value.as_str()?.strip_suffix("xx")?.parse().ok()?;
        (1..=5).contains(&class).then_some(Self::Class(class))
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Code(code) => Value::from(*code),
            Self::Class(class) => Value::from(format!("{class}xx")),
        }
    }
}
