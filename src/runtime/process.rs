//! Starting, watching and ending a child process and all that it starts.

use std::{
    ffi::{OsStr, OsString},
    fs, future, io,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, LazyLock},
    time::Duration,
};

use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill, killpg},
    },
    unistd::Pid,
};
use tokio::{
    process::Command,
    sync::{mpsc, oneshot, watch},
    time,
};

use super::{
    Sandbox, SandboxError, Unenforced, guard,
    sandbox::{Enclosed, Start},
    thread,
};

/// What to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file to execute.
    pub path: PathBuf,
    /// Its arguments, without its own name.
    pub arguments: Vec<OsString>,
    /// Where it runs; `None` is where we run.
    pub folder: Option<PathBuf>,
    /// Its whole environment: nothing of ours is inherited. Only `ROLLHOUSE_OWNER` comes on top, by which what it leaves
    /// behind is found.
    pub environment: Vec<(OsString, OsString)>,
    /// Its standard input.
    pub stdin: Stream,
    /// Its standard output.
    pub stdout: Stream,
    /// Its standard error.
    pub stderr: Stream,
    /// Bytes of data that it, and each process it starts, may allocate (`RLIMIT_DATA`: heap and private memory, not
    /// what is shared or only reserved); `None` is without limit.
    pub memory_limit: Option<u64>,
    /// The box it runs in, put there by [`Sandbox::enclose`]; `None` is where we run, with our rights.
    pub sandbox: Option<Arc<Sandbox>>,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether something in its box was killed because the memory of the box ran out; a child without a box never says so.
    pub out_of_memory: bool,
}

/// Where a standard stream of a child leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Nowhere: reads nothing, loses what is written.
    Null,
    /// To us, through the field of [`Child`].
    Piped,
    /// Where ours leads.
    Inherited,
}

impl StartError {
    /// What was wrong with its box.
    pub(super) fn into_sandbox_error(self) -> SandboxError {
        self.source.downcast().unwrap_or_else(SandboxError::Machine)
    }
}

impl Program {
    /// A program without arguments, environment, streams and limits.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
            folder: None,
            environment: Vec::new(),
            stdin: Stream::Null,
            stdout: Stream::Null,
            stderr: Stream::Null,
            memory_limit: None,
            sandbox: None,
        }
    }
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start `{}`{}: {source}", program.display(), .folder.iter().map(|folder| format!(" in {}", folder.display())).collect::<String>())]
pub struct StartError {
    /// The file.
    pub program: PathBuf,
    /// Where it should have run.
    pub folder: Option<PathBuf>,
    /// The reason.
    pub source: io::Error,
}

/// A running child in a process group of its own. Dropping it kills it (SIGKILL) with all that it started; it is always
/// reaped. The same happens when it ends by itself and leaves processes in its group, and when this process ends, even by
/// SIGKILL; then also those end that left the group, unless they threw their environment away.
#[derive(Debug)]
pub struct Child {
    /// The write end of its standard input, if piped, as a blocking descriptor.
    pub stdin: Option<OwnedFd>,
    /// The read end of its standard output, if piped, as a blocking descriptor.
    pub stdout: Option<OwnedFd>,
    /// The read end of its standard error, if piped, as a blocking descriptor.
    pub stderr: Option<OwnedFd>,
    /// The folder that its box shares with us ([`Sandbox::shared`]), to be reached through this descriptor and by nothing else:
    /// what lies in it is the program's. No link in it may be followed.
    pub shared: Option<OwnedFd>,
    pid: Pid,
    // Unbounded: a handful of orders in a lifetime.
    orders: mpsc::UnboundedSender<Signal>,
    exit: watch::Receiver<Option<Ending>>,
    unenforced: Vec<Unenforced>,
}

impl Child {
    /// Starts a program.
    ///
    /// # Errors
    /// When there is no such file or folder, it may not be executed, there are too many processes or descriptors, or its
    /// box cannot be had.
    pub async fn start(program: Program) -> Result<Self, StartError> {
        let (path, folder) = (program.path.clone(), program.folder.clone());
        let started = thread::run(async move { begin(&program).await }).await.and_then(|started| started);
        started.map_err(|source| StartError { program: path, folder, source })
    }

