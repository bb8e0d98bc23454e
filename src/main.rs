//! The `rollhouse` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollhouse::cli::main()
}
