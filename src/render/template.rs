//! Chat templates as models ship them: Jinja, with the rules that transformers has for it.

use std::{fmt, fs, io::ErrorKind as Io, path::Path, sync::Arc, time::SystemTime};

use minijinja::{
    Environment, Error, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, ValueKind},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use serde_json::{Map, Value as Json, json};

use super::{RenderError, python};

const MAIN: &str = "chat template";
/// Steps that one rendering may take: below a second of work.
const MOST_STEPS: u64 = 20_000_000;

/// A chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Variables that every rendering has: the texts of some control tokens.
    fixed: Arc<Map<String, Json>>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("fixed", &self.fixed).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template of a model's folder: `chat_template.jinja`, else that of `tokenizer_config.json`; of several, the one
    /// called `default`. `None` where there is none.
    ///
    /// # Errors
    /// A file cannot be read, or the template does not parse.
    pub fn of(folder: &Path) -> Result<Option<Self>, RenderError> {
        let path = folder.join("tokenizer_config.json");
        let fault = |path: &Path, reason: String| RenderError::File { path: path.to_owned(), reason };
        let read = |path: &Path| match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == Io::NotFound => Ok(None),
            Err(error) => Err(fault(path, error.to_string())),
        };
        let config: Json = match read(&path)? {
            Some(text) => serde_json::from_str(&text).map_err(|error| fault(&path, error.to_string()))?,
            None => Json::Null,
        };
        let file = folder.join("chat_template.jinja");
        let named = |list: &Vec<Json>| {
            let main = list.iter().find(|entry| entry["name"] == "default")?;
            main["template"].as_str().map(str::to_owned)
        };
        let (path, text) = match read(&file)? {
            Some(text) => (file, Some(text)),
            None => match &config["chat_template"] {
                Json::Array(list) => (path, named(list)),
                other => (path, other.as_str().map(str::to_owned)),
            },
        };
        let Some(text) = text else { return Ok(None) };
        let fixed = ["bos_token", "eos_token", "pad_token", "unk_token"].into_iter().filter_map(|key| {
            let token = config[key].as_str().or_else(|| config[key]["content"].as_str())?;
            Some((key.to_owned(), token.into()))
        });
        Self::new(&text, fixed.collect()).map(Some).map_err(|reason| fault(&path, format!("chat template: {reason}")))
    }

    /// A template and the variables that it always has.
    ///
    /// # Errors
    /// It does not parse.
    pub fn new(text: &str, fixed: Map<String, Json>) -> Result<Self, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_fuel(Some(MOST_STEPS));
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
        // Marks what the model said, for masks that nobody makes from the text here.
        let generation = Regex::new(r"\{%(-?)\s*(end)?generation\s*(-?)%\}").map_err(|error| error.to_string())?;
        let text = generation.replace_all(text, |found: &regex::Captures<'_>| {
            let tag = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{{%{} {tag} {}%}}", &found[1], &found[3])
        });
        environment.add_template_owned(MAIN, text.into_owned()).map_err(|error| told(&error))?;
        Ok(Self { environment: Arc::new(environment), fixed: Arc::new(fixed) })
    }

    /// The text of a variable that every rendering has, such as `eos_token`.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.fixed.get(name)?.as_str()
    }

    /// The text of a conversation: messages and tools in the form of chat completions, and further variables.
    ///
    /// # Errors
    /// The template refuses the conversation; why.
    pub fn render(
        &self,
        messages: &[Json],
        tools: &[Json],
        generate: bool,
        more: &Map<String, Json>,
    ) -> Result<String, String> {
        let mut values = (*self.fixed).clone();
        values.extend(more.clone());
        values.insert("messages".to_owned(), messages.into());
        values.insert("tools".to_owned(), if tools.is_empty() { Json::Null } else { tools.into() });
        values.insert("documents".to_owned(), Json::Null);
        values.insert("add_generation_prompt".to_owned(), generate.into());
        let template = self.environment.get_template(MAIN).map_err(|error| told(&error))?;
        template.render(Value::from(Serde(&json!(values)))).map_err(|error| told(&error))
    }
}

