//! The command line: one file per command; parses, calls one function below, renders its result.

mod check;
mod crew;
mod endpoint;
mod env;
mod env_block;
mod env_server;
mod eval;
mod exit;
mod init;
mod judges;
mod oracle;
mod output;
mod package;
mod replay;
mod samples;
mod signals;
mod sim;
mod taskset;
mod tasksets;
mod validate;
mod why;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

/// What a program should allocate with: the `#[global_allocator]` of `rollhouse` itself.
pub use mimalloc::MiMalloc as Allocator;

use crate::taskset::{Shipped, dataset::hub};

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
    /// Serve an env to verifiers' clients and to rollhouse; `rollhouse env-server --help` lists its flags.
    #[command(disable_help_flag = true)]
    EnvServer {
        /// A taskset, flags, and `@ file` for configuration files.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        words: Vec<String>,
    },
    /// Make a new taskset that works, to be changed.
    Init(init::InitArgs),
    /// List, describe and print tasksets.
    Tasksets(tasksets::TasksetsArgs),
    /// Find, describe and install environments of verifiers, which are Python packages.
    Env(env::EnvArgs),
    /// Prove a taskset without a model: its rows, its reference answers, its rewards.
    Validate(validate::ValidateArgs),
    /// Score the rollouts of a finished run anew, without asking their model.
    Replay(replay::ReplayArgs),
    /// Say what a model's chat template does to a rollout of several turns, before a training run.
    Check(check::CheckArgs),
    /// Count what the traces of a run come to as training samples, and write them.
    Samples(samples::SamplesArgs),
    /// Say in a line or two why a rollout scored or failed as it did.
    Why(why::WhyArgs),
    /// Serve a simulated model behind an OpenAI-compatible endpoint.
    Sim(sim::SimArgs),
    /// Take the last steps into a sandbox.
    #[command(hide = true)]
    Box {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    main_with(&[])
}

/// Runs the program with tasksets of one's own before those that ship. A Rust package with a taskset has this for its
/// `main`:
///
/// ```no_run
/// # mod taskset { pub const SHIPPED: rollhouse::taskset::Shipped = rollhouse::taskset::Shipped { id: "", summary: "",
/// #     readme: "", open: |_| unreachable!() }; }
/// fn main() -> std::process::ExitCode {
///     rollhouse::cli::main_with(&[taskset::SHIPPED])
/// }
/// ```
pub fn main_with(own: &[Shipped]) -> ExitCode {
    // Thousands of waiting rollouts each touch a little of many pages; huge ones would make a third more memory of it.
    // Where this is refused, the run takes that memory.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
    if !own.is_empty() {
        crate::tasksets::register(own, package::own().as_deref());
    }
    hub::tell_progress(output::note);
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { exit::DONE }.into();
        }
    };
    let done = match arguments.command {
        Command::Eval { words } => eval::run(&words),
        Command::EnvServer { words } => env_server::run(&words),
        Command::Tasksets(arguments) => block_on(async {
            let mut text = Vec::new();
            tasksets::run(arguments, &mut text).await?;
            output::print(text)
        }),
        Command::Env(arguments) => env::run(arguments),
        Command::Init(arguments) => init::run(arguments),
        Command::Validate(arguments) => validate::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Samples(arguments) => samples::run(arguments),
        Command::Why(arguments) => why::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Box { words } => {
            crate::runtime::enter(&words).map_or_else(|error| Err(exit::Failure::failed(error)), |never| match never {})
        }
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
