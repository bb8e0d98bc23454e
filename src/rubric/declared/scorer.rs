//! The scorers that a table can name, each with the keys it takes.

use std::sync::Arc;

use serde_json::Value;

use super::parse::meant;
use crate::{
    config::Section,
    rubric::{
        Answer, Expected, Score, ScoreContext, Scorer, compare, examine,
        expected::{fields, unusable},
        fence, json, math,
        schema::JsonSchema,
        similarity, tags,
        text::{self, Normalise, Pattern, Tolerance, Unit},
        try_compare, words,
    },
    template::{Expression, Template},
    trace::{Fault, Trace},
};

type Read = fn(&mut Section<'_>, &Answer) -> Option<Made>;

/// A scorer that was made.
pub(super) struct Made {
    pub(super) scorer: Arc<dyn Scorer>,
    pub(super) aim: Option<Aim>,
}

/// What a scorer gives full marks: this, written so that the parser finds it.
pub(super) type Aim = (Expected, Answer);

/// A scorer by name.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    /// It looks at the form of the reply, which the parser of all tables would take away: only one of its own counts.
    pub(super) of_form: bool,
    /// Reads its own keys and makes it; faults are in the section when there is none.
    pub(super) read: Read,
}

impl Kind {
    const fn of(name: &'static str, summary: &'static str, read: Read) -> Self {
        Self { name, summary, of_form: false, read }
    }
}

/// Every scorer, those that compare with what is expected first.
pub(super) const KINDS: &[Kind] = &[
    Kind::of("exact", "the answer is the expected text", exact),
    Kind::of("contains", "the answer contains the expected text", contains),
    Kind::of("starts_with", "the answer starts with the expected text", starts_with),
    Kind::of("ends_with", "the answer ends with the expected text", ends_with),
    Kind::of("number", "the answer is the expected number, within a tolerance", number),
    Kind::of("equivalent", "the answer is the same mathematics as the expected one", equivalent),
    Kind::of("json_equal", "the answer is the expected JSON value", json_equal),
    Kind::of("ratio", "likeness, 0 to 1, as Python's difflib gives it", ratio),
    Kind::of("lcs", "likeness, 0 to 1, by the longest common subsequence", lcs),
    Kind::of("edit", "1 less the edit distance over the longer length", edit),
    Kind::of("common_prefix", "share of the expected text that the answer begins with", prefix),
    Kind::of("f1", "F1 of the words that answer and expected text share, as SQuAD counts it: articles do not", f1),
    Kind::of("one_of", "the answer is one of some texts", one_of),
    Kind::of("regex", "the answer matches a regular expression", regex),
    Kind::of("parses", "`parse` finds an answer: a check of form", parses),
    Kind { of_form: true, ..Kind::of("tags", "the reply is a sequence of tags and nothing else", tag_sequence) },
    Kind { of_form: true, ..Kind::of("code", "the reply holds one fenced code block", code) },
    Kind::of("json", "the answer is one JSON value", valid_json),
    Kind::of("json_schema", "the answer is JSON that fits a schema", json_schema),
    Kind::of("length", "the answer's length lies within bounds", length),
    Kind::of("length_penalty", "1 up to some length, then falling to 0", length_penalty),
    Kind::of("count", "the answer's length itself: a metric", count),
    Kind::of("turns", "how many turns the model took: a metric", turns),
    Kind::of("expression", "the value of an expression over the row and the reply", expression),
    Kind::of("all_of", "the lowest score of several scorers", all_of),
    Kind::of("any_of", "the highest score of several scorers", any_of),
];

