//! `rollhouse env list`.

use std::{fmt::Write as _, fs, path::PathBuf, process::ExitCode};

use crate::{
    cli::{exit, exit::Failure, output},
    taskset::verifiers::{InstalledIn, Search, current, data_folder},
};

pub(super) fn run(search: &Search) -> Result<ExitCode, Failure> {
    let mut places = search.installed().map_err(Failure::usage)?;
    if search.python.is_none() {
        let own = Search { pass_env: search.pass_env.clone(), ..Search::default() };
        for venv in made() {
            places.extend(Search { python: Some(venv), ..own.clone() }.installed().unwrap_or_default());
        }
    }
    output::print(text(&places))?;
    Ok(exit::DONE.into())
}

/// The environments that `rollhouse env install` made.
fn made() -> Vec<PathBuf> {
    let Some(data) = data_folder() else { return Vec::new() };
    let entries = fs::read_dir(&data).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut venvs: Vec<PathBuf> =
        names.map(|module| current(&data, &module)).filter(|venv| venv.join("bin/python").is_file()).collect();
    venvs.sort();
    venvs
}

fn text(places: &[InstalledIn]) -> String {
    let mut text = String::new();
    let all = places.iter().filter_map(|found| found.tasksets.as_ref().ok()).flatten();
    let width = all.map(|taskset| taskset.id.chars().count()).max().unwrap_or(0);
    for InstalledIn { place, tasksets: found } in places {
        let separator = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{separator}in {place}:");
        match found {
            Err(error) => _ = writeln!(text, "  does not work: {}", error.message),
            Ok(found) if found.is_empty() => text.push_str("  none\n"),
            Ok(found) => {
                // What ships with verifiers is in every interpreter that has it.
                for taskset in found.iter().filter(|taskset| !taskset.ships).chain(found.iter().filter(|own| own.ships))
                {
                    let version = taskset.version.as_deref().unwrap_or("-");
                    let summary = match (taskset.ships, taskset.summary.as_str()) {
                        (true, "") => "ships with verifiers",
                        (_, summary) => summary,
                    };
                    let _ = writeln!(text, "  {:width$}  {version:>8}  {summary}", taskset.id);
                }
            }
        }
    }
    if places.is_empty() {
        text.push_str("there is no Python here; `rollhouse env install NAME` needs one\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::verifiers::{BridgeError, Installed};

    #[test]
    fn own_packages_stand_before_those_that_ship() {
        let taskset = |id: &str, summary: &str, ships: bool| Installed {
            id: id.to_owned(),
            summary: summary.to_owned(),
            version: (!ships).then(|| "1.2".to_owned()),
            ships,
        };
        let found = vec![taskset("harbor", "", true), taskset("my-env", "Plays.", false)];
        let broken = BridgeError { message: "it ended".to_owned(), ..BridgeError::default() };
        let places = [(".venv", Ok(found)), ("python3", Err(broken)), ("x", Ok(Vec::new()))];
        let text = text(&places.map(|(place, tasksets)| InstalledIn { place: place.to_owned(), tasksets }));
        assert_eq!(
            text,
            "in .venv:\n  my-env       1.2  Plays.\n  harbor         -  ships with verifiers\n\n\
             in python3:\n  does not work: it ended\n\nin x:\n  none\n"
        );
    }
}
