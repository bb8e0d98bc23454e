//! Harnesses: the programs that drive a model through a task.
