//! Every example resolves as it stands, and says nothing that has no effect.
#![allow(clippy::disallowed_methods, reason = "tests run the program")]

mod program;

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::Stdio,
};

use program::{Done, Folder};

#[test]
fn every_example_of_an_evaluation_resolves() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/eval");
    let folder = Folder::new();
    let mut seen = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let file = entry.unwrap().path();
        let shown = file.to_str().unwrap();
        let done = folder.run(&["eval", "@", shown, "--dry-run"]).expect(0).says(&format!("# {shown}:"));
        assert_eq!(done.stderr, "", "{shown}");
        // The command that its first lines name is one that works.
        let text = fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let command = text.lines().find_map(|line| line.strip_prefix("#   rollhouse ")).unwrap();
        assert!(command.starts_with(&format!("eval @ examples/eval/{name}")), "{shown}: {command}");
        let mut words: Vec<&str> = command.split_whitespace().collect();
        words[2] = shown;
        words.push("--dry-run");
        folder.run(&words).expect(0);
        seen += 1;
    }
    assert!(seen > 1, "the examples were not found");
    assert!(!folder.path().join("outputs").exists(), "showing a configuration writes nothing");
}

/// The served env and the evaluations of it, each by the command that its first lines name.
#[test]
fn the_examples_of_env_servers_run() {
    let folder = Folder::new();
    let example = |name: &str| format!("{}/examples/env-server/{name}", env!("CARGO_MANIFEST_DIR"));
    for (name, command) in [("eval.toml", "eval"), ("env.toml", "env-server"), ("elsewhere.toml", "eval")] {
        let text = fs::read_to_string(example(name)).unwrap();
        assert!(text.contains(&format!("#   rollhouse {command} @ examples/env-server/{name}\n")), "{name}");
        folder.run(&[command, "@", &example(name), "--dry-run"]).expect(0);
    }
    let mut boxed = folder.command(&["eval", "@", &example("eval.toml"), "-n", "2", "--run.name", "boxed"]);
    boxed.env("PATH", env::var_os("PATH").unwrap_or_default());
    Done::of(boxed.output().unwrap()).expect(0).says("8 scored");
    // At a port of this test's own.
    let mut serving =
        folder.command(&["env-server", "@", &example("env.toml"), "--serve.address", "tcp://127.0.0.1:0"]);
    let mut server = serving.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let words = ["eval", "@", &example("elsewhere.toml"), "-n", "2", "--serve.address", address.trim()];
    let done = folder.run(&words);
    server.kill().unwrap();
    server.wait().unwrap();
    done.expect(0).says("4 scored");
}

#[test]
fn the_tasksets_of_the_readme_are_valid_as_they_stand() {
    let readme = include_str!("../README.md");
    let block = |language: &str| {
        let begin = readme.find(language).map(|at| at + language.len()).expect("the block");
        readme[begin..].split("```").next().unwrap()
    };
    let folder = Folder::new();
    folder.write("declared/taskset.toml", block("```toml\n"));
    folder.write("scripted/taskset.py", block("```python\n"));
    let run = |words: &[&str]| {
        // An author's interpreter is found on the path.
        let mut command = folder.command(words);
        Done::of(command.env("PATH", env::var_os("PATH").unwrap_or_default()).output().unwrap()).expect(0)
    };
    for taskset in ["./declared", "./scripted"] {
        run(&["validate", taskset, "-n", "10"]).says("0 failed, 0 with warnings");
        run(&["eval", taskset, "-n", "2", "-r", "2"]).says("4 scored");
    }
}
