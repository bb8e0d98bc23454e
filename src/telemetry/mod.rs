//! Names of metrics and environment variables, and logging.
