//! `rollhouse init`: a new taskset that works, to be changed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, anyhow};

use super::{
    exit::{self, Failure},
    output,
};
use crate::{
    config::taskset_label,
    store::make_folder,
    taskset::{find_in, type_name},
    tasksets::shipped,
};

/// The name in the templates, which the new one takes the place of.
const NAME: &str = "word-problems";
/// The same as the name of a type.
const TYPE: &str = "WordProblems";
/// The folder of rollhouse, as the template of a Rust package names it.
const ROLLHOUSE: &str = "../../..";

/// What to make.
#[derive(Debug, clap::Args)]
pub(super) struct InitArgs {
    /// Name of the taskset in kebab case, such as my-task; a path before it says where
    name: PathBuf,
    /// How it is written: a table of scorers, functions in Python, or a Rust package
    #[arg(long, value_enum, default_value_t = Kind::Declarative)]
    kind: Kind,
    /// The folder that the taskset's own is made in
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    folder: PathBuf,
    /// For a Rust package: the folder of rollhouse's sources [default: those that this program was built from]
    #[arg(long, value_name = "DIR")]
    rollhouse: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Declarative,
    Python,
    Rust,
}

/// A file of a template: its name and its text.
type Files = &'static [(&'static str, &'static str)];

macro_rules! template {
    ($folder:literal: $($file:literal),*) => {
        &[$(($file, include_str!(concat!("../../examples/tasksets/", $folder, "/", $file)))),*]
    };
}

const DECLARATIVE: Files = template!("declarative": "taskset.toml", "data.jsonl", "cases.jsonl", "README.md");
const PYTHON: Files = template!("python": "taskset.py", "data.jsonl", "cases.jsonl", "README.md");
const RUST: Files = template!(
    "rust": "Cargo.toml", ".cargo/config.toml", "src/main.rs", "src/taskset.rs", "data.jsonl", "cases.jsonl", "README.md"
);

/// Makes the taskset and says what to do next.
///
/// # Errors
/// A name that is none, a folder that is there already, sources of rollhouse that are not found.
pub(super) fn run(args: InitArgs) -> Result<ExitCode, Failure> {
    let name = checked_name(&args.name)?;
    let folder = args.folder.join(&args.name);
    // An empty one is as good as none.
    let empty = folder.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    if folder.symlink_metadata().is_ok() && !empty {
        let problem = format!("`{}` is there already; choose another name, or remove it first", folder.display());
        return Err(Failure::usage(anyhow!(problem)));
    }
    let files = match args.kind {
        Kind::Declarative => named(DECLARATIVE, &name),
        Kind::Python => named(PYTHON, &name),
        Kind::Rust => package(&name, args.rollhouse.as_deref())?,
    };
    make_folder(&folder, &files).map_err(Failure::failed)?;
    output::print(next_steps(&folder, &files))?;
    Ok(exit::DONE.into())
}

/// The last part of the path, which must be a name in kebab case that is not taken.
fn checked_name(path: &Path) -> Result<String, Failure> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !begins || !name.split('-').all(is_word) {
        let words = taskset_label(&name);
        let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let meant = words.collect::<Vec<_>>().join("-");
        let hint = if meant.starts_with(|c: char| c.is_ascii_lowercase()) {
            format!("; did you mean `{meant}`?")
        } else {
            String::new()
        };
        let problem = format!(
            "`{name}` is no name for a taskset: write it in kebab case, lowercase letters and digits in words with a `-` \
             between, a letter first{hint}"
        );
        return Err(Failure::usage(anyhow!(problem)));
    }
    if find_in(shipped(), &name).is_ok() || name == "rollhouse" {
        return Err(Failure::usage(anyhow!("`{name}` is a name of rollhouse's own; choose another one")));
    }
    Ok(name)
}

/// The files of a template with the name put in.
fn named(files: Files, name: &str) -> Vec<(PathBuf, String)> {
    let type_name = type_name(name);
    let put_in = |text: &str| text.replace(NAME, name).replace(TYPE, &type_name);
    files.iter().map(|(file, text)| (PathBuf::from(file), put_in(text))).collect()
}

/// The files of a Rust package that depends on the sources of rollhouse, with the versions and settings that these were
/// built with, so that nothing they need is built twice.
fn package(name: &str, rollhouse: Option<&Path>) -> Result<Vec<(PathBuf, String)>, Failure> {
    let sources = sources(rollhouse)?;
    let path = toml::Value::String(sources.to_string_lossy().into_owned()).to_string();
    let target = toml::Value::String(sources.join("target").to_string_lossy().into_owned()).to_string();
    let mut files = named(RUST, name);
    let features = if cfg!(feature = "parquet") { ", features = [\"parquet\"]" } else { "" };
    let path = format!("{path}{features}");
    for (_, text) in &mut files {
        *text = text.replace(&format!("\"{ROLLHOUSE}/target\""), &target).replace(&format!("\"{ROLLHOUSE}\""), &path);
    }
    let lock = sources.join("Cargo.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()));
    files.push(("Cargo.lock".into(), text.map_err(Failure::failed)?));
    Ok(files)
}

/// The folder of rollhouse's sources: the one that is named, that the program was built from, or that the current folder
/// is in.
fn sources(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let is_ours = |folder: &Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.lines().any(|line| line.trim() == "name = \"rollhouse\"") && folder.join("Cargo.lock").is_file()
    };
    let whole = |folder: &Path| folder.canonicalize().map_err(Failure::failed);
    if let Some(folder) = named {
        if is_ours(folder) {
            return whole(folder);
        }
        let problem = format!("--rollhouse: `{}` does not hold the sources of rollhouse", folder.display());
        return Err(Failure::usage(anyhow!(problem)));
    }
    let here = env::current_dir().map_err(Failure::failed)?;
    let found = [Path::new(env!("CARGO_MANIFEST_DIR"))].into_iter().chain(here.ancestors()).find(|at| is_ours(at));
    let found = found.ok_or_else(|| {
        anyhow!("a Rust package needs the sources of rollhouse; say where they are with `--rollhouse DIR`")
    });
    whole(found.map_err(Failure::usage)?)
}

/// What was made and the commands to go on with.
fn next_steps(folder: &Path, files: &[(PathBuf, String)]) -> String {
    let path = match folder.strip_prefix(".") {
        Ok(below) => format!("./{}", below.display()),
        Err(_) if folder.is_relative() => format!("./{}", folder.display()),
        Err(_) => folder.display().to_string(),
    };
    let path = if path.contains(char::is_whitespace) { format!("'{path}'") } else { path };
    let names: Vec<String> = files.iter().map(|(name, _)| name.display().to_string()).collect();
    format!(
        "made {path}: {}\n\nnext:\n  {:width$}  # proves it, without a model\n  {:width$}  # runs it with the simulator; -m \
         and -b name a model\n  {:width$}  # scores that run anew, after you changed a reward\n\nREADME.md there says how \
         to change it.\n",
        names.join(", "),
        format!("rollhouse validate {path}"),
        format!("rollhouse eval {path} --run.name first"),
        "rollhouse replay outputs/first",
        width = "rollhouse eval  --run.name first".len() + path.len()
    )
}
