//! Keys that hold templates and conditions, and the keys that are the taskset's own.

use serde_json::{Map, Value};

use crate::{
    config::Section,
    template::{Expression, Template, TemplateError},
};

/// A template that may be left out; one that does not parse is recorded and left out.
pub(super) fn template(block: &mut Section<'_>, key: &str, doc: &'static str) -> Option<Template> {
    parsed(block.doc(doc), key, None)
}

/// A template that must be there.
pub(super) fn required(block: &mut Section<'_>, key: &str, doc: &'static str) -> Option<Template> {
    let text = block.doc(doc).required(key);
    parsed(block, key, text)
}

/// A template of a text that was read, else of the key itself.
pub(super) fn parsed(block: &mut Section<'_>, key: &str, text: Option<String>) -> Option<Template> {
    let text = text.or_else(|| block.get(key))?;
    Template::new(&block.dotted(key), &text).map_err(|error| block.fault(key, in_line(&error))).ok()
}

/// One template or several; whether they are a list.
pub(super) fn templates(block: &mut Section<'_>, key: &str, doc: &'static str) -> Option<(bool, Vec<Template>)> {
    if !block.is_list(key) {
        return template(block, key, doc).map(|template| (false, vec![template]));
    }
    let texts: Vec<String> = block.doc(doc).get(key)?;
    let mut templates = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match Template::new(&format!("{}[{index}]", block.dotted(key)), text) {
            Ok(template) => templates.push(template),
            Err(error) => block.fault(key, format!("item {index}, {}", in_line(&error))),
        }
    }
    Some((true, templates))
}

/// An expression that may be left out; one that does not parse is recorded and left out.
pub(super) fn expression(block: &mut Section<'_>, key: &str, doc: &'static str) -> Option<Expression> {
    let text: String = block.doc(doc).get(key)?;
    Expression::new(&block.dotted(key), &text).map_err(|error| block.fault(key, in_line(&error))).ok()
}

/// The problem without the name, which the fault says.
fn in_line(error: &TemplateError) -> String {
    format!("line {}: {}", error.line, error.problem)
}

/// The taskset's own keys, read from a run's block: each of the type of its default.
pub(super) fn own_keys(block: &mut Section<'_>, defaults: &Map<String, Value>) -> Map<String, Value> {
    let mut read = |(key, default): (&String, &Value)| {
        block.doc("A key of this taskset");
        let value = match default {
            Value::Bool(default) => block.get_or(key, *default).into(),
            Value::String(default) => block.get_or(key, default.clone()).into(),
            Value::Number(number) => match number.as_i64() {
                Some(default) => block.get_or(key, default).into(),
                None => block.get_or(key, number.as_f64().unwrap_or_default()).into(),
            },
            Value::Array(_) => of_type(block, key, default, Value::is_array, "a list"),
            Value::Object(_) => of_type(block, key, default, Value::is_object, "a table of keys"),
            Value::Null => block.value(key, Value::Null, "anything"),
        };
        (key.clone(), value)
    };
    defaults.iter().map(&mut read).collect()
}

fn of_type(block: &mut Section<'_>, key: &str, default: &Value, fits: fn(&Value) -> bool, allowed: &str) -> Value {
    let value = block.value(key, default.clone(), allowed);
    if fits(&value) {
        return value;
    }
    // One word of a command line is a list of one.
    if default.is_array() && !value.is_null() && !value.is_object() {
        return Value::Array(vec![value]);
    }
    if !value.is_null() {
        block.fault(key, format!("wrong type; expected {allowed}"));
    }
    default.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Document, Layer, Reader};

    #[test]
    fn own_keys_take_the_type_of_their_default() {
        let defaults = serde_json::json!({ "times": 2, "share": 0.5, "loud": false, "tags": ["a"], "free": null });
        let Value::Object(defaults) = defaults else { unreachable!() };
        let given = serde_json::json!({ "times": 3, "share": 1, "tags": ["b", "c"], "free": "x" });
        let mut reader = Reader::new(Document::new([Layer::from_value(&given)]));
        let read = Value::Object(own_keys(&mut reader.root(), &defaults));
        assert!(reader.finish().is_ok());
        let expected = serde_json::json!({ "times": 3, "share": 1.0, "loud": false, "tags": ["b", "c"], "free": "x" });
        assert_eq!(read, expected);
    }
}
