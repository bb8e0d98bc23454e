//! The `rollhouse` program.

use std::process::ExitCode;

/// Episodes are freed on the journal's thread and made on others; the system's allocator makes them wait for each other,
/// which is a third of the processor time of a run of short rollouts.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    rollhouse::cli::main()
}
