//! `rollhouse why`: why a rollout scored or failed as it did.

use std::{path::PathBuf, process::ExitCode};

use super::{
    exit::{self, Failure},
    output,
};
use crate::report;

/// What to explain.
#[derive(Debug, clap::Args)]
pub(super) struct WhyArgs {
    /// The run: its folder, or its name below the output folder.
    pub run: String,

    /// The rollout: the beginning of its episode id, its line number from 0, or `<task>:<n>` for the n-th rollout of a task,
    /// which is named by its position or the beginning of its key.
    pub rollout: String,

    /// The folder that holds the runs.
    #[arg(short, long, default_value = "outputs")]
    pub output_dir: PathBuf,
}

/// Explains a rollout on standard output.
///
/// # Errors
/// There is no such run or rollout, or the run cannot be read.
pub(super) fn run(args: WhyArgs) -> Result<ExitCode, Failure> {
    let run = report::find_run(&args.run, &args.output_dir).map_err(Failure::usage)?;
    let mut text = Vec::new();
    report::explain(&run, &args.rollout, &mut text).map_err(|error| match error {
        report::WhyError::NoRollout { .. } | report::WhyError::ManyRollouts { .. } => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    output::print(text)?;
    Ok(exit::DONE.into())
}
