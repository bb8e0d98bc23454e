//! Answers that must be a certain JSON value.

use serde_json::Value;

use super::{Score, text::excerpt};

/// Whether a text is one JSON value that equals the expected one: objects whatever the order of their keys, numbers by
/// their value (`1` is `1.0`). With `subset`, objects may have keys that the expected ones do not have.
pub fn equal(text: &str, expected: &Value, subset: bool) -> Score {
    let found: Value = match serde_json::from_str(text) {
        Ok(found) => found,
        Err(error) => return Score::fail(format!("it is not valid JSON: {error}")),
    };
    match difference(&found, expected, subset, "") {
        None => Score::pass("it is the expected value"),
        Some(why) => Score::fail(why),
    }
}

/// The first place where a value is not the expected one.
fn difference(found: &Value, expected: &Value, subset: bool, place: &str) -> Option<String> {
    let at = || if place.is_empty() { "the top".to_owned() } else { format!("`{place}`") };
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            for (key, expected) in expected {
                let Some(found) = found.get(key) else { return Some(format!("{} has no `{key}`", at())) };
                let inner = difference(found, expected, subset, &format!("{place}/{key}"));
                if inner.is_some() {
                    return inner;
                }
            }
            let more = found.keys().find(|key| !subset && !expected.contains_key(*key))?;
            Some(format!("{} has `{more}`, which is not expected", at()))
        }
        (Value::Array(found), Value::Array(expected)) => {
            if found.len() != expected.len() {
                return Some(format!("{} has {} items, expected are {}", at(), found.len(), expected.len()));
            }
            let mut pairs = found.iter().zip(expected).enumerate();
            pairs
                .find_map(|(index, (found, expected))| difference(found, expected, subset, &format!("{place}/{index}")))
        }
        (Value::Number(left), Value::Number(right)) if left.as_f64() == right.as_f64() && same_whole(left, right) => {
            None
        }
        (found, expected) if found == expected => None,
        (found, expected) => {
            let (found, expected) = (excerpt(&found.to_string()), excerpt(&expected.to_string()));
            Some(format!("{} is {found}, not the expected {expected}", at()))
        }
    }
}

/// Whole numbers too large for a double are compared as such.
fn same_whole(left: &serde_json::Number, right: &serde_json::Number) -> bool {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => left == right,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_compared_not_texts() {
        let expected = json!({"a": [1, {"b": null}], "c": "é"});
        let score = |text: &str, subset| equal(text, &expected, subset).value;
        assert_eq!(score(r#"{"c": "\u00e9", "a": [1.0, {"b": null}]}"#, false), 1.0);
        assert_eq!(score(r#"{"c": "é", "a": [1, {"b": null, "x": 1}], "y": 2}"#, true), 1.0);
        assert_eq!(score(r#"{"c": "é", "a": [1, {"b": null}], "y": 2}"#, false), 0.0);
        assert_eq!(score(r#"{"c": "é", "a": [1, {}]}"#, true), 0.0);
        assert_eq!(score(r#"{"c": "é", "a": ["1", {"b": null}]}"#, false), 0.0);
        assert_eq!(score("{} {}", true), 0.0);
    }

    #[test]
    fn the_place_is_named() {
        let why = |text: &str| equal(text, &json!({"a": [1, 2]}), false).why.unwrap();
        assert_eq!(why(r#"{"a": [1, 3]}"#), "`/a/1` is 3, not the expected 2");
        assert_eq!(why(r#"{"a": [1]}"#), "`/a` has 1 items, expected are 2");
        assert_eq!(why("{}"), "the top has no `a`");
        assert_eq!(why(r#"{"a": [1, 2], "b": 0}"#), "the top has `b`, which is not expected");
    }

    #[test]
    fn large_whole_numbers_are_not_rounded() {
        assert_eq!(equal("9007199254740993", &json!(9_007_199_254_740_992_u64), false).value, 0.0);
        assert_eq!(equal("9007199254740993", &json!(9_007_199_254_740_993_u64), false).value, 1.0);
    }
}
