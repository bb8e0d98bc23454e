//! A package as a taskset that was found: for commands that only look at its tasks.

use std::{borrow::Cow, sync::Arc};

use serde_json::json;

use super::{OpenError, Package};
use crate::{
    config::Section,
    taskset::{Found, Taskset, TasksetError},
};

impl Package {
    /// The package as a taskset whose block is `env.taskset`. Its tasks can be read; what plays and scores them is its
    /// server, for which it must be opened with a whole `env` block.
    pub fn into_found(self) -> Found {
        Found {
            id: self.id.clone(),
            summary: String::new(),
            card: Cow::Borrowed(""),
            folder: None,
            open: Arc::new(move |section| open(&self, section)),
        }
    }
}

fn open(package: &Package, section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let mut keys = section.rest();
    keys.insert("id".to_owned(), package.id.as_str().into());
    match package.open(&json!({"taskset": keys})) {
        Ok(environment) => Ok(Arc::new(environment)),
        Err(OpenError::Faults(faults)) => {
            let text = OpenError::Faults(faults.clone()).to_string();
            for fault in faults {
                let path = fault.path.get(1..).unwrap_or_default();
                section.fault(&path.join("."), fault.problem);
            }
            Err(TasksetError::Source(text))
        }
        Err(OpenError::Bridge(error)) => Err(TasksetError::Source(error.to_string())),
    }
}
