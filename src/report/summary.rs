//! The summary of a run for people.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use super::number::{count, excerpt, percent, rate, seconds};
use crate::store::{JudgeUsage, Results, Verdict};

/// Width of the first column.
const LABEL: usize = 12;

/// Fewer scored rollouts than this are no ground for a verdict.
const FEW: u64 = 20;

/// Failure examples are cut to this many characters.
const EXAMPLE_LENGTH: usize = 160;

/// Writes the summary, aligned and without colour.
pub fn write_summary(out: &mut impl Write, results: &Results) -> io::Result<()> {
    let simulated = if results.simulated { " (simulated)" } else { "" };
    let rollouts = results.rollouts.checked_div(results.tasks).unwrap_or(0);
    writeln!(
        out,
        "{} · {}{simulated} · {} tasks × {rollouts} rollouts",
        results.taskset, results.model, results.tasks
    )?;
    if results.simulated {
        writeln!(out, "The model is simulated: these numbers say nothing about a real model.")?;
    }
    writeln!(out)?;
    let mut row = |label: &str, text: &str| writeln!(out, "{label:LABEL$}{text}");
    row("reward", &reward(results))?;
    row("rollouts", &outcomes(results))?;
    if !results.pass_at_k.is_empty() {
        row("pass@k", &table(&results.pass_at_k))?;
        row("pass^k", &table(&results.pass_hat_k))?;
    }
    for (index, (name, mean)) in results.rewards.iter().enumerate() {
        row(if index == 0 { "rewards" } else { "" }, &named(name, mean.mean, results.rewards.keys()))?;
    }
    for (index, (name, mean)) in results.metrics.iter().enumerate() {
        row(if index == 0 { "metrics" } else { "" }, &named(name, mean.mean, results.metrics.keys()))?;
    }
    if let Some(turns) = results.turns.mean {
        row("turns", &format!("{turns:.1} per rollout"))?;
    }
    row("tokens", &tokens(results))?;
    if results.judge_usage != JudgeUsage::default() {
        row("judges", &judges(results.judge_usage))?;
    }
    if results.scored > 0 {
        row("truncated", &format!("{} ({})", count(results.truncated), percent(results.truncated, results.scored)))?;
    }
    if results.timed_out > 0 {
        row("timed out", &format!("{} ({})", count(results.timed_out), percent(results.timed_out, results.scored)))?;
    }
    if !results.stop_conditions.is_empty() {
        let mut conditions: Vec<(&String, &u64)> = results.stop_conditions.iter().collect();
        conditions.sort_by_key(|(_, number)| std::cmp::Reverse(**number));
        let conditions: Vec<String> =
            conditions.into_iter().map(|(condition, number)| format!("{condition} {}", count(*number))).collect();
        row("stopped by", &conditions.join(", "))?;
    }
    for (index, (class, number)) in results.errors.iter().enumerate() {
        row(if index == 0 { "failures" } else { "" }, &failure(results, class, *number))?;
    }
    if results.retries > 0 {
        row("retries", &count(results.retries))?;
    }
    row("time", &time(results))?;
    if let Some(verdict) = results.verdict {
        row("verdict", &format!("{}{}", explained(verdict), doubts(results)))?;
    }
    row("run", &results.run_dir)
}

/// What the verdict rests on, where that is little.
fn doubts(results: &Results) -> String {
    let few = results.scored < FEW || results.scored * 2 < results.rollouts;
    let cut = results.truncated * 2 > results.scored;
    match (few, cut) {
        (false, false) => String::new(),
        (true, false) => format!(" (on {} scored rollouts only)", results.scored),
        (_, true) => " (most rollouts were truncated: look at limits and window first)".to_owned(),
    }
}

fn reward(results: &Results) -> String {
    match (results.reward.mean, results.reward.stderr) {
        (None, _) => "none: no rollout was scored".to_owned(),
        (Some(mean), None) => format!("{mean:.3} (one task: no standard error)"),
        (Some(mean), Some(error)) => format!("{mean:.3} ± {error:.3} (standard error over tasks)"),
    }
}

fn outcomes(results: &Results) -> String {
    let Results { rollouts, scored, failed, not_run, .. } = results;
    format!("{rollouts} planned: {scored} scored, {failed} failed, {not_run} not run")
}

fn table(estimates: &BTreeMap<u32, f64>) -> String {
    let columns: Vec<String> = estimates.iter().map(|(k, estimate)| format!("k={k} {estimate:.3}")).collect();
    columns.join("   ")
}

fn named<'a>(name: &str, mean: Option<f64>, names: impl Iterator<Item = &'a String>) -> String {
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    match mean {
        Some(mean) => format!("{name:width$}  {mean:.3}"),
        None => format!("{name:width$}  -"),
    }
}

