//! The command line: one file per command; parses, calls one function below, renders its result.

mod endpoint;
mod eval;
mod exit;
mod output;
mod signals;
mod sim;
mod tasksets;
mod why;

use std::{process::ExitCode, sync::Arc};

use clap::{Parser, Subcommand};

use crate::{config::Reader, sim::Oracle};

/// Rollout orchestrator and environment runtime for LLM reinforcement learning and evaluation.
#[derive(Parser)]
#[command(name = "rollhouse", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a taskset against a model and score it; `rollhouse eval --help` lists its flags.
    #[command(disable_help_flag = true)]
    Eval {
        /// A taskset, flags, and `@ file` for configuration files.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        words: Vec<String>,
    },
    /// List, describe and print the shipped tasksets.
    Tasksets(tasksets::TasksetsArgs),
    /// Say in a line or two why a rollout scored or failed as it did.
    Why(why::WhyArgs),
    /// Serve a simulated model behind an OpenAI-compatible endpoint.
    Sim(sim::SimArgs),
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { exit::DONE }.into();
        }
    };
    let done = match arguments.command {
        Command::Eval { words } => eval::run(&words),
        Command::Tasksets(arguments) => block_on(async {
            let mut text = Vec::new();
            tasksets::run(arguments, &mut text).await?;
            output::print(text)
        }),
        Command::Why(arguments) => why::run(arguments),
        Command::Sim(arguments) => sim::run(arguments, Some(shipped_oracle())),
    };
    done.unwrap_or_else(|failure| {
        output::note(&format!("error: {}", failure.message()));
        failure.code()
    })
}

fn block_on(command: impl Future<Output = Result<(), exit::Failure>>) -> Result<ExitCode, exit::Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(exit::Failure::failed)?;
    runtime.block_on(command).map(|()| exit::DONE.into())
}

/// Every shipped taskset with its defaults, as an oracle.
fn shipped_oracle() -> Arc<dyn Oracle> {
    let open = crate::tasksets::shipped().iter().filter_map(|shipped| {
        let mut reader = Reader::new(crate::config::Document::default());
        (shipped.open)(&mut reader.root()).ok()
    });
    Arc::new(endpoint::Solver(open.collect()))
}
