//! The rows of a declared taskset: where they are, what their columns are called, which of them count.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{keys::expression, names::Names};
use crate::{
    config::Section,
    taskset::{
        TasksetError,
        dataset::{
            Order, Row, Source, Table,
            hub::{Hub, HubDataset},
        },
        local,
    },
    template::Expression,
};

/// Where rows come from, and what is done with them: columns renamed, rows filtered, sampled, cut.
#[derive(Clone)]
pub(super) struct Data {
    origin: Origin,
    /// Our name of a column, and theirs.
    rename: Vec<(String, String)>,
    filter: Option<Expression>,
    /// The seed of a shuffle.
    shuffle: Option<u64>,
    limit: Option<u64>,
}

#[derive(Clone)]
enum Origin {
    Rows {
        name: Arc<str>,
        rows: Arc<[Map<String, Value>]>,
    },
    Files(Vec<PathBuf>),
    Hub(HubDataset),
    /// A fault was recorded.
    Nowhere,
}

impl Data {
    /// Reads where the rows are, how columns are called and which rows count; a sample is read apart.
    pub(super) fn read(block: &mut Section<'_>, folder: &Path) -> Self {
        let origin = origin(block, folder);
        let rename = block.doc("Columns under other names: ours = theirs").strings("rename").into_iter().collect();
        let filter = expression(block, "filter", "Rows that count; a condition over the columns");
        Self { origin, rename, filter, shuffle: None, limit: None }
    }

    /// The same with the keys `shuffle`, `seed` and `limit`.
    pub(super) fn read_sampled(block: &mut Section<'_>, folder: &Path) -> Self {
        let data = Self::read(block, folder);
        let shuffle =
            block.doc("Shuffle the rows, as Python's random.Random(seed).shuffle does").get_or("shuffle", false);
        let seed = block.doc("Seed of the shuffle").get_or("seed", 0_u64);
        let limit = block.doc("Rows kept, after the shuffle").limit_in("limit", 1.., None);
        data.sampled(shuffle.then_some(seed), limit)
    }

    /// No rows, where a fault was recorded.
    pub(super) fn nowhere() -> Self {
        Self { origin: Origin::Nowhere, rename: Vec::new(), filter: None, shuffle: None, limit: None }
    }

    /// The same rows shuffled by a seed, then cut.
    pub(super) fn sampled(self, shuffle: Option<u64>, limit: Option<u64>) -> Self {
        Self { shuffle, limit, ..self }
    }

    /// How many rows there are, where that is known without reading them.
    pub(super) fn size(&self) -> Option<u64> {
        match (&self.origin, &self.filter) {
            (Origin::Rows { rows, .. }, None) => Some((rows.len() as u64).min(self.limit.unwrap_or(u64::MAX))),
            _ => None,
        }
    }

    /// The rows that count, in their order. Blocking.
    ///
    /// # Errors
    /// Data that cannot be found, a row that cannot be read or that the filter cannot judge.
    pub(super) fn rows(&self, config: &Arc<Map<String, Value>>) -> Result<Table, TasksetError> {
        let (data, config) = (self.clone(), Arc::clone(config));
        let look = move |row: &mut Row| {
            data.renamed(row)?;
            data.counts(row, &config)
        };
        let order = Order { look: Some(Arc::new(look)), shuffle: self.shuffle, limit: self.limit };
        let Table { name, rows } = Table::ordered(self.sources()?, order);
        let name = if self.filter.is_some() { format!("{name} that pass `filter`") } else { name };
        Ok(Table { name, rows })
    }

    fn sources(&self) -> Result<Vec<Source>, TasksetError> {
        Ok(match &self.origin {
            Origin::Rows { name, rows } => vec![Source::Rows { name: Arc::clone(name), rows: Arc::clone(rows) }],
            Origin::Files(files) => files.iter().cloned().map(Source::File).collect(),
            Origin::Hub(dataset) => Hub::of_user().dataset(dataset)?.into_iter().map(Source::File).collect(),
            Origin::Nowhere => Vec::new(),
        })
    }

