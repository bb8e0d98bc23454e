//! `rollhouse env install`: a virtual environment of its own for a package, whole or not at all.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::anyhow;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::found;
use crate::{
    cli::{exit, exit::Failure, output},
    runtime::{self, Child, Program, Stream},
    store::{Generation, Generations},
    taskset::verifiers::{Installed, Search, current, data_folder, module_name},
};

/// The version of verifiers whose protocol and records are ours.
const VERIFIERS: &str = "verifiers==0.4.0";
/// Where packages named `owner/name` come from.
const HUB: &str = "https://hub.primeintellect.ai";
/// Tasksets that ship with verifiers, and the extra that each needs.
const EXTRAS: &[(&str, &str)] =
    &[("harbor", "[harbor]"), ("nemo_gym", ""), ("openenv", "[openenv]"), ("textarena", "[ta]")];
/// Lines that are shown of a failure.
const TOLD: usize = 25;
/// How long an installer works without a word from us.
const WORD: Duration = Duration::from_secs(15);

/// Arguments of `rollhouse env install`.
#[derive(Args, Debug)]
pub(super) struct InstallArgs {
    /// A name on PyPI, `owner/name` on the Environments Hub, or the path of a folder or a wheel; `NAME@VERSION` picks one
    #[arg(value_name = "NAME_OR_PATH")]
    what: String,
    /// Python to make the environment with; verifiers needs 3.11 or newer
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// See the packages of that Python, too, and install only what it lacks
    #[arg(long)]
    reuse: bool,
    /// Take newer versions of what the package needs, where there are some
    #[arg(long)]
    upgrade: bool,
    /// Index to install from in place of PyPI, or of the hub
    #[arg(long, value_name = "URL")]
    index_url: Option<String>,
    /// Index to install from beside it; may be given several times
    #[arg(long, value_name = "URL")]
    extra_index_url: Vec<String>,
    /// Ask no index at all
    #[arg(long)]
    no_index: bool,
    /// Folder with wheels to install from; may be given several times
    #[arg(long, value_name = "PATH")]
    find_links: Vec<String>,
}

/// What is installed.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// The module that names its folder.
    module: String,
    /// What the installer is asked for.
    requirement: String,
    /// The owner on the hub.
    owner: Option<String>,
}

pub(super) fn run(args: &InstallArgs) -> Result<ExitCode, Failure> {
    let wanted = Wanted::read(&args.what).map_err(Failure::usage)?;
    let data = data_folder().ok_or_else(|| Failure::usage(anyhow!("there is no HOME to install below")))?;
    let generations = Generations::open(&data.join(&wanted.module)).map_err(Failure::failed)?;
    let made = generations.begin().map_err(Failure::failed)?;
    let installer = Installer::find(args);
    output::note(&format!("installing {} with {} ...", wanted.requirement, installer.name()));
    make(args, &wanted, &installer, &made)?;
    let names = tasksets_of(made.path(), &wanted)?;
    made.finish().map_err(Failure::failed)?;
    let venv = current(&data, &wanted.module);
    output::print(format!("installed {} in {}\n", names.join(", "), venv.display()))?;
    Ok(exit::DONE.into())
}

/// Makes the environment and installs into it.
fn make(args: &InstallArgs, wanted: &Wanted, installer: &Installer, made: &Generation<'_>) -> Result<(), Failure> {
    installer.make(args, made.path())?;
    let python = made.path().join("bin/python");
    if args.reuse {
        share(args, made, &python)?;
    }
    let mut requirement = wanted.requirement.clone();
    if let Some(owner) = wanted.owner.as_ref().filter(|_| args.index_url.is_none() && !args.no_index) {
        // Alone and first: a package of the same name on PyPI is another one.
        let index = ["--no-deps".into(), "--index-url".into(), format!("{HUB}/{owner}/simple/").into()];
        installer.install(&python, index.to_vec(), &[&requirement])?;
        requirement = wanted.module.replace('_', "-");
    }
    // Harnesses of verifiers start their programs with uv.
    let uv = on_path("uv").is_none() && !args.no_index;
    let uv = uv.then_some("uv");
    let options = args.options();
    let pinned: Vec<&str> = [VERIFIERS, &requirement].into_iter().chain(uv).collect();
    let Err(refused) = installer.install(&python, options.clone(), &pinned) else { return Ok(()) };
    if !refused.conflicts {
        return Err(refused.into());
    }
    output::note(&format!(
        "warning: {} does not go with {VERIFIERS}: taking the version that it needs",
        wanted.requirement
    ));
    let free: Vec<&str> = ["verifiers", &requirement].into_iter().chain(uv).collect();
    installer.install(&python, options, &free).map_err(Failure::from)
}

