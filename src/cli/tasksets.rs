//! `rollhouse tasksets`: what there is, what a taskset is, what its tasks look like. Needs no key and no network.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use futures::TryStreamExt;

use super::{
    env::{not_ours, or_package},
    exit::Failure,
    package::find,
    taskset::open,
};
use crate::{
    config::{Select, flag_help},
    rubric::declared,
    taskset::{Found, Task, TasksetSize, local, select},
    tasksets::{self, families, shipped},
    trace::{Content, ContentPart, Message, UserMessage},
};

/// Arguments of `rollhouse tasksets`.
#[derive(Args, Debug)]
pub(super) struct TasksetsArgs {
    #[command(subcommand)]
    command: Option<TasksetsCommand>,
}

#[derive(Debug, Subcommand)]
enum TasksetsCommand {
    /// Name every shipped taskset and those that lie in a folder, with a line on each
    List {
        /// Where to look for tasksets of your own
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Show the card of a taskset: its data, rewards and keys
    Describe {
        /// Name of the taskset, or its path
        #[arg(value_name = "ID_OR_PATH")]
        id: String,
    },
    /// Show what the tables `[[reward]]` and `[[metric]]` of a taskset.toml may hold
    Scorers,
    /// Show the first tasks of a taskset
    Show {
        /// Name of the taskset, or its path
        #[arg(value_name = "ID_OR_PATH")]
        id: String,
        /// How many tasks
        #[arg(short = 'n', long = "num-tasks", default_value_t = 3, value_name = "COUNT")]
        count: u64,
        /// How many to pass over
        #[arg(long, default_value_t = 0, value_name = "COUNT")]
        skip: u64,
        /// Configuration of the taskset, as JSON
        #[arg(short = 'a', long = "env-args", default_value = "{}", value_name = "JSON")]
        arguments: String,
        /// Print each task as a line of JSON, as it stands in results
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command; results go to `out`.
///
/// # Errors
/// An unknown taskset or a faulty configuration (usage), data that cannot be read (failed).
pub(super) async fn run(args: TasksetsArgs, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    match args.command.unwrap_or(TasksetsCommand::List { folder: PathBuf::from(".") }) {
        TasksetsCommand::List { folder } => {
            // A folder that cannot be read is none without tasksets.
            if let Err(error) = std::fs::read_dir(&folder) {
                return Err(Failure::usage(anyhow::anyhow!("cannot look into `{}`: {error}", folder.display())));
            }
            list(&folder, out).map_err(Failure::failed)
        }
        TasksetsCommand::Describe { id } => {
            let found = find(&id).map_err(|error| Failure::usage(not_ours(error, &id)))?;
            out.write_all(found.card.as_bytes()).map_err(Failure::failed)?;
            // A card of one that ships says it all.
            if found.folder.is_some() { describe(&found, out) } else { Ok(()) }
        }
        TasksetsCommand::Scorers => out.write_all(declared::catalogue_text().as_bytes()).map_err(Failure::failed),
        TasksetsCommand::Show { id, count, skip, arguments, json } => {
            let found = or_package(find(&id), &id).map_err(Failure::usage)?;
            let (size, tasks) =
                read(&found, &arguments, Select { skip, limit: Some(count), ..Select::default() }).await?;
            let shown = if json { write_json(&tasks, out) } else { write_tasks(&found, size, &tasks, out) };
            shown.map_err(Failure::failed)
        }
    }
}

async fn read(found: &Found, arguments: &str, which: Select) -> Result<(TasksetSize, Vec<Task>), Failure> {
    let (taskset, _) = open(found, arguments)?;
    let tasks = select(&*taskset, &which).map_err(Failure::usage)?;
    Ok((taskset.size(), tasks.try_collect().await.map_err(Failure::failed)?))
}

fn list(folder: &Path, out: &mut dyn Write) -> io::Result<()> {
    let own = local::below(folder).into_iter().map(|path| {
        let path = path.to_string_lossy().into_owned();
        // Below the current folder, what is shown can be given to other commands.
        let path = if local::is_path(&path) { path } else { format!("./{path}") };
        let found = tasksets::find(&path).ok();
        (path, found)
    });
    let all: Vec<(String, Option<Found>)> =
        shipped().iter().map(|taskset| (taskset.id.to_owned(), Some(Found::from(taskset)))).chain(own).collect();
    let width = all.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, found) in &all {
        let size = found.as_ref().and_then(|found| open(found, "{}").ok());
        let size = size.map_or_else(|| "has faults".to_owned(), |(taskset, _)| size_words(taskset.size()));
        writeln!(out, "{name:width$}  {size:>11}  {}", found.as_ref().map_or("", |found| &found.summary))?;
    }
    for (name, summary) in families() {
        writeln!(out, "{name}  {summary}")?;
    }
    Ok(())
}

/// What is known of a taskset of the user's own beside its card: size, keys, rewards and metrics.
fn describe(found: &Found, out: &mut dyn Write) -> Result<(), Failure> {
    let (taskset, resolved) = open(found, "{}")?;
    let write = |out: &mut dyn Write| -> io::Result<()> {
        if !found.card.is_empty() {
            writeln!(out)?;
        }
        writeln!(out, "{}: {}", found.id, size_words(taskset.size()))?;
        if !found.summary.is_empty() {
            writeln!(out, "{}", found.summary)?;
        }
        writeln!(out, "\nrewards and metrics:")?;
        for line in taskset.rubric().lines() {
            let weight = line.weight.map_or_else(|| "metric".to_owned(), |weight| format!("weight {weight}"));
            let bounds = line.bounds.map(|bounds| format!(", from {} to {}", bounds.start(), bounds.end()));
            writeln!(out, "  {}  {weight}{}", line.name, bounds.unwrap_or_default())?;
        }
        let keys = flag_help(&resolved.keys);
        if !keys.is_empty() {
            write!(out, "\nkeys, below `env.taskset`:\n{keys}")?;
        }
        Ok(())
    };
    write(out).map_err(Failure::failed)
}

fn size_words(size: TasksetSize) -> String {
    match size {
        TasksetSize::Finite(count) => format!("{count} tasks"),
        TasksetSize::Unknown => "not counted".to_owned(),
        TasksetSize::Infinite => "endless".to_owned(),
    }
}

fn write_json(tasks: &[Task], out: &mut dyn Write) -> io::Result<()> {
    for task in tasks {
        serde_json::to_writer(&mut *out, &**task)?;
        writeln!(out)?;
    }
    Ok(())
}

fn write_tasks(found: &Found, size: TasksetSize, tasks: &[Task], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}", found.id, size_words(size))?;
    for task in tasks {
        let number = task.data.idx.unwrap_or_default();
        writeln!(out, "\n== task {number}  {}", task.key.as_deref().unwrap_or_default())?;
        for message in task.data.opening() {
            writeln!(out, "[{}]\n{}", role(&message), readable(&message))?;
        }
        for (field, value) in &task.data.extra {
            writeln!(out, "[{field}] {}", shortened(&value.to_string()))?;
        }
    }
    Ok(())
}

fn role(message: &Message) -> &'static str {
    match message {
        Message::System(_) => "system",
        Message::User(_) => "user",
        Message::Assistant(_) => "assistant",
        Message::Tool(_) => "tool",
    }
}

