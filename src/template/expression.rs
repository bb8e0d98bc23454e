//! Conditions and values.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use minijinja::{
    Value,
    value::{Serde, ValueKind},
};
use regex::Regex;
use serde::Serialize;

use super::{
    Template, TemplateError,
    text::{MAIN, environment, fault},
};

/// A condition or value over the same names, for example `level <= 3 and "easy" in tags`.
#[derive(Clone)]
pub struct Expression {
    template: Template,
    source: Arc<str>,
    /// Names that it compares with a number.
    numbers: Arc<[String]>,
}

impl Expression {
    /// An expression; `name` is what errors call it.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn new(name: &str, source: &str) -> Result<Self, TemplateError> {
        environment().compile_expression(source).map_err(|error| fault(name, &error))?;
        // As a template it is compiled once, and tells its names.
        let template = Template::new(name, &format!("{{% set {VALUE} = ({source}) %}}"))?;
        Ok(Self { template, source: source.into(), numbers: numbers(source) })
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// When it uses a name that is not among the values, or an operation fails.
    pub fn holds(&self, values: impl Serialize) -> Result<bool, TemplateError> {
        Ok(self.value(values)?.is_true())
    }

    /// Its value as JSON.
    ///
    /// # Errors
    /// As [`Self::holds`], and when the value is none that JSON has.
    pub fn json(&self, values: impl Serialize) -> Result<serde_json::Value, TemplateError> {
        let value = self.value(values)?;
        serde_json::to_value(&value).map_err(|error| TemplateError {
            name: self.template.name.to_string(),
            line: 1,
            problem: error.to_string(),
        })
    }

    /// The names that it looks up, sorted.
    pub fn names(&self) -> Vec<String> {
        self.template.names()
    }

    fn value(&self, values: impl Serialize) -> Result<Value, TemplateError> {
        let name = &self.template.name;
        let known = Value::from(Serde(&values));
        // Such a comparison would hold for all texts or for none.
        let is_text = |name: &&String| known.get_attr(name).is_ok_and(|value| value.kind() == ValueKind::String);
        if let Some(text) = self.numbers.iter().find(is_text) {
            let problem =
                format!("`{text}` is text and is compared with a number; write `{text} | int` or `{text} | float`");
            return Err(TemplateError { name: name.to_string(), line: 1, problem });
        }
        let main = self.template.environment.get_template(MAIN);
        let done = main.and_then(|main| main.render_captured(known));
        let done = done.map_err(|error| self.template.fault_with(&error, values))?;
        let value = done.state().lookup(VALUE).unwrap_or_default();
        if value.is_undefined() {
            return Err(TemplateError {
                name: name.to_string(),
                line: 1,
                problem: format!("`{}` has no value", self.source),
            });
        }
        Ok(value)
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

/// What the template of an expression calls its value.
const VALUE: &str = "value_of_the_expression";

/// The names that stand right beside a comparison with a number, as in `level <= 3`.
fn numbers(source: &str) -> Arc<[String]> {
    static LEFT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(\w+)\s*(?:[<>]=?|[=!]=)\s*-?\d").ok());
    let mut found = Vec::new();
    for name in LEFT.iter().flat_map(|left| left.captures_iter(source)).filter_map(|found| found.get(1)) {
        let before = source[..name.start()].trim_end();
        // Neither a filter or an attribute, nor a part of a text or of a sum.
        let quoted = before.matches(['"', '\'']).count() % 2 == 1;
        let free = before.is_empty()
            || before.ends_with(['(', '[', ','])
            || [" and", " or", " not"].iter().any(|word| format!(" {before}").ends_with(word));
        if free && !quoted && !name.as_str().starts_with(|first: char| first.is_ascii_digit()) {
            found.push(name.as_str().to_owned());
        }
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_hold_or_not() {
        let expression = Expression::new("filter", "level <= 3 and 'easy' in tags").unwrap();
        assert!(expression.holds(json!({"level": 2, "tags": ["easy"]})).unwrap());
        assert!(!expression.holds(json!({"level": 4, "tags": ["easy"]})).unwrap());
        assert!(expression.holds(json!({"tags": []})).is_err());
        assert_eq!(expression.names(), ["level", "tags"]);
        assert!(Expression::new("filter", "level <=").is_err());
        assert_eq!(Expression::new("value", "a + 1").unwrap().json(json!({"a": 2})).unwrap(), json!(3));
    }

    #[test]
    fn a_long_list_is_no_long_work() {
        let expression = Expression::new("filter", "range(100000) | map('string') | list | length > 1").unwrap();
        assert!(expression.holds(json!({})).unwrap());
    }

    #[test]
    fn text_is_not_compared_with_a_number() {
        let judged = |source: &str| {
            let row = json!({"level": "3", "length": "x", "n": 3, "text": "level > 3"});
            Expression::new("filter", source).unwrap().holds(row).map_err(|error| error.problem)
        };
        let refusal = "`level` is text and is compared with a number; write `level | int` or `level | float`";
        for source in ["level > 3", "n == 3 and level<=-1", "not (level == 3)", "[level != 2.5]"] {
            assert_eq!(judged(source), Err(refusal.to_owned()), "{source}");
        }
        for source in ["level | int > 2", "n > 2", "level | length == 1", "text == 'level > 3'", "n + level | int == 6"]
        {
            assert_eq!(judged(source), Ok(true), "{source}");
        }
    }
}
