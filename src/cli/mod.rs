//! The command line: one file per command; parses, calls one function below, renders its result.

pub mod sim;
