//! Values that a JSON schema allows, for forced tool calls.
//!
//! Covers what tool parameters use: types, `enum`, `const`, `required`, bounds of numbers, lengths and lists, common formats,
//! `anyOf`/`oneOf`/`allOf`, and local `$ref`. Patterns are not solved.

use serde_json::{Map, Value, json};

use super::{hash::Hash, words::words};

/// Nesting at which recursive schemas are ended.
const DEEPEST: usize = 12;

/// A value for a schema.
pub(super) fn fill(schema: &Value, draw: Hash) -> Value {
    value(schema, schema, draw, 0)
}

fn value(root: &Value, schema: &Value, draw: Hash, depth: usize) -> Value {
    if depth > DEEPEST {
        return Value::Null;
    }
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array)
        && !choices.is_empty()
    {
        return choices[draw.below(choices.len())].clone();
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str)
        && let Some(found) = target.strip_prefix('#').and_then(|path| root.pointer(path))
    {
        return value(root, found, draw, depth + 1);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema.get(key).and_then(Value::as_array) {
            let not_null = choices.iter().find(|choice| kind(choice) != Some("null"));
            if let Some(choice) = not_null.or(choices.first()) {
                return value(root, choice, draw, depth + 1);
            }
        }
    }
    if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
        let mut joined = Map::new();
        for part in all {
            match value(root, part, draw, depth + 1) {
                Value::Object(fields) => joined.extend(fields),
                other => return other,
            }
        }
        return Value::Object(joined);
    }
    match kind(schema) {
        Some("object") => object(root, schema, draw, depth),
        Some("array") => array(root, schema, draw, depth),
        Some("integer") => integer(schema, draw),
        Some("number") => number(schema, draw),
        Some("boolean") => json!(draw.below(2) == 1),
        Some("null") => Value::Null,
        _ if schema.get("properties").is_some() => object(root, schema, draw, depth),
        _ => text(schema, draw),
    }
}

/// The type, the first that is not null where there are several.
fn kind(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(kind) => Some(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").or(Some("null")),
        _ => None,
    }
}

fn object(root: &Value, schema: &Value, draw: Hash, depth: usize) -> Value {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Option<Vec<&str>> =
        schema.get("required").and_then(Value::as_array).map(|names| names.iter().filter_map(Value::as_str).collect());
    let mut fields = Map::new();
    for (name, property) in properties {
        // With nothing required everything is given: an empty call would test nothing.
        if required.as_ref().is_none_or(|required| required.contains(&name.as_str())) {
            fields.insert(name.clone(), value(root, property, draw.bytes(name.as_bytes()), depth + 1));
        }
    }
    for name in required.unwrap_or_default() {
        if !properties.contains_key(name) {
            fields.insert(name.to_owned(), json!(words(1, draw.bytes(name.as_bytes()))));
        }
    }
    Value::Object(fields)
}

fn array(root: &Value, schema: &Value, draw: Hash, depth: usize) -> Value {
    let bound = |key| schema.get(key).and_then(Value::as_u64);
    let fewest = bound("minItems").unwrap_or(1);
    let count = fewest.min(bound("maxItems").unwrap_or(fewest)).min(1_000);
    let anything = json!({});
    let items = schema.get("items").unwrap_or(&anything);
    Value::Array((0..count).map(|index| value(root, items, draw.number(index), depth + 1)).collect())
}

fn integer(schema: &Value, draw: Hash) -> Value {
    let bound = |key| schema.get(key).and_then(Value::as_f64);
    let low = bound("minimum").map(f64::ceil).or(bound("exclusiveMinimum").map(|edge| edge.floor() + 1.0));
    let high = bound("maximum").map(f64::floor).or(bound("exclusiveMaximum").map(|edge| edge.ceil() - 1.0));
    let (low, high) = match (low, high) {
        (Some(low), Some(high)) => (low, high),
        (Some(low), None) => (low, low + 9.0),
        (None, Some(high)) => (high - 9.0, high),
        (None, None) => (1.0, 10.0),
    };
    let chosen = (low as i64).saturating_add(draw.below((high - low).clamp(0.0, 1e6) as usize + 1) as i64);
    match schema.get("multipleOf").and_then(Value::as_i64).filter(|step| *step > 0) {
        Some(step) => {
            let below = chosen.div_euclid(step) * step;
            json!(if (below as f64) < low { below.saturating_add(step) } else { below })
        }
        None => json!(chosen),
    }
}

fn number(schema: &Value, draw: Hash) -> Value {
    let bound = |inclusive, exclusive| schema.get(inclusive).or(schema.get(exclusive)).and_then(Value::as_f64);
    let low = bound("minimum", "exclusiveMinimum");
    let high = bound("maximum", "exclusiveMaximum");
    let (low, high) = match (low, high) {
        (Some(low), Some(high)) => (low, high),
        (Some(low), None) => (low, low + 10.0),
        (None, Some(high)) => (high - 10.0, high),
        (None, None) => (0.0, 10.0),
    };
    // Strictly inside, so that exclusive bounds hold.
    let share = 0.25 + draw.unit() / 2.0;
    match schema.get("multipleOf").and_then(Value::as_f64).filter(|step| *step > 0.0) {
        Some(step) => json!((high / step).floor() * step),
        None => json!(low + (high - low) * share),
    }
}

fn text(schema: &Value, draw: Hash) -> Value {
    match schema.get("format").and_then(Value::as_str) {
        Some("date") => return json!("2026-01-15"),
        Some("time") => return json!("12:30:00Z"),
        Some("date-time") => return json!("2026-01-15T12:30:00Z"),
        Some("email") => return json!("someone@example.com"),
        Some("uri" | "url") => return json!("https://example.com/"),
        Some("uuid") => return json!(format!("{:08x}-0000-4000-8000-000000000000", draw.value() as u32)),
        _ => {}
    }
    let bound = |key| schema.get(key).and_then(Value::as_u64).map(|length| length as usize);
    let mut text = words(1, draw);
    let shortest = bound("minLength").unwrap_or(0).min(100_000);
    while text.len() < shortest {
        text.push(' ');
        text.push_str(&words(1, draw.number(text.len() as u64)));
    }
    text.truncate(bound("maxLength").unwrap_or(text.len()).max(shortest));
    json!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_values_are_valid() {
        let check = |schema: Value| {
            let validator = jsonschema::validator_for(&schema).expect("a valid schema");
            for index in 0..40 {
                let filled = fill(&schema, Hash::new(index));
                assert!(validator.is_valid(&filled), "{schema} does not allow {filled}");
            }
        };
        check(
            json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer",
            "minimum": 1, "maximum": 3}}, "required": ["city", "days"], "additionalProperties": false}),
        );
        check(json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "exact": {"type": "boolean"},
            "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}}}));
        check(
            json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string", "minLength": 12},
            "minItems": 2, "maxItems": 4}}, "required": ["tags"]}),
        );
        check(json!({"type": "object", "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}},
            "required": ["x"]}}, "properties": {"at": {"$ref": "#/$defs/point"}, "maybe": {"anyOf": [{"type": "null"},
            {"type": "integer", "multipleOf": 5, "minimum": 3}]}}, "required": ["at", "maybe"]}));
        check(json!({"type": "object", "required": ["anything"]}));
        check(json!({"type": ["null", "string"]}));
        check(json!({"type": "integer", "exclusiveMaximum": 0}));
    }

    #[test]
    fn recursion_ends() {
        let schema = json!({"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]});
        assert!(fill(&schema, Hash::new(1)).is_object());
    }
}
