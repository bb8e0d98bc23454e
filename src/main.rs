//! The `rollhouse` program.

use std::process::ExitCode;

/// Tasks move between threads and take their memory along; the system's allocator makes threads wait for each other over it,
/// which is a third of the processor time of a run of short rollouts and half of its wall time.
#[global_allocator]
static ALLOCATOR: rollhouse::cli::Allocator = rollhouse::cli::Allocator;

fn main() -> ExitCode {
    rollhouse::cli::main()
}
