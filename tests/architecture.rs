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
    ("template", &[]),
    ("store", &["trace", "config", "telemetry"]),
    ("render", &["trace", "config", "telemetry"]),
    ("inference", &["trace", "config", "telemetry"]),
    ("runtime", &[]),
    ("zmtp", &[]),
    ("rubric", &["trace", "config", "telemetry", "template", "inference"]),
    ("taskset", &["trace", "config", "telemetry", "template", "runtime", "rubric"]),
    ("harness", &["trace", "config", "inference", "taskset"]),
    ("agent", &["trace", "config", "telemetry", "store", "render", "inference", "taskset", "harness"]),
    ("envs", &["trace", "config", "rubric", "taskset", "agent"]),
    ("tasksets", &["trace", "config", "rubric", "taskset", "agent"]),
    // Serves what the rooms below run, and runs what is served elsewhere.
    (
        "serve",
        &[
            "trace",
            "config",
            "telemetry",
            "store",
            "inference",
            "runtime",
            "zmtp",
            "taskset",
            "harness",
            "agent",
            "envs",
        ],
    ),
    // Validation scores replies that no agent gave.
    ("eval", &["trace", "config", "telemetry", "store", "rubric", "taskset", "envs"]),
    ("orchestrator", &["trace"]),
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
        for (line, used) in uses(product(&text), depth_of(&file)) {
            if !allowed(&room, &used) {
                faults.push(format!("{}:{line}: {room} uses {used}: not allowed", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The doors: a lint that keeps something to one room, and the only files that lift it. `clippy.toml` says what
/// `disallowed_methods` are: `store` writes files, `inference` opens connections, `sim` listens, `zmtp` does both for env
/// servers, `runtime` starts processes. Data sets of the hub have a door each way: their files lie behind redirects, which the
/// client of `inference` never follows, and in the cache of another program, with its layout and its locks, which is no run
/// directory. A sandbox has control groups, which look like files, and routes, which listen inside it and connect outside.
const DOORS: &[(&str, &[&str])] = &[
    (
        "clippy::disallowed_methods",
        &[
            "src/inference/transport.rs",
            "src/runtime/process.rs",
            "src/runtime/sandbox/cgroup.rs",
            "src/runtime/sandbox/inside.rs",
            "src/runtime/sandbox/route.rs",
            "src/sim/server.rs",
            "src/store/mod.rs",
            "src/taskset/dataset/hub/blobs.rs",
            "src/taskset/dataset/hub/web.rs",
            "src/zmtp/socket.rs",
        ],
    ),
    ("clippy::print_stderr", &[]),
    ("clippy::print_stdout", &[]),
    ("clippy::exit", &[]),
    // Between fork and exec.
    ("unsafe_code", &["src/runtime/process.rs"]),
];

#[test]
fn each_door_has_one_room() {
    for (lint, doors) in DOORS {
        let lifted: Vec<String> = sources()
            .into_iter()
            .filter(|file| product(&fs::read_to_string(file).unwrap()).contains(lint))
            .map(|file| file.strip_prefix(root()).unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(lifted, *doors, "files that lift {lint}");
    }
    // Only the room whose whole work is behind its door lifts the lint as a whole; the others for one item.
    for file in
        ["src/inference/transport.rs", "src/sim/server.rs", "src/taskset/dataset/hub/web.rs", "src/zmtp/socket.rs"]
    {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let attributes: Vec<&str> =
            text.lines().map(str::trim).filter(|line| line.contains("clippy::disallowed_methods")).collect();
        assert!(matches!(attributes.as_slice(), [one] if one.starts_with("#[")), "{file}: {attributes:?}");
    }
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

/// Arrows that the design names and nobody uses yet.
const PLANNED: &[(&str, &str)] = &[
    ("harness", "config"),
    ("harness", "inference"),
    ("harness", "taskset"),
    ("report", "config"),
    ("sim", "config"),
    ("tasksets", "agent"),
];

#[test]
fn every_arrow_is_used() {
    let mut used = BTreeSet::new();
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        let room = room_of(&file);
        used.extend(uses(product(&text), depth_of(&file)).into_iter().map(|(_, to)| (room.clone(), to)));
    }
    for (room, may_use) in ROOMS {
        for to in *may_use {
            let is_used = used.contains(&((*room).to_owned(), (*to).to_owned()));
            let planned = PLANNED.contains(&(room, to));
            assert!(is_used || planned, "{room} may use {to} and does not: take the arrow out of the table");
            assert!(!(is_used && planned), "{room} uses {to} now: it is planned no more");
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
    let found = |text: &str, depth| uses(text, depth).into_iter().map(|(_, room)| room).collect::<Vec<_>>();
    assert_eq!(found(text, 2), ["trace", "store", "report", "config"]);
    let text = "use super::trace;\nuse super::super::report::why;\nuse super::super::super::sim;";
    assert_eq!(found(text, 2), ["report"], "two steps lead out of a file of a room");
    assert_eq!(found(text, 1), ["trace"], "one step leads out of its face");
}

fn allowed(room: &str, used: &str) -> bool {
    room == TOP || room == used || ROOMS.iter().any(|(name, may_use)| *name == room && may_use.contains(&used))
}

/// What is no test of a source file.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

/// The rooms a text names by `crate::room` or `crate::{room…, room…}`, or by as many `super::` as lead out of its room,
/// with their lines; comments do not count.
fn uses(text: &str, depth: usize) -> Vec<(usize, String)> {
    let code: String = text
        .lines()
        .map(|line| if line.trim_start().starts_with("//") { "\n".to_owned() } else { format!("{line}\n") })
        .collect();
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let is_room = |name: &str| name == TOP || ROOMS.iter().any(|(room, _)| *room == name);
    let mut found = Vec::new();
    let climb = "super::".repeat(depth);
    for (at, _) in code.match_indices(&climb).filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let name = word(&code[at + climb.len()..]);
        if is_room(&name) {
            found.push((code[..at].matches('\n').count() + 1, name));
        }
    }
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
            let name = word(rest);
            if is_room(&name) {
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

/// How many steps lead from the module of a file to the root of the crate.
fn depth_of(file: &Path) -> usize {
    let relative = file.strip_prefix(root()).unwrap();
    let mut parts = relative.components().count();
    if relative.starts_with("src") {
        parts -= 1;
    }
    if ["mod.rs", "lib.rs", "main.rs"].iter().any(|face| relative.ends_with(face)) { parts - 1 } else { parts }
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
