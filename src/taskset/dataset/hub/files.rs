//! Which files of a data set belong to a configuration and a split: by its card, else by their names.

use std::collections::BTreeMap;

use regex::Regex;

use super::{
    HubDataset,
    card::{CardConfig, configs},
};

/// Formats, the one read first where a split has several.
const FORMATS: [&str; 6] = ["parquet", "jsonl", "ndjson", "json", "csv", "tsv"];
/// Endings of files that hold rows in a form that is not read.
const UNREAD: [&str; 8] = ["gz", "zst", "bz2", "xz", "zip", "arrow", "tar", "xlsx"];
/// Words that stand for a split in the names of files.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The files of one split among those of a data set (paths with `/`), in the order of their names and of one format.
/// `card` is the text of its `README.md`.
///
/// # Errors
/// What is missing, and what there is instead.
pub(super) fn choose(files: &[String], card: Option<&str>, dataset: &HubDataset) -> Result<Vec<String>, String> {
    let configs = card.map(configs).unwrap_or_default();
    let found = if configs.is_empty() {
        by_name(files, &dataset.config, &dataset.split)
    } else {
        let config = config(&configs, &dataset.config)?;
        match &config.splits {
            Some(splits) => by_card(files, config, splits, &dataset.split)?,
            None => {
                let folder = config.folder.as_deref().unwrap_or_default().trim_matches('/');
                let inside = |file: &&String| folder.is_empty() || file.starts_with(&format!("{folder}/"));
                let files: Vec<String> = files.iter().filter(inside).cloned().collect();
                by_name(&files, "", &dataset.split)
            }
        }
    };
    let of = |format: &str| -> Vec<String> {
        let mut of: Vec<String> = found.iter().filter(|file| ending(file) == format).cloned().collect();
        of.sort();
        of
    };
    if let Some(chosen) = FORMATS.iter().map(|format| of(format)).find(|files| !files.is_empty()) {
        return Ok(chosen);
    }
    let HubDataset { config, split, .. } = dataset;
    let unread: Vec<&str> =
        found.iter().map(String::as_str).filter(|file| UNREAD.contains(&ending(file).as_str())).collect();
    if let Some(file) = unread.first() {
        return Err(format!(
            "split `{split}` is in a format that is not read ({file}); the hub has most data sets in Parquet, too: \
             set the revision to `refs/convert/parquet`"
        ));
    }
    let there: Vec<&str> = files.iter().take(8).map(String::as_str).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Err(format!("no data file for configuration `{config}`, split `{split}`; files there: {there}"))
}

/// The configuration of this name, or the default one for no name.
fn config<'a>(configs: &'a [CardConfig], name: &str) -> Result<&'a CardConfig, String> {
    let found = if !name.is_empty() {
        configs.iter().find(|config| config.name == name)
    } else if let [only] = configs {
        Some(only)
    } else {
        let default = configs.iter().find(|config| config.default);
        default.or_else(|| configs.iter().find(|config| config.name == "default"))
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
        let asked = if name.is_empty() {
            "there is no default configuration".to_owned()
        } else {
            format!("there is no configuration `{name}`")
        };
        format!("{asked}; name one of {}", names.join(", "))
    })
}

fn by_card(
    files: &[String],
    config: &CardConfig,
    splits: &[(String, Vec<String>)],
    split: &str,
) -> Result<Vec<String>, String> {
    let Some((_, patterns)) = splits.iter().find(|(name, _)| name == split) else {
        let names: Vec<&str> = splits.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!(
            "configuration `{}` has no split `{split}`; name one of {}",
            config.name,
            names.join(", ")
        ));
    };
    let folder = config.folder.as_deref().map(|folder| format!("{}/", folder.trim_matches('/'))).unwrap_or_default();
    let patterns: Vec<Regex> =
        patterns.iter().filter_map(|pattern| glob(&format!("{folder}{}", pattern.trim_start_matches("./")))).collect();
    Ok(files.iter().filter(|file| patterns.iter().any(|pattern| pattern.is_match(file))).cloned().collect())
}

