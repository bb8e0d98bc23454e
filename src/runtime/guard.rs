//! A small process that outlives this one to end what is left. The kernel ends our children with us, but not what
//! they started themselves.

use std::{
    ffi::OsString,
    fs::File,
    io::Write as _,
    sync::{Mutex, PoisonError},
};

use nix::unistd::Pid;

use super::{
    folder,
    process::{Program, Stream, mark, spawn_untied},
    sandbox::prefixes,
};

/// Keeps the living groups; at the end of its input, which is our end, it kills those that are left, and then whoever
/// left its group but carries our mark in its environment; again, for what those were just starting. Then it removes our
/// private folders, and the control groups of our boxes.
const SCRIPT: &str = r#"
owner=$1
folders=$2
shift 2
while read -r mark group; do
    case $mark in
    +) groups="$groups $group" ;;
    *)
        left=
        for other in $groups; do [ "$other" = "$group" ] || left="$left $other"; done
        groups=$left
        ;;
    esac
done
for group in $groups; do kill -KILL "-$group"; done
for pass in 1 2 3; do
    for owned in $(grep -l "$owner" /proc/[0-9]*/environ); do
        owned=${owned#/proc/}
        kill -KILL "${owned%/environ}"
    done
done
[ -n "$folders" ] && rm -rf "$folders"*
for pass in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for beginning in "$@"; do
        for folder in "$beginning"*; do
            [ -d "$folder" ] || continue
            while read -r process; do kill -KILL "$process"; done <"$folder/cgroup.procs"
            rmdir "$folder" || left=some
        done
    done
    [ "$left" ] || break
    sleep 0.1
done
"#;

/// The guard's input, made with the first group; `None` when there could be no guard. Groups come and go on the thread of
/// the processes alone: the lock is never waited for.
static INPUT: Mutex<Option<Option<File>>> = Mutex::new(None);

/// Sees that there is a guard, before there is anything that it must end: whoever kills this process between the start of
/// a child and its announcement would leave what that child started. The guard knows it by our mark.
pub(super) fn stand() {
    INPUT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(start);
}

/// A group that must not outlive this process.
pub(super) fn watch(group: Pid) {
    tell('+', group);
}

/// A group that has ended.
pub(super) fn forget(group: Pid) {
    tell('-', group);
}

fn tell(mark: char, group: Pid) {
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    let line = format!("{mark} {group}\n");
    // A line is smaller than what the pipe writes in one piece, and the guard does nothing but read.
    if let Some(file) = input.get_or_insert_with(start)
        && file.write_all(line.as_bytes()).is_err()
    {
        tracing::warn!("the guard of child processes has ended: if this process is killed, some of theirs may stay");
        *input = Some(None);
    }
}

fn start() -> Option<File> {
    let mut arguments: Vec<OsString> = ["-c", SCRIPT, "rollhouse-guard", mark()].map(OsString::from).to_vec();
    arguments.push(folder::paths().into());
    arguments.extend(prefixes().into_iter().map(OsString::from));
    let shell = Program {
        arguments,
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        folder: Some("/".into()),
        stdin: Stream::Piped,
        ..Program::new("/bin/sh")
    };
    let started = spawn_untied(&shell).map_err(|error| error.to_string());
    match started {
        Ok(input) => Some(input.into()),
        Err(problem) => {
            tracing::warn!(problem, "no guard of child processes: if this process is killed, some of theirs may stay");
            None
        }
    }
}
