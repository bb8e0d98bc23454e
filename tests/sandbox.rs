//! Code in a box sees, reaches and takes what it is given, and nothing else.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "tests make files, connections and processes of their own")]

mod boxes;

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{TcpListener, UdpSocket},
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    process::{Command, Stdio},
};

use boxes::{
    all_of, as_nobody, failure, is_unenforced, python_sandbox, run, said, sandbox, script, shell, start, wait,
};
use nix::unistd::{dup, geteuid};
use rollhouse::runtime::{Limits, Sandbox, block_on};
use serde_json::json;
use tempfile::{TempDir, tempdir};

const PROBE: &str = include_str!("boxes/probe.py");

/// A folder that the box gets, with a file in it.
fn folder(name: &str) -> TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("file"), name).unwrap();
    folder
}

/// A process that is not in the box.
struct Outside(std::process::Child);

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn what_is_out_of_reach_is_out_of_reach() {
    let (read_only, writable, other) = (folder("ours"), tempdir().unwrap(), folder("secret"));
    let secret = other.path().join("file");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_nonblocking(true).unwrap();
    let name = format!("rollhouse-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let socket = other.path().join("socket");
    let _socket = UnixListener::bind(&socket).unwrap();
    // Open in this process by mistake, and led on to every child.
    let _stray = dup(fs::File::open(other.path()).unwrap()).unwrap();
    let outside = Outside(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    let setuid = read_only.path().join("id");
    fs::copy("/usr/bin/id", &setuid).unwrap();
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o6755)).unwrap();

    let home = env::var("HOME").ok().filter(|home| home != "/" && !home.starts_with("/tmp"));
    let mut hidden = vec![secret.clone(), other.path().into(), "/sys/kernel".into(), "/run/lock".into()];
    hidden.extend(["/var/lib", "/var/log", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf"].map(Into::into));
    hidden.extend(home.iter().filter(|home| fs::read_dir(home).is_ok()).map(|home| format!("{home}/.profile").into()));
    let values = env::vars().filter(|(name, value)| value.len() > 11 && name != "HOME" && name != "PATH");
    let mut scratch = [read_only.path(), writable.path()].map(|path| path.file_name().unwrap().to_str().unwrap());
    scratch.sort_unstable();
    let given = json!({
        "hidden": hidden,
        "folders": {
            "/run": ["rollhouse"],
            "/var": ["tmp"],
            "/tmp": scratch,
        },
        "read_only": read_only.path(),
        "writable": writable.path(),
        "secret": secret,
        "setuid": [setuid],
        "groups": Vec::<u32>::new(),
        "process": outside.0.id(),
        "environment": values.map(|(_, value)| value).collect::<Vec<_>>(),
        "tcp": tcp.local_addr().unwrap().port(),
        "udp": udp.local_addr().unwrap().port(),
        "abstract": name,
        "socket": socket,
    });
    let mut sandbox = python_sandbox();
    sandbox.read_only.push(read_only.path().into());
    sandbox.writable.push(writable.path().into());
    sandbox.limits = Limits { open_files: Some(512), file_size: Some(1 << 20), ..sandbox.limits };
    let mut program = script(PROBE, &[&given.to_string()]);
    program.environment = vec![("MINE".into(), "1".into()), ("HOME".into(), "/root".into())];
    let found = said(&sandbox, program);
    assert_eq!(found, "\n", "the probe got somewhere");

    assert!(tcp.accept().is_err(), "nobody came");
    assert!(udp.recv(&mut [0; 8]).is_err(), "nothing came");
    assert_eq!(fs::read_to_string(writable.path().join("mine")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(read_only.path().join("file")).unwrap(), "ours");
}

#[test]
fn no_path_lets_the_machine_in() {
    let (around, missing) = (tempdir().unwrap(), tempdir().unwrap().path().join("missing"));
    let inner = around.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let with = |read_only: &[&str], writable: &[&str]| {
        let paths = |list: &[&str]| list.iter().map(Into::into).collect();
        failure(&Sandbox { read_only: paths(read_only), writable: paths(writable), ..sandbox() }, shell(""))
    };
    for path in ["/", "/proc", "/proc/1", "/sys/fs", "/dev", "/tmp", "/run", "/etc", "relative", "/usr/../root"] {
        assert!(with(&[path], &[]).contains("cannot be in a sandbox"), "{path}");
        assert!(with(&[], &[path]).contains("cannot be in a sandbox"), "{path}");
    }
    // What is read anyway is not written, nor is what others live in.
    for path in ["/usr", "/usr/local/lib", "/bin", "/etc/ssl", "/var", "/home", "/root"] {
        assert!(with(&[], &[path]).contains("cannot be written by a sandbox"), "{path}");
        assert!(fs::metadata(path).is_ok_and(|found| found.uid() != 60_870), "{path} was given away");
    }
    // A link leads to no more than its name does.
    for (name, target) in [("all", "/"), ("proc", "/proc"), ("tmp", "/tmp"), ("usr", "/usr")] {
        let link = around.path().join(name);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let link = link.to_str().unwrap();
        assert!(target == "/usr" || with(&[link], &[]).contains("cannot be in a sandbox"), "{target}");
        assert!(with(&[], &[link]).contains("cannot be "), "{target}");
    }
    let around = tempdir().unwrap();
    let inner = around.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (around, inner) = (around.path().to_str().unwrap(), inner.to_str().unwrap());
    assert!(with(&[inner], &[around]).contains("which the sandbox may write"));
    assert!(with(&[], &[inner, around]).contains("which the sandbox may write"));
    let message = with(&[missing.to_str().unwrap()], &[]);
    assert!(message.contains("missing: No such file"), "{message}");
    // A folder that may be written, in one that may be read.
    let sandbox = Sandbox { read_only: vec![around.into()], writable: vec![inner.into()], ..sandbox() };
    let told = said(&sandbox, shell(&format!("pwd; touch a ../b; ls {around}")));
    assert_eq!(told, format!("{inner}\ninner\n"));
}

#[test]
fn what_is_missing_is_said_before_anything_runs() {
    let check = |sandbox: Sandbox| block_on(async move { sandbox.check().await }).unwrap();
    let unenforced = check(sandbox()).unwrap();
    assert!(!unenforced.iter().any(|missing| missing.limit == "processes"), "{unenforced:?}");
    let message = check(Sandbox { bwrap: "no-such-bwrap".into(), ..sandbox() }).unwrap_err().to_string();
    assert!(message.contains("no program `no-such-bwrap`") && message.contains("install bubblewrap"), "{message}");
    // What bwrap says where it may not.
    let folder = tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let bwrap = folder.path().join("bwrap");
    let told = |words: &str| {
        fs::write(&bwrap, format!("#!/bin/sh\necho 'bwrap: {words}' >&2\nexit 1\n")).unwrap();
        fs::set_permissions(&bwrap, fs::Permissions::from_mode(0o755)).unwrap();
        check(Sandbox { bwrap: bwrap.clone(), ..sandbox() }).unwrap_err().to_string()
    };
    let message = told("No permissions to create a new namespace, likely because the kernel does not allow it");
    assert!(message.contains("No permissions") && message.contains("--privileged"), "{message}");
    let message = told("Unknown option --size");
    assert!(message.contains("too old"), "{message}");
    let message = told("Can\"t mount tmpfs");
    assert!(message.contains("cannot be made: bubblewrap says `Can\"t mount tmpfs`"), "{message}");
    let message = failure(&sandbox(), rollhouse::runtime::Program::new("/no/program"));
    assert!(message.starts_with("cannot start `/no/program`: No such file"), "{message}");
    assert!(message.contains("among what the sandbox may read"), "{message}");
}

#[test]
fn streams_signals_and_status_pass_through() {
    assert_eq!(
        run(&sandbox(), shell("echo out; echo err >&2; exit 3")),
        (status(3 << 8), "out\n".into(), "err\n".into())
    );
    assert_eq!(run(&sandbox(), shell("kill -SEGV $$")).0, status(11));
    let mut child =
        start(&sandbox(), shell("trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"));
    let mut output = fs::File::from(child.stdout.take().unwrap());
    let mut line = [0; 6];
    output.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    child.signal(rollhouse::runtime::Signal::SIGTERM);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), wait(child).status), ("asked\n", status(7 << 8)));
    let program = rollhouse::runtime::Program { stdin: rollhouse::runtime::Stream::Piped, ..shell("cat") };
    let mut child = start(&sandbox(), program);
    fs::File::from(child.stdin.take().unwrap()).write_all(b"through").unwrap();
    assert_eq!(all_of(&mut child.stdout), "through");
    assert!(wait(child).status.success());
}

