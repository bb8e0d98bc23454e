//! Arguments of formats that do not quote them: which text is a string, and which is JSON, the tool's schema tells.

use serde_json::{Map, Value};

use super::python::reread;
use crate::trace::Tool;

/// The schemas of a tool's arguments.
pub(super) fn schemas<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Map<String, Value>> {
    // Of two tools with one name the later counts, as in the package `renderers`.
    tools.iter().rfind(|tool| tool.name == name)?.parameters.get("properties")?.as_object()
}

/// One argument as JSON text: a string where the schema says so, else the JSON it is. The flag says that it is no JSON though
/// it should be.
pub(super) fn coerce(text: &str, schema: Option<&Value>) -> (String, bool) {
    let schema = schema.filter(|schema| schema.is_object());
    let kind = schema.and_then(|schema| schema.get("type"));
    let is_string = |kind: &Value| kind == "string";
    if kind.is_some_and(|kind| {
        is_string(kind) || matches!(kind.as_array().map(Vec::as_slice), Some([one]) if is_string(one))
    }) {
        return (Value::from(text).to_string(), false);
    }
    let branches = ["anyOf", "oneOf"]
        .into_iter()
        .find_map(|key| schema?.get(key)?.as_array().filter(|branches| !branches.is_empty()));
    let string_allowed = branches.into_iter().flatten().any(|branch| branch.get("type").is_some_and(is_string));
    match reread(text) {
        Some(json) => (json, false),
        None => (Value::from(text).to_string(), !string_allowed),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_tells_strings_from_json() {
        assert_eq!(coerce("true", None), ("true".to_owned(), false));
        assert_eq!(coerce("true", Some(&json!({ "type": "string" }))), ("\"true\"".to_owned(), false));
        assert_eq!(coerce("true", Some(&json!({ "type": ["string"] }))), ("\"true\"".to_owned(), false));
        assert_eq!(
            coerce("5", Some(&json!({ "anyOf": [{ "type": "string" }, { "type": "number" }] }))),
            ("5".to_owned(), false)
        );
        assert_eq!(coerce("five", Some(&json!({ "oneOf": [{ "type": "string" }] }))), ("\"five\"".to_owned(), false));
        assert_eq!(coerce("five", Some(&json!({ "type": "integer" }))), ("\"five\"".to_owned(), true));
    }
}