    /// Its process id, which is that of its group; in a box, that of `bwrap`.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Sends a signal to its whole group, or in a box to the program itself; nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = self.orders.send(signal);
    }

    /// How it ended, as soon as it has and what it left behind is killed.
    ///
    /// # Errors
    /// When its end cannot be known, because something else reaped it.
    pub async fn wait(&self) -> io::Result<ExitStatus> {
        Ok(self.ending().await?.status)
    }

    /// As [`Self::wait`], and whether the memory of its box had run out.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn ending(&self) -> io::Result<Ending> {
        let mut exit = self.exit.clone();
        let ending = exit.wait_for(Option::is_some).await.ok().and_then(|ending| *ending);
        ending.ok_or_else(|| io::Error::other(format!("nobody saw how process {} ended", self.pid)))
    }

    /// The limits of its box that this machine does not enforce.
    pub fn unenforced(&self) -> &[Unenforced] {
        &self.unenforced
    }

    /// Asks it to end (SIGTERM), and kills it after `grace`. Needs a tokio runtime; [`super::block_on`] lends one.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn end(self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        if let Ok(status) = time::timeout(grace, self.wait()).await {
            return status;
        }
        self.signal(Signal::SIGKILL);
        self.wait().await
    }
}

/// Puts a program in the place of this process, which goes on as that program with the same streams, folder and id, and an
/// environment with these variables more. Returns only when that cannot be.
#[allow(clippy::disallowed_methods, reason = "the one place that starts processes")]
pub fn turn_into(path: &Path, arguments: &[OsString], variables: &[(&str, &OsStr)]) -> StartError {
    let source = std::process::Command::new(path).args(arguments).envs(variables.iter().copied()).exec();
    StartError { program: path.to_owned(), folder: None, source }
}

/// Runs on the thread of the processes.
async fn begin(program: &Program) -> io::Result<Child> {
    let Some(sandbox) = &program.sandbox else { return spawn(command(program, Tie::ToUs, Entry::default()), None) };
    let Start { program, control, inherited, doors, errors, enclosed } =
        Start::of(sandbox, program).map_err(io::Error::other)?;
    let mut command = command(&program, Tie::ToUs, Entry { inherited, doors });
    command.stderr(control);
    let (opened, open) = oneshot::channel();
    let mut child = spawn(command, Some((enclosed, opened)))?;
    child.stderr = errors;
    match open.await {
        Ok(Ok(shared)) => {
            child.shared = shared;
            Ok(child)
        }
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::other("it ended before it began")),
    }
}

/// A box, and who waits until the program runs in it.
type Opening = (Enclosed, oneshot::Sender<Opened>);
type Opened = Result<Option<OwnedFd>, SandboxError>;

fn spawn(mut command: Command, opening: Option<Opening>) -> io::Result<Child> {
    guard::stand();
    let mut child = command.kill_on_drop(true).spawn()?;
    // With it goes our copy of what the child inherits, whose end is waited for.
    drop(command);
    let pid = child.id().ok_or_else(|| io::Error::other("ended before it began"))?;
    let pid = Pid::from_raw(pid.cast_signed());
    guard::watch(pid);
    let (orders, ordered) = mpsc::unbounded_channel();
    let (exited, exit) = watch::channel(None);
    let stdin = child.stdin.take().map(|pipe| pipe.into_owned_fd()).transpose();
    let stdout = child.stdout.take().map(|pipe| pipe.into_owned_fd()).transpose();
    let stderr = child.stderr.take().map(|pipe| pipe.into_owned_fd()).transpose();
    let unenforced = opening.as_ref().map(|(enclosed, _)| enclosed.unenforced().to_vec()).unwrap_or_default();
    tokio::spawn(supervise(child, pid, ordered, exited, opening));
    Ok(Child { stdin: stdin?, stdout: stdout?, stderr: stderr?, shared: None, pid, orders, exit, unenforced })
}

/// Starts what must outlive us, and returns its input. Runs on the thread of the processes.
pub(super) fn spawn_untied(program: &Program) -> io::Result<OwnedFd> {
    let mut child = command(program, Tie::None, Entry::default()).spawn()?;
    child.stdin.take().ok_or_else(|| io::Error::other("its input is not piped"))?.into_owned_fd()
}