fn status(raw: i32) -> std::process::ExitStatus {
    std::os::unix::process::ExitStatusExt::from_raw(raw)
}

#[test]
fn a_socket_in_a_shared_folder_is_reached_from_outside() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("worker.sock");
    let text = "import socket, sys\nserver = socket.socket(socket.AF_UNIX)\nserver.bind(sys.argv[1])\nserver.listen()\n\
                print(flush=True)\nclient, _ = server.accept()\nclient.sendall(client.recv(10).upper())";
    let mut sandbox = python_sandbox();
    sandbox.writable.push(folder.path().into());
    let mut child = start(&sandbox, script(text, &[path.to_str().unwrap()]));
    let mut output = fs::File::from(child.stdout.take().unwrap());
    output.read_exact(&mut [0]).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HELLO");
    assert!(wait(child).status.success());
}

/// What a program makes of the one folder that we look into: it fills it, hides what lies in it, and leads elsewhere.
#[test]
fn a_folder_that_is_shared_takes_nothing_of_the_machine() {
    let outside = tempdir().unwrap();
    let path = outside.path().join("shared");
    let victim = outside.path().join("victim.sock");
    let _victim = UnixListener::bind(&victim).unwrap();
    let text = "import os, socket, sys\nfolder, victim = sys.argv[1:]\nassert os.getcwd() == folder\n\
                assert not os.path.exists(victim)\nassert socket.socket(socket.AF_UNIX).bind(folder + '/s') is None\n\
                os.symlink(victim, 'led')\nos.symlink('/etc/passwd', 'read')\n\
                try:\n    with open('full', 'wb') as file:\n        while True: file.write(bytes(1 << 16))\n\
                except OSError as error: print(error.errno)\nos.remove('full')\n\
                for _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n    os.chmod('.', 0o100)\n    os.chmod('.', 0o700)\n\
                os.chmod(folder + '/d', 0)\nprint('made', flush=True)\nsys.stdin.read()";
    let mut sandbox = python_sandbox();
    sandbox.shared = Some(path.clone());
    sandbox.limits.scratch = 4 << 20;
    let program = script(text, &[path.to_str().unwrap(), victim.to_str().unwrap()]);
    let mut child =
        start(&sandbox, rollhouse::runtime::Program { stdin: rollhouse::runtime::Stream::Piped, ..program });
    let mut told = String::new();
    let mut output = fs::File::from(child.stdout.take().unwrap());
    while !told.ends_with("made\n") {
        let mut piece = [0; 64];
        let count = output.read(&mut piece).unwrap();
        assert_ne!(count, 0, "{told}{}", all_of(&mut child.stderr));
        told.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    assert_eq!(told, "28\nmade\n", "there is no space left");
    let shared = child.shared.take().unwrap();
    let through = |name: &str| std::path::PathBuf::from(format!("/proc/self/fd/{}/{name}", shared.as_raw_fd()));
    assert!(fs::symlink_metadata(through("s")).unwrap().file_type().is_socket());
    assert!(!path.exists(), "nothing lies outside");
    drop(child.stdin.take());
    assert!(wait(child).status.success());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);

    // A program that we start could be replaced there.
    let folder = tempdir().unwrap();
    let ours = folder.path().join("rollhouse");
    fs::copy(&sandbox.rollhouse, &ours).unwrap();
    let replaceable = Sandbox { rollhouse: ours, writable: vec![folder.path().into()], ..self::sandbox() };
    assert!(failure(&replaceable, shell("")).contains("which the sandbox may write"));
}