fn told(error: &Error) -> String {
    let problem = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| problem.clone(), |line| format!("line {line}: {problem}"))
}

fn raise(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// `tojson` of transformers: Python's JSON, nothing escaped for HTML.
fn to_json(_: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let json: Json =
        serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    if value.kind() == ValueKind::Undefined {
        return Err(Error::new(ErrorKind::BadSerialization, "an undefined value is no JSON"));
    }
    let indent: Option<usize> = if options.has("indent") { options.get("indent")? } else { None };
    let sorted = options.has("sort_keys") && options.get("sort_keys")?;
    let separators: Option<Vec<String>> = if options.has("separators") { options.get("separators")? } else { None };
    let escaped = options.has("ensure_ascii") && options.get("ensure_ascii")?;
    let mut json = json;
    if sorted {
        json.sort_all_objects();
    }
    let text = match (indent, separators.as_deref()) {
        (Some(indent), _) => python::dumps_indented(&json, indent),
        (None, Some([item, key])) => python::dumps_with(&json, [item, key]),
        (None, _) => python::dumps(&json),
    };
    Ok(Value::from_safe_string(if escaped { python::ascii(&text) } else { text }))
}

/// The day and the time in UTC, by the letters that templates use.
fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    // `Tue, 01 Dec 2026 03:04:05 GMT`: a library's calendar.
    let text = httpdate::fmt_http_date(now);
    let (day, month, year, time) = (&text[5..7], &text[8..11], &text[12..16], &text[17..25]);
    let month_at = MONTHS.iter().position(|name| name.starts_with(month)).unwrap_or_default();
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('d') => out.push_str(day),
            Some('b') => out.push_str(month),
            Some('B') => out.push_str(MONTHS[month_at]),
            Some('m') => out.push_str(&format!("{:02}", month_at + 1)),
            Some('Y') => out.push_str(year),
            Some('H') => out.push_str(&time[..2]),
            Some('M') => out.push_str(&time[3..5]),
            Some('S') => out.push_str(&time[6..]),
            Some('%') => out.push('%'),
            other => {
                let letter = other.map_or_else(String::new, String::from);
                return Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know `%{letter}`")));
            }
        }
    }
    Ok(out)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Today in UTC, as `2026-01-31`.
pub(super) fn today() -> String {
    strftime("%Y-%m-%d", SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(template: &str, expected: &str) {
        let template = ChatTemplate::new(template, Map::from_iter([("bos_token".to_owned(), "<s>".into())])).unwrap();
        let messages = [json!({ "role": "user", "content": "<hi> & ü" }), json!({ "role": "tool", "content": null })];
        let tools = [json!({ "name": "f", "x": [1, 1.0, {}] })];
        assert_eq!(template.render(&messages, &tools, true, &Map::new()).unwrap_or_else(|error| error), expected);
    }

    #[test]
    fn templates_have_the_rules_of_transformers() {
        check("{{ bos_token }}{{ messages[0].content }}", "<s><hi> & ü");
        check("{{ tools[0] | tojson }}", r#"{"name": "f", "x": [1, 1.0, {}]}"#);
        check("{{ tools[0].x | tojson(indent=2) }}", "[\n  1,\n  1.0,\n  {}\n]");
        check("{{ tools[0] | tojson(separators=(',', ':')) }}", r#"{"name":"f","x":[1,1.0,{}]}"#);
        check("{{ messages[0].content | tojson(ensure_ascii=True) }}", r#""<hi> & \u00fc""#);
        check("{% if messages[1].content is iterable %}yes{% else %}no{% endif %}", "no");
        check("{% for m in messages %}\n  {% if loop.first %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n");
        check("a{%- generation %} b {% endgeneration -%} c", "a b c");
        check("{{ messages[0]['role'].upper().startswith('US') }}", "True");
        check("{{ raise_exception('no tools here') }}", "line 1: no tools here");
        check("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}x{% endfor %}", "x");
    }

    #[test]
    fn dates_are_written_by_letters() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        assert_eq!(strftime("%d %b %Y %H:%M:%S %B %m %%", now).unwrap(), "21 Sep 2026 14:13:20 September 09 %");
        assert!(strftime("%j", now).is_err());
    }
}