/// Passes orders on until the child has ended, then ends what it left.
async fn supervise(
    mut child: tokio::process::Child,
    pid: Pid,
    mut orders: mpsc::UnboundedReceiver<Signal>,
    exit: watch::Sender<Option<Ending>>,
    opening: Option<Opening>,
) {
    let (mut enclosed, mut waiting) = opening.unzip();
    let mut owned = true;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            order = orders.recv(), if owned => match order {
                Some(Signal::SIGKILL) => kill_all(pid),
                Some(signal) if enclosed.as_ref().is_some_and(|enclosed| enclosed.signal(signal)) => {}
                // An error says that there is nobody left.
                Some(signal) => _ = killpg(pid, signal),
                None => {
                    owned = false;
                    kill_all(pid);
                }
            },
            opened = open(enclosed.as_mut()), if waiting.is_some() => tell(&mut waiting, opened),
        }
    };
    // The number cannot have been given to another group yet: they are given in turn.
    let _ = killpg(pid, Signal::SIGKILL);
    guard::forget(pid);
    if waiting.is_some() {
        // Why it never was what it should become is told in its last words.
        let opened = time::timeout(LAST_WORDS, open(enclosed.as_mut())).await;
        tell(&mut waiting, opened.unwrap_or_else(|_| Err(SandboxError::Machine(io::ErrorKind::TimedOut.into()))));
    }
    let is_enclosed = enclosed.is_some();
    let out_of_memory = match enclosed {
        Some(enclosed) => enclosed.ended().await,
        None => false,
    };
    match status {
        Ok(status) => {
            let status = if is_enclosed { as_in_the_box(status) } else { status };
            exit.send_replace(Some(Ending { status, out_of_memory }));
        }
        Err(error) => tracing::warn!(%error, %pid, "the end of a child process was not seen"),
    }
}

/// How long what an ended child has said may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(5);

async fn open(enclosed: Option<&mut Enclosed>) -> Opened {
    match enclosed {
        Some(enclosed) => enclosed.opened().await,
        None => future::pending().await,
    }
}

fn tell(waiting: &mut Option<oneshot::Sender<Opened>>, opened: Opened) {
    if let Some(waiting) = waiting.take() {
        // Nobody waits any more for a start that was given up.
        let _ = waiting.send(opened);
    }
}

/// `bwrap` ends as a shell does with the signal that ended the program, in its exit status.
fn as_in_the_box(status: ExitStatus) -> ExitStatus {
    let signal = status.code().and_then(|code| Signal::try_from(code.checked_sub(128)?).ok());
    signal.map_or(status, |signal| ExitStatus::from_raw(signal as i32))
}

/// Kills a child, its group, and those of its descendants that made groups of their own.
fn kill_all(pid: Pid) {
    // Before the parents are gone, and with them the way to the children.
    let strays = descendants(pid);
    for stray in [pid].into_iter().chain(strays) {
        let _ = killpg(stray, Signal::SIGKILL);
        let _ = kill(stray, Signal::SIGKILL);
    }
}

/// All processes below one, as far as the system tells.
fn descendants(pid: Pid) -> Vec<Pid> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<_> = children.flat_map(|list| numbers(&list)).collect();
        found.extend(children);
    }
    found.split_off(1)
}

fn numbers(list: &str) -> Vec<Pid> {
    list.split_whitespace().filter_map(|number| number.parse().ok()).map(Pid::from_raw).collect()
}

/// Whether a child must die with us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tie {
    ToUs,
    None,
}

/// What a child has of us when it begins.
#[derive(Default)]
struct Entry {
    /// Descriptors that it inherits.
    inherited: Vec<OwnedFd>,
    /// Where it writes a `0` to enter control groups.
    doors: Vec<OwnedFd>,
}

/// What all that we start carries in its environment: `ROLLHOUSE_OWNER` with a value of this process alone.
pub(super) fn mark() -> &'static str {
    static MARK: LazyLock<String> = LazyLock::new(|| format!("{MARK_NAME}={}", uuid::Uuid::new_v4()));
    &MARK
}

const MARK_NAME: &str = "ROLLHOUSE_OWNER";

#[allow(clippy::disallowed_methods, unsafe_code, reason = "the one place that starts processes")]
fn command(program: &Program, tie: Tie, entry: Entry) -> Command {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env_clear().process_group(0);
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(stdio(program.stdin)).stdout(stdio(program.stdout)).stderr(stdio(program.stderr));
    if tie == Tie::ToUs {
        command.env(MARK_NAME, &mark()[MARK_NAME.len() + 1..]);
    }
    if let Some(folder) = &program.folder {
        command.current_dir(folder);
    }
    let us = Pid::this();
    let memory = program.memory_limit.map(|limit| {
        let allowed = getrlimit(Resource::RLIMIT_DATA).map_or(u64::MAX, |(_, hard)| hard);
        limit.min(allowed)
    });
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            if tie == Tie::ToUs {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // We may have ended before that.
                if nix::unistd::getppid() != us {
                    return Err(nix::errno::Errno::ECHILD.into());
                }
                // Orphans below it stay below it, where they are found.
                nix::sys::prctl::set_child_subreaper(true)?;
            }
            for door in &entry.doors {
                nix::unistd::write(door, b"0")?;
            }
            for descriptor in &entry.inherited {
                rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
            }
            setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
            if let Some(limit) = memory {
                setrlimit(Resource::RLIMIT_DATA, limit, limit)?;
            }
            Ok(())
        });
    }
    command
}

