//! The `rollhouse` program.

use std::process::ExitCode;

/// Tasks move between threads and take their memory along; the system's allocator makes threads wait for each other over it,
/// which is a third of the processor time of a run of short rollouts and half of its wall time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Thousands of waiting rollouts each touch a little of many pages; huge ones would make a third more memory of it.
    // Where this is refused, the run takes that memory.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
    rollhouse::cli::main()
}
