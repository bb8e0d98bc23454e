//! The keys of a taskset in Python: the parameters of its `load`.

use serde_json::{Map, Value};

use super::description::{Kind, Load, Parameter};
use crate::{
    config::{FromValue, Section},
    taskset::TasksetSize,
};

/// Reads the parameters of `load` from the taskset's block; faults are recorded there.
pub(super) fn read(section: &mut Section<'_>, load: &Load) -> Map<String, Value> {
    load.parameters.iter().map(|parameter| (parameter.name.clone(), read_one(section, parameter))).collect()
}

/// How many rows there are, as far as the script says it.
pub(super) fn size(load: &Load, values: &Map<String, Value>) -> TasksetSize {
    let said = match &load.size {
        Some(Value::String(parameter)) => values.get(parameter),
        said => said.as_ref(),
    };
    match said.and_then(Value::as_u64) {
        _ if load.infinite => TasksetSize::Infinite,
        Some(count) => TasksetSize::Finite(count),
        None => TasksetSize::Unknown,
    }
}

fn read_one(section: &mut Section<'_>, parameter: &Parameter) -> Value {
    let name = parameter.name.as_str();
    section.doc("A parameter of the taskset's `load`");
    if let Some(choices) = &parameter.choices {
        return choose(section, parameter, choices);
    }
    match parameter.kind {
        Kind::Bool => typed::<bool>(section, parameter),
        Kind::Int => typed::<i64>(section, parameter),
        Kind::Float => typed::<f64>(section, parameter),
        Kind::Str => typed::<String>(section, parameter),
        Kind::List => {
            let value = section.value(name, parameter.default.clone(), "a list");
            match value {
                Value::Array(_) => value,
                Value::Null => unset(section, parameter),
                // One word of the command line.
                Value::String(_) | Value::Number(_) | Value::Bool(_) => Value::Array(vec![value]),
                Value::Object(_) => wrong(section, parameter, "a list"),
            }
        }
        Kind::Dict => {
            let value = section.value(name, parameter.default.clone(), "a table of keys");
            match value {
                Value::Object(_) => value,
                Value::Null => unset(section, parameter),
                _ => wrong(section, parameter, "a table of keys"),
            }
        }
        Kind::Any => section.value(name, parameter.default.clone(), "anything"),
    }
}

fn typed<T: FromValue>(section: &mut Section<'_>, parameter: &Parameter) -> Value {
    let name = parameter.name.as_str();
    let value = match T::from_value(&parameter.default) {
        _ if parameter.required => section.required::<T>(name),
        None => section.get::<T>(name),
        Some(_) if parameter.optional && section.is_unset(name) => {
            let unset = section.get::<T>(name);
            section.resolve(name, Value::Null);
            unset
        }
        Some(default) => Some(section.get_or(name, default)),
    };
    value.map_or(Value::Null, |value| value.to_value())
}

fn choose(section: &mut Section<'_>, parameter: &Parameter, choices: &[String]) -> Value {
    let positions: Vec<(&str, usize)> =
        choices.iter().enumerate().map(|(position, choice)| (choice.as_str(), position)).collect();
    let default = choices.iter().position(|choice| parameter.default.as_str() == Some(choice));
    match default {
        Some(default) => choices[section.choose(&parameter.name, &positions, default)].clone().into(),
        None => {
            let value = typed::<String>(section, parameter);
            if let Some(text) = value.as_str().filter(|text| !choices.iter().any(|choice| choice == text)) {
                let problem = format!("unknown choice `{text}`; expected one of {}", choices.join(", "));
                section.fault(&parameter.name, problem);
            }
            value
        }
    }
}

fn unset(section: &mut Section<'_>, parameter: &Parameter) -> Value {
    if parameter.required {
        section.fault(&parameter.name, "missing");
    }
    if parameter.optional { Value::Null } else { parameter.default.clone() }
}

fn wrong(section: &mut Section<'_>, parameter: &Parameter, expected: &str) -> Value {
    section.fault(&parameter.name, format!("wrong type; expected {expected}"));
    parameter.default.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Document, Layer, Reader};

    fn load() -> Load {
        let parameter = |name: &str, default: Value, kind: &str, optional: bool| json!({"name": name, "required": false, "default": default, "kind": kind, "optional": optional, "choices": null});
        let mut level = parameter("level", json!("a"), "str", false);
        level["choices"] = json!(["a", "b"]);
        let mut path = parameter("path", Value::Null, "str", false);
        path["required"] = json!(true);
        let parameters = json!([
            parameter("count", json!(3), "int", false),
            parameter("rate", json!(1), "float", true),
            parameter("hard", json!(false), "bool", false),
            parameter("ops", json!(["+"]), "list", false),
            parameter("table", json!({}), "dict", false),
            parameter("limit", Value::Null, "int", true),
            level,
            path,
        ]);
        serde_json::from_value(json!({"parameters": parameters, "infinite": false, "size": "count", "timeout": null}))
            .unwrap()
    }

    fn values(given: Value) -> Result<Value, String> {
        let layer = Layer::from_json("given", &given.to_string()).unwrap();
        let mut reader = Reader::new(Document::new([layer]));
        let values = read(&mut reader.root(), &load());
        reader.finish().map_err(|faults| faults.to_string())?;
        Ok(Value::Object(values))
    }

    #[test]
    fn parameters_are_keys_with_the_types_of_their_defaults() {
        assert_eq!(
            values(json!({"path": "x"})),
            Ok(json!({
                "count": 3, "rate": 1.0, "hard": false, "ops": ["+"], "table": {}, "limit": null, "level": "a", "path": "x"
            }))
        );
        let given = json!({
            "count": 5, "rate": "None", "hard": true, "ops": ["-", "+"], "table": {"k": [1]}, "limit": 2, "level": "b",
            "path": "y"
        });
        let mut expected = given.clone();
        expected["rate"] = Value::Null;
        assert_eq!(values(given), Ok(expected));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let faults = values(json!({"count": "many", "level": "c", "ops": {}, "cuont": 1})).unwrap_err();
        for part in
            ["count: wrong type", "unknown choice `c`", "ops: wrong type", "path: missing", "cuont: unknown key"]
        {
            assert!(faults.contains(part), "{part}: {faults}");
        }
    }

    #[test]
    fn a_parameter_may_say_the_size() {
        let load = load();
        let size = |values: Value| size(&load, values.as_object().unwrap());
        assert_eq!(size(json!({"count": 7})), TasksetSize::Finite(7));
        assert_eq!(size(json!({"count": null})), TasksetSize::Unknown);
    }
}
