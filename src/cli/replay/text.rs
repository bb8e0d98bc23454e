//! What a replay changed, for people.

use std::io::{self, Write};

use crate::{
    eval::{Change, Example, ReplayReport, Side, TaskChange},
    report::{count, excerpt},
};

/// Width of the first column.
const LABEL: usize = 12;
/// Reasons and messages are cut to this many characters.
const EXCERPT: usize = 160;

/// Writes the report, aligned and without colour.
pub(super) fn write(out: &mut impl Write, report: &ReplayReport) -> io::Result<()> {
    let simulated = if report.simulated { " (simulated)" } else { "" };
    writeln!(out, "{} · {}{simulated} · scored anew from {}\n", report.taskset, report.model, report.source.run_dir)?;
    let mut row = |label: &str, text: &str| writeln!(out, "{label:LABEL$}{text}");
    row("reward", &reward(&report.before, &report.after))?;
    row("rollouts", &outcomes(report))?;
    row("rows", &rows(report))?;
    for (label, changes) in [("rewards", &report.rewards), ("metrics", &report.metrics)] {
        let width = changes.keys().map(|name| name.chars().count()).max().unwrap_or(0);
        for (position, (name, change)) in changes.iter().enumerate() {
            row(if position == 0 { label } else { "" }, &format!("{name:width$}  {}", arrow(*change)))?;
        }
    }
    for (position, (class, failures)) in report.failures.iter().enumerate() {
        let id: String = failures.rollout.chars().take(8).collect();
        let text =
            format!("{class} {}, for example {id}: {}", count(failures.count), excerpt(&failures.message, EXCERPT));
        row(if position == 0 { "failures" } else { "" }, &text)?;
    }
    if report.tasks_changed == 0 {
        row("tasks", "none changed")?;
    } else {
        let named = report.tasks.len() as u64;
        let most = if named < report.tasks_changed {
            format!("; the {named} that changed most (`--all` names all)")
        } else {
            String::new()
        };
        row("tasks", &format!("{} changed{most}", count(report.tasks_changed)))?;
        for task in &report.tasks {
            row("", &task_line(task))?;
        }
    }
    for (position, example) in report.examples.iter().enumerate() {
        row(if position == 0 { "examples" } else { "" }, &example_line(example, report.run_dir.is_some()))?;
        for reason in &example.reasons {
            let why = reason.why.as_deref().map(|why| format!(": {}", excerpt(why, EXCERPT))).unwrap_or_default();
            row("", &format!("  {} {}{why}", reason.name, arrow(reason.score)))?;
        }
    }
    match &report.run_dir {
        Some(run_dir) => row("run", run_dir),
        None => row("run", "nothing was saved"),
    }
}

fn reward(before: &Side, after: &Side) -> String {
    let side = |side: &Side| match (side.reward.mean, side.reward.stderr) {
        (None, _) => "none".to_owned(),
        (Some(mean), None) => format!("{mean:.3}"),
        (Some(mean), Some(error)) => format!("{mean:.3} ± {error:.3}"),
    };
    let difference = match (before.reward.mean, after.reward.mean) {
        (Some(before), Some(after)) => format!(" ({:+.3})", after - before),
        _ => String::new(),
    };
    format!("{} → {}{difference}", side(before), side(after))
}

fn outcomes(report: &ReplayReport) -> String {
    let counts = &report.rollouts;
    let mut parts = vec![
        format!("{} unchanged", count(counts.unchanged)),
        format!("{} up", count(counts.up)),
        format!("{} down", count(counts.down)),
    ];
    let more = [
        (counts.newly_scored, "newly scored"),
        (counts.newly_failed, "newly failed"),
        (counts.still_failed, "still failed"),
        (counts.malformed, "unreadable lines left out"),
        (counts.repeated, "repeated lines left out"),
        (counts.pending, "left out that only lack their scores (`rollhouse eval --resume` gives them)"),
    ];
    parts.extend(
        more.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{} {what}", count(*number))),
    );
    parts.join(", ")
}

fn rows(report: &ReplayReport) -> String {
    let rows = &report.rows;
    if rows.stored > 0 {
        return format!("{} stored ones, as asked for", count(rows.stored));
    }
    let mut parts = vec![format!("{} as before", count(rows.same))];
    if rows.changed > 0 {
        parts.push(format!("{} changed in the taskset", count(rows.changed)));
    }
    if rows.not_found > 0 {
        parts.push(format!("{} not in the taskset, scored with the stored row", count(rows.not_found)));
    }
    parts.join(", ")
}

fn task_line(task: &TaskChange) -> String {
    let name = task.task.map_or_else(|| task.key.chars().take(16).collect(), |idx| idx.to_string());
    let mut line = format!("task {name}: {}", arrow(task.reward));
    for (name, change) in task.rewards.iter().chain(&task.metrics) {
        // A single reward of weight 1 is the reward itself.
        if change.size() > 0.0 && *change != task.reward {
            line += &format!(", {name} {}", arrow(*change));
        }
    }
    line
}

fn example_line(example: &Example, saved: bool) -> String {
    let id: String = example.rollout.chars().take(8).collect();
    let line = if saved { example.line } else { example.source_line };
    let task = example.task.map(|task| format!(", task {task}")).unwrap_or_default();
    format!("rollout {id} (line {line}{task}): {}", arrow(example.reward))
}

fn arrow(change: Change) -> String {
    let side = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| format!("{value:.3}"));
    let (before, after) = (side(change.before), side(change.after));
    if change.size() == 0.0 { after } else { format!("{before} → {after}") }
}
