//! The live view of a run: a bar on a terminal, otherwise a plain line every few seconds.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IsTerminal, Write},
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    counters,
    number::{count, excerpt, rate, seconds},
};
use crate::{
    store::Event,
    trace::{FaultClass, Outcome},
};

/// Lines and frames that wait to be written; what comes while a terminal takes no more is left out.
const WAITING: usize = 64;

/// Time between two plain lines; a stuck endpoint must show within it.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Time between two frames of the bar.
const FRAME_EVERY: Duration = Duration::from_millis(125);

/// Token rates are taken over this long.
const RATE_WINDOW: Duration = Duration::from_secs(10);

/// Causes of retries are cut to this many characters.
const CAUSE_LENGTH: usize = 80;

/// Events taken at a time.
const BATCH: usize = 1024;

/// Time between two looks at the events.
const NAP: Duration = Duration::from_millis(5);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressStyle {
    /// A bar on standard error that redraws itself; for terminals only.
    Live,
    /// Plain lines without control codes.
    Lines,
    /// Nothing but the reason when the run stops early.
    Quiet,
}

/// Shows a run while it goes on.
#[derive(Debug)]
pub struct Progress<W = io::Stderr> {
    style: ProgressStyle,
    out: W,
}

impl Progress {
    /// Progress on standard error: live on a terminal, plain lines elsewhere.
    pub fn new() -> Self {
        let live = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb");
        Self { style: if live { ProgressStyle::Live } else { ProgressStyle::Lines }, out: io::stderr() }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Write + Send + 'static> Progress<W> {
    /// Progress of a style; plain lines go to `out`.
    pub fn over(style: ProgressStyle, out: W) -> Self {
        Self { style, out }
    }

    /// Shows a run, and counts it in metrics, until its events end. Neither a failure to write nor a terminal that takes
    /// no output (Ctrl-S, a pager) holds the run: a thread of its own writes, and events are read to the end.
    pub async fn follow(self, mut events: mpsc::Receiver<Event>) {
        let Self { style, out } = self;
        let every = if style == ProgressStyle::Live { FRAME_EVERY } else { LINE_EVERY };
        let (drawings, waiting) = sync_channel(WAITING);
        let view = move || {
            let mut view = View::new(style, out);
            // An error means that nobody sees it any more.
            let _ = waiting.into_iter().try_for_each(|drawing| view.draw(drawing));
        };
        let drawer = thread::Builder::new().name("display".to_owned()).spawn(view);
        let mut tally = Tally::new(Instant::now());
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::new();
        loop {
            // Events first, so that a line shows everything that happened before it.
            tokio::select! {
                biased;
                received = events.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    for event in batch.drain(..) {
                        counters::count(&event);
                        tally.add(&event, Instant::now());
                        say(style, &event, &drawings);
                    }
                    // Who finds nobody waiting need not wake anybody: a nap between two looks spares the run most of
                    // what its display costs.
                    if received < BATCH {
                        tokio::time::sleep(NAP).await;
                    }
                }
                _ = ticks.tick(), if style != ProgressStyle::Quiet => {
                    let _ = drawings.try_send(tally.frame(Instant::now()));
                }
            }
        }
        let last = (style != ProgressStyle::Quiet).then(|| Drawing::Last(tally.line(Instant::now())));
        let finish = move || {
            if let Some(last) = last {
                let _ = drawings.send(last);
            }
            drop(drawings);
            drawer.map(thread::JoinHandle::join)
        };
        // Nobody is left to tell.
        let _ = tokio::task::spawn_blocking(finish).await;
    }
}

/// The lines that an event is worth at once.
fn say(style: ProgressStyle, event: &Event, drawings: &SyncSender<Drawing>) {
    let line = |line: &str| {
        let _ = drawings.try_send(Drawing::Line(line.to_owned()));
    };
    match event {
        Event::RunStarted { title, simulated, resumed, pending, .. } if style != ProgressStyle::Quiet => {
            line(title);
            if *resumed > 0 {
                line(&format!("resumed: {} rollouts are finished already", count(*resumed)));
            }
            if *pending > 0 {
                line(&format!("to be scored: {} rollouts that need not run again", count(*pending)));
            }
            if *simulated {
                line("the model is simulated: no real model answers");
            }
        }
        Event::Stopping { reason } => line(reason),
        _ => {}
    }
}

