//! However a run ends, nothing holds it, its user learns why and how to go on, and its exit status tells.
#![allow(clippy::disallowed_methods, reason = "tests prepare processes and pipes of their own")]

mod program;

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::{Done, Folder, Simulator, episodes};

/// The arguments of a run against an endpoint that takes requests and never answers them.
fn hanging(endpoint: &Simulator, tasks: &str) -> Vec<String> {
    let arguments =
        ["eval", "reverse-text", "-m", "sim", "-b", &endpoint.base_url, "-n", tasks, "-c", "4", "--run.name", "one"];
    arguments.map(str::to_owned).to_vec()
}

fn command(folder: &Folder, arguments: &[String]) -> Command {
    folder.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// A pipe that is full already, and its reader, which must live as long as nobody reads.
fn full_pipe() -> (std::io::PipeReader, OwnedFd) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    let filled = std::iter::repeat_with(|| writer.write(&[b' '; 4096])).find_map(Result::err).unwrap();
    assert_eq!(filled.kind(), ErrorKind::WouldBlock);
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    (reader, writer.into())
}

/// With all rollouts started, the first signal still says that it was heard, and the second ends a run that waits for an
/// endpoint for ever.
#[test]
fn two_signals_end_a_run_that_hangs() {
    let endpoint = Simulator::start(&["--fault", "hang:1@/v1/chat/completions"]);
    for tasks in ["3", "50"] {
        let folder = Folder::new();
        let mut child =
            command(&folder, &hanging(&endpoint, tasks)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().starts_with("reverse-text with sim"), "the first line is the headline");
        signal(&child, Signal::SIGINT);
        let heard = lines.find(|line| line.starts_with("stopped on request")).unwrap();
        assert!(heard.contains("once more drops them"), "{heard}");
        signal(&child, Signal::SIGTERM);
        let last = lines.last().unwrap();
        assert!(last.contains("eval --resume outputs/"), "{last}");
        let done = Done::of(child.wait_with_output().unwrap()).expect(130);
        assert!(done.stdout.contains(&format!("{tasks} planned: 0 scored, 0 failed, {tasks} not run")), "{done:#?}");
    }
}

#[test]
fn a_terminal_that_takes_no_output_holds_nothing() {
    // A run that could go on for ever ends on its second signal.
    let endpoint = Simulator::start(&["--fault", "hang:1@/v1/chat/completions"]);
    let folder = Folder::new();
    let (_reader, full) = full_pipe();
    let mut child = command(&folder, &hanging(&endpoint, "50")).stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let started = Instant::now();
    while !folder.path().join("outputs/one/run.json").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the run did not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Signals are listened to before the state is written. Two of a kind could become one.
    signal(&child, Signal::SIGINT);
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));

    // A run that comes to its end does so, with its results on the other stream.
    let (_reader, full) = full_pipe();
    let mut quiet = folder.command(&["eval", "alphabet-sort", "-n", "20", "-r", "4", "--json"]);
    let done = Done::of(quiet.stdout(Stdio::piped()).stderr(full).spawn().unwrap().wait_with_output().unwrap());
    assert_eq!(done.expect(0).json()["scored"], 80);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = Folder::new();
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(OwnedFd::from(writer))
    };
    for arguments in [&["eval", "reverse-text", "-n", "3"][..], &["eval", "reverse-text", "-n", "3", "--json"]] {
        let status = folder.command(arguments).stdout(gone()).stderr(gone()).status().unwrap();
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
    // What is wrong is told by the status, also where it cannot be told in words.
    for stderr in [gone(), OpenOptions::new().write(true).open("/dev/full").unwrap().into()] {
        let status = folder.command(&["eval", "revers-text", "-n", "3"]).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(2));
    }
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut unwritten = folder.command(&["eval", "reverse-text", "-n", "3"]);
    let done = Done::of(unwritten.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    done.expect(1).says("cannot write to the standard output: No space left on device");
}

/// A disk that fills up in the middle: what is finished stays and is summed up, the reason is told, and a resume does the
/// rest.
#[test]
fn a_disk_that_fills_up_ends_the_run_with_all_that_is_finished() {
    let folder = Folder::new();
    // A limit on the size of a file acts like a disk of that size. The shell counts it in blocks of 512 or 1024 bytes.
    let program = env!("CARGO_BIN_EXE_rollhouse");
    let script = format!("trap '' XFSZ; ulimit -f 64; exec {program} eval reverse-text -n 60 -c 2 --run.name small");
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).env_clear().output().unwrap();
    let done = Done::of(output).expect(1);
    for part in ["outputs/small/traces.jsonl", "File too large", "go on with: rollhouse eval --resume outputs/small"] {
        assert!(done.stderr.contains(part), "`{part}` is missing in {done:#?}");
    }
    let run = folder.path().join("outputs/small");
    let before = episodes(&run);
    assert!(!before.is_empty() && before.len() < 60, "{}", before.len());
    assert!(done.stdout.contains(&format!("60 planned: {} scored", before.len())), "{done:#?}");

    let results = folder.run(&["eval", "--resume", "outputs/small", "--json"]).expect(0).json();
    assert_eq!(results["scored"], 60);
    assert_eq!(episodes(&run)[..before.len()], before[..]);
}

#[test]
fn what_cannot_be_resumed_is_named_with_what_to_do() {
    let folder = Folder::new();
    folder.run(&["eval", "reverse-text", "-n", "2", "--run.name", "one"]).expect(0);
    let resume = |arguments: &[&str]| folder.run(&[&["eval"], arguments].concat()).expect(2);
    resume(&["--resume"]).says("--resume RUN_DIR");
    resume(&["--resume", "outputs/none"]).says("there is no such folder");
    resume(&["--resume", "outputs"]).says("it holds no run");
    resume(&["--resume", "outputs/one", "--clean"]).says("leave one of them out");
    // Killed between the making of its folder and the writing of its settings.
    fs::create_dir(folder.path().join("outputs/stub")).unwrap();
    File::create(folder.path().join("outputs/stub/traces.jsonl")).unwrap();
    resume(&["--resume", "outputs/stub"]).says("started anew, with its own command");
    folder.run(&["eval", "reverse-text", "-n", "2", "--run.name", "stub"]).expect(0);
    // What cannot run fails a dry run too.
    folder.run(&["eval", "alphabet-sort", "--dry-run"]).expect(2).says("-n");
}
