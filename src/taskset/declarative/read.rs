//! Reading `taskset.toml`: all its faults at once, each with its place.

use std::{path::Path, sync::Arc};

use super::{
    data::Data,
    few_shot::{Examples, FewShot},
    keys::{expression, parsed, required, template, templates},
    row::{Example, Mould, Opening, Role},
    user::{Reference, Script},
};
use crate::{
    config::{Document, Fault, Faults, Layer, Origin, Reader, Section},
    rubric::{
        Rubric, declared,
        judge::{self, JudgeSpec},
    },
    template::Template,
    trace::TaskTimeout,
};

/// What a `taskset.toml` says.
pub(super) struct Declaration {
    pub summary: String,
    /// Its `config` holds the defaults of the taskset's own keys.
    pub mould: Mould,
    pub data: Data,
    pub few_shot: Option<FewShot>,
    pub max_turns: Option<u64>,
    pub script: Option<Arc<Script>>,
    pub reference: Reference,
    pub rubric: Rubric,
}

impl Declaration {
    /// Reads the file; paths in it are relative to its folder.
    ///
    /// # Errors
    /// All its faults.
    pub(super) fn read(file: &Path) -> Result<Self, Faults> {
        let mut reader = Reader::new(Document::new([Layer::read(file)?]));
        let folder = file.parent().unwrap_or(Path::new(""));
        let declaration = read(&mut reader.root(), folder);
        reader.finish().map_err(|faults| placed(faults, file))?;
        Ok(declaration)
    }
}

/// Faults of what is missing stand nowhere: they are the file's.
fn placed(faults: Faults, file: &Path) -> Faults {
    let file: Arc<str> = file.to_string_lossy().into();
    let place = |fault: Fault| match fault.at {
        Origin::Default => Fault { at: Origin::File { file: Arc::clone(&file), line: 1, column: 1 }, ..fault },
        _ => fault,
    };
    Faults::new(faults.into_iter().map(place).collect())
}

/// Keys of every taskset's block, which no taskset may have for its own.
const TAKEN: &[&str] = &["id", "system_prompt", "task"];

fn read(root: &mut Section<'_>, folder: &Path) -> Declaration {
    let summary = root.doc("What the model has to do, in a line").get_or("summary", String::new());
    let opening = opening(root);
    let system_prompt = template(root, "system_prompt", "Instructions before the prompt; the column `system_prompt`");
    let answer = template(root, "answer", "The right answer, kept as the row's field `answer`; the column `answer`");
    let id = template(root, "id", "Durable id of a task; the column `id`");
    let name = template(root, "name", "Readable name of a task; the column `name`");
    let data = if root.has("data") {
        Data::read_sampled(&mut root.child("data"), folder)
    } else {
        root.fault("data", "missing; say where the rows are: `[data]` with `rows`, `path` or `dataset`");
        Data::nowhere()
    };
    let config = root.doc("The taskset's own keys with their defaults").open("config");
    for name in config.keys().filter(|name| TAKEN.contains(&name.as_str())) {
        root.fault_below("config", name, "is a key of every taskset", "call it something else");
    }
    let few_shot = if root.has("few_shot") { few_shot(&mut root.child("few_shot"), folder) } else { None };
    let mut limits = root.child("limits");
    let max_turns = limits.doc("Replies after which a rollout ends").limit_in("max_turns", 1.., None::<u64>);
    let timeout = timeout(&mut limits.child("timeout"));
    let script = root.has("user").then(|| script(&mut root.child("user")));
    let references = templates(root, "reference", "What a perfect model replies; a list is one text a turn");
    let declared = declared::read(root);
    let mut names: Vec<String> = declared.rubric.names().map(str::to_owned).collect();
    let judges = root.doc("Rewards that a model gives").list("judge", |table| judge(table, folder, &mut names));
    let wrong = ["reward", "judge"].iter().any(|key| root.has(key) && !root.is_list(key));
    if declared.tables == 0 && judges.is_empty() && !wrong {
        root.fault("reward", "nothing scores a reply; add a `[[reward]]` or a `[[judge]]`");
    }
    let judges = judges.into_iter().flatten().map(|judge| judge.with_config(&config));
    let rubric = judges.fold(declared.rubric, Rubric::judge);
    let reference = match references {
        None => Reference::Parsed { expected: declared.expected, answer: declared.answer },
        Some((true, templates)) => Reference::Turns(templates),
        Some((false, templates)) => templates.into_iter().next().map_or(Reference::Unknown, Reference::Always),
    };
    let mould = Mould {
        opening,
        system_prompt,
        answer,
        id,
        name,
        timeout,
        user_opens: script.is_some(),
        config: Arc::new(config),
    };
    Declaration { summary, mould, data, few_shot, max_turns, script: script.map(Arc::new), reference, rubric }
}