/// What the display is asked to show.
enum Drawing {
    /// A line of its own, above the bar if there is one.
    Line(String),
    /// How far the run is.
    Frame { done: u64, planned: Option<u64>, line: String },
    /// How far it came; the bar goes.
    Last(String),
}

struct View<W> {
    out: W,
    bar: Option<ProgressBar>,
}

impl<W: Write> View<W> {
    fn new(style: ProgressStyle, out: W) -> Self {
        let bar = (style == ProgressStyle::Live).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // The template is a constant; without it the default bar is shown.
            bar.set_style(BarStyle::with_template("{bar:16} {wide_msg}").unwrap_or_else(|_| BarStyle::default_bar()));
            bar
        });
        Self { out, bar }
    }

    fn draw(&mut self, drawing: Drawing) -> io::Result<()> {
        let out = &mut self.out;
        match (drawing, &self.bar) {
            (Drawing::Line(line), Some(bar)) => bar.suspend(|| writeln!(out, "{line}")),
            (Drawing::Line(line), None) => writeln!(out, "{line}"),
            (Drawing::Frame { done, planned, line }, Some(bar)) => {
                if let Some(planned) = planned {
                    bar.set_length(planned);
                }
                bar.set_position(done);
                bar.set_message(line);
                bar.tick();
                Ok(())
            }
            (Drawing::Frame { line, .. }, None) => writeln!(out, "{line}"),
            (Drawing::Last(line), bar) => {
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                writeln!(out, "{line}")?;
                out.flush()
            }
        }
    }
}

/// What has happened so far.
struct Tally {
    started: Instant,
    planned: Option<u64>,
    resumed: u64,
    in_flight: u64,
    /// How the workers are, where there are any.
    workers: Option<String>,
    scored: u64,
    reward: f64,
    failures: BTreeMap<FaultClass, u64>,
    last_failure: Option<String>,
    /// When the calls that wait for their next attempt go on.
    waiting: Vec<Instant>,
    last_retry: Option<String>,
    output_tokens: u64,
    /// Sampled tokens at earlier moments within the window.
    samples: VecDeque<(Instant, u64)>,
}

impl Tally {
    fn new(started: Instant) -> Self {
        Self {
            started,
            planned: None,
            resumed: 0,
            in_flight: 0,
            workers: None,
            scored: 0,
            reward: 0.0,
            failures: BTreeMap::new(),
            last_failure: None,
            waiting: Vec::new(),
            last_retry: None,
            output_tokens: 0,
            samples: VecDeque::from([(started, 0)]),
        }
    }

    fn add(&mut self, event: &Event, now: Instant) {
        match event {
            Event::RunStarted { planned, resumed, resumed_reward, .. } => {
                self.started = now;
                self.samples = VecDeque::from([(now, 0)]);
                self.planned = *planned;
                self.resumed = *resumed;
                self.reward = *resumed_reward;
            }
            Event::EpisodeStarted => self.in_flight += 1,
            Event::TurnCompleted { output_tokens, .. } => self.output_tokens += output_tokens,
            Event::CallRetried { endpoint, cause, wait } => {
                self.waiting.retain(|until| *until > now);
                self.waiting.push(now + *wait);
                let cause =
                    cause.strip_prefix(endpoint.as_str()).map_or(cause.as_str(), |rest| rest.trim_start_matches(": "));
                self.last_retry = Some(format!("{endpoint}: {}", excerpt(cause, CAUSE_LENGTH)));
            }
            Event::EpisodeFinished { outcome, fault, .. } => {
                self.in_flight = self.in_flight.saturating_sub(1);
                match outcome {
                    Outcome::Scored(reward) => {
                        self.scored += 1;
                        self.reward += reward;
                    }
                    Outcome::Failed(class) => *self.failures.entry(*class).or_default() += 1,
                }
                if let Some((_, message)) = fault {
                    self.last_failure = Some(excerpt(message, CAUSE_LENGTH));
                }
            }
            Event::Workers { ready, all, lost, redone } => {
                let ready = if ready == all { count(*ready as u64) } else { format!("{ready}/{all}") };
                let lost = if *lost == 0 { String::new() } else { format!(" ({lost} lost, {redone} runs redone)") };
                let plural = if *all == 1 { "" } else { "s" };
                self.workers = Some(format!("{ready} worker{plural}{lost}"));
            }
            Event::TokensKept { .. } | Event::Stopping { .. } | Event::RunFinished => {}
        }
    }

