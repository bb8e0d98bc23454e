//! Judges: rewards that ask a model.
//!
//! What enters is a finished trace; what leaves is a verdict between 0 and 1, or a fault of class `judge`: a judge that
//! cannot be asked or understood makes the rollout unscored, never 0. Each exchange stands in the trace under
//! `info.judge_calls`, as verifiers 0.4.0 writes it, with the content's `key` and the `verdict` beside.
//!
//! A judge is declared as a [`JudgeSpec`], added with [`Rubric::judge`](super::Rubric::judge), and given its endpoint
//! with [`Rubric::bind`](super::Rubric::bind) before the first rollout; declaring needs neither key nor network.

mod ask;
mod cache;
mod host;
mod plugged;
mod prompt;
mod read;
mod reading;
mod verdict;

pub use ask::Judge;
pub use host::{Asking, BindError, Host};
pub(super) use host::{bind, check};
pub use plugged::read_all;
pub use prompt::View;
pub use read::read;
pub use verdict::Criterion;

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{ClientConfig, Document, Faults, Layer, Reader};

use prompt::Prompt;
use verdict::Form;

/// A judge as it is declared: what it is asked, how its answer is read, and whom to ask.
#[derive(Clone, Debug)]
pub struct JudgeSpec {
    /// Name of the reward, and of the metrics `<name>/<criterion>` where there are criteria.
    pub name: String,
    /// Weight of the reward.
    pub weight: f64,
    /// The model asked; the run's when absent.
    pub model: Option<String>,
    /// Sampling fields of its calls.
    pub sampling: Map<String, Value>,
    /// Its own endpoint; the run's when absent.
    endpoint: Option<Endpoint>,
    prompt: Prompt,
    form: Form,
    view: View,
    /// Field of the row that stands for `answer`.
    answer_field: String,
    /// Field of the row that stands for `question`: the prompt's text when it is empty; the column `question`, else the
    /// prompt's text when there is none.
    question_field: Option<String>,
    /// Ask for the verdict as JSON of a schema.
    structured: bool,
    /// How often it is asked again when its answer holds no verdict.
    max_retries: u32,
    /// Calls in flight.
    max_concurrent: usize,
    /// The taskset's keys, as `config` in the prompt.
    config: Map<String, Value>,
}

/// An endpoint of a judge's own.
#[derive(Clone, Debug)]
struct Endpoint {
    client: ClientConfig,
    /// The key's variable was named, so it must be set.
    needs_key: bool,
}

impl JudgeSpec {
    /// A judge from one table with the keys of `[[judge]]`, such as a taskset's program hands over as JSON; `base` is the
    /// folder of relative paths.
    ///
    /// # Errors
    /// All faults of the table.
    pub fn from_json(table: &Value, base: &Path) -> Result<Self, Faults> {
        let mut reader = Reader::new(Document::new([Layer::from_value(table)]));
        let spec = read(&mut reader.root(), base);
        reader.finish()?;
        // A judge that could not be read left a fault.
        spec.ok_or_else(Faults::default)
    }

    /// The judge with the keys of its taskset, which its prompt sees as `config`.
    #[must_use]
    pub fn with_config(self, config: &Map<String, Value>) -> Self {
        Self { config: config.clone(), ..self }
    }

    /// The names of the metrics that its criteria give, in their order; none without criteria.
    pub fn metrics(&self) -> Vec<String> {
        self.form.criteria().iter().map(|criterion| format!("{}/{}", self.name, criterion.name)).collect()
    }
}