/// A pattern of paths: `*` and `?` within a name, `**` over folders, `[…]`; a folder stands for all that is in it.
fn glob(pattern: &str) -> Option<Regex> {
    let mut text = String::from("^");
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("**/") {
            text += "(?:.*/)?";
            rest = behind;
            continue;
        }
        if let Some(behind) = rest.strip_prefix("**") {
            text += ".*";
            rest = behind;
            continue;
        }
        rest = &rest[character.len_utf8()..];
        match character {
            '*' => text += "[^/]*",
            '?' => text += "[^/]",
            '[' => match rest.split_once(']') {
                Some((set, behind)) if !set.is_empty() => {
                    text += &format!("[{}]", set.replacen('!', "^", usize::from(set.starts_with('!'))));
                    rest = behind;
                }
                _ => text += "\\[",
            },
            plain => text += &regex::escape(plain.encode_utf8(&mut [0; 4])),
        }
    }
    Regex::new(&format!("{text}(?:/.*)?$")).ok()
}

/// The files whose names tell that they belong to a configuration and a split.
fn by_name(files: &[String], config: &str, split: &str) -> Vec<String> {
    let data: Vec<&String> = files
        .iter()
        .filter(|file| FORMATS.contains(&ending(file).as_str()) || UNREAD.contains(&ending(file).as_str()))
        .collect();
    let of_config: Vec<&String> = data.into_iter().filter(|file| in_config(file, config)).collect();
    let named = |words: &[&str]| -> Vec<String> {
        let named = |file: &&&String| words.iter().any(|word| in_split(file, config, word));
        of_config.iter().filter(named).map(|file| (*file).clone()).collect()
    };
    let exactly = named(&[split]);
    if !exactly.is_empty() {
        return exactly;
    }
    let words = SPLITS.iter().find(|(name, _)| *name == split).map_or(&[][..], |(_, words)| words);
    let nearly = named(words);
    // Files of which none names a split are all for training.
    let names_none = || named(&SPLITS.iter().flat_map(|(_, words)| *words).copied().collect::<Vec<_>>()).is_empty();
    if nearly.is_empty() && split == "train" && names_none() {
        return of_config.into_iter().cloned().collect();
    }
    nearly
}

fn in_config(file: &str, config: &str) -> bool {
    if config.is_empty() || folders(file).any(|folder| folder == config) || behind(stem(file), config).is_some() {
        return true;
    }
    // The hub calls the only configuration of a data set `default` and leaves it out of the paths.
    config == "default" && folders(file).all(|folder| folder == "data")
}

fn in_split(file: &str, config: &str, split: &str) -> bool {
    if folders(file).any(|folder| folder == split) {
        return true;
    }
    let stem = stem(file);
    let stem = behind(stem, config).filter(|rest| !config.is_empty() && !rest.is_empty()).unwrap_or(stem);
    match shard(stem) {
        // The name of a split stands whole before the number of the shard: `train_sft` is not `train`.
        Some((name, ..)) => name == split,
        None => stem.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == split),
    }
}

/// Split, number and count of a shard, of a name such as `train-00000-of-00002`.
fn shard(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    // What stands behind the count may be a hash.
    let count = count.split('-').next()?;
    Some((name, number.parse().ok()?, count.parse().ok()?))
}

/// A file that must be beside the others and is not: the names of shards tell how many there are.
pub(super) fn missing_shard(files: &[String]) -> Option<String> {
    let mut numbers: BTreeMap<(&str, &str, usize), usize> = BTreeMap::new();
    for file in files {
        if let Some((name, _, count)) = shard(stem(file)) {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            *numbers.entry((folder, name, count)).or_default() += 1;
        }
    }
    let short = numbers.into_iter().find(|((_, _, count), found)| found < count);
    short.map(|((_, name, count), found)| format!("{found} of the {count} files of `{name}`"))
}

/// The extension, lowercased; empty without one.
pub(super) fn ending(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.rsplit_once('.').map(|(_, ending)| ending.to_lowercase()).unwrap_or_default()
}

fn folders(file: &str) -> impl Iterator<Item = &str> {
    let (folders, _) = file.rsplit_once('/').unwrap_or(("", file));
    folders.split('/').filter(|folder| !folder.is_empty())
}

fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// The rest of a file's name behind a word and its separator; empty when the word is the whole name.
fn behind<'a>(name: &'a str, word: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(word)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(['-', '_', '.']) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], card: Option<&str>, config: &str, split: &str) -> Result<Vec<String>, String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        let dataset = HubDataset {
            repo: "o/n".to_owned(),
            config: config.to_owned(),
            split: split.to_owned(),
            revision: "main".to_owned(),
        };
        choose(&files, card, &dataset)
    }

    #[track_caller]
    fn finds(files: &[&str], config: &str, split: &str, expected: &[&str]) {
        assert_eq!(chosen(files, None, config, split).unwrap_or_default(), expected);
    }

    #[test]
    fn names_tell_configuration_and_split() {
        let sharded = ["data/train_sft-00000-of-00001.parquet", "data/train-00000-of-00001-ab12.parquet", "README.md"];
        finds(&sharded, "default", "train", &["data/train-00000-of-00001-ab12.parquet"]);
        finds(&sharded, "", "train_sft", &["data/train_sft-00000-of-00001.parquet"]);
        finds(&["dev.csv", "my-train-file.csv"], "", "validation", &["dev.csv"]);
        finds(&["dev.csv", "my-train-file.csv"], "", "train", &["my-train-file.csv"]);
        finds(&["rows.jsonl", "LICENSE.md"], "", "train", &["rows.jsonl"]);
        finds(&["rows.jsonl", "test.jsonl"], "", "train", &[]);
        finds(&["main/test.jsonl", "main/testing.jsonl"], "main", "test", &["main/test.jsonl"]);
        finds(&["train.jsonl", "train.csv", "train.parquet"], "", "train", &["train.parquet"]);
        finds(&["main-train.jsonl", "other-train.jsonl"], "main", "train", &["main-train.jsonl"]);
    }

    #[test]
    fn the_card_stands_over_the_names() {
        let card = "---\nconfigs:\n- config_name: a\n  data_files:\n  - split: train\n    path: x/*.parquet\n- config_name: b\n  \
                    data_dir: y\n---\n";
        let files = ["x/1.parquet", "x/deep/2.parquet", "y/test.csv", "x/train.csv"];
        assert_eq!(chosen(&files, Some(card), "a", "train").unwrap_or_default(), ["x/1.parquet"]);
        assert_eq!(chosen(&files, Some(card), "b", "test").unwrap_or_default(), ["y/test.csv"]);
        let problem = |config, split| chosen(&files, Some(card), config, split).err().unwrap_or_default();
        assert_eq!(problem("c", "train"), "there is no configuration `c`; name one of a, b");
        assert_eq!(problem("", "train"), "there is no default configuration; name one of a, b");
        assert_eq!(problem("a", "test"), "configuration `a` has no split `test`; name one of train");
    }

    #[test]
    fn what_is_not_read_is_said_with_the_way_round() {
        let problem = chosen(&["data/train.jsonl.gz"], None, "", "train").err().unwrap_or_default();
        assert!(problem.contains("train.jsonl.gz") && problem.contains("refs/convert/parquet"), "{problem}");
    }

    #[test]
    fn patterns_stay_within_a_folder_unless_they_say_so() {
        let fits = |pattern: &str, file: &str| glob(pattern).is_some_and(|pattern| pattern.is_match(file));
        assert!(fits("main/train-*", "main/train-0.parquet") && !fits("main/train-*", "xmain/train-0"));
        assert!(fits("**/*.csv", "a.csv") && fits("**/*.csv", "a/b/c.csv") && !fits("*.csv", "a/b.csv"));
        assert!(fits("data", "data/a.csv") && fits("a[0-9].csv", "a1.csv") && !fits("a[!0-9].csv", "a1.csv"));
        assert!(fits("a+b.csv", "a+b.csv") && fits("[x.csv", "[x.csv"));
    }

    #[test]
    fn a_shard_that_is_missing_is_noticed() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let half = files(&["main/train-00001-of-00002.parquet"]);
        assert_eq!(missing_shard(&half).as_deref(), Some("1 of the 2 files of `train`"));
        let whole = files(&["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet", "x.csv"]);
        assert_eq!(missing_shard(&whole), None);
    }
}
