//! Rubrics and scorers through their public face.

use std::{io::Write, sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rollhouse::{
    rubric::{
        Answer, Expected, Rubric, RubricError, Score, ScoreContext, Scorer, asynchronous, compare, examine, heavy,
        math, similarity, tags, text, threshold,
    },
    trace::{Fault, FaultClass, Trace},
};
use serde_json::json;

/// A finished single-turn trace, as it stands in a results file.
fn trace(reply: &str) -> Trace {
    serde_json::from_value(json!({
        "id": "0".repeat(32),
        "task": {"type": "Task", "data": {"idx": 7, "prompt": "6*7?", "answer": "42"}},
        "agent": {"config": {}},
        "nodes": [
            {"parent": null, "sampled": false, "message": {"role": "user", "content": "6*7?"}},
            {"parent": 0, "sampled": true, "message": {"role": "assistant", "content": reply}},
        ],
        "ok": true,
    }))
    .unwrap()
}

fn constant(value: f64) -> impl Scorer {
    move |_: ScoreContext<'_>| Ok(Score::from(value))
}

fn all_null(trace: &Trace, names: &[&str]) -> bool {
    trace.rewards.keys().map(String::as_str).eq(names.iter().copied()) && trace.rewards.values().all(Option::is_none)
}

#[tokio::test]
async fn every_part_of_a_reward_and_its_reason_stand_in_the_trace() {
    let answer = || Answer::whole().strip_think().tag("answer");
    let rubric = Rubric::new()
        .reward(
            "correct",
            0.5,
            compare(answer(), Expected::field("answer"), |answer, expected| {
                math::check(answer, expected, math::Reading::default())
            }),
        )
        .reward_in("format", 0.3, 0.0..=1.0, |context: ScoreContext<'_>| {
            Ok(match tags::sequence(context.trace.last_reply(), &["think", "answer"]) {
                Ok(_) => Score::pass("well-formed"),
                Err(fault) => Score::fail(fault.to_string()),
            })
        })
        .reward("short", 0.2, examine(answer(), |answer| text::length(answer, text::Unit::Chars, 1..=3)).heavy())
        .metric(
            "alike",
            compare(Answer::whole(), Expected::field("answer"), |answer, expected| {
                similarity::ratio(answer, expected).into()
            }),
        )
        .build()
        .unwrap();
    let mut trace = trace("<think>six sevens</think> It is <answer>84/2</answer>");
    rubric.score(&mut trace).await.unwrap();
    assert_eq!(trace.reward(), 0.5);
    assert_eq!(
        trace.info["scoring"],
        json!({
            "correct": "`84/2` equals `42`",
            "format": "there is text outside of the tags: `It is`",
            "short": "4 characters, allowed are 1 to 3",
        })
    );
    assert!(trace.metrics["alike"].unwrap() > 0.0);
    let lines: Vec<(&str, Option<f64>)> = rubric.lines().map(|line| (line.name, line.weight)).collect();
    assert_eq!(lines, [("correct", Some(0.5)), ("format", Some(0.3)), ("short", Some(0.2)), ("alike", None)]);
}

#[tokio::test]
async fn a_failure_makes_all_rewards_null_and_keeps_the_metrics() {
    for (bad, said) in [
        (f64::NAN, "NaN is not a finite number"),
        (f64::INFINITY, "inf is not a finite number"),
        (1e9, "1000000000 lies outside its declared bounds, 0 to 1"),
    ] {
        let rubric = Rubric::new()
            .reward("fine", 1.0, constant(1.0))
            .reward_in("bad", 1.0, 0.0..=1.0, constant(bad))
            .metric("length", constant(3.0));
        let mut trace = trace("42");
        let fault = rubric.score(&mut trace).await.unwrap_err();
        assert_eq!(fault.class, FaultClass::Scoring);
        assert_eq!(fault.message, format!("reward `bad`: its score of {said}"));
        assert!(all_null(&trace, &["fine", "bad"]));
        assert_eq!(trace.metrics["length"], Some(3.0));
        assert_eq!(trace.info["scoring"]["bad"], format!("failed: {}", fault.message));
        assert_eq!(trace.reward(), 0.0);
    }
}

