//! Scorers by configuration: each gives right replies their score, wrong and hostile ones none; what an author mistypes is
//! named with its place and what was meant; a row that cannot be scored is a fault and never a score of 0.

use rollhouse::{
    config::{Document, Faults, Layer, Reader},
    rubric::declared::{self, Declared, catalogue, catalogue_text, parser_steps},
    trace::{FaultClass, Trace},
};
use serde_json::{Map, Value, json};

fn declared(text: &str) -> Result<Declared, Faults> {
    let mut reader = Reader::new(Document::new([Layer::from_toml("taskset.toml", text)?]));
    let declared = declared::read(&mut reader.root());
    reader.finish()?;
    Ok(declared)
}

#[track_caller]
fn faults(text: &str) -> String {
    declared(text).err().map(|faults| faults.to_string()).unwrap_or_default()
}

/// A finished rollout of a row with these fields.
fn trace(row: &Value, reply: &str) -> Trace {
    let mut data = json!({"idx": 0, "prompt": "Go."});
    data.as_object_mut().unwrap().extend(row.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "id": "0".repeat(32),
        "task": {"type": "Task", "data": data},
        "agent": {"config": {}},
        "nodes": [
            {"parent": null, "sampled": false, "message": {"role": "user", "content": "Go."}},
            {"parent": 0, "sampled": true, "message": {"role": "assistant", "content": reply}},
        ],
        "ok": true,
    }))
    .unwrap()
}

/// The score of a reply by one scorer, written as the rest of a `[[reward]]`; `Err` is the fault.
async fn scored(table: &str, row: &Value, reply: &str) -> Result<f64, String> {
    let declared = declared(&format!("[[reward]]\n{table}\nname = \"r\"\n")).map_err(|faults| faults.to_string())?;
    let rubric = declared.rubric.build().map_err(|error| error.to_string())?;
    let mut trace = trace(row, reply);
    match rubric.score(&mut trace).await {
        Ok(()) => Ok(trace.rewards["r"].unwrap().score),
        Err(fault) => {
            assert_eq!(fault.class, FaultClass::Scoring);
            assert!(trace.rewards["r"].is_none(), "a failure is no score");
            Err(fault.message)
        }
    }
}