    fn finished(&self) -> u64 {
        self.scored + self.failures.values().sum::<u64>()
    }

    /// Finished rollouts, those of earlier attempts included.
    fn done(&self) -> u64 {
        self.resumed + self.finished()
    }

    fn frame(&mut self, now: Instant) -> Drawing {
        Drawing::Frame { done: self.done(), planned: self.planned, line: self.line(now) }
    }

    /// One line that says it all.
    fn line(&mut self, now: Instant) -> String {
        let elapsed = now - self.started;
        let mut parts = vec![match self.planned {
            Some(planned) => format!("{}/{planned} done", self.done()),
            None => format!("{} done", self.done()),
        }];
        let scored = self.resumed + self.scored;
        if scored > 0 {
            parts.push(format!("reward {:.3}", self.reward / scored as f64));
        }
        if !self.failures.is_empty() {
            let classes: Vec<String> = self.failures.iter().map(|(class, count)| format!("{count} {class}")).collect();
            let last = self.last_failure.as_deref().map(|last| format!("; last: {last}")).unwrap_or_default();
            parts.push(format!("failed {}{last}", classes.join(", ")));
        }
        if self.in_flight > 0 {
            parts.push(format!("{} in flight", self.in_flight));
        }
        parts.extend(self.workers.clone());
        // Before what a narrow terminal may cut off.
        self.waiting.retain(|until| *until > now);
        if let (Some(cause), Some(next)) = (&self.last_retry, self.waiting.iter().min()) {
            let next = seconds((*next - now).as_secs_f64());
            parts.push(format!("{} retrying (next try in {next}; last: {cause})", self.waiting.len()));
        }
        if let Some(rate_now) = self.token_rate(now) {
            parts.push(format!("{} tokens/s", rate(rate_now)));
        }
        parts.push(seconds(elapsed.as_secs_f64()));
        if let Some(left) = self.time_left(elapsed).filter(|_| self.in_flight > 0) {
            parts.push(format!("{} left", seconds(left)));
        }
        parts.join(" · ")
    }

    /// Sampled tokens per second over the window; none before the first.
    fn token_rate(&mut self, now: Instant) -> Option<f64> {
        self.samples.push_back((now, self.output_tokens));
        while self.samples.len() > 2 && now - self.samples[1].0 >= RATE_WINDOW {
            self.samples.pop_front();
        }
        let (since, tokens) = *self.samples.front()?;
        let span = (now - since).as_secs_f64();
        (self.output_tokens > 0 && span > 0.0).then(|| (self.output_tokens - tokens) as f64 / span)
    }

