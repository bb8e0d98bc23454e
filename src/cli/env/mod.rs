//! `rollhouse env`: the environments of verifiers that are installed, what they are, and installing one.

mod info;
mod install;
mod list;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use super::exit::Failure;
use crate::taskset::{
    Found, TasksetError,
    verifiers::{FindError, Package, Search},
};

/// Arguments of `rollhouse env`.
#[derive(Args, Debug)]
pub(super) struct EnvArgs {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    /// Name every environment of verifiers that is installed, and where
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Show what an environment is: its agents, its keys and their defaults
    Info {
        /// Its name: `my-env` or `owner/my-env`
        #[arg(value_name = "NAME")]
        id: String,
        #[command(flatten)]
        place: Place,
    },
    /// Install an environment, in a virtual environment of its own
    Install(install::InstallArgs),
}

/// Where packages are looked for.
#[derive(Args, Debug)]
struct Place {
    /// Interpreter to look into, or the folder of a virtual environment; without it those that there are
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Environment variable that the package may see; may be given several times
    #[arg(long = "pass-env", value_name = "NAME")]
    pass_env: Vec<String>,
}

impl Place {
    fn search(self) -> Search {
        Search { python: self.python, pass_env: self.pass_env }
    }
}

/// Runs the command.
///
/// # Errors
/// An unknown name (usage), a package that cannot be imported or installed (failed).
pub(super) fn run(arguments: EnvArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        EnvCommand::List { place } => list::run(&place.search()),
        EnvCommand::Info { id, place } => info::run(&found(&id, &place.search())?),
        EnvCommand::Install(arguments) => install::run(&arguments),
    }
}

fn found(id: &str, search: &Search) -> Result<Package, Failure> {
    search.find(id).map_err(|error| match error {
        FindError::NotInstalled { .. } => Failure::usage(error),
        FindError::Bridge(_) => Failure::failed(error),
    })
}

/// The taskset that is no taskset of ours, if it is one of verifiers that is installed where nothing has to be said.
///
/// # Errors
/// The error that there was.
pub(super) fn or_package(found: Result<Found, TasksetError>, id: &str) -> Result<Found, TasksetError> {
    match found {
        Err(unknown @ TasksetError::Unknown { .. }) => {
            Search::default().find(id).map(Package::into_found).map_err(|_| unknown)
        }
        found => found,
    }
}

/// What is wrong with a name that is no taskset of ours, where a command needs one: an environment of verifiers is scored by
/// its own server.
pub(super) fn not_ours(error: TasksetError, id: &str) -> TasksetError {
    match or_package(Err(error), id) {
        Ok(found) => TasksetError::Source(format!(
            "`{}` is an environment of verifiers: its own server plays and scores its rollouts, so this can only be done to \
             tasksets of rollhouse; `rollhouse eval` runs it, `rollhouse env info` says what it is",
            found.id
        )),
        Err(error) => error,
    }
}