    fn renamed(&self, row: &mut Row) -> Result<(), String> {
        let taken = self.rename.iter().map(|(ours, theirs)| match row.values.shift_remove(theirs) {
            Some(value) => Ok((ours.clone(), value)),
            None => {
                let there: Vec<&str> = row.values.keys().map(String::as_str).collect();
                Err(format!("data.rename: there is no column `{theirs}`; the row has {}", there.join(", ")))
            }
        });
        let taken: Vec<(String, Value)> = taken.collect::<Result<_, _>>()?;
        row.values.extend(taken);
        Ok(())
    }

    fn counts(&self, row: &Row, config: &Map<String, Value>) -> Result<bool, String> {
        let Some(filter) = &self.filter else { return Ok(true) };
        filter.holds(Names::of(&row.values, config)).map_err(|error| error.to_string())
    }
}

fn origin(block: &mut Section<'_>, folder: &Path) -> Origin {
    let inline = rows(block);
    let paths = paths(block);
    let repo: Option<String> =
        block.doc("A data set of the Hugging Face hub, for example \"openai/gsm8k\"").get("dataset");
    let config = block.doc("Configuration of the data set; its default one without it").get_or("subset", String::new());
    let split = block.doc("Split of the data set").get_or("split", "train".to_owned());
    let revision = block.doc("Branch, tag or commit of the data set").get_or("revision", "main".to_owned());
    let given = ["rows", "path", "dataset"].iter().filter(|key| block.has(key)).count();
    if given != 1 {
        let problem = if given == 0 { "there are no rows" } else { "rows from several places" };
        block.fault_hint("path", problem, "give one of `rows`, `path`, `dataset`");
        return Origin::Nowhere;
    }
    for key in ["subset", "split", "revision"] {
        if repo.is_none() && block.has(key) {
            block.fault(key, "is for a `dataset` of the hub; leave it out");
        }
    }
    match (inline, paths, repo) {
        (Some(rows), ..) => {
            let name = format!("{} {}", folder.join(local::DECLARATION).display(), block.dotted("rows"));
            Origin::Rows { name: name.into(), rows }
        }
        (_, Some(paths), _) => Origin::Files(paths.iter().map(|path| folder.join(local::expanded(path))).collect()),
        (.., Some(repo)) => Origin::Hub(HubDataset { repo, config, split, revision }),
        (None, None, None) => Origin::Nowhere,
    }
}

fn rows(block: &mut Section<'_>) -> Option<Arc<[Map<String, Value>]>> {
    block.doc("The rows themselves");
    let rows = match block.value("rows", Value::Null, "a list of tables") {
        Value::Null => return None,
        Value::Array(rows) => rows,
        _ => {
            block.fault("rows", "wrong type; expected a list of tables");
            return Some(Arc::default());
        }
    };
    if rows.is_empty() {
        block.fault("rows", "there is no row in it");
    }
    let mut tables = Vec::new();
    for (index, row) in rows.into_iter().enumerate() {
        match written(row) {
            Value::Object(row) => tables.push(row),
            _ => block.fault("rows", format!("item {index} is no table; write `{{ column = value, … }}`")),
        }
    }
    Some(tables.into())
}

/// A value as it was written: TOML has no null, so what the reader of configuration takes for one was the text "None".
fn written(value: Value) -> Value {
    match value {
        Value::Null => "None".into(),
        Value::Array(items) => items.into_iter().map(written).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, written(value))).collect(),
        other => other,
    }
}

fn paths(block: &mut Section<'_>) -> Option<Vec<String>> {
    let doc = "A file of rows, or a list of them: .jsonl, .ndjson, .json, .csv, .tsv or .parquet";
    if !block.is_list("path") {
        let path: String = block.doc(doc).get("path")?;
        if path.trim().is_empty() {
            block.fault("path", "is empty; name a file");
        }
        return Some(vec![path]);
    }
    let paths: Vec<String> = block.doc(doc).get("path")?;
    if paths.is_empty() {
        block.fault("path", "there is no file in it");
    }
    Some(paths)
}
