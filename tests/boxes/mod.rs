//! Programs in boxes, and what they say.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::Read as _,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::OnceLock,
};

use rollhouse::runtime::{Child, Ending, Limits, Program, Sandbox, Stream, block_on};

/// A box with nothing in it. The program under test may lie elsewhere, where the user that the tests run as can reach it.
pub fn sandbox() -> Sandbox {
    let rollhouse = env::var_os("ROLLHOUSE_TEST_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_rollhouse").into());
    let limits = Limits { processes: Some(64), scratch: 64 << 20, ..Limits::default() };
    Sandbox { rollhouse: rollhouse.into(), limits, ..Sandbox::new() }
}

/// As [`sandbox`], with an interpreter.
pub fn python_sandbox() -> Sandbox {
    Sandbox { read_only: python().1.clone(), ..sandbox() }
}

pub fn shell(script: &str) -> Program {
    Program {
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        stdout: Stream::Piped,
        stderr: Stream::Piped,
        ..Program::new("/bin/sh")
    }
}

/// Python that runs this text.
pub fn script(text: &str, arguments: &[&str]) -> Program {
    let mut words: Vec<_> = ["-I", "-S", "-c", text].map(Into::into).to_vec();
    words.extend(arguments.iter().map(Into::into));
    Program { arguments: words, environment: Vec::new(), ..Program { path: python().0.clone(), ..shell("") } }
}

/// The interpreter of the tests, and what it reads.
fn python() -> &'static (PathBuf, Vec<PathBuf>) {
    static FOUND: OnceLock<(PathBuf, Vec<PathBuf>)> = OnceLock::new();
    FOUND.get_or_init(|| {
        let asked = env::var_os("ROLLHOUSE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let question = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)";
        let answer = Command::new(&asked).args(["-I", "-S", "-c", question]).output().expect("python runs");
        let answer = String::from_utf8(answer.stdout).unwrap();
        let mut lines = answer.lines().map(PathBuf::from);
        (lines.next().expect("an interpreter"), lines.collect())
    })
}

pub fn start(sandbox: &Sandbox, program: Program) -> Child {
    let program = sandbox.enclose(program);
    block_on(Child::start(program)).unwrap().unwrap()
}

pub fn failure(sandbox: &Sandbox, program: Program) -> String {
    let program = sandbox.enclose(program);
    block_on(Child::start(program)).unwrap().unwrap_err().to_string()
}

pub fn all_of(stream: &mut Option<OwnedFd>) -> String {
    let mut text = Vec::new();
    File::from(stream.take().unwrap()).read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

pub fn wait(child: Child) -> Ending {
    block_on(async move { child.ending().await.unwrap() }).unwrap()
}

/// How a program ends and what it says.
pub fn run(sandbox: &Sandbox, program: Program) -> (ExitStatus, String, String) {
    let mut child = start(sandbox, program);
    let (told, errors) = (all_of(&mut child.stdout), all_of(&mut child.stderr));
    (wait(child).status, told, errors)
}

/// What a program says that must succeed.
pub fn said(sandbox: &Sandbox, program: Program) -> String {
    let (status, told, errors) = run(sandbox, program);
    assert!(status.success(), "{status}: {told}{errors}");
    told
}

/// A limit that the machine does not enforce for this user.
pub fn is_unenforced(child: &Child, limit: &str) -> bool {
    child.unenforced().iter().any(|missing| missing.limit == limit)
}

/// The control groups that boxes of a process have.
pub fn groups_of(process: u32) -> BTreeSet<PathBuf> {
    fn collect(folder: &Path, mark: &str, found: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("rollhouse-") && name.contains(mark) {
                    found.insert(entry.path());
                }
                collect(&entry.path(), mark, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    collect(Path::new("/sys/fs/cgroup"), &format!("-{process}-"), &mut found);
    found
}

/// Runs the other tests of this file as the user nobody, who has no rights over the machine. Whoever is not root runs them
/// as such a user anyway.
pub fn as_nobody() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (tests, program) = (folder.path().join("tests"), folder.path().join("rollhouse"));
    fs::copy(env::current_exe().unwrap(), &tests).unwrap();
    fs::copy(sandbox().rollhouse, &program).unwrap();
    let result = Command::new(&tests)
        .args(["--skip", "all_of_it_holds_for_an_unprivileged_user"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("ROLLHOUSE_TEST_PROGRAM", &program)
        .env("A_SECRET", "this-is-the-secret-of-nobody")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&result.stdout);
    assert!(result.status.success(), "{told}{}", String::from_utf8_lossy(&result.stderr));
    assert!(told.contains("test result: ok."), "{told}");
}
