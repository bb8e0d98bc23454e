//! The `rollhouse` program.

fn main() {}
