//! What a process tells of itself and may use: names of metrics and environment variables, logging, the limit of open
//! files, a place for long CPU work.

mod aside;
mod descriptors;
mod logging;
pub mod names;

pub use aside::aside;
pub use descriptors::raise_descriptor_limit;
pub use logging::{LogSink, LoggingError, start_logging, subscriber};