/// Lets an environment see the packages of the Python that it was made with.
fn share(args: &InstallArgs, made: &Generation<'_>, python: &Path) -> Result<(), Failure> {
    const PLACES: &str =
        "import sys; print('\\n'.join(p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))))";
    let places = |python: &Path| said(python, &["-c".into(), PLACES.into()]);
    let (theirs, own) = (places(&args.python)?, places(python)?);
    let own = own.lines().next().ok_or_else(|| Failure::failed(anyhow!("the new environment has no site-packages")))?;
    let file = Path::new(own).join("shared.pth");
    made.write(&file, &theirs).map_err(Failure::failed)
}

/// The tasksets that a new environment has; none is a failure.
fn tasksets_of(venv: &Path, wanted: &Wanted) -> Result<Vec<String>, Failure> {
    let search = Search { python: Some(venv.to_owned()), ..Search::default() };
    let own = found(&wanted.module, &search).is_ok();
    let all = search.installed().map_err(Failure::failed)?;
    let all: Vec<Installed> = all.into_iter().filter_map(|found| found.tasksets.ok()).flatten().collect();
    let mut names: Vec<String> = all.into_iter().filter(|taskset| !taskset.ships).map(|taskset| taskset.id).collect();
    let id = wanted.module.replace('_', "-");
    if own && !names.contains(&id) {
        names.insert(0, id);
    }
    if names.is_empty() {
        let problem =
            "no module in it has a taskset of verifiers 0.4.0 (a class that its `__all__` names); nothing was kept";
        return Err(Failure::failed(anyhow!("{}: {problem}", wanted.requirement)));
    }
    Ok(names)
}

impl Wanted {
    fn read(what: &str) -> Result<Self, anyhow::Error> {
        let path = Path::new(what);
        let is_file = [".whl", ".tar.gz", ".zip"].iter().any(|ending| what.ends_with(ending));
        if what.starts_with(['.', '/', '~']) || is_file || (path.is_dir() && !what.contains('@')) {
            return Self::at(what, is_file);
        }
        let (name, version) = what.split_once('@').unwrap_or((what, "latest"));
        let module = module_name(name).filter(|_| name.matches('/').count() < 2);
        let module =
            module.ok_or_else(|| anyhow!("`{what}` names no package: expected `name`, `owner/name` or a path"))?;
        let right = |c: char| c.is_ascii_alphanumeric() || "._-+!".contains(c);
        if version.is_empty() || !version.chars().all(right) {
            return Err(anyhow!("`{version}` is no version"));
        }
        if let Some((_, extra)) = EXTRAS.iter().find(|(shipped, _)| *shipped == module) {
            let requirement = VERIFIERS.replacen("verifiers", &format!("verifiers{extra}"), 1);
            return Ok(Self { module, requirement, owner: None });
        }
        let owner = name.split_once('/').map(|(owner, _)| owner.to_owned());
        let plain = name.rsplit('/').next().unwrap_or(name);
        let requirement = if version == "latest" { plain.to_owned() } else { format!("{plain}=={version}") };
        Ok(Self { module, requirement, owner })
    }

    /// The package at a path.
    fn at(what: &str, is_file: bool) -> Result<Self, anyhow::Error> {
        let path = match what.strip_prefix("~/") {
            Some(rest) => PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(rest),
            None => std::path::absolute(what)?,
        };
        let name = if is_file {
            if !path.is_file() {
                return Err(anyhow!("there is no file `{what}`"));
            }
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.split('-').next().map(str::to_owned)
        } else {
            let text = fs::read_to_string(path.join("pyproject.toml"))
                .map_err(|error| anyhow!("`{what}` is no package: cannot read its pyproject.toml: {error}"))?;
            let project: toml::Table = text.parse().map_err(|error| anyhow!("{what}/pyproject.toml: {error}"))?;
            project.get("project").and_then(|project| project.get("name")?.as_str().map(str::to_owned))
        };
        let module = name.as_deref().and_then(module_name);
        let module =
            module.ok_or_else(|| anyhow!("`{what}` has no name: its pyproject.toml needs `[project] name`"))?;
        Ok(Self { module, requirement: path.display().to_string(), owner: None })
    }
}

