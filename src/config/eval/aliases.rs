//! Short flags and the spellings of both generations of `vf-eval`.

use crate::config::{Alias, Target};

const fn key(short: Option<char>, long: &'static [&'static str], target: &'static str, doc: &'static str) -> Alias {
    Alias { short, long, target: Target::Key(target), doc }
}

const fn switch(short: Option<char>, long: &'static [&'static str], target: Target, doc: &'static str) -> Alias {
    Alias { short, long, target, doc }
}

/// The flags of `rollhouse eval` that are not dotted keys.
///
/// `-s` is "save", as in the older generation; results are always saved, so it changes nothing. Version 0.4.0 shuffles
/// with it: `--shuffle` here.
pub const EVAL_ALIASES: &[Alias] = &[
    key(Some('m'), &[], "model", "Model name"),
    key(Some('b'), &["api-base-url", "base-url"], "client.base_url", "Base URL of the endpoint"),
    key(Some('k'), &["api-key-var"], "client.api_key_var", "Variable that holds the key"),
    key(Some('n'), &["num-examples", "limit"], "select.limit", "Number of tasks"),
    key(Some('r'), &["group-size", "rollouts-per-example"], "num_rollouts", "Episodes per task"),
    key(Some('c'), &[], "max_concurrent", "Episodes in flight"),
    key(Some('v'), &[], "verbose", "Debug logs"),
    key(Some('o'), &[], "output_dir", "Parent of the run directory"),
    key(Some('t'), &["max-tokens"], "sampling.max_tokens", "Sampled tokens of one call"),
    key(Some('T'), &["temperature"], "sampling.temperature", "Sampling temperature"),
    key(None, &["shuffle"], "select.shuffle", "Shuffle the tasks"),
    key(None, &["shuffle-seed", "seed"], "select.seed", "Seed of the shuffle"),
    key(None, &["max-turns"], "env.agent.max_turns", "Model turns of one rollout"),
    key(None, &["python"], "serve.python", "Interpreter of a Python environment"),
    switch(Some('S'), &["sampling-args"], Target::BlockLast("sampling"), "Sampling fields as JSON; over -t and -T"),
    switch(Some('a'), &["env-args"], Target::Block("env.taskset"), "Fields of the taskset as JSON"),
    switch(Some('s'), &["save-results"], Target::Switch("save"), "Accepted; results are always saved"),
    switch(None, &["dry-run"], Target::Switch("dry-run"), "Show the resolved configuration and stop"),
    switch(None, &["clean"], Target::Switch("clean"), "Delete the run directory first"),
    switch(Some('R'), &["resume"], Target::SwitchOr("resume"), "Redo what a run misses; its directory may follow"),
    switch(None, &["json"], Target::Switch("json"), "Print results.json alone"),
    switch(Some('h'), &["help"], Target::Switch("help"), "Show the flags"),
];
