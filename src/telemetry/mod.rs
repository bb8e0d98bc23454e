//! What a process tells of itself and may use: names of metrics and environment variables, logging, the delay of the
//! event loop, the limit of open files, a place for work that computes or blocks for long,
//! the folders of the Hugging Face hub.

mod aside;
mod delay;
mod descriptors;
mod hub;
mod logging;
pub mod names;

pub use aside::{aside, blocking};
pub use delay::{DelayWatch, Delays};
pub use descriptors::raise_descriptor_limit;
pub use hub::{hub_cache, hub_home};
pub use logging::{LogSink, LoggingError, start_logging, subscriber};