#[test]
fn scratch_is_bounded() {
    let mut sandbox = sandbox();
    sandbox.limits.scratch = 4 << 20;
    let fill = "for place in /tmp /dev/shm; do cat /dev/zero >$place/full; wc -c <$place/full; done";
    let (_, told, errors) = run(&sandbox, shell(fill));
    assert_eq!(told, "4194304\n4194304\n");
    assert_eq!(errors.matches("No space left").count(), 2, "{errors}");
}

#[test]
fn a_fork_bomb_is_bounded() {
    let text = "import os, time\ncount = 0\ntry:\n    while count < 1000:\n        if not os.fork(): time.sleep(1000)\n\
                \x20       count += 1\nexcept BlockingIOError: print(count)";
    let mut sandbox = python_sandbox();
    sandbox.limits.processes = Some(20);
    assert_eq!(said(&sandbox, script(text, &[])), "19\n", "beside the first");
    // Another box has its own number.
    let bomb = start(&sandbox, script(&text.replace("print(count)", "time.sleep(1000)"), &[]));
    assert_eq!(said(&sandbox, script(text, &[])), "19\n");
    drop(bomb);
}

#[test]
fn a_memory_hog_is_told_from_a_crash() {
    let text = "kept = []\nwhile True: kept.append(bytearray(1 << 20))";
    let mut sandbox = python_sandbox();
    sandbox.limits.memory = Some(64 << 20);
    let mut child = start(&sandbox, script(text, &[]));
    let held = !is_unenforced(&child, "memory");
    let errors = all_of(&mut child.stderr);
    let ending = wait(child);
    if held {
        assert_eq!((ending.status, ending.out_of_memory), (status(9), true));
    } else {
        assert!(errors.contains("MemoryError"), "{errors}");
        assert_eq!((ending.status, ending.out_of_memory), (status(1 << 8), false));
    }
    let ending = wait(start(&sandbox, shell("kill -KILL $$")));
    assert_eq!((ending.status, ending.out_of_memory), (status(9), false));
}

#[test]
fn memory_counts_for_all_processes_and_their_scratch_together() {
    let mut sandbox = sandbox();
    sandbox.limits.memory = Some(32 << 20);
    let mut child = start(&sandbox, shell("cat /dev/zero >/tmp/full; echo here"));
    if is_unenforced(&child, "memory") {
        return assert!(!geteuid().is_root(), "root enforces it where there are control groups");
    }
    all_of(&mut child.stdout);
    assert!(wait(child).out_of_memory);
}

/// The same again as the user nobody.
#[test]
fn all_of_it_holds_for_an_unprivileged_user() {
    as_nobody();
}