/// The scorer that a table names.
pub(super) fn kind(table: &mut Section<'_>) -> Option<&'static Kind> {
    let name: String = table.doc("Which scorer").required("scorer")?;
    let found = KINDS.iter().find(|kind| kind.name == name);
    if found.is_none() {
        let hint = meant(&name, KINDS.iter().map(|kind| kind.name));
        table.fault_hint("scorer", format!("unknown scorer `{name}`"), hint);
    }
    found
}

fn made(scorer: impl Scorer + 'static) -> Option<Made> {
    Some(Made { scorer: Arc::new(scorer), aim: None })
}

/// A scorer that holds the answer against what is expected.
fn held(expected: Expected, answer: &Answer, scorer: impl Scorer + 'static) -> Option<Made> {
    Some(Made { scorer: Arc::new(scorer), aim: Some((expected, answer.clone())) })
}

/// What the answer is held against: `expected`, `expected_text` or `expected_template`.
fn expected(table: &mut Section<'_>) -> Option<Expected> {
    let field: Option<String> = table
        .doc("Field of the row with the right answer; a list in it: any of them counts; `answer` without it")
        .get("expected");
    let text: Option<String> = table.doc("The right answer of every row, instead of `expected`").get("expected_text");
    let template: Option<String> =
        table.doc("Template over the row that makes the right answer, instead of `expected`").get("expected_template");
    match (field, text, template) {
        (field, None, None) => Some(Expected::Field(field.unwrap_or_else(|| "answer".to_owned()))),
        (None, Some(text), None) => Some(Expected::Text(text)),
        (None, None, Some(source)) => match Template::new(&table.dotted("expected_template"), &source) {
            Ok(template) if uses_config(table, "expected_template", &template.names()) => None,
            Ok(template) => Some(Expected::Made(template)),
            Err(error) => {
                table.fault("expected_template", error.problem);
                None
            }
        },
        (field, _, template) => {
            let key = if template.is_some() { "expected_template" } else { "expected_text" };
            let other = if field.is_some() { "expected" } else { "expected_text" };
            table.fault(key, format!("stands beside `{other}`; give only one of them"));
            None
        }
    }
}

/// Whether a template or expression uses the taskset's own keys, which are not known when a reply is scored; records it.
fn uses_config(table: &mut Section<'_>, key: &str, names: &[String]) -> bool {
    let does = names.iter().any(|name| name == "config");
    if does {
        table.fault_hint(key, "`config` is not known here", "put what depends on it into `answer`");
    }
    does
}

fn normalise(table: &mut Section<'_>, default: Normalise) -> Normalise {
    Normalise {
        trim: table.doc("White space at both ends does not count").get_or("trim", default.trim),
        ignore_case: table.doc("Upper and lower case are the same").get_or("ignore_case", default.ignore_case),
        collapse_space: table
            .doc("Each run of white space is one space")
            .get_or("collapse_space", default.collapse_space),
    }
}

fn unit(table: &mut Section<'_>, default: Unit) -> Unit {
    let units = [("chars", Unit::Chars), ("words", Unit::Words), ("lines", Unit::Lines)];
    table.doc("What is counted").choose("unit", &units, default)
}

fn exact(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let normalise = normalise(table, Normalise::TRIM);
    let expected = expected(table)?;
    let check = move |answer: &str, expected: &str| text::exact(answer, expected, normalise);
    held(expected.clone(), answer, compare(answer.clone(), expected, check))
}

fn contains(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    part(table, answer, text::contains)
}

fn starts_with(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    part(table, answer, text::starts_with)
}

fn ends_with(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    part(table, answer, text::ends_with)
}

fn part(table: &mut Section<'_>, answer: &Answer, holds: fn(&str, &str, Normalise) -> Score) -> Option<Made> {
    let normalise = normalise(table, Normalise::TRIM);
    let expected = expected(table)?;
    let check = move |answer: &str, expected: &str| {
        if normalise.apply(expected).is_empty() {
            return Err(unusable("the expected part is empty, which every text would have".to_owned()));
        }
        Ok(holds(answer, expected, normalise))
    };
    held(expected.clone(), answer, try_compare(answer.clone(), expected, check))
}

fn number(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let tolerance = Tolerance {
        absolute: table.doc("Distance allowed").get_in("absolute", 0.0.., 0.0),
        relative: table
            .doc("Distance allowed as a share of the expected number; the default only evens out rounding")
            .get_in("relative", 0.0.., Tolerance::EXACT.relative),
    };
    let expected = expected(table)?;
    let check = move |answer: &str, expected: &str| {
        if text::parse_number(expected).is_none() {
            let problem = format!("the expected `{}` is not a number", text::excerpt(expected));
            return Err(unusable(problem));
        }
        Ok(text::numeric(answer, expected, tolerance))
    };
    held(expected.clone(), answer, try_compare(answer.clone(), expected, check))
}

fn equivalent(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let drop_units = table.doc("Units at the end, as `cm`, do not count").get_or("drop_units", false);
    let reading = math::Reading { drop_units };
    let expected = expected(table)?;
    let check = move |answer: &str, expected: &str| math::check(answer, expected, reading);
    held(expected.clone(), answer, compare(answer.clone(), expected, check))
}

fn json_equal(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let subset =
        table.doc("Keys of objects that the expected value does not have are passed over").get_or("subset", false);
    let expected = expected(table)?;
    let (parser, right) = (answer.clone(), expected.clone());
    held(expected, answer, move |context: ScoreContext<'_>| {
        let expected = right.json(context.task)?;
        Ok(with_answer(&parser, context.trace, |text| json::equal(text, &expected, subset)))
    })
}

