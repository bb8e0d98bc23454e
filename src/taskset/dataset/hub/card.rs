//! What the card of a data set (`README.md`) says about its files: the `configs` in the YAML at its beginning.

use yaml_rust2::{Yaml, YamlLoader};

/// One configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CardConfig {
    pub(super) name: String,
    pub(super) default: bool,
    /// Folder that holds its files.
    pub(super) folder: Option<String>,
    /// Patterns of the files of each split; `None` where their names tell.
    pub(super) splits: Option<Vec<(String, Vec<String>)>>,
}

/// The configurations that a card names; none where it has no such block.
pub(super) fn configs(card: &str) -> Vec<CardConfig> {
    let Some(front) = card.trim_start_matches('\u{feff}').strip_prefix("---") else { return Vec::new() };
    let front = front.split("\n---").next().unwrap_or_default();
    let Ok(documents) = YamlLoader::load_from_str(front) else { return Vec::new() };
    let configs = documents.first().and_then(|document| document["configs"].as_vec());
    configs.into_iter().flatten().filter_map(config).collect()
}

fn config(config: &Yaml) -> Option<CardConfig> {
    let splits = match &config["data_files"] {
        Yaml::BadValue | Yaml::Null => None,
        Yaml::Array(entries) if entries.iter().any(|entry| !entry["split"].is_badvalue()) => {
            let split = |entry: &Yaml| Some((entry["split"].as_str()?.to_owned(), texts(&entry["path"])));
            Some(entries.iter().filter_map(split).collect())
        }
        Yaml::Hash(splits) => {
            let split = |(name, paths): (&Yaml, &Yaml)| Some((name.as_str()?.to_owned(), texts(paths)));
            Some(splits.iter().filter_map(split).collect())
        }
        // Files without a split are for training.
        paths => Some(vec![("train".to_owned(), texts(paths))]),
    };
    Some(CardConfig {
        name: config["config_name"].as_str().unwrap_or("default").to_owned(),
        default: config["default"].as_bool().unwrap_or(false),
        folder: config["data_dir"].as_str().map(str::to_owned),
        splits,
    })
}

/// A text, or a list of texts.
fn texts(yaml: &Yaml) -> Vec<String> {
    match yaml {
        Yaml::Array(items) => items.iter().filter_map(Yaml::as_str).map(str::to_owned).collect(),
        one => one.as_str().map(str::to_owned).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read_in_every_form() {
        let card = "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  \
                    - split: test\n    path:\n    - main/test-*\n    - more.jsonl\n- config_name: plain\n  default: true\n  \
                    data_files: all.csv\n- config_name: folder\n  data_dir: there\n---\n# Card\n---\n";
        let splits = |config: &CardConfig| config.splits.clone().unwrap_or_default();
        let [main, plain, folder] = configs(card).try_into().expect("three");
        assert_eq!((main.name.as_str(), main.default), ("main", false));
        assert_eq!(splits(&main)[0], ("train".to_owned(), vec!["main/train-*".to_owned()]));
        assert_eq!(splits(&main)[1].1, ["main/test-*", "more.jsonl"]);
        assert_eq!((plain.default, splits(&plain)), (true, vec![("train".to_owned(), vec!["all.csv".to_owned()])]));
        assert_eq!((folder.folder.as_deref(), folder.splits), (Some("there"), None));
    }

    #[test]
    fn a_card_without_configurations_names_none() {
        for card in ["", "# Card", "---\nlicense: mit\n---\n", "---\n: : [\n---\n", "---\nconfigs: 3\n---"] {
            assert_eq!(configs(card), []);
        }
    }
}
