//! Texts with places to fill.

use std::{fmt, io, sync::Arc};

use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, value::Serde};
use serde::Serialize;

use super::TemplateError;

/// A text with places to fill. Cheap to clone.
#[derive(Clone)]
pub struct Template {
    pub(super) name: Arc<str>,
    pub(super) environment: Arc<Environment<'static>>,
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
        let mut text = Bounded(Vec::new());
        let rendered = self
            .environment
            .get_template(MAIN)
            .and_then(|template| template.render_captured_to(Value::from(Serde(&values)), &mut text));
        rendered.map(drop).map_err(|error| self.fault_with(&error, values))?;
        // Only whole pieces of text are written.
        Ok(String::from_utf8(text.0).unwrap_or_default())
    }

    /// The fault of filling it; where a name has no value, says which.
    pub(super) fn fault_with(&self, error: &minijinja::Error, values: impl Serialize) -> TemplateError {
        let mut fault = fault(&self.name, error);
        if error.kind() == ErrorKind::UndefinedError && error.detail().is_none() {
            let values = serde_json::to_value(values).unwrap_or_default();
            let looked_up = self.environment.get_template(MAIN).map(|main| main.undeclared_variables(true));
            let is_there = |name: &String| values.pointer(&format!("/{}", name.replace('.', "/"))).is_some();
            let mut missing: Vec<String> = looked_up.into_iter().flatten().filter(|name| !is_there(name)).collect();
            missing.sort_unstable();
            if !missing.is_empty() {
                fault.problem += &format!(": `{}`", missing.join("`, `"));
            }
        }
        fault
    }

    /// The names that it looks up, sorted.
    pub fn names(&self) -> Vec<String> {
        let found = self.environment.get_template(MAIN).map(|template| template.undeclared_variables(false));
        let mut names: Vec<String> = found.into_iter().flatten().collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.name).finish()
    }
}

/// The one template of an environment.
pub(super) const MAIN: &str = "template";

/// Steps that one filling may take: below a second of work.
const MOST_STEPS: u64 = 5_000_000;
/// Bytes that one filling may write (64 MiB).
const MOST_BYTES: usize = 64 << 20;

/// A text that refuses to become too long.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where templates live: a name without a value is an error, nothing is escaped.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(MOST_STEPS));
    environment
}

/// A fault of the template engine in a template of this name.
pub(super) fn fault(name: &str, error: &minijinja::Error) -> TemplateError {
    let problem = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("takes more than {MOST_STEPS} steps; make its loops shorter"),
        (ErrorKind::WriteFailure, _) => format!("writes more than {} MiB", MOST_BYTES >> 20),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
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
        assert_eq!(error.to_string(), "prompt, line 2: undefined value: `two`");
        let template = Template::new("prompt", "{{ config.depth }} {{ a }}").unwrap();
        let error = template.render(json!({"a": 1, "config": {"width": 2}})).unwrap_err();
        assert_eq!(error.problem, "undefined value: `config.depth`");
        assert!(Template::new("prompt", "{{ open").is_err());
    }

    #[test]
    fn what_would_take_too_long_or_too_much_is_an_error() {
        let fails = |source: &str| Template::new("prompt", source).unwrap().render(json!({})).unwrap_err().problem;
        let nested = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
        assert!(fails(nested).starts_with("takes more than 5000000 steps"), "{}", fails(nested));
        assert_eq!(fails("{% for a in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}"), "writes more than 64 MiB");
    }

    #[test]
    fn names_may_be_of_any_language() {
        let template = Template::new("prompt", "{{ größe }} {{ 名前 }}").unwrap();
        assert_eq!(template.render(json!({"größe": 1, "名前": "x"})).unwrap(), "1 x");
    }
}
