//! The rooms of the house and the arrows between them: a room uses only the rooms its row names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Room, and the rooms it may use; `src/lib.rs` lists the same rooms from the floor up.
const ROOMS: &[(&str, &[&str])] = &[
    ("trace", &[]),
    ("config", &[]),
    ("telemetry", &["config"]),
    ("store", &["trace", "config"]),
    ("inference", &["trace", "config", "telemetry"]),
    ("rubric", &["trace", "config", "inference"]),
    ("taskset", &["trace", "config", "rubric"]),
    ("harness", &["trace", "config", "inference", "taskset"]),
    ("agent", &["trace", "config", "telemetry", "store", "inference", "rubric", "taskset", "harness"]),
    ("envs", &["trace", "config", "rubric", "taskset", "agent"]),
    ("tasksets", &["trace", "config", "rubric", "taskset", "agent"]),
    ("eval", &["trace", "config", "telemetry", "store", "inference", "taskset", "agent", "envs"]),
    ("report", &["trace", "config", "telemetry", "store"]),
    ("sim", &["trace", "config", "telemetry"]),
];

/// The room at the top, which may use every other.
const TOP: &str = "cli";

#[test]
fn arrows_go_down_only() {
    let mut faults = Vec::new();
    for file in sources() {
        let room = room_of(&file);
        let text = fs::read_to_string(&file).unwrap();
        let product = text.split("#[cfg(test)]").next().unwrap();
        for (line, used) in uses(product) {
            if !allowed(&room, &used) {
                faults.push(format!("{}:{line}: {room} uses {used}: not allowed", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_table_is_a_floor_plan() {
    for (level, (room, may_use)) in ROOMS.iter().enumerate() {
        for used in *may_use {
            let below = ROOMS[..level].iter().any(|(name, _)| name == used);
            assert!(below, "{room} may use {used}, which is not below it");
        }
    }
}

#[test]
fn lib_lists_every_room_from_the_floor_up() {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let listed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let known: Vec<&str> = ROOMS.iter().map(|(room, _)| *room).chain([TOP]).collect();
    assert_eq!(listed.iter().collect::<BTreeSet<_>>(), known.iter().collect::<BTreeSet<_>>());
    for (position, room) in listed.iter().enumerate() {
        for used in ROOMS.iter().find(|(name, _)| name == room).map_or(&[][..], |(_, may_use)| may_use) {
            assert!(listed[..position].contains(used), "lib.rs lists {room} before {used}, which it uses");
        }
    }
}

#[test]
fn uses_are_found_in_every_spelling() {
    let text = "use crate::{trace::Fault, store::{Event, Journal}};\nlet x = crate::report::why();\n// crate::sim::nothing\n\
                use crate::{\n    config::Section,\n};";
    let found: Vec<String> = uses(text).into_iter().map(|(_, room)| room).collect();
    assert_eq!(found, ["trace", "store", "report", "config"]);
}

fn allowed(room: &str, used: &str) -> bool {
    room == TOP || room == used || ROOMS.iter().any(|(name, may_use)| *name == room && may_use.contains(&used))
}

/// The rooms a text names by `crate::room` or `crate::{room…, room…}`, with their lines; comments do not count.
fn uses(text: &str) -> Vec<(usize, String)> {
    let code: String = text
        .lines()
        .map(|line| if line.trim_start().starts_with("//") { "\n".to_owned() } else { format!("{line}\n") })
        .collect();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + "crate::".len()..];
        if rest.starts_with('{') {
            let mut depth = 0;
            let mut name = String::new();
            for character in rest.chars() {
                match character {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                if depth == 1 && (character.is_alphanumeric() || character == '_') {
                    name.push(character);
                } else if depth == 0 || (depth == 1 && character == ',') || character == ':' {
                    // The first word of each entry is the room; what follows its `::` is skipped up to the comma.
                    if !name.is_empty() && !name.starts_with('\0') {
                        found.push((line, std::mem::take(&mut name)));
                    }
                    name = if character == ':' { "\0".to_owned() } else { String::new() };
                }
                if depth == 0 {
                    break;
                }
            }
        } else {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if ROOMS.iter().any(|(room, _)| *room == name) || name == TOP {
                found.push((line, name));
            }
        }
    }
    found
}

fn room_of(file: &Path) -> String {
    let relative = file.strip_prefix(root()).unwrap();
    let parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match (parts[0].as_str(), parts[1].as_str()) {
        ("src", "lib.rs" | "main.rs") => TOP.to_owned(),
        ("src", room) => room.to_owned(),
        (room, _) => room.to_owned(),
    }
}

fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["src", "envs", "tasksets"] {
        collect(&root().join(folder), &mut files);
    }
    files.sort();
    assert!(files.len() > 20, "the sources were not found");
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