#[tokio::test]
async fn a_failed_metric_ends_the_scoring_before_the_rewards() {
    let rubric = Rubric::new()
        .reward("fine", 1.0, constant(1.0))
        .metric("good", constant(2.0))
        .metric("bad", constant(f64::NAN));
    let mut trace = trace("42");
    assert_eq!(
        rubric.score(&mut trace).await.unwrap_err().message,
        "metric `bad`: its score of NaN is not a finite number"
    );
    assert!(all_null(&trace, &["fine"]));
    assert_eq!((trace.metrics["good"], trace.metrics["bad"]), (Some(2.0), None));
}

#[tokio::test]
async fn panics_are_failures_wherever_they_happen() {
    let panics = |_: ScoreContext<'_>| -> Result<Score, Fault> { panic!("no such row") };
    let later = asynchronous(|_| {
        Box::pin(async {
            tokio::task::yield_now().await;
            panic!("no such row")
        })
    });
    let far = heavy(|_: ScoreContext<'_>| Ok(()), |()| -> Result<Score, Fault> { panic!("no such row") });
    for rubric in [
        Rubric::new().reward("r", 1.0, panics),
        Rubric::new().reward("r", 1.0, later),
        Rubric::new().reward("r", 1.0, far),
    ] {
        let mut trace = trace("42");
        let fault = rubric.score(&mut trace).await.unwrap_err();
        assert_eq!(
            (fault.class, fault.message.as_str()),
            (FaultClass::Scoring, "reward `r`: the scorer panicked: no such row")
        );
        assert!(all_null(&trace, &["r"]));
    }
}

#[tokio::test]
async fn a_judge_that_fails_is_never_a_zero() {
    let (mut scored, mut unscored) = (Vec::new(), 0);
    for call in 0..40 {
        let judge = asynchronous(move |_| {
            Box::pin(async move {
                if call % 4 == 3 {
                    Err(Fault::new(FaultClass::Judge, "the connection was closed").retryable(true))
                } else {
                    Ok(Score::because(0.75, "verdict: mostly"))
                }
            })
        });
        let mut trace = trace("42");
        match Rubric::new().reward("judged", 1.0, judge).score(&mut trace).await {
            Ok(()) => scored.push(trace.reward()),
            Err(fault) => {
                assert_eq!((fault.class, fault.retryable), (FaultClass::Judge, true));
                unscored += 1;
            }
        }
    }
    assert_eq!(unscored, 10);
    assert_eq!(scored.iter().sum::<f64>() / scored.len() as f64, 0.75);
}

#[tokio::test(start_paused = true)]
async fn waiting_scorers_wait_together_and_can_be_given_up() {
    let slow = || {
        asynchronous(|_| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok(1.0.into())
            })
        })
    };
    let rubric = Rubric::new()
        .reward("a", 1.0, slow())
        .reward("b", 1.0, slow())
        .reward("now", 1.0, constant(1.0))
        .metric("m", constant(5.0));
    let mut given_up = trace("42");
    assert!(tokio::time::timeout(Duration::from_secs(9), rubric.score(&mut given_up)).await.is_err());
    assert!(all_null(&given_up, &["a", "b", "now"]));
    assert_eq!(given_up.metrics["m"], Some(5.0));
    let begin = tokio::time::Instant::now();
    let mut done = trace("42");
    rubric.score(&mut done).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(10));
    assert_eq!(done.reward(), 3.0);
}

