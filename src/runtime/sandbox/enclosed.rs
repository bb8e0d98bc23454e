//! A box from outside, from its making to its end.

use std::{
    env,
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::pidfd_send_signal,
};
use tokio::{
    io::{AsyncReadExt as _, Interest},
    net::{UnixStream, unix::pipe},
    time::{Instant, sleep},
};

use super::{
    super::{Program, Stream},
    Sandbox, SandboxError, Unenforced, cgroup,
    inside::{self, Orders},
    layout::{self, Layout},
    message,
    route::{Gate, Plan, Route},
    seccomp,
};

/// How a box is started.
#[derive(Debug)]
pub(in crate::runtime) struct Start {
    /// `bwrap`, with all that it is told.
    pub(in crate::runtime) program: Program,
    /// What `bwrap` writes to its standard error, and the last step inside speaks by.
    pub(in crate::runtime) control: OwnedFd,
    /// Descriptors that it inherits under the same numbers.
    pub(in crate::runtime) inherited: Vec<OwnedFd>,
    /// Where it writes a `0` to enter its control groups.
    pub(in crate::runtime) doors: Vec<OwnedFd>,
    /// Where the program's standard error is read.
    pub(in crate::runtime) errors: Option<OwnedFd>,
    /// The box itself.
    pub(in crate::runtime) enclosed: Enclosed,
}

/// A box.
#[derive(Debug)]
pub(in crate::runtime) struct Enclosed {
    /// Our end, kept as long as the box: `bwrap` may still write.
    control: UnixStream,
    /// What `bwrap` said.
    words: Vec<u8>,
    /// Where the last step inside says why it failed, and whose end says that it did not.
    failure: Option<(pipe::Receiver, Vec<u8>)>,
    /// The first process of the box, which is its last.
    first: Option<OwnedFd>,
    /// The program in the box.
    process: Option<OwnedFd>,
    /// Whether it has a folder that we reach, and that.
    has_shared: bool,
    shared: Option<OwnedFd>,
    listeners: Vec<OwnedFd>,
    routes: Vec<Route>,
    gate: Option<Gate>,
    group: cgroup::Group,
    unenforced: Vec<Unenforced>,
}

/// The host's user for boxes where we are root: in the range that no system gives away, so that nothing is this user's.
const USER_OUTSIDE: u32 = 60_870;

impl Start {
    /// Gets everything ready. Needs the tokio runtime that the box will live on.
    pub(in crate::runtime) fn of(sandbox: &Sandbox, program: &Program) -> Result<Self, SandboxError> {
        let bwrap = find(&sandbox.bwrap)?;
        let user = nix::unistd::geteuid().is_root().then_some(USER_OUTSIDE);
        let plan = Plan::of(&sandbox.routes)?;
        let (group, mut unenforced) = cgroup::Group::make(&sandbox.limits);
        let mut layout = Layout::of(sandbox, &program.environment, user, &plan)?;
        if let Some(filter) = seccomp::filter() {
            layout.filter(&filter).map_err(SandboxError::Machine)?;
        }
        let held = |limit| !unenforced.iter().any(|missing| missing.limit == limit);
        let by_rlimit = |limit, value: Option<u64>| value.filter(|_| !held(limit));
        let orders = Orders {
            addresses: plan.addresses,
            listen: plan.listen,
            shared: sandbox.shared.clone(),
            user,
            // Counted for each box only in a user namespace of its own, where one is bwrap's.
            processes: by_rlimit("processes", sandbox.limits.processes)
                .filter(|_| user.is_none())
                .map(|count| count.saturating_add(1)),
            open_files: sandbox.limits.open_files,
            file_size: sandbox.limits.file_size,
            data: [by_rlimit("memory", sandbox.limits.memory), program.memory_limit].into_iter().flatten().min(),
        };
        if orders.processes.is_some() {
            unenforced.retain(|missing| missing.limit != "processes");
        }
        for missing in unenforced.iter_mut().filter(|missing| missing.limit == "memory") {
            missing.reason = format!("each process alone may take that much: {}", missing.reason);
        }
        let machine = SandboxError::Machine;
        let (ours, control) = message::pair().map_err(machine)?;
        let (errors, theirs) = match program.stderr {
            Stream::Null => (None, None),
            Stream::Piped => {
                let (reader, writer) = io::pipe().map_err(machine)?;
                (Some(reader.into()), Some(writer.into()))
            }
            Stream::Inherited => (None, Some(io::stderr().as_fd().try_clone_to_owned().map_err(machine)?)),
        };
        let text = serde_json::to_vec(&orders).map_err(|error| machine(error.into()))?;
        let lent: Vec<BorrowedFd<'_>> = theirs.iter().map(|errors: &OwnedFd| errors.as_fd()).collect();
        message::send(&ours, &text, &lent).map_err(machine)?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|error| machine(error.into()))?;
        let arguments = arguments(sandbox, program, &mut layout).map_err(machine)?;
        let enclosed = Enclosed {
            control: UnixStream::from_std(ours.into()).map_err(machine)?,
            words: Vec::new(),
            failure: None,
            first: None,
            process: None,
            has_shared: sandbox.shared.is_some(),
            shared: None,
            listeners: Vec::new(),
            routes: plan.routes,
            gate: None,
            group,
            unenforced,
        };
        let doors = enclosed.group.doors().map_err(machine)?;
        let program = Program {
            arguments,
            folder: Some("/".into()),
            stdin: program.stdin,
            stdout: program.stdout,
            ..Program::new(bwrap)
        };
        Ok(Self { program, control, inherited: layout.descriptors, doors, errors, enclosed })
    }
}

