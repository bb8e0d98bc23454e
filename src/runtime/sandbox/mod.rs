//! Boxes for code that is not ours: an env server of other people, and what a model writes into it.
//!
//! [`Sandbox`] says what a program in the box sees and how much it may take; everything else is hidden from it: the homes,
//! `/tmp`, `/var`, `/run`, `/sys`, other processes, our environment and the network. [`Sandbox::enclose`] puts a [`Program`]
//! into it, which is then started, signalled, watched and ended as any other, by [`super::Child`]. The box itself is made by
//! the program `bwrap` (bubblewrap).

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod enclosed;
#[cfg(target_os = "linux")]
mod enclosed;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod message;
mod route;
#[cfg(target_os = "linux")]
mod seccomp;

use std::{io, path::PathBuf, time::Duration};

#[cfg(target_os = "linux")]
pub(super) use cgroup::prefixes;
#[cfg(not(target_os = "linux"))]
pub use enclosed::enter;
#[cfg(not(target_os = "linux"))]
pub(super) use enclosed::prefixes;
pub(super) use enclosed::{Enclosed, Start};
#[cfg(target_os = "linux")]
pub use inside::enter;
pub use route::{Route, RouteError};

use tokio::time;

use super::{Child, Program};

/// What a program in a box sees, reaches and may take. Paths are the same inside and outside.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Files and folders it may read beside the system's own programs and libraries: an interpreter, its packages, sources.
    /// Paths are absolute; where one leads through links, what it leads to must be listed too.
    pub read_only: Vec<PathBuf>,
    /// Folders it may write, for what must outlive the box. They exist and are nobody else's: where we are root they are given
    /// to the user of the box. Nothing bounds what it writes there. Without a shared folder the first is where it runs, unless
    /// its [`Program`] says where.
    pub writable: Vec<PathBuf>,
    /// A folder that it makes files in and that we reach too, by [`Child::shared`]: for the sockets that it listens on. It
    /// lies in the box's own memory, bounded as its `/tmp` is; nothing is written here, and nothing of ours lies in it. It is
    /// where the program runs, unless its [`Program`] says where.
    pub shared: Option<PathBuf>,
    /// All that it reaches of the network. Where we are not root, a route to a literal address that is not of the loopback
    /// network, or to a port below 1024, costs the box its pseudo-terminals.
    pub routes: Vec<Route>,
    /// How much it may take.
    pub limits: Limits,
    /// The program that makes boxes; a name is looked for in `PATH`.
    pub bwrap: PathBuf,
    /// This very program, or another one whose `main` is [`crate::cli::main`]: it takes the last steps inside the box.
    pub rollhouse: PathBuf,
}

/// How much a box may take; `None` is without limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of memory of all its processes together, with what lies in its `/tmp`.
    pub memory: Option<u64>,
    /// Its processes and threads.
    pub processes: Option<u64>,
    /// Processors it may keep busy, as 1.5.
    pub cpus: Option<f64>,
    /// Open files of each of its processes.
    pub open_files: Option<u64>,
    /// Bytes of a file it writes.
    pub file_size: Option<u64>,
    /// Bytes of its `/tmp`, where `HOME` and `TMPDIR` lead, and as many again of its `/dev/shm` and of its shared folder.
    pub scratch: u64,
}

/// A limit that this machine does not enforce, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unenforced {
    /// Which: `memory`, `processes` or `cpus`.
    pub limit: &'static str,
    /// Why not, and what holds instead.
    pub reason: String,
}

/// How long a box may take to be made when it is only tried; it takes a tenth of a second.
const TRIAL: Duration = Duration::from_secs(30);

/// Where this program lies inside.
const OURS: &str = "/run/rollhouse";

