//! Schemas of arguments in the form that harmony shows them: types of TypeScript with comments.
//!
//! As the package `openai-harmony` 0.0.8 writes them, its oddities included: the description of a nested object stands twice,
//! and lines of a description after the first have no comment sign.

use serde_json::{Map, Value};

/// The type of arguments; `indent` stands before every line that is added.
pub(super) fn type_of(schema: &Value, indent: &str) -> String {
    let Some(schema) = schema.as_object() else { return "any".to_owned() };
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        return one_of(variants, indent);
    }
    match schema.get("type") {
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            union(kinds.map(|kind| if kind == "integer" { "number" } else { kind }.to_owned()), "any")
        }
        Some(Value::String(kind)) => match kind.as_str() {
            "object" => object(schema, indent),
            "string" => string(schema),
            "number" | "integer" => "number".to_owned(),
            "boolean" => "boolean".to_owned(),
            "array" => match schema.get("items") {
                Some(items) => format!("{}[]", type_of(items, indent)),
                None => "Array<any>".to_owned(),
            },
            _ => "any".to_owned(),
        },
        _ => "any".to_owned(),
    }
}

fn string(schema: &Map<String, Value>) -> String {
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    union(values.map(|value| format!("\"{value}\"")), "string")
}

/// One type of several, or another where there are none.
fn union(kinds: impl Iterator<Item = String>, none: &str) -> String {
    let kinds: Vec<String> = kinds.collect();
    if kinds.is_empty() { none.to_owned() } else { kinds.join(" | ") }
}

fn object(schema: &Map<String, Value>, indent: &str) -> String {
    let mut out = String::new();
    if let Some(description) = text(schema, "description") {
        out.extend([indent, "// ", description, "\n"]);
    }
    out.push_str("{\n");
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        member(&mut out, key, optional, property, indent);
    }
    out.extend([indent, "}"]);
    out
}

fn member(out: &mut String, key: &str, optional: &str, property: &Value, indent: &str) {
    let empty = Map::new();
    let schema = property.as_object().unwrap_or(&empty);
    if let Some(title) = text(schema, "title") {
        out.extend([indent, "// ", title, "\n", indent, "//\n"]);
    }
    if let Some(description) = text(schema, "description") {
        out.extend([indent, "// ", description, "\n"]);
    }
    if let Some(examples) = schema.get("examples").and_then(Value::as_array).filter(|examples| !examples.is_empty()) {
        out.extend([indent, "// Examples:\n"]);
        for example in examples.iter().filter_map(Value::as_str) {
            out.extend([indent, "// - \"", example, "\"\n"]);
        }
    }
    let default = schema.get("default").map(|default| shown(default, schema.contains_key("enum")));
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        if let Some(default) = default {
            out.extend([indent, "// default: ", &default, "\n"]);
        }
        out.extend([indent, key, optional, ":", &one_of(variants, indent), "\n", indent, ",\n"]);
        return;
    }
    let mut kind = type_of(property, &format!("{indent}    "));
    if schema.get("nullable").and_then(Value::as_bool).unwrap_or(false) && !kind.contains("null") {
        kind.push_str(" | null");
    }
    out.extend([indent, key, optional, ": ", &kind, ","]);
    if let Some(default) = default {
        out.extend([" // default: ", &default]);
    }
    out.push('\n');
}

/// One line for each choice.
fn one_of(variants: &[Value], indent: &str) -> String {
    let mut out = String::new();
    for variant in variants {
        out.extend(["\n", indent, " | ", &type_of(variant, &format!("{indent}   "))]);
        let empty = Map::new();
        let schema = variant.as_object().unwrap_or(&empty);
        let description = text(schema, "description").map(str::to_owned);
        let default =
            schema.get("default").map(|default| format!("default: {}", shown(default, schema.contains_key("enum"))));
        let told: Vec<String> = description.into_iter().chain(default).collect();
        if !told.is_empty() {
            out.extend([" // ", &told.join(" ")]);
        }
    }
    out
}

fn shown(value: &Value, bare: bool) -> String {
    match value {
        Value::String(text) if bare => text.clone(),
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    }
}

fn text<'a>(schema: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    schema.get(key).and_then(Value::as_str)
}
