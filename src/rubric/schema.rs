//! Answers that must be JSON of a certain form.

use std::sync::Arc;

use jsonschema::Validator;
use serde_json::Value;

use super::{RubricError, Score, text::excerpt};

/// A compiled JSON schema, cheap to clone. References to other documents are not followed.
#[derive(Clone, Debug)]
pub struct JsonSchema(Arc<Validator>);

impl JsonSchema {
    /// Compiles a schema; its draft is the one it names, else 2020-12.
    pub fn new(schema: &Value) -> Result<Self, RubricError> {
        let validator = jsonschema::validator_for(schema).map_err(|error| RubricError::Schema(error.to_string()))?;
        Ok(Self(Arc::new(validator)))
    }

    /// Whether a text is one JSON value that fits the schema; the reason names the first place that does not.
    pub fn check(&self, text: &str) -> Score {
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => return Score::fail(format!("it is not valid JSON: {error}")),
        };
        match self.0.iter_errors(&value).next() {
            None => Score::pass("it fits the schema"),
            Some(error) => {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { "the top".to_owned() } else { format!("`{place}`") };
                Score::fail(format!("it does not fit the schema at {place}: {}", excerpt(&error.to_string())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_the_place() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        let schema = JsonSchema::new(&schema).unwrap();
        assert_eq!(schema.check(r#"{"n": 3}"#).value, 1.0);
        assert!(schema.check(r#"{"n": "x"}"#).why.unwrap().starts_with("it does not fit the schema at `/n`: "));
        assert!(schema.check("{}").why.unwrap().starts_with("it does not fit the schema at the top: "));
        assert!(schema.check("{").why.unwrap().starts_with("it is not valid JSON"));
        assert!(JsonSchema::new(&json!({"type": 5})).is_err());
    }
}