/// Why there is no box.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// There is no `bwrap`.
    #[error("there is no program `{}`, which makes sandboxes: install bubblewrap 0.7 or newer (`apt-get install bubblewrap`)", .0.display())]
    NoBwrap(PathBuf),
    /// `bwrap` does not know what it is asked for.
    #[error("bubblewrap is too old, 0.7 or newer makes sandboxes: it says `{0}`")]
    TooOld(String),
    /// The kernel, or the container around us, allows no boxes.
    #[error(
        "this machine allows no sandboxes: bubblewrap says `{0}`; allow user namespaces (the settings \
         `user.max_user_namespaces` above 0, `kernel.unprivileged_userns_clone` 1 and \
         `kernel.apparmor_restrict_unprivileged_userns` 0, where they exist), or start the container around this program \
         with `--privileged`"
    )]
    NotAllowed(String),
    /// `bwrap` failed otherwise.
    #[error("the sandbox cannot be made: bubblewrap says `{0}`")]
    Bwrap(String),
    /// The last step inside failed.
    #[error("{0}")]
    Inside(String),
    /// A path is missing or cannot be given to the box.
    #[error("the sandbox needs {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path that no box may have.
    #[error("{} cannot be in a sandbox: paths are absolute, without `..`, and none is of the system's own folders", .0.display())]
    Refused(PathBuf),
    /// A path that no box may write to.
    #[error("{} cannot be written by a sandbox: it is of the system, or holds your home; name a folder for it alone", .0.display())]
    NotGiven(PathBuf),
    /// A path that the program in the box could replace.
    #[error("{} lies in {}, which the sandbox may write: put it elsewhere", path.display(), folder.display())]
    Nested {
        /// The path.
        path: PathBuf,
        /// The writable folder around it.
        folder: PathBuf,
    },
    /// An address to which nothing connects.
    #[error("`{0}` is no address to connect to")]
    NoRoute(Route),
    /// There are too many routes.
    #[error("a sandbox has {0} routes at most")]
    TooManyRoutes(usize),
    /// `bwrap` does nothing.
    #[error("the sandbox cannot be made: bubblewrap has not begun after {0:?}")]
    Silent(Duration),
    /// There are none on this system.
    #[error("sandboxes need Linux")]
    NoLinux,
    /// The machine is out of something.
    #[error("the sandbox cannot be made: {0}")]
    Machine(io::Error),
}

impl SandboxError {
    /// Whether what is asked for is at fault, and not this machine.
    #[must_use]
    pub fn is_of_the_user(&self) -> bool {
        matches!(
            self,
            Self::Path { .. }
                | Self::Refused(_)
                | Self::NotGiven(_)
                | Self::Nested { .. }
                | Self::NoRoute(_)
                | Self::TooManyRoutes(_)
        )
    }

    /// The error that `bwrap` told.
    fn said(words: &[u8]) -> Self {
        let words = String::from_utf8_lossy(words).split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words.strip_prefix("bwrap: ").map(str::to_owned).unwrap_or(words);
        let refused =
            ["namespace", "uid map", "uid_map", "gid map", "setgroups", "Operation not permitted", "loopback"];
        if words.starts_with("Unknown option") {
            Self::TooOld(words)
        } else if refused.iter().any(|word| words.contains(word)) {
            Self::NotAllowed(words)
        } else {
            Self::Bwrap(words)
        }
    }
}

impl Sandbox {
    /// A box that sees and reaches nothing but the system's programs and libraries, with the default limits.
    pub fn new() -> Self {
        Self {
            read_only: Vec::new(),
            writable: Vec::new(),
            shared: None,
            routes: Vec::new(),
            limits: Limits::default(),
            bwrap: "bwrap".into(),
            rollhouse: std::env::current_exe().unwrap_or_default(),
        }
    }

    /// Puts a program into this box. Nothing happens before it is started; each start makes a box of its own.
    pub fn enclose(&self, program: Program) -> Program {
        Program { sandbox: Some(self.clone().into()), ..program }
    }

    /// Makes a box and leaves it, so that what is missing is known before anything depends on it. Returns the limits that
    /// are asked for and that this machine does not enforce.
    ///
    /// # Errors
    /// When there is no `bwrap`, when this machine does not allow boxes, or when a path is missing; the error says what to
    /// install or to allow.
    pub async fn check(&self) -> Result<Vec<Unenforced>, SandboxError> {
        let trial = Program { arguments: vec!["--version".into()], ..Program::new(OURS) };
        let child = time::timeout(TRIAL, Child::start(self.enclose(trial))).await;
        let child = child.map_err(|_| SandboxError::Silent(TRIAL))?.map_err(|error| error.into_sandbox_error())?;
        let unenforced = child.unenforced().to_vec();
        let status = child.wait().await.map_err(SandboxError::Machine)?;
        if !status.success() {
            return Err(SandboxError::Bwrap(format!("{} does not run in it: {status}", self.rollhouse.display())));
        }
        Ok(unenforced)
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Limits {
    /// No limit of memory and processors, 1,024 processes, 4,096 open files, files of 16 GiB and 1 GiB of scratch.
    fn default() -> Self {
        Self {
            memory: None,
            processes: Some(1024),
            cpus: None,
            open_files: Some(4096),
            file_size: Some(16 << 30),
            scratch: 1 << 30,
        }
    }
}