fn stdio(stream: Stream) -> Stdio {
    match stream {
        Stream::Null => Stdio::null(),
        Stream::Piped => Stdio::piped(),
        Stream::Inherited => Stdio::inherit(),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs::File, io::Read as _, os::unix::process::CommandExt as _};

    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("PATH".into(), env::var_os("PATH").unwrap())],
            stdout: Stream::Piped,
            ..Program::new("/bin/sh")
        }
    }

    fn start(program: Program) -> Result<Child, StartError> {
        thread::block_on(Child::start(program)).unwrap()
    }

    fn wait(child: &Child) -> ExitStatus {
        let mut exit = child.exit.clone();
        thread::block_on(async move { exit.wait_for(Option::is_some).await.unwrap().unwrap().status }).unwrap()
    }

    /// The next bytes of a child's output.
    fn read(output: &mut File) -> String {
        let mut bytes = [0; 64];
        let count = output.read(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    /// Returns when nobody holds the other end any more, which is when all who inherited it have ended.
    fn all_gone(output: &mut File) {
        assert_eq!(read(output), "");
    }

    #[test]
    fn a_child_has_its_arguments_environment_folder_and_nothing_else() {
        let mut program = shell("pwd; env | grep -v -e ^ROLLHOUSE_OWNER= -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=");
        program.environment.push(("MINE".into(), "1".into()));
        program.folder = Some("/".into());
        let mut child = start(program).unwrap();
        let mut text = String::new();
        File::from(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("PATH=")).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["/", "MINE=1"]);
        assert!(wait(&child).success());
    }

    #[test]
    fn dropping_a_child_kills_what_it_started_even_in_groups_of_their_own() {
        let mut child = start(shell("sleep 1000 & setsid sleep 1000 & echo ready; wait")).unwrap();
        let mut output = File::from(child.stdout.take().unwrap());
        assert_eq!(read(&mut output), "ready\n");
        drop(child);
        all_gone(&mut output);
    }

    #[test]
    fn what_an_ended_child_leaves_behind_is_killed() {
        let mut child = start(shell("sleep 1000 & exit 3")).unwrap();
        all_gone(&mut File::from(child.stdout.take().unwrap()));
        assert_eq!(wait(&child).code(), Some(3));
    }

    #[test]
    fn an_end_is_asked_for_before_it_is_forced() {
        let ended = |script: &str, grace| {
            let mut child = start(shell(script)).unwrap();
            assert_eq!(read(&mut File::from(child.stdout.take().unwrap())), "ready\n");
            thread::block_on(child.end(grace)).unwrap().unwrap()
        };
        let polite = ended("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done", Duration::from_secs(60));
        assert_eq!(polite.code(), Some(7));
        let stubborn = ended("trap '' TERM; echo ready; while :; do sleep 0.01; done", Duration::from_millis(50));
        assert_eq!(stubborn.signal(), Some(9));
    }

    #[test]
    fn memory_is_limited() {
        let mut program = shell("ulimit -d; ulimit -c");
        program.memory_limit = Some(64 << 20);
        let mut child = start(program).unwrap();
        let mut text = String::new();
        File::from(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "65536\n0\n", "in KiB");
    }

    #[test]
    fn what_cannot_be_started_is_named() {
        let message = start(Program::new("/no/program")).unwrap_err().to_string();
        assert!(message.starts_with("cannot start `/no/program`: No such file"), "{message}");
        let program = Program { folder: Some("/no/folder".into()), ..Program::new("/bin/sh") };
        let message = start(program).unwrap_err().to_string();
        assert!(message.starts_with("cannot start `/bin/sh` in /no/folder: No such"), "{message}");
    }

    /// The parent of the test below, in a process of its own.
    #[test]
    #[ignore = "started by another test"]
    fn parent() {
        let program =
            Program { stdout: Stream::Inherited, ..shell("sleep 1000 & setsid sleep 1000 & echo ready; wait") };
        let child = start(program).unwrap();
        wait(&child);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this process must not own it")]
    fn killing_the_parent_leaves_nobody() {
        let mut parent = std::process::Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "runtime::process::tests::parent"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut output = io::BufReader::new(parent.stdout.take().unwrap());
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            assert_ne!(io::BufRead::read_line(&mut output, &mut line).unwrap(), 0);
        }
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert_eq!(io::BufRead::read_line(&mut output, &mut line).unwrap(), 0);
    }
}