fn tokens(results: &Results) -> String {
    let usage = &results.usage;
    let cached = match usage.cached_input_tokens {
        0 => String::new(),
        cached => format!(" ({} of them from cache)", count(cached)),
    };
    format!("{} in{cached}, {} out", count(usage.input_tokens), count(usage.output_tokens))
}

fn judges(usage: JudgeUsage) -> String {
    let JudgeUsage { calls, cached, input_tokens, output_tokens } = usage;
    let (tokens_in, tokens_out) = (count(input_tokens), count(output_tokens));
    format!("{} calls, {} from cache: {tokens_in} tokens in, {tokens_out} out", count(calls), count(cached))
}

fn failure(results: &Results, class: &str, number: u64) -> String {
    match results.error_examples.get(class) {
        Some(example) => {
            let id: String = example.rollout.chars().take(8).collect();
            format!("{class} {}, for example {id}: {}", count(number), excerpt(&example.message, EXAMPLE_LENGTH))
        }
        None => format!("{class} {}", count(number)),
    }
}

fn time(results: &Results) -> String {
    let mut text = seconds(results.wall_s);
    if let Some(rollouts) = results.rollouts_per_s {
        text += &format!(" · {} rollouts/s", rate(rollouts));
    }
    if let Some(tokens) = results.output_tokens_per_s {
        text += &format!(" · {} tokens/s", rate(tokens));
    }
    text
}

fn explained(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::TooHard => "too hard: below 10 % of the full reward, training would hardly ever see a success",
        Verdict::Trainable => "trainable: between 10 and 80 % of the full reward",
        Verdict::TooEasy => "too easy: above 80 % of the full reward, little is left to learn",
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;

    use super::*;
    use crate::store::{ErrorExample, Mean, RewardMean, UsageTotals};

    #[test]
    fn a_summary_reads_without_colour() {
        let mean = |mean| Mean { mean: Some(mean) };
        let results = Results {
            version: 1,
            run_dir: "outputs/a/b".to_owned(),
            taskset: "alphabet-sort".to_owned(),
            model: "oracle".to_owned(),
            simulated: true,
            tasks: 20,
            rollouts: 80,
            scored: 78,
            failed: 2,
            not_run: 0,
            reward: RewardMean { mean: Some(0.4123), stderr: Some(0.0312) },
            pass_at_k: [(1, 0.25), (2, 0.5)].into(),
            pass_hat_k: [(1, 0.25), (2, 0.125)].into(),
            rewards: IndexMap::from([("similarity".to_owned(), mean(0.4123)), ("exact".to_owned(), mean(0.25))]),
            metrics: IndexMap::from([("length".to_owned(), mean(12.0))]),
            usage: UsageTotals {
                input_tokens: 4_820,
                output_tokens: 936,
                cached_input_tokens: 1_200,
                new_input_tokens: 3_000,
            },
            judge_usage: JudgeUsage { calls: 70, cached: 10, input_tokens: 21_000, output_tokens: 1_400 },
            turns: mean(3.04),
            truncated: 3,
            timed_out: 0,
            stop_conditions: [("max_turns".to_owned(), 3), ("user_closed".to_owned(), 75)].into(),
            errors: [("provider".to_owned(), 2)].into(),
            error_examples: [(
                "provider".to_owned(),
                ErrorExample { message: "the endpoint\nanswered 503".to_owned(), rollout: "3f2a9b1c0d".to_owned() },
            )]
            .into(),
            retries: 12,
            wall_s: 12.3,
            rollouts_per_s: Some(6.5),
            output_tokens_per_s: Some(1_234.0),
            verdict: Some(Verdict::Trainable),
        };
        let mut out = Vec::new();
        write_summary(&mut out, &results).unwrap();
        let expected = "\
alphabet-sort · oracle (simulated) · 20 tasks × 4 rollouts
The model is simulated: these numbers say nothing about a real model.

reward      0.412 ± 0.031 (standard error over tasks)
rollouts    80 planned: 78 scored, 2 failed, 0 not run
pass@k      k=1 0.250   k=2 0.500
pass^k      k=1 0.250   k=2 0.125
rewards     similarity  0.412
            exact       0.250
metrics     length  12.000
turns       3.0 per rollout
tokens      4.8K in (1.2K of them from cache), 936 out
judges      70 calls, 10 from cache: 21.0K tokens in, 1.4K out
truncated   3 (3.8 %)
stopped by  user_closed 75, max_turns 3
failures    provider 2, for example 3f2a9b1c: the endpoint answered 503
retries     12
time        12s · 6.5 rollouts/s · 1.2K tokens/s
verdict     trainable: between 10 and 80 % of the full reward
run         outputs/a/b
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