/// The text of a message, with a note in the place of each picture.
fn readable(message: &Message) -> String {
    let Message::User(UserMessage { content: Content::Parts(parts) }) = message else { return message.text() };
    let parts: Vec<String> = parts
        .iter()
        .map(|part| match part {
            ContentPart::Text { text } => text.clone(),
            ContentPart::ImageUrl { image_url } => format!("(picture: {})", shortened(&image_url.url)),
        })
        .collect();
    parts.join("\n")
}

/// Longest field shown whole, in characters.
const LONGEST: usize = 400;
/// What is shown of a longer one, in characters.
const BEGINNING: usize = 60;

fn shortened(text: &str) -> String {
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(BEGINNING).collect();
    format!("{beginning}… ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: TasksetsArgs,
    }

    async fn printed(arguments: &[&str]) -> Result<String, String> {
        let program = Program::try_parse_from([&["tasksets"], arguments].concat()).expect("well-formed arguments");
        let mut out = Vec::new();
        let ended = run(program.args, &mut out).await;
        ended.map(|()| String::from_utf8(out).expect("text")).map_err(|failure| failure.message())
    }

    #[tokio::test]
    async fn every_taskset_is_listed_described_and_shown() {
        let listed = printed(&["list"]).await.expect("a list");
        assert_eq!(printed(&[]).await.as_ref(), Ok(&listed));
        for taskset in shipped() {
            assert!(listed.lines().any(|line| line.starts_with(taskset.id) && line.ends_with(taskset.summary)));
            assert_eq!(printed(&["describe", taskset.id]).await.as_deref(), Ok(taskset.readme));
            let shown = printed(&["show", taskset.id, "-n", "2", "--skip", "1"]).await.expect("tasks");
            assert!(shown.contains("\n== task 1 ") && shown.contains("\n== task 2 ") && !shown.contains("task 3 "));
            let rows = printed(&["show", taskset.id, "-n", "2", "--json"]).await.expect("rows");
            let rows = rows.lines().map(serde_json::from_str::<crate::trace::TraceTask>);
            assert_eq!(rows.map(|row| row.expect("a task").data.idx).collect::<Vec<_>>(), [Some(0), Some(1)]);
        }
    }

    #[test]
    fn long_fields_are_cut_between_characters() {
        let long = "a".to_owned() + &"é".repeat(LONGEST);
        assert_eq!(shortened(&long), format!("a{}… (801 bytes)", "é".repeat(59)));
        assert_eq!(shortened(&"é".repeat(LONGEST)), "é".repeat(LONGEST));
    }

    #[tokio::test]
    async fn what_is_wrong_is_said() {
        let error = printed(&["describe", "wordl"]).await.expect_err("an unknown name");
        assert_eq!(error, "unknown taskset `wordl`: did you mean `wordle`?");
        let error = printed(&["show", "wordle", "-a", "{\"max_gueses\": 3}"]).await.expect_err("an unknown key");
        assert!(error.contains("max_guesses"), "{error}");
        let error = printed(&["show", "gsm8k", "-a", "{\"path\": \"/nowhere.jsonl\"}"]).await.expect_err("no file");
        assert!(error.contains("cannot open /nowhere.jsonl"), "{error}");
    }
}
