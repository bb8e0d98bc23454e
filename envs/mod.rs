//! Environments: the control flow among agents for one task.
