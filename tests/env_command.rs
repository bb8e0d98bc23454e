//! `rollhouse env`, and packages of verifiers in the other commands.
#![allow(clippy::disallowed_methods, reason = "tests make folders of their own")]

mod program;
#[path = "support/venv.rs"]
mod venv;

use std::{env, fs, process::Command};

use program::{Done, Folder};

/// A command with a path, and its data in the folder.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    command.env("PATH", env::var_os("PATH").unwrap()).env("HOME", folder.path());
    command
}

fn run(folder: &Folder, arguments: &[&str]) -> Done {
    Done::of(command(folder, arguments).output().unwrap())
}

#[test]
fn an_environment_is_installed_whole_or_not_at_all() {
    let folder = Folder::new();
    let python = venv::test_python();
    let python = python.to_str().unwrap();
    let install = |what: &str| run(&folder, &["env", "install", what, "--python", python, "--reuse", "--no-index"]);
    let failed = install("rh-env");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("No matching distribution found for rh-env"), "{}", failed.stderr);
    let envs = folder.path().join(".local/share/rollhouse/envs");
    assert_eq!(fs::read_dir(&envs).unwrap().count(), 0, "nothing is left");

    let packages = venv::test_packages();
    let done = install(packages.to_str().unwrap());
    assert_eq!(done.code, Some(0), "{done:?}");
    let expected = "installed rh-env, rh-no-key, rh-pair, rh-rude, rh-talk, rh-tools in ";
    assert!(done.stdout.starts_with(expected), "{}", done.stdout);
    let generation = || fs::canonicalize(envs.join("rh_env/current")).unwrap();
    let first = generation();

    // A failure keeps what there is.
    let failed = run(&folder, &["env", "install", "rh-env@9", "--python", python, "--reuse", "--no-index"]);
    assert_eq!((failed.code, generation()), (Some(1), first.clone()), "{failed:?}");

    let wheel = folder.path().join("rh_env-0.3.1-py3-none-any.whl");
    let build = "import sys; sys.path.insert(0, sys.argv[1]); import backend; backend.build_wheel(sys.argv[2])";
    let built = Command::new(python).args(["-c", build]).arg(&packages).arg(folder.path()).status().unwrap();
    assert!(built.success() && wheel.is_file());
    let done = install(wheel.to_str().unwrap());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(generation() != first && !first.exists(), "the new one stands in the place of the old one");

    // Found without a word, as are the others of the distribution.
    let listed = run(&folder, &["env", "list"]).stdout;
    assert!(listed.contains("rh-pair       0.3.1  Two seats at one task"), "{listed}");
    assert!(listed.contains("textarena     0.4.0  ships with verifiers"), "{listed}");
    let info = run(&folder, &["env", "info", "owner/Rh_Pair"]);
    assert_eq!(info.code, Some(0), "{info:?}");
    for part in [
        "rh-pair 0.3.1: not counted",
        "env PairEnv, taskset PairTaskset, tasks SayTask",
        "  solver  harness rh-pair  Attempts the task.",
        "  critic  harness rh-pair, at most 1 turns  Says what",
        "  attempts                     How often the solver tries. (int, default 2)",
        "  count                        How many tasks there are. (int, default 8)",
    ] {
        assert!(info.stdout.contains(part), "{part}: {}", info.stdout);
    }
    let shown = run(&folder, &["tasksets", "show", "rh-pair", "-n", "1", "-a", r#"{"count": 3}"#]);
    assert!(shown.stdout.contains("[user]\nsay 0 and nothing else"), "{shown:?}");
    let refused = run(&folder, &["tasksets", "show", "rh-pair", "-a", r#"{"cuont": 3}"#]);
    assert!(refused.stderr.contains("cuont: unknown key; did you mean `count`?"), "{refused:?}");
    let refused = run(&folder, &["validate", "rh-pair"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("`rh-pair` is an environment of verifiers: its own server"), "{refused:?}");
}

#[test]
fn what_cannot_be_installed_is_said_at_once() {
    let folder = Folder::new();
    for (what, expected) in [
        ("a b", "names no package: expected `name`, `owner/name` or a path"),
        ("./nowhere", "is no package: cannot read its pyproject.toml"),
        ("no.whl", "there is no file `no.whl`"),
        ("env@", "is no version"),
    ] {
        let refused = run(&folder, &["env", "install", what]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let nameless = folder.write("nameless/pyproject.toml", "[project]\nversion = \"1\"\n");
    let refused = run(&folder, &["env", "install", nameless.parent().unwrap().to_str().unwrap()]);
    assert!(refused.stderr.contains("needs `[project] name`"), "{}", refused.stderr);
    let refused = run(&folder, &["env", "install", "rh-env", "--python", "/no/python", "--no-index"]);
    assert!(refused.stderr.contains("/no/python"), "{}", refused.stderr);
    assert!(!folder.path().join(".local/share/rollhouse/envs/rh_env").exists());
}

#[test]
fn a_wrong_block_is_told_at_its_line() {
    let folder = Folder::new();
    let python = venv::with_test_packages(&folder.path().join("venv"));
    folder.write(
        "exp.toml",
        "[env.taskset]\nid = \"rh-env\"\ncuont = 3\n\n[env.taskset.task]\nfail = \"x\"\n\n[env.agent.timeout]\nsetup = -1\n",
    );
    let refused = run(&folder, &["eval", "@", "exp.toml", "--python", python.to_str().unwrap(), "--dry-run"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for line in [
        "exp.toml:3:9: env.taskset.cuont: unknown key; did you mean `count`?",
        "exp.toml:6:8: env.taskset.task.fail: input should be 'no', 'setup', 'reward' or 'finalize'",
        "exp.toml:9:9: env.agent.timeout.setup: input should be greater than 0",
    ] {
        assert!(refused.stderr.contains(line), "{line}: {}", refused.stderr);
    }
    let words = ["eval", "rh-env", "--python", python.to_str().unwrap(), "--dry-run"];
    let named =
        run(&folder, &[&words[..], &["--env.agent.harness.id", "null", "--env.agent.max-turns", "None"]].concat());
    for line in ["env.agent.harness.id = \"null\"", "env.agent.max_turns = None"] {
        assert!(named.stdout.contains(line), "only `None` unsets: {line}: {named:?}");
    }
    let refused = run(&folder, &["eval", "rh-broken", "--python", python.to_str().unwrap(), "-n", "1"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for part in ["FileNotFoundError: no data at /nowhere/rows.parquet", "last output:", "looking for the data"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}
