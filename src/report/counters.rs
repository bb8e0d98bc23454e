//! What happens in a run as metrics: every event counts here once, through the `metrics` facade. Whoever embeds rollhouse
//! and wants the figures installs a recorder; without one this costs next to nothing.

use metrics::{counter, gauge, histogram};

use crate::{store::Event, telemetry::names::metric, trace::Outcome};

/// Counts an event.
pub(super) fn count(event: &Event) {
    match event {
        Event::EpisodeStarted => gauge!(metric::EPISODES_IN_FLIGHT).increment(1.0),
        Event::TurnCompleted { input_tokens, output_tokens } => {
            counter!(metric::TURNS).increment(1);
            counter!(metric::TOKENS, "kind" => "input").increment(*input_tokens);
            counter!(metric::TOKENS, "kind" => "output").increment(*output_tokens);
        }
        Event::TokensKept { extended, drifted, malformed_calls } => {
            let prompt = match (drifted, extended) {
                (true, _) => "drifted",
                (false, true) => "extended",
                (false, false) => "rendered",
            };
            counter!(metric::TOKEN_TURNS, "prompt" => prompt).increment(1);
            counter!(metric::MALFORMED_CALLS).increment(*malformed_calls);
        }
        Event::CallRetried { endpoint, .. } => counter!(metric::RETRIES, "endpoint" => endpoint.clone()).increment(1),
        Event::EpisodeFinished { outcome, seconds, .. } => {
            let outcome = match outcome {
                Outcome::Scored(_) => "scored",
                Outcome::Failed(class) => class.name(),
            };
            counter!(metric::EPISODES, "outcome" => outcome).increment(1);
            gauge!(metric::EPISODES_IN_FLIGHT).decrement(1.0);
            histogram!(metric::EPISODE_SECONDS).record(*seconds);
        }
        Event::Workers { ready, .. } => gauge!(metric::WORKERS).set(*ready as f64),
        Event::RunStarted { .. } | Event::Stopping { .. } | Event::RunFinished => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder,
    };

    use super::*;

    /// Counters by name and labels.
    #[derive(Clone, Default)]
    struct Sums(Arc<Mutex<BTreeMap<String, u64>>>);

    struct Sum(Sums, String);

    impl CounterFn for Sum {
        fn increment(&self, value: u64) {
            *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
        }

        fn absolute(&self, _value: u64) {}
    }

    impl Recorder for Sums {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let labels: Vec<String> = key.labels().map(|label| label.value().to_owned()).collect();
            Counter::from_arc(Arc::new(Sum(self.clone(), format!("{} {}", key.name(), labels.join(",")))))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn every_event_counts_once() {
        let sums = Sums::default();
        with_local_recorder(&sums, || {
            count(&Event::TurnCompleted { input_tokens: 5, output_tokens: 3 });
            count(&Event::TurnCompleted { input_tokens: 7, output_tokens: 1 });
            count(&Event::TokensKept { extended: true, drifted: false, malformed_calls: 2 });
            count(&Event::TokensKept { extended: false, drifted: true, malformed_calls: 0 });
            count(&Event::TokensKept { extended: false, drifted: false, malformed_calls: 1 });
            count(&Event::EpisodeFinished {
                outcome: Outcome::Scored(0.5),
                fault: None,
                truncated: false,
                seconds: 1.0,
            });
        });
        let expected = [
            ("rollhouse_episodes_total scored", 1),
            ("rollhouse_malformed_calls_total ", 3),
            ("rollhouse_token_turns_total drifted", 1),
            ("rollhouse_token_turns_total extended", 1),
            ("rollhouse_token_turns_total rendered", 1),
            ("rollhouse_tokens_total input", 12),
            ("rollhouse_tokens_total output", 4),
            ("rollhouse_turns_total ", 2),
        ];
        let sums = sums.0.lock().unwrap();
        assert_eq!(sums.iter().map(|(name, sum)| (name.as_str(), *sum)).collect::<Vec<_>>(), expected);
    }
}