/// The score of an answer; 0 with the reason where there is none.
fn with_answer(answer: &Answer, trace: &Trace, check: impl FnOnce(&str) -> Score) -> Score {
    match answer.of(trace) {
        Ok(text) => check(&text),
        Err(why) => Score::fail(format!("no answer: {why}")),
    }
}

/// A scorer of likeness between the evened out texts.
fn likeness(
    table: &mut Section<'_>,
    answer: &Answer,
    like: impl Fn(&str, &str) -> f64 + Send + Sync + 'static,
) -> Option<Made> {
    let normalise = normalise(table, Normalise::NONE);
    let expected = expected(table)?;
    let check = move |answer: &str, expected: &str| like(&normalise.apply(answer), &normalise.apply(expected)).into();
    held(expected.clone(), answer, compare(answer.clone(), expected, check))
}

fn ratio(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let like = match unit(table, Unit::Chars) {
        Unit::Chars => similarity::ratio,
        Unit::Words => similarity::ratio_words,
        Unit::Lines => similarity::ratio_lines,
    };
    likeness(table, answer, like)
}

fn lcs(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let like = match unit(table, Unit::Chars) {
        Unit::Chars => similarity::lcs_ratio,
        Unit::Words => similarity::lcs_ratio_words,
        Unit::Lines => similarity::lcs_ratio_lines,
    };
    likeness(table, answer, like)
}

fn edit(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let like = match unit(table, Unit::Chars) {
        Unit::Chars => similarity::edit_similarity,
        Unit::Words => similarity::edit_similarity_words,
        Unit::Lines => similarity::edit_similarity_lines,
    };
    likeness(table, answer, like)
}

fn prefix(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    likeness(table, answer, |answer, expected| {
        let whole = expected.chars().count();
        if whole == 0 { 1.0 } else { similarity::common_prefix(answer, expected) as f64 / whole as f64 }
    })
}

fn f1(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let expected = expected(table)?;
    held(expected.clone(), answer, compare(answer.clone(), expected, words::f1))
}

fn one_of(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let choices: Option<Vec<String>> = table.doc("The texts").required("choices");
    let normalise = normalise(table, Normalise::TRIM);
    let choices = choices?;
    if choices.is_empty() {
        table.fault("choices", "is empty; name at least one text");
        return None;
    }
    let first = Expected::Text(choices.first().cloned().unwrap_or_default());
    held(
        first,
        answer,
        examine(answer.clone(), move |answer| {
            let found = choices.iter().any(|choice| normalise.apply(choice) == normalise.apply(answer));
            let short = text::excerpt(answer);
            if found {
                Score::pass(format!("`{short}` is one of them"))
            } else {
                Score::fail(format!("`{short}` is none of them"))
            }
        }),
    )
}

fn regex(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let source: Option<String> = table.doc("The regular expression, of the crate `regex`").required("pattern");
    let whole = table.doc("It must match the whole answer, not a part of it").get_or("whole", false);
    let source = source?;
    // The pattern alone first, so that messages show what was written.
    let pattern = Pattern::new(&source)
        .and_then(|pattern| if whole { Pattern::new(&format!(r"\A(?:{source})\z")) } else { Ok(pattern) });
    match pattern {
        Ok(pattern) => made(examine(answer.clone(), move |answer| pattern.matches(answer))),
        Err(error) => {
            table.fault("pattern", error.to_string());
            None
        }
    }
}

fn parses(_: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    made(examine(answer.clone(), |_| Score::pass("there is an answer")))
}

fn tag_sequence(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let names: Vec<String> = table.doc("Names of the tags, in their order").required("tags")?;
    if names.is_empty() {
        table.fault("tags", "is empty; name at least one tag");
        return None;
    }
    made(examine(answer.clone(), move |answer| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match tags::sequence(answer, &names) {
            Ok(_) => Score::pass("each tag is there once, in order"),
            Err(fault) => Score::fail(fault.to_string()),
        }
    }))
}

fn code(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let language: Option<String> = table.doc("Language of the block; any without it").get("language");
    made(examine(answer.clone(), move |answer| match fence::only(answer, language.as_deref()) {
        Ok(_) => Score::pass("there is one code block"),
        Err(fault) => Score::fail(fault.to_string()),
    }))
}