    /// Seconds until the plan is done at the pace of this attempt.
    fn time_left(&self, elapsed: Duration) -> Option<f64> {
        let open = self.planned?.checked_sub(self.done()).filter(|open| *open > 0)?;
        (self.finished() > 0).then(|| elapsed.as_secs_f64() / self.finished() as f64 * open as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes nothing until it is let go.
    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_terminal_that_takes_no_output_does_not_hold_the_run() {
        let (release, held) = std::sync::mpsc::channel();
        let (sender, events) = mpsc::channel(256);
        let display = tokio::spawn(Progress::over(ProgressStyle::Lines, Stuck(held)).follow(events));
        sender.send(started(Some(10), 0)).await.unwrap();
        for _ in 0..1_000 {
            sender.send(Event::Stopping { reason: "stopped on request".to_owned() }).await.unwrap();
        }
        drop((sender, release));
        display.await.unwrap();
    }

    fn started(planned: Option<u64>, resumed: u64) -> Event {
        Event::RunStarted {
            title: "numbers · small".to_owned(),
            planned,
            resumed,
            resumed_reward: 0.5 * resumed as f64,
            pending: 0,
            simulated: true,
        }
    }

    fn finished(outcome: Outcome, fault: Option<(FaultClass, String)>) -> Event {
        Event::EpisodeFinished { outcome, fault, truncated: false, seconds: 1.0 }
    }

    #[tokio::test(start_paused = true)]
    async fn plain_lines_come_every_few_seconds_and_at_the_end() {
        let (sender, events) = mpsc::channel(8);
        let out = Shared::default();
        let run = async {
            sender.send(started(Some(10), 2)).await.unwrap();
            for _ in 0..3 {
                sender.send(Event::EpisodeStarted).await.unwrap();
            }
            sender.send(Event::TurnCompleted { input_tokens: 10, output_tokens: 500 }).await.unwrap();
            sender.send(finished(Outcome::Scored(0.25), None)).await.unwrap();
            let fault = (FaultClass::Provider, "the endpoint\nanswered 401".to_owned());
            sender.send(finished(Outcome::Failed(FaultClass::Provider), Some(fault))).await.unwrap();
            let retried = Event::CallRetried {
                endpoint: "http://localhost:8000/v1".to_owned(),
                cause: "http://localhost:8000/v1: 503 service unavailable".to_owned(),
                wait: Duration::from_secs(8),
            };
            sender.send(retried).await.unwrap();
            tokio::time::sleep(Duration::from_secs(6)).await;
            sender.send(Event::Stopping { reason: "stopped on request".to_owned() }).await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
            drop(sender);
        };
        tokio::join!(Progress::over(ProgressStyle::Lines, out.clone()).follow(events), run);
        let text = out.text();
        assert!(!text.contains('\u{1b}'));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "numbers · small",
                "resumed: 2 rollouts are finished already",
                "the model is simulated: no real model answers",
                "4/10 done · reward 0.417 · failed 1 provider; last: the endpoint answered 401 · 1 in flight · 1 retrying \
                 (next try in 3.0s; last: http://localhost:8000/v1: 503 service unavailable) · 100 tokens/s · 5.0s · 15s left",
            ]
        );
        assert_eq!(lines[4], "stopped on request");
        assert!(lines[5..].iter().all(|line| line.starts_with("4/10 done") && !line.contains("retrying")), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_end_has_no_total_and_quiet_says_only_why_it_stops() {
        let (sender, events) = mpsc::channel(8);
        let out = Shared::default();
        sender.send(started(None, 0)).await.unwrap();
        sender.send(finished(Outcome::Scored(1.0), None)).await.unwrap();
        sender.send(Event::Stopping { reason: "too many failures".to_owned() }).await.unwrap();
        drop(sender);
        Progress::over(ProgressStyle::Quiet, out.clone()).follow(events).await;
        assert_eq!(out.text(), "too many failures\n");

        let mut tally = Tally::new(Instant::now());
        tally.add(&started(None, 0), Instant::now());
        tally.add(&Event::Workers { ready: 1, all: 2, lost: 1, redone: 3 }, Instant::now());
        assert_eq!(tally.line(Instant::now()), "0 done · 1/2 workers (1 lost, 3 runs redone) · 0.0s");
        tally.workers = None;
        tally.add(&finished(Outcome::Scored(1.0), None), Instant::now());
        assert_eq!(tally.line(Instant::now()), "1 done · reward 1.000 · 0.0s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_token_rate_forgets() {
        let mut tally = Tally::new(Instant::now());
        let tokens = |output_tokens| Event::TurnCompleted { input_tokens: 0, output_tokens };
        tally.add(&tokens(1_000), Instant::now());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(tally.token_rate(Instant::now()), Some(100.0));
        tokio::time::advance(Duration::from_secs(10)).await;
        tally.add(&tokens(100), Instant::now());
        assert_eq!(tally.token_rate(Instant::now()), Some(10.0));
    }
}
