//! Texts made of rows: minijinja templates and conditions with one set of rules.
//!
//! What enters is a template and named values; what leaves is a text, or an error that names the template and the line. A
//! name that is not there is an error, never an empty text. Nothing is escaped. Templates cannot include one another.

use std::{fmt, sync::Arc};

use minijinja::{Environment, UndefinedBehavior, Value, value::Serde};
use serde::Serialize;

/// A text with places to fill. Cheap to clone.
#[derive(Clone)]
pub struct Template {
    name: Arc<str>,
    environment: Arc<Environment<'static>>,
}

/// A condition or value over the same names, for example `level <= 3 and "easy" in tags`.
#[derive(Clone)]
pub struct Expression {
    template: Template,
    source: Arc<str>,
}

/// What is wrong with a template or with the values it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}, line {line}: {problem}")]
pub struct TemplateError {
    /// What the template is called.
    pub name: String,
    /// The line in it, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl Template {
    /// A template; `name` is what errors call it.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn new(name: &str, source: &str) -> Result<Self, TemplateError> {
        let mut environment = environment();
        environment.add_template_owned(MAIN, source.to_owned()).map_err(|error| fault(name, &error))?;
        Ok(Self { name: name.into(), environment: Arc::new(environment) })
    }

    /// The text with its places filled from a map or struct.
    ///
    /// # Errors
    /// When it uses a name that is not among the values, or an operation fails.
    pub fn render(&self, values: impl Serialize) -> Result<String, TemplateError> {
        let rendered =
            self.environment.get_template(MAIN).and_then(|template| template.render(Value::from(Serde(&values))));
        rendered.map_err(|error| fault(&self.name, &error))
    }

    /// The names that it looks up, sorted.
    pub fn names(&self) -> Vec<String> {
        let found = self.environment.get_template(MAIN).map(|template| template.undeclared_variables(false));
        let mut names: Vec<String> = found.into_iter().flatten().collect();
        names.sort_unstable();
        names
    }
}

impl Expression {
    /// An expression; `name` is what errors call it.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn new(name: &str, source: &str) -> Result<Self, TemplateError> {
        environment().compile_expression(source).map_err(|error| fault(name, &error))?;
        // For its names, which a compiled expression tells in the same way.
        let template = Template::new(name, &format!("{{{{ {source} }}}}"))?;
        Ok(Self { template, source: source.into() })
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
        let compiled =
            self.template.environment.compile_expression(&self.source).map_err(|error| fault(name, &error))?;
        let value = compiled.eval(Value::from(Serde(&values))).map_err(|error| fault(name, &error))?;
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

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.name).finish()
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

/// The one template of an environment.
const MAIN: &str = "template";

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment
}

fn fault(name: &str, error: &minijinja::Error) -> TemplateError {
    let problem = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TemplateError { name: name.to_owned(), line: error.line().unwrap_or(1), problem }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_filled_and_nothing_is_escaped() {
        let template = Template::new("prompt", "What is {{ a }} + {{ b }}? {{ text }}").unwrap();
        let text = template.render(json!({"a": 1, "b": 2.5, "text": "<b>&</b>"})).unwrap();
        assert_eq!(text, "What is 1 + 2.5? <b>&</b>");
        assert_eq!(template.names(), ["a", "b", "text"]);
    }

    #[test]
    fn a_missing_name_is_an_error_with_its_line() {
        let template = Template::new("prompt", "one\n{{ two }}").unwrap();
        let error = template.render(json!({})).unwrap_err();
        assert_eq!((error.name.as_str(), error.line), ("prompt", 2));
        assert!(Template::new("prompt", "{{ open").is_err());
    }

    #[test]
    fn conditions_hold_or_not() {
        let expression = Expression::new("filter", "level <= 3 and 'easy' in tags").unwrap();
        assert!(expression.holds(json!({"level": 2, "tags": ["easy"]})).unwrap());
        assert!(!expression.holds(json!({"level": 4, "tags": ["easy"]})).unwrap());
        assert!(expression.holds(json!({"tags": []})).is_err());
        assert_eq!(expression.names(), ["level", "tags"]);
        assert!(Expression::new("filter", "level <=").is_err());
    }
}