impl InstallArgs {
    /// What goes to the installer as it is.
    fn options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        let given = |name: &str, value: &str| [OsString::from(name), value.into()];
        options.extend(self.index_url.iter().flat_map(|url| given("--index-url", url)));
        options.extend(self.extra_index_url.iter().flat_map(|url| given("--extra-index-url", url)));
        options.extend(self.find_links.iter().flat_map(|place| given("--find-links", place)));
        options.extend(self.no_index.then(|| "--no-index".into()));
        options.extend(self.upgrade.then(|| "--upgrade".into()));
        options
    }
}

/// What makes environments.
enum Installer {
    Uv(PathBuf),
    Pip,
}

/// Why something was not installed.
#[derive(Debug)]
struct Refused {
    problem: String,
    /// Whether versions exclude each other.
    conflicts: bool,
    interrupted: bool,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        let problem = anyhow!(refused.problem);
        if refused.interrupted { Self::interrupted(problem) } else { Self::failed(problem) }
    }
}

impl Installer {
    /// `uv` where there is one; it does not see the packages of another environment, which pip does.
    fn find(args: &InstallArgs) -> Self {
        on_path("uv").filter(|_| !args.reuse).map_or(Self::Pip, Self::Uv)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Pip => "pip",
        }
    }

    fn make(&self, args: &InstallArgs, folder: &Path) -> Result<(), Refused> {
        let (program, words): (&Path, Vec<OsString>) = match self {
            Self::Uv(uv) => (
                uv,
                vec![
                    "venv".into(),
                    "--quiet".into(),
                    "--allow-existing".into(),
                    "--python".into(),
                    (&args.python).into(),
                ],
            ),
            Self::Pip => (&args.python, vec!["-m".into(), "venv".into()]),
        };
        ended("venv", program, words.into_iter().chain([folder.into()]).collect())
    }

    fn install(&self, python: &Path, options: Vec<OsString>, requirements: &[&str]) -> Result<(), Refused> {
        let (program, words): (&Path, Vec<OsString>) = match self {
            Self::Uv(uv) => (uv, vec!["pip".into(), "install".into(), "--python".into(), python.into()]),
            Self::Pip => {
                let words = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"];
                (python, words.into_iter().map(OsString::from).collect())
            }
        };
        ended(
            self.name(),
            program,
            words.into_iter().chain(options).chain(requirements.iter().map(OsString::from)).collect(),
        )
    }
}

/// Runs an installer to its end. An interrupt ends it, and what it made goes away with its folder.
fn ended(shown: &str, program: &Path, arguments: Vec<OsString>) -> Result<(), Refused> {
    let refused = |problem: String| Refused { problem, conflicts: false, interrupted: false };
    let program = Program {
        arguments,
        environment: surroundings(),
        stdout: Stream::Null,
        stderr: Stream::Piped,
        ..Program::new(resolved(program).map_err(refused)?)
    };
    let done = runtime::block_on(async move {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        let mut child = Child::start(program).await.map_err(|error| error.to_string())?;
        let output = child.stderr.take();
        let reading = tokio::task::spawn_blocking(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(File::from(output)).split(b'\n'));
            let mut last = std::collections::VecDeque::new();
            for line in lines.map_while(Result::ok) {
                if last.len() == TOLD {
                    last.pop_front();
                }
                last.push_back(without_passwords(&String::from_utf8_lossy(&line)));
            }
            last
        });
        let begun = tokio::time::Instant::now();
        let mut word = tokio::time::interval_at(begun + WORD, WORD);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(|error| error.to_string())?,
                _ = interrupt.recv() => return Ok(None),
                _ = terminate.recv() => return Ok(None),
                _ = word.tick() => output::note(&format!("still at it after {} s ...", begun.elapsed().as_secs())),
            }
        };
        let last = reading.await.map_err(|error| error.to_string())?;
        Ok(Some((status, Vec::from(last))))
    });
    let Some((status, last)) = done.map_err(|error| refused(error.to_string()))?.map_err(refused)? else {
        let problem = "interrupted; nothing was changed".to_owned();
        return Err(Refused { problem, conflicts: false, interrupted: true });
    };
    if status.success() {
        return Ok(());
    }
    let text = last.join("\n");
    let conflicts = ["ResolutionImpossible", "conflicting dependencies", "unsatisfiable", "No solution found"]
        .iter()
        .any(|word| text.contains(word))
        && text.contains("verifiers");
    Err(Refused { problem: format!("{shown} failed ({status}):\n{text}"), conflicts, interrupted: false })
}