#[tokio::test]
async fn a_faulty_rubric_is_refused_and_scores_nothing() {
    let twice = Rubric::new().reward("a", 1.0, constant(1.0)).metric("a", constant(1.0));
    let mut trace = trace("42");
    assert!(twice.score(&mut trace).await.unwrap_err().message.contains("names `a` twice"));
    assert!(all_null(&trace, &["a"]));
    assert_eq!(twice.build().err(), Some(RubricError::Duplicate("a".to_owned())));
    assert!(Rubric::new().reward("a", f64::NAN, constant(1.0)).build().is_err());
    assert!(Rubric::new().reward_in("a", 1.0, f64::NAN..=1.0, constant(1.0)).build().is_err());
    assert_eq!(Rubric::new().metric("", constant(1.0)).build().err(), Some(RubricError::Unnamed));
}

#[tokio::test]
async fn rows_and_replies_that_cannot_be_compared() {
    let missing =
        Rubric::new().reward("r", 1.0, compare(Answer::whole(), Expected::field("solution"), |_, _| 1.0.into()));
    let fault = missing.score(&mut trace("42")).await.unwrap_err();
    assert_eq!(fault.message, "reward `r`: the row has no field `solution` to compare the answer with");
    // No answer is the model's doing: it scores 0, with the reason.
    let boxed =
        Rubric::new().reward("r", 1.0, compare(Answer::whole().boxed(), Expected::field("answer"), |_, _| 1.0.into()));
    let mut trace = trace("42");
    boxed.score(&mut trace).await.unwrap();
    assert_eq!(trace.rewards["r"].unwrap().score, 0.0);
    assert_eq!(trace.info["scoring"]["r"], "no answer: there is no closed `\\boxed{…}` at the end in `42`");
}

#[tokio::test]
async fn combined_scorers() {
    let rubric = Rubric::new()
        .reward("enough", 1.0, threshold(0.5, constant(0.7)))
        .reward("any", 1.0, rollhouse::rubric::any_of(vec![Arc::new(constant(0.0)), Arc::new(constant(1.0))]))
        .reward("all", 1.0, rollhouse::rubric::all_of(vec![Arc::new(constant(0.0)), Arc::new(constant(1.0))]))
        .reward("clamped", 1.0, rollhouse::rubric::clamp(0.0..=1.0, constant(3.0)));
    let mut trace = trace("42");
    rubric.score(&mut trace).await.unwrap();
    let scores: Vec<f64> = trace.rewards.values().map(|reward| reward.unwrap().score).collect();
    assert_eq!(scores, [1.0, 1.0, 0.0, 1.0]);
}