fn arguments(sandbox: &Sandbox, program: &Program, layout: &mut Layout) -> io::Result<Vec<OsString>> {
    let folder = program.folder.as_ref().or(sandbox.shared.as_ref()).or(sandbox.writable.first());
    let mut arguments = layout.arguments()?;
    arguments.extend(["--", super::OURS, "box", "--"].map(OsString::from));
    arguments.push(folder.map_or_else(|| layout::SCRATCH.into(), |folder| folder.clone().into_os_string()));
    arguments.push(program.path.clone().into_os_string());
    arguments.extend(program.arguments.iter().cloned());
    Ok(arguments)
}

/// The program that makes boxes.
fn find(bwrap: &Path) -> Result<PathBuf, SandboxError> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = if bwrap.components().count() > 1 {
        vec![bwrap.to_owned()]
    } else {
        env::split_paths(&paths).map(|folder| folder.join(bwrap)).collect()
    };
    let found = candidates.into_iter().find(|path| path.is_absolute() && path.is_file());
    found.ok_or_else(|| SandboxError::NoBwrap(bwrap.to_owned()))
}

impl Enclosed {
    /// The limits that nothing holds.
    pub(in crate::runtime) fn unenforced(&self) -> &[Unenforced] {
        &self.unenforced
    }

    /// Returns as soon as the program runs in the box, with the folder that it shares with us. A dropped call is gone on with
    /// by the next.
    ///
    /// # Errors
    /// When it never will.
    pub(in crate::runtime) async fn opened(&mut self) -> Result<Option<OwnedFd>, SandboxError> {
        while self.failure.is_none() {
            let machine = SandboxError::Machine;
            self.control.readable().await.map_err(machine)?;
            let packet = match self.control.try_io(Interest::READABLE, || message::receive(&self.control)) {
                Ok(packet) => packet,
                // A reset says only that our orders were not read; what was said before can be read after it.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset) => {
                    continue;
                }
                Err(error) => return Err(machine(error)),
            };
            if packet.text == inside::READY {
                let mut descriptors = packet.descriptors.into_iter();
                let failure = descriptors.next().ok_or_else(|| SandboxError::said(&self.words))?;
                (self.first, self.process) = (descriptors.next(), descriptors.next());
                self.shared = if self.has_shared { descriptors.next() } else { None };
                self.listeners = descriptors.collect();
                self.failure = Some((pipe::Receiver::from_owned_fd(failure).map_err(machine)?, Vec::new()));
            } else if packet.text.is_empty() {
                return Err(SandboxError::said(&self.words));
            } else if self.words.len() < MOST_WORDS {
                self.words.extend(packet.text);
            }
        }
        if let Some((pipe, text)) = &mut self.failure {
            while text.len() < MOST_WORDS && pipe.read_buf(text).await.map_err(SandboxError::Machine)? > 0 {}
            if !text.is_empty() {
                return Err(SandboxError::Inside(String::from_utf8_lossy(text).into_owned()));
            }
        }
        let listeners = std::mem::take(&mut self.listeners);
        if self.gate.is_none() {
            self.gate = Some(Gate::open(listeners, &self.routes).map_err(SandboxError::Machine)?);
        }
        Ok(self.shared.take())
    }

    /// Sends a signal to the program in the box; whether there is one.
    pub(in crate::runtime) fn signal(&self, signal: Signal) -> bool {
        let (Some(process), Some(signal)) = (&self.process, rustix::process::Signal::from_named_raw(signal as i32))
        else {
            return false;
        };
        // An error says that it has ended.
        let _ = pidfd_send_signal(process, signal);
        true
    }

    /// Removes what is left of the box, whose processes have ended or are killed; whether its memory had run out.
    pub(in crate::runtime) async fn ended(self) -> bool {
        drop(self.gate);
        if let Some(first) = self.first {
            let _ = pidfd_send_signal(&first, rustix::process::Signal::KILL);
            let until = Instant::now() + cgroup::PATIENCE;
            while !has_ended(&first) && Instant::now() < until {
                sleep(Duration::from_millis(2)).await;
            }
        }
        self.group.end().await
    }
}

/// Whether a process has ended, reaped or not: only then can its descriptor be read.
fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    !matches!(poll(&mut asked, Some(&Timespec::default())), Ok(0))
}

/// Bytes that a failure may be told in.
const MOST_WORDS: usize = 4096;