/// A line with stars for what stands before the host in its URLs: a user, a password, a token.
fn without_passwords(line: &str) -> String {
    let mut parts = line.split("://");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| "/?#'\"`".contains(c) || c.is_whitespace()).unwrap_or(part.len());
        text.push_str("://");
        match part[..end].rfind('@') {
            Some(at) => text.extend(["***", &part[at..]]),
            None => text.push_str(part),
        }
    }
    text
}

/// What a program prints.
fn said(program: &Path, arguments: &[OsString]) -> Result<String, Failure> {
    let program = Program {
        arguments: arguments.to_vec(),
        environment: surroundings(),
        stdout: Stream::Piped,
        stderr: Stream::Inherited,
        ..Program::new(resolved(program).map_err(|problem| Failure::usage(anyhow!(problem)))?)
    };
    let read = runtime::block_on(async move {
        let mut child = Child::start(program).await.map_err(|error| error.to_string())?;
        let output = child.stdout.take().map(File::from);
        let text = tokio::task::spawn_blocking(move || output.map(std::io::read_to_string).transpose());
        text.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    });
    let text = read.map_err(Failure::failed)?.map_err(|problem| Failure::failed(anyhow!(problem)))?;
    Ok(text.unwrap_or_default())
}

/// The environment of an installer: ours, which may hold its settings, but for what another environment left in it.
fn surroundings() -> Vec<(OsString, OsString)> {
    let foreign = ["VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH"];
    env::vars_os().filter(|(name, _)| !foreign.iter().any(|foreign| name == foreign)).collect()
}

/// A program by its path, or by its name on PATH.
fn resolved(program: &Path) -> Result<PathBuf, String> {
    if program.is_dir() {
        return Ok(program.join("bin/python"));
    }
    if program.components().count() > 1 {
        return std::path::absolute(program).map_err(|error| error.to_string());
    }
    on_path(&program.to_string_lossy()).ok_or_else(|| format!("there is no `{}` on PATH", program.display()))
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wanted(what: &str, module: &str, requirement: &str, owner: Option<&str>) {
        let expected =
            Wanted { module: module.to_owned(), requirement: requirement.to_owned(), owner: owner.map(str::to_owned) };
        assert_eq!(Wanted::read(what).unwrap(), expected);
    }

    #[test]
    fn urls_are_shown_without_what_opens_them() {
        for (line, shown) in [
            ("ERROR: 401 for https://me:pass@word@host/simple/x", "ERROR: 401 for https://***@host/simple/x"),
            ("`git+ssh://git@h/a` and 'http://token@h'", "`git+ssh://***@h/a` and 'http://***@h'"),
            ("see https://host/a@b, me@host", "see https://host/a@b, me@host"),
        ] {
            assert_eq!(without_passwords(line), shown);
        }
    }

    #[test]
    fn what_is_wanted_is_read_in_every_spelling() {
        wanted("my-env", "my_env", "my-env", None);
        wanted("My_Env@1.2.0", "my_env", "My_Env==1.2.0", None);
        wanted("will/wordle", "wordle", "wordle", Some("will"));
        wanted("will/wordle@latest", "wordle", "wordle", Some("will"));
        wanted("textarena", "textarena", "verifiers[ta]==0.4.0", None);
        for wrong in ["a b", "", "a/b/c", "x@", "x@1;rm", "--index-url", "./nowhere", "no.whl"] {
            assert!(Wanted::read(wrong).is_err(), "{wrong}");
        }
    }
}