#[test]
fn the_ratio_is_that_of_difflib_on_recorded_pairs() {
    let vectors = include_str!("vectors/difflib_ratio.jsonl");
    assert!(vectors.lines().count() >= 2000);
    for line in vectors.split_terminator('\n') {
        let (a, b, chars, lines): (String, String, f64, f64) = serde_json::from_str(line).unwrap();
        assert_eq!(similarity::ratio(&a, &b), chars, "{line}");
        assert_eq!(similarity::ratio_lines(&a, &b), lines, "{line}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the peer is a program")]
fn the_ratio_is_that_of_difflib_on_fresh_pairs() {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no Python interpreter: run the tests with `tests/run`");
    let seed: u64 = rand::rng().random();
    let mut random = StdRng::seed_from_u64(seed);
    let alphabets: [Vec<char>; 4] = ["ab", "abcdefgh \n", "äöü👍🎉\n", ""].map(|alphabet| alphabet.chars().collect());
    let pairs: Vec<(String, String)> = (0..600)
        .map(|at| {
            let mut text = |alphabet: &[char], longest: usize| -> String {
                let length = random.random_range(0..longest);
                (0..length)
                    .map(|_| match alphabet {
                        [] => char::from_u32(random.random_range(0x3400..0x3500)).unwrap_or('x'),
                        _ => alphabet[random.random_range(0..alphabet.len())],
                    })
                    .collect()
            };
            let alphabet = &alphabets[at % alphabets.len()];
            let longest = if at % 10 == 0 { 600 } else { 60 };
            let a = text(alphabet, longest);
            let b = if at % 3 == 0 {
                format!("{}{a}{}", text(alphabet, 9), text(alphabet, 9))
            } else {
                text(alphabet, longest)
            };
            (a, b)
        })
        .collect();
    let mut input = String::new();
    for pair in &pairs {
        input.push_str(&serde_json::to_string(pair).unwrap());
        input.push('\n');
    }
    let mut peer = std::process::Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/difflib_ratio.py"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = peer.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = peer.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), pairs.len());
    for ((a, b), answer) in pairs.iter().zip(answers.lines()) {
        let (chars, lines): (f64, f64) = serde_json::from_str(answer).unwrap();
        assert_eq!(similarity::ratio(a, b), chars, "seed {seed}: {a:?} {b:?}");
        assert_eq!(similarity::ratio_lines(a, b), lines, "seed {seed}: {a:?} {b:?}");
    }
}

/// Pairs on which we differ from math-verify 0.9 (each side given in `$…$`, recorded in `vectors/math_pairs.jsonl`),
/// and why.
const MATH_DIFFERENCES: &[(&str, &str, &str)] = &[
    (r"12\%", r"12", "we hold a percentage to be its hundredth only"),
    (r"0.3333333333", r"\frac{1}{3}", "exact means exact here; the peer rounds"),
    (r"\sqrt{2}", r"1.41421356237", "exact means exact here; the peer rounds"),
    (r"1/7", r"0.142857142857", "exact means exact here; the peer rounds"),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", "nested roots stay as they stand: undecided"),
    (r"2^{n+1}", r"2\cdot 2^n", "sums in exponents stay as they stand: undecided"),
    (r"e^{x+y}", r"e^x e^y", "sums in exponents stay as they stand: undecided"),
    (r"\sin^2 x+\cos^2 x", r"1", "no trigonometric identities: undecided"),
    (r"\tan x", r"\frac{\sin x}{\cos x}", "no trigonometric identities: undecided"),
    (r"\sin \frac{\pi}{2}", r"1", "no values of functions but at 0 and 1: undecided"),
    (r"\cos \pi", r"-1", "no values of functions but at 0 and 1: undecided"),
    (r"\log_{2} 8", r"3", "no values of functions but at 0 and 1: undecided"),
    (r"\log_{10} 100", r"2", "no values of functions but at 0 and 1: undecided"),
    (r"2x=4", r"x=2", "equations may differ by a number that multiplies both sides"),
    (r"(2+i)(2-i)", r"5", "i is the square root of -1"),
    (r"i^2", r"-1", "i is the square root of -1"),
    (r"\frac{1}{i}", r"-i", "i is the square root of -1"),
    (r"\sqrt{-4}", r"2i", "i is the square root of -1"),
    (r"6.02\times 10^{23}", r"602000000000000000000000", "decimals are exact"),
    (r"1e-3", r"0.001", "an exponent is read as one"),
    (r"\pm 2", r"\{2,-2\}", "two answers must be written as two: undecided"),
    (r"x\le 3", r"x\leq 3", "inequalities are not read: undecided"),
    (r"x>3", r"3<x", "inequalities are not read: undecided"),
];

#[test]
fn mathematics_agrees_with_the_peer_but_where_named() {
    use rollhouse::rubric::math::{Equivalence, Reading, equivalent_as};
    let mut differences = Vec::new();
    for line in include_str!("vectors/math_pairs.jsonl").lines() {
        let (left, right, peer): (String, String, bool) = serde_json::from_str(line).unwrap();
        let ours = equivalent_as(&left, &right, Reading { drop_units: true });
        if (ours == Equivalence::Equal) != peer {
            differences.push((left, right, ours));
        }
    }
    let unnamed: Vec<_> = differences
        .iter()
        .filter(|(left, right, _)| {
            !MATH_DIFFERENCES.iter().any(|(a, b, _)| (*a, *b) == (left.as_str(), right.as_str()))
        })
        .collect();
    assert!(unnamed.is_empty(), "{unnamed:#?}");
    assert_eq!(differences.len(), MATH_DIFFERENCES.len());
}
