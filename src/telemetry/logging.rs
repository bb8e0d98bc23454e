//! Log lines as `HH:MM:SS   LEVEL message field=value`, secrets taken out of the bytes that are written.

use std::{
    fmt,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use thiserror::Error;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{DefaultFields, Writer},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
};

use super::names;
use crate::config::Redactor;

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// The filter of the environment variable does not parse.
    #[error("`{}` holds no valid log filter, for example `info,rollhouse::inference=debug`", names::env::LOG)]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// A subscriber is installed already.
    #[error("logging was set up twice")]
    Twice(#[from] tracing::subscriber::SetGlobalDefaultError),
}

/// Where log lines go: standard error, or the log file of a run, opened by the `store` room.
pub type LogSink = Box<dyn Write + Send>;

/// Sends the log lines of the whole process to `sink`.
///
/// The level is `info` for rollhouse and `warn` for libraries, with `verbose` `debug` and `info`; `filter`, the content of
/// `ROLLHOUSE_LOG`, wins over both. Call once per process.
///
/// # Errors
/// When the filter does not parse or logging was set up before.
pub fn start_logging(
    sink: LogSink,
    verbose: bool,
    filter: Option<&str>,
    redactor: Redactor,
) -> Result<(), LoggingError> {
    tracing::subscriber::set_global_default(subscriber(sink, verbose, filter, redactor)?)?;
    Ok(())
}

/// The subscriber that `start_logging` installs, for use within a scope.
///
/// # Errors
/// When the filter does not parse.
pub fn subscriber(
    sink: LogSink,
    verbose: bool,
    filter: Option<&str>,
    redactor: Redactor,
) -> Result<impl Subscriber + Send + Sync + 'static, LoggingError> {
    let directives = match filter.filter(|filter| !filter.trim().is_empty()) {
        Some(filter) => filter,
        // async-openai logs whole answers that it cannot parse.
        None if verbose => "info,rollhouse=debug,async_openai=off",
        None => "warn,rollhouse=info,async_openai=off",
    };
    let filter = EnvFilter::builder().parse(directives)?;
    let writer = RedactingWriter { sink: Arc::new(Mutex::new(sink)), redactor };
    let lines = tracing_subscriber::fmt::layer().event_format(Line).fmt_fields(DefaultFields::new()).with_ansi(false);
    Ok(Registry::default().with(filter).with(lines.with_writer(writer)))
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()) % 86_400;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(writer, "{hours:02}:{minutes:02}:{seconds:02} {:>7} ", event.metadata().level().as_str())?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Hands out itself: the formatter writes each event in one piece, so that a secret is never cut in two.
#[derive(Clone)]
struct RedactingWriter {
    sink: Arc<Mutex<LogSink>>,
    redactor: Redactor,
}

impl Write for RedactingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.write_all(&self.redactor.redact_bytes(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl<'a> MakeWriter<'a> for RedactingWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(verbose: bool, filter: Option<&str>) -> String {
        let memory = Memory::default();
        let redactor = Redactor::new([&Secret::new("sk-secret-1".to_owned())]);
        let subscriber = subscriber(Box::new(memory.clone()), verbose, filter, redactor).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(key = "sk-secret-1", "call refused");
            tracing::debug!("details");
        });
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_aligned_filtered_and_redacted() {
        let line = logged(false, None);
        assert_eq!(&line[8..], "    WARN call refused key=\"[redacted]\"\n");
        assert_eq!(logged(true, None).lines().count(), 2);
        assert_eq!(logged(true, Some("error")), "");
        let broken = subscriber(Box::new(io::sink()), false, Some("rollhouse=loud"), Redactor::default());
        assert!(matches!(broken, Err(LoggingError::Filter(_))));
    }
}
