//! reasoning-gym: the datasets of the Python package of that name, `reasoning-gym/<dataset>` each.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Map, Value};

use crate::taskset::{
    Found,
    python::{self, ScriptSource},
};

const FAMILY: &str = "reasoning-gym";

/// How ids of the family look, and what it is.
pub(super) const ABOUT: (&str, &str) =
    ("reasoning-gym/<dataset>", "Solve made problems of the Python package reasoning-gym");

/// The dataset that an id names, in any spelling; `None` for an id of another family. Whether there is such a dataset is
/// only known to the package, when it is opened; opening the family alone names them all.
pub(super) fn find(id: &str) -> Option<Found> {
    let (family, dataset) = id.trim().split_once('/').unwrap_or((id.trim(), ""));
    let spelled = |text: &str, dash: &str| text.to_lowercase().replace(['-', '_', ' '], dash);
    let dataset = spelled(dataset, "_");
    if spelled(family, "-") != FAMILY {
        return None;
    }
    let globals: Map<String, Value> = [("DATASET".to_owned(), Value::from(dataset.as_str()))].into_iter().collect();
    let name = format!("{FAMILY}/{dataset}");
    let source = ScriptSource::Shipped { name: name.clone(), text: include_str!("gym.py"), globals };
    Some(Found {
        id: name,
        summary: format!("Solve problems of the dataset {dataset} of reasoning-gym"),
        card: Cow::Borrowed(include_str!("README.md")),
        folder: None,
        open: Arc::new(move |section| python::open(&source, section)),
    })
}