/// A judge, whose names are no other's.
fn judge(table: &mut Section<'_>, folder: &Path, names: &mut Vec<String>) -> Option<JudgeSpec> {
    let spec = judge::read(table, folder)?;
    for name in std::iter::once(spec.name.clone()).chain(spec.metrics()) {
        if names.contains(&name) {
            table.fault("name", format!("the name `{name}` is taken by another reward, metric or judge"));
            return None;
        }
        names.push(name);
    }
    Some(spec)
}

fn opening(root: &mut Section<'_>) -> Opening {
    root.doc("What the model is asked: a template, or a list of messages; the column `prompt`, else `question`");
    if root.is_list("prompt") {
        let roles = [("system", Role::System), ("user", Role::User), ("assistant", Role::Assistant)];
        let messages = root.list("prompt", |message| {
            let role = message.doc("Who says it").choose("role", &roles, Role::User);
            Some((role, required(message, "content", "What is said")?))
        });
        if messages.is_empty() {
            root.fault("prompt", "there is no message in it");
        }
        return Opening::Messages(messages.into_iter().flatten().collect());
    }
    parsed(root, "prompt", None).map_or(Opening::Columns, Opening::Text)
}

fn few_shot(block: &mut Section<'_>, folder: &Path) -> Option<FewShot> {
    let written = block.doc("Examples as they are written").list("examples", |example| {
        let user: String = example.doc("What is asked").required("user")?;
        let assistant = example.doc("What is answered").required("assistant")?;
        Some(Example { user, assistant })
    });
    let written: Vec<Example> = written.into_iter().flatten().collect();
    let whole = written.len().max(1) as u64;
    if block.has("examples") {
        let count = block.doc("How many are shown").get_in("count", 1.., whole);
        return Some(FewShot { source: Examples::Written(written), count: count as usize });
    }
    let count = block.doc("How many are shown").get_in("count", 1.., 3_u64);
    let user = template(block, "user", "What is asked, over the columns of an example; the prompt of the taskset");
    let assistant = template(block, "assistant", "What is answered, over the columns of an example; its answer");
    let assistant = match assistant {
        Some(assistant) => assistant,
        None => Template::new("few_shot.assistant", "{{ answer }}").ok()?,
    };
    let seed = block.doc("Seed of a draw among all rows; the first rows without it").get::<u64>("seed");
    // One more than are shown, for a task that is among them.
    let data = Data::read(block, folder).sampled(seed, Some(count.saturating_add(1)));
    Some(FewShot { source: Examples::Rows { data: Box::new(data), user, assistant }, count: count as usize })
}

fn script(block: &mut Section<'_>) -> Script {
    let turns = templates(block, "turns", "What the user says, one text after each reply").map(|(_, turns)| turns);
    if !block.has("turns") {
        block.fault("turns", "missing; expected a list of what the user says, one text after each reply");
    } else if turns.as_ref().is_some_and(Vec::is_empty) {
        block.fault("turns", "there is no text in it");
    }
    let stop_when = expression(block, "stop_when", "Ends the conversation; over `reply`, `turn` and the columns");
    Script { turns: turns.unwrap_or_default(), stop_when }
}

fn timeout(block: &mut Section<'_>) -> TaskTimeout {
    let mut seconds = |key, doc| block.doc(doc).duration(key, None).map(|duration| duration.as_secs_f64());
    TaskTimeout {
        setup: seconds("setup", "Seconds for setup"),
        agent: seconds("agent", "Seconds for the model's turns"),
        finalize: seconds("finalize", "Seconds for finalize"),
        scoring: seconds("scoring", "Seconds for rewards and metrics"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authors_page_tells_of_every_key() {
        let page = include_str!("../../../tasksets/DECLARATIVE.md");
        let text = "[[prompt]]\ncontent = \"x\"\n[data]\nrows = [{ a = 1 }]\n[few_shot]\nrows = [{ a = 1 }]\n[user]\nturns = [\"x\"]\n\
                    [limits]\nmax_turns = 1\n";
        let mut reader = Reader::new(Document::new([Layer::from_toml("taskset.toml", text).unwrap()]));
        read(&mut reader.root(), Path::new(""));
        for key in reader.keys() {
            let name = key.path.rsplit('.').next().unwrap_or_default();
            let told = [format!("`{name}"), format!(" {name}`"), format!(".{name}`"), format!("[{name}]")];
            assert!(told.iter().any(|told| page.contains(told.as_str())), "{} is not told of", key.path);
        }
    }
}
