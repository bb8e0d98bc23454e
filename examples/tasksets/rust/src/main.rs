//! The program of rollhouse with one more taskset: `cargo run -- eval word-problems`.

mod taskset;

#[global_allocator]
static ALLOCATOR: rollhouse::cli::Allocator = rollhouse::cli::Allocator;

fn main() -> std::process::ExitCode {
    rollhouse::cli::main_with(&[taskset::SHIPPED])
}