fn valid_json(_: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    made(examine(answer.clone(), text::valid_json))
}

fn json_schema(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let schema = table.doc("The JSON schema; draft 2020-12 unless it names another").open("schema");
    if schema.is_empty() {
        table.fault("schema", "missing or empty; write a table such as { type = \"object\" }");
        return None;
    }
    match JsonSchema::new(&Value::Object(schema)) {
        Ok(schema) => made(examine(answer.clone(), move |answer| schema.check(answer))),
        Err(error) => {
            table.fault("schema", error.to_string());
            None
        }
    }
}

fn length(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let unit = unit(table, Unit::Chars);
    let least = table.doc("Least length").get_or("min", 0_usize);
    let most: Option<usize> = table.doc("Greatest length; none without it").get("max");
    let most = most.unwrap_or(usize::MAX);
    if least > most {
        table.fault("max", format!("is below `min`, {least}"));
        return None;
    }
    made(examine(answer.clone(), move |answer| text::length(answer, unit, least..=most)))
}

fn length_penalty(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let unit = unit(table, Unit::Chars);
    let free = table.doc("Length up to which the score is 1").get_or("free", 0_usize);
    let limit: usize = table.doc("Length from which the score is 0").required("limit")?;
    made(examine(answer.clone(), move |answer| text::length_penalty(answer, unit, free, limit)))
}

fn count(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let unit = unit(table, Unit::Words);
    made(examine(answer.clone(), move |answer| (unit.count(answer) as f64).into()))
}

fn turns(_: &mut Section<'_>, _: &Answer) -> Option<Made> {
    made(|context: ScoreContext<'_>| Ok((context.trace.num_turns() as f64).into()))
}

fn expression(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let source: String = table
        .doc("Over the fields of the row, `reply` (the whole last reply), `parsed` (what `parse` takes from it) and `turns`")
        .required("expression")?;
    let answer = answer.clone();
    match Expression::new(&table.dotted("expression"), &source) {
        Ok(expression) => {
            let names = expression.names();
            if uses_config(table, "expression", &names) {
                return None;
            }
            made(move |context: ScoreContext<'_>| evaluate(&expression, &names, &answer, context))
        }
        Err(error) => {
            table.fault("expression", error.problem);
            None
        }
    }
}

fn evaluate(
    expression: &Expression,
    names: &[String],
    answer: &Answer,
    context: ScoreContext<'_>,
) -> Result<Score, Fault> {
    let mut values = fields(context.task, names);
    for name in names {
        let value = match name.as_str() {
            "reply" => context.trace.last_reply().into(),
            "turns" => context.trace.num_turns().into(),
            "parsed" => match answer.of(context.trace) {
                Ok(text) => text.into(),
                Err(why) => return Ok(Score::fail(format!("no answer: {why}"))),
            },
            _ => continue,
        };
        values.insert(name.clone(), value);
    }
    let value = expression.json(&values).map_err(|error| unusable(error.to_string()))?;
    match &value {
        Value::Bool(holds) => Ok(f64::from(*holds).into()),
        Value::Number(number) => Ok(number.as_f64().unwrap_or(f64::NAN).into()),
        other => Err(unusable(format!("the expression gives {other}; expected a number or true or false"))),
    }
}

fn all_of(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let (scorers, aim) = several(table, answer)?;
    Some(Made { aim, ..made(crate::rubric::all_of(scorers))? })
}

fn any_of(table: &mut Section<'_>, answer: &Answer) -> Option<Made> {
    let (scorers, aim) = several(table, answer)?;
    Some(Made { aim, ..made(crate::rubric::any_of(scorers))? })
}

/// The scorers below `of`, and what the first of them aims at that aims at something.
type Several = (Vec<Arc<dyn Scorer>>, Option<Aim>);

fn several(table: &mut Section<'_>, answer: &Answer) -> Option<Several> {
    let scorers = table
        .doc("The scorers, tables of their own with all keys but `name`, `weight` and `bounds`")
        .list("of", |table| super::seat::scored(table, answer));
    if scorers.is_empty() {
        table.fault("of", "missing or empty; write a list of tables, for example [{ scorer = \"exact\" }]");
        return None;
    }
    let scored: Vec<(&str, Answer, Made)> = scorers.into_iter().collect::<Option<_>>()?;
    let aim = scored.iter().find_map(|(.., made)| made.aim.clone());
    Some((scored.into_iter().map(|(.., made)| made.scorer).collect(), aim))
}