/// What each scorer gives to replies, the row's `answer` being the third.
#[tokio::test]
async fn replies_get_the_score_they_earn() {
    let long = "9".repeat(400);
    type Earned<'a> = &'a [(&'a str, f64)];
    let cases: &[(&str, Value, Earned<'_>)] = &[
        ("scorer = \"exact\"", json!("Paris"), &[("Paris", 1.0), (" Paris\n", 1.0), ("paris", 0.0), ("Paris.", 0.0)]),
        ("scorer = \"exact\"\nignore_case = true", json!("Paris"), &[("PARIS", 1.0), ("Pariss", 0.0)]),
        (
            "scorer = \"exact\"",
            json!(["Rome", "Roma"]),
            &[("Roma", 1.0), ("Rome", 1.0), ("Rom", 0.0), ("Rome, Roma", 0.0)],
        ),
        ("scorer = \"exact\"", json!(4), &[("4", 1.0), ("4.0", 0.0)]),
        ("scorer = \"contains\"", json!("cat"), &[("a cat sat", 1.0), ("a Cat", 0.0)]),
        ("scorer = \"starts_with\"", json!("yes"), &[("yes, it is", 1.0), ("oh yes", 0.0)]),
        ("scorer = \"ends_with\"", json!("yes"), &[("oh yes", 1.0), ("yes, it is", 0.0)]),
        (
            "scorer = \"number\"\nparse = \"last_number\"",
            json!("1,234.5"),
            &[("$1234.50", 1.0), ("1234.5 of 7", 0.0), ("1234,5", 0.0), ("none", 0.0), (&long, 0.0), ("NaN", 0.0)],
        ),
        ("scorer = \"number\"\nabsolute = 0.01", json!(7.1416), &[("7.14", 1.0), ("7.1", 0.0), ("inf", 0.0)]),
        ("scorer = \"number\"\nrelative = 0.01", json!(100), &[("101", 1.0), ("102", 0.0)]),
        (
            "scorer = \"equivalent\"\nparse = [\"boxed\"]",
            json!("\\frac{1}{2}"),
            &[
                ("so \\boxed{0.5}", 1.0),
                ("\\boxed{2/4}", 1.0),
                ("\\boxed{0.5", 0.0),
                ("0.5", 0.0),
                ("\\boxed{1/0}", 0.0),
            ],
        ),
        ("scorer = \"equivalent\"\ndrop_units = true", json!("5"), &[("5 cm", 1.0), ("6 cm", 0.0)]),
        (
            "scorer = \"json_equal\"\nparse = [{ code = \"json\" }]",
            json!({"a": [1, 2]}),
            &[
                ("```json\n{\"a\": [1.0, 2]}\n```", 1.0),
                ("```json\n{\"a\": [2, 1]}\n```", 0.0),
                ("{\"a\": [1, 2]}", 0.0),
            ],
        ),
        ("scorer = \"json_equal\"\nsubset = true", json!("{\"a\": 1}"), &[("{\"b\": 2, \"a\": 1}", 1.0), ("{}", 0.0)]),
        ("scorer = \"ratio\"", json!("abcd"), &[("abcd", 1.0), ("bcde", 0.75), ("xyz", 0.0)]),
        ("scorer = \"ratio\"\nunit = \"words\"", json!("a b c d"), &[("b c d e", 0.75)]),
        ("scorer = \"lcs\"", json!("abc"), &[("aXbXc", 0.75), ("", 0.0)]),
        ("scorer = \"edit\"", json!("abcd"), &[("abed", 0.75), ("abcd", 1.0)]),
        ("scorer = \"common_prefix\"", json!("abcd"), &[("abXX", 0.5), ("abcdefgh", 1.0), ("X", 0.0)]),
        ("scorer = \"f1\"", json!("the Eiffel Tower"), &[("eiffel tower!", 1.0), ("tower", 2.0 / 3.0)]),
        ("scorer = \"one_of\"\nchoices = [\"A\", \"B\"]", json!("A"), &[("B", 1.0), ("C", 0.0), ("A B", 0.0)]),
        ("scorer = \"regex\"\npattern = \"[0-9]+\"", json!(""), &[("a1", 1.0), ("a", 0.0)]),
        ("scorer = \"regex\"\npattern = \"a|b\"\nwhole = true", json!(""), &[("b", 1.0), ("ab", 0.0), ("b\n c", 0.0)]),
        ("scorer = \"parses\"\nparse = [\"hashes\"]", json!(""), &[("#### 3", 1.0), ("3", 0.0)]),
        (
            "scorer = \"tags\"\ntags = [\"think\", \"answer\"]",
            json!(""),
            &[
                ("<think>a</think><answer>b</answer>", 1.0),
                ("<answer>b</answer><think>a</think>", 0.0),
                ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
                ("```\n<think>a</think><answer>b</answer>\n```", 0.0),
            ],
        ),
        ("scorer = \"code\"\nlanguage = \"python\"", json!(""), &[("```python\n1\n```", 1.0), ("```\n1\n```", 0.0)]),
        ("scorer = \"json\"", json!(""), &[("{\"a\": 1}", 1.0), ("{a: 1}", 0.0), ("{} {}", 0.0)]),
        (
            "scorer = \"json_schema\"\nschema = { type = \"object\", required = [\"a\"] }",
            json!(""),
            &[("{\"a\": null}", 1.0), ("{}", 0.0), ("[]", 0.0)],
        ),
        (
            "scorer = \"length\"\nunit = \"words\"\nmin = 2\nmax = 3",
            json!(""),
            &[("a b", 1.0), ("a", 0.0), ("a b c d", 0.0)],
        ),
        ("scorer = \"length_penalty\"\nfree = 2\nlimit = 4", json!(""), &[("ab", 1.0), ("abc", 0.5), ("abcd", 0.0)]),
        ("scorer = \"count\"", json!(""), &[("a b  c", 3.0)]),
        ("scorer = \"turns\"", json!(""), &[("a", 1.0)]),
        ("scorer = \"expression\"\nexpression = \"reply == answer\"", json!("x"), &[("x", 1.0), ("y", 0.0)]),
        (
            "scorer = \"expression\"\nparse = [\"last_number\"]\nexpression = \"(parsed | int) / level + turns\"",
            json!("x"),
            &[("it is 6", 4.0), ("none", 0.0)],
        ),
        (
            "scorer = \"all_of\"\nof = [{ scorer = \"exact\" }, { scorer = \"length\", max = 2 }]",
            json!("abc"),
            &[("abc", 0.0), ("ab", 0.0)],
        ),
        (
            "scorer = \"any_of\"\nof = [{ scorer = \"exact\" }, { scorer = \"ratio\", clamp = [0, 0.5] }]",
            json!("abcd"),
            &[("abcd", 1.0), ("abce", 0.5), ("x", 0.0)],
        ),
        ("scorer = \"ratio\"\nthreshold = 0.7", json!("abcd"), &[("bcde", 1.0), ("bcxx", 0.0)]),
        ("scorer = \"contains\"\nexpected_text = \"sorry\"\ninvert = true", json!(""), &[("sorry", 0.0), ("no", 1.0)]),
        ("scorer = \"exact\"\nexpected_template = \"{{ level + 1 }}\"", json!(""), &[("3", 1.0), ("2", 0.0)]),
        ("scorer = \"exact\"\nexpected = \"level\"", json!(""), &[("2", 1.0), ("3", 0.0)]),
    ];
    for (table, answer, replies) in cases {
        for (reply, expected) in *replies {
            let row = json!({"answer": answer, "level": 2});
            assert_eq!(scored(table, &row, reply).await, Ok(*expected), "{table}: {reply}");
        }
    }
}

#[tokio::test]
async fn a_reply_of_nothing_earns_nothing_and_breaks_nothing() {
    let (_, entries) = catalogue();
    let hostile = ["", " \u{0}", "<think>", "\u{feff}\u{200b}", &"(".repeat(100_000), &"a ".repeat(100_000)];
    for entry in entries {
        let more = match entry.name {
            "one_of" => "choices = [\"A\"]",
            "regex" => "pattern = \"^(a*)*b$\"",
            "tags" => "tags = [\"answer\"]",
            "json_schema" => "schema = { type = \"object\" }",
            "length" => "min = 5\nmax = 6",
            "length_penalty" => "limit = 1",
            "expression" => "expression = \"parsed == answer\"",
            "all_of" | "any_of" => "of = [{ scorer = \"exact\" }]",
            _ => "",
        };
        for reply in hostile {
            let table = format!("scorer = \"{}\"\nparse = [\"strip_think\"]\n{more}", entry.name);
            let score = scored(&table, &json!({"answer": "7"}), reply).await;
            let measure = ["count", "turns", "parses", "length_penalty"].contains(&entry.name);
            assert!(measure && score.is_ok() || score == Ok(0.0), "{}: {score:?} for {reply:.9}", entry.name);
        }
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_scored_is_a_fault() {
    let cases = [
        ("scorer = \"exact\"", json!({}), "the row has no field `answer`"),
        ("scorer = \"exact\"", json!({"answer": {"a": 1}}), "neither text nor a number"),
        ("scorer = \"exact\"", json!({"answer": []}), "neither text nor a number"),
        ("scorer = \"number\"", json!({"answer": "four"}), "the expected `four` is not a number"),
        ("scorer = \"contains\"", json!({"answer": " "}), "the expected part is empty"),
        ("scorer = \"exact\"\nexpected_template = \"{{ other }}\"", json!({}), "undefined"),
        ("scorer = \"expression\"\nexpression = \"missing + 1\"", json!({}), "undefined"),
        ("scorer = \"expression\"\nexpression = \"reply\"", json!({}), "expected a number or true or false"),
        ("scorer = \"ratio\"\nbounds = [0, 0.5]", json!({"answer": "x"}), "lies outside its declared bounds"),
    ];
    for (table, row, expected) in cases {
        let fault = scored(table, &row, "x").await.unwrap_err();
        assert!(fault.contains(expected), "{table}: {fault}");
    }
}

#[test]
fn what_is_mistyped_is_named_with_its_place() {
    let cases = [
        (
            "[[reward]]\nscorer = \"exakt\"",
            "taskset.toml:2:10: reward[0].scorer: unknown scorer `exakt`; did you mean `exact`?",
        ),
        ("[[reward]]\nscorer = \"zzzzzzzz\"", "expected one of exact, contains"),
        ("[[reward]]\nweight = 2.0", "reward[0].scorer: missing"),
        (
            "[[reward]]\nscorer = \"exact\"\nignore_cse = true",
            "taskset.toml:3:1: reward[0].ignore_cse: unknown key; did you mean `reward[0].ignore_case`?",
        ),
        ("[[reward]]\nscorer = \"length\"\nexpected = \"answer\"", "reward[0].expected: unknown key"),
        ("[[metric]]\nscorer = \"exact\"\nweight = 1.0", "metric[0].weight: unknown key"),
        ("[[reward]]\nscorer = \"exact\"\n[[metric]]\nscorer = \"exact\"", "metric[0].name: the name `exact` is taken"),
        (
            "[[reward]]\nscorer = \"exact\"\nparse = [\"boxd\"]",
            "taskset.toml:3:9: reward[0].parse: step 1: unknown step `boxd`; did you mean `boxed`?",
        ),
        ("parse = [\"strip_think\", { tag = 3 }]", "parse: step 2: `tag` takes a name: { tag = \"…\" }"),
        ("parse = [{ first_of = [[\"hashes\"], [\"zzz\"]] }]", "step 1: way 2: step 1: unknown step `zzz`"),
        ("parse = [{ capture = \"(\" }]", "is not a regular expression"),
        (
            "[[reward]]\nscorer = \"regex\"\npattern = \"(\"",
            "taskset.toml:3:11: reward[0].pattern: `(` is not a regular expression",
        ),
        ("[[reward]]\nscorer = \"regex\"", "reward[0].pattern: missing"),
        ("[[reward]]\nscorer = \"number\"\nabsolute = -1", "reward[0].absolute: out of bounds"),
        ("[[reward]]\nscorer = \"exact\"\nexpected = \"a\"\nexpected_text = \"b\"", "stands beside `expected`"),
        ("[[reward]]\nscorer = \"exact\"\nexpected_template = \"{{\"", "reward[0].expected_template: "),
        ("[[reward]]\nscorer = \"expression\"\nexpression = \"1 +\"", "reward[0].expression: "),
        ("[[reward]]\nscorer = \"exact\"\nbounds = [1, 0]", "expected two numbers, the lower first"),
        ("[[reward]]\nscorer = \"all_of\"", "reward[0].of: missing or empty"),
        (
            "[[reward]]\nscorer = \"all_of\"\nof = [{ scorer = \"exac\" }]",
            "reward[0].of[0].scorer: unknown scorer `exac`",
        ),
        ("[[reward]]\nscorer = \"json_schema\"\nschema = { type = 5 }", "reward[0].schema: not a valid JSON schema"),
        ("[[reward]]\nscorer = \"length\"\nmin = 3\nmax = 2", "reward[0].max: is below `min`, 3"),
    ];
    for (text, expected) in cases {
        let faults = faults(text);
        assert!(faults.contains(expected), "{text}\n{faults}");
        assert_eq!(faults.lines().count(), 1, "one fault for one mistake: {faults}");
    }
}

#[test]
fn names_weights_and_parsers_are_taken_over() {
    let declared = declared(
        "parse = [\"strip_think\", \"hashes\"]\n[[reward]]\nscorer = \"number\"\nweight = 0.75\n[[reward]]\nscorer = \"ratio\"\n\
         name = \"alike\"\nbounds = [0, 1]\nparse = []\n[[metric]]\nscorer = \"parses\"",
    )
    .unwrap();
    let rubric = declared.rubric.build().unwrap();
    let lines: Vec<_> = rubric.lines().map(|line| (line.name.to_owned(), line.weight, line.bounds)).collect();
    let owned = str::to_owned;
    assert_eq!(
        lines,
        [
            (owned("number"), Some(0.75), None),
            (owned("alike"), Some(1.0), Some(0.0..=1.0)),
            (owned("parses"), None, None)
        ]
    );
    assert_eq!(declared.answer.inverse("42").as_deref(), Some("#### 42"));
}

#[test]
fn weights_can_be_changed_by_name() {
    let mut rubric = declared("[[reward]]\nscorer = \"exact\"\n[[metric]]\nscorer = \"count\"").unwrap().rubric;
    rubric.reweight("exact", 0.25).unwrap();
    assert_eq!(rubric.lines().next().unwrap().weight, Some(0.25));
    assert_eq!(rubric.reweight("count", 1.0).unwrap_err().to_string(), "there is no reward `count`: it has exact");
    assert!(rubric.reweight("exact", f64::NAN).is_err());
}

#[test]
fn the_catalogue_tells_every_scorer_every_key_and_every_step() {
    let (common, entries) = catalogue();
    let common: Vec<&str> = common.iter().map(|option| option.key.as_str()).collect();
    assert_eq!(common, ["weight", "bounds", "name", "scorer", "parse", "threshold", "clamp", "invert"]);
    let keys = |name: &str| -> Map<String, Value> {
        let entry = entries.iter().find(|entry| entry.name == name).unwrap();
        entry.options.iter().map(|option| (option.key.clone(), option.default.clone())).collect()
    };
    let expected = json!({"trim": true, "ignore_case": false, "collapse_space": false, "expected": null, "expected_text": null, "expected_template": null});
    assert_eq!(Value::Object(keys("exact")), expected);
    assert_eq!(Value::Object(keys("length")), json!({"unit": "chars", "min": 0, "max": null}));
    assert!(entries.iter().flat_map(|entry| &entry.options).all(|option| !option.meaning.is_empty()));
    let text = catalogue_text();
    for entry in &entries {
        assert!(text.contains(&format!("\n## {}\n", entry.name)));
    }
    for step in parser_steps() {
        assert!(text.contains(&format!("- {}: ", step.written)), "{}", step.name);
    }
}
