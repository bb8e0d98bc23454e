//! Names of metrics and environment variables, and logging.

mod logging;
pub mod names;

pub use logging::{LogSink, LoggingError, start_logging, subscriber};
