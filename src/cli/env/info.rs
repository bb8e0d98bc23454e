//! `rollhouse env info`.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::Value;

use crate::{
    cli::{exit, exit::Failure, output},
    taskset::verifiers::{Description, Key, Package, Seat},
};

pub(super) fn run(package: &Package) -> Result<ExitCode, Failure> {
    let described = package.describe().map_err(Failure::failed)?;
    output::print(text(&described, &package.interpreter.program.display().to_string()))?;
    Ok(exit::DONE.into())
}

fn text(described: &Description, python: &str) -> String {
    let Description { id, version, env, taskset, task, .. } = described;
    let mut text = String::new();
    if let Some(card) = &described.card {
        let _ = writeln!(text, "{}\n", card.trim_end());
    }
    let version = version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    let size = if described.infinite { "endless" } else { "not counted" };
    let _ = writeln!(text, "{id}{version}: {size}");
    if !described.text.is_empty() {
        let _ = writeln!(text, "{}", described.text);
    } else if !described.summary.is_empty() {
        let _ = writeln!(text, "{}", described.summary);
    }
    let _ = writeln!(text, "\nenv {env}, taskset {taskset}, tasks {task}\npython {python}");
    text.push_str("\nagents, each with a block `env.NAME`:\n");
    described.seats.iter().for_each(|seat| agent(&mut text, seat));
    keys(&mut text, "env", &described.env_keys);
    keys(&mut text, "env.taskset", &described.keys);
    text
}

fn agent(text: &mut String, seat: &Seat) {
    let mut facts = vec![format!("harness {}", seat.harness)];
    facts.extend(seat.runtime.iter().map(|runtime| format!("runtime {runtime}")));
    facts.extend(seat.max_turns.map(|turns| format!("at most {turns} turns")));
    if seat.needs_container {
        facts.push(format!("needs a container: set `env.{}.runtime.type`, to \"docker\" for one", seat.name));
    }
    let doc = if seat.doc.is_empty() { String::new() } else { format!("  {}", seat.doc) };
    let _ = writeln!(text, "  {}  {}{doc}", seat.name, facts.join(", "));
}

fn keys(text: &mut String, block: &str, keys: &[Key]) {
    if keys.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nkeys, below `{block}`:");
    for key in keys {
        let default = match &key.default {
            _ if key.required => ", required".to_owned(),
            Value::Null => String::new(),
            default => format!(", default {default}"),
        };
        let doc = if key.doc.is_empty() { String::new() } else { format!("{} ", key.doc) };
        let _ = writeln!(text, "  {:<28} {doc}({}{default})", key.name, key.kind);
    }
}
