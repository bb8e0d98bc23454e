//! What `bwrap` is told: what lies where in the box.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    io::{Seek as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{OURS, Sandbox, SandboxError, route::Plan};

/// Where `HOME` and `TMPDIR` lead.
pub(super) const SCRATCH: &str = "/tmp";

/// The user and group of the box where we are not root, by the name that they have inside.
const USER_INSIDE: u32 = 1000;

/// The options of `bwrap` that make a box, and the descriptors that they name.
#[derive(Debug, Default)]
pub(super) struct Layout {
    options: Vec<OsString>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What the system's own programs need of it.
const SYSTEM: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
const CONFIGURATION: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki",
    "protocols",
    "services",
    "ssl",
    "timezone",
];

/// What a box never has from outside: the whole, and what it has its own of.
const NEVER: &[&str] = &["/", "/dev", "/proc", "/sys", "/run", "/tmp", "/etc"];

/// What no box changes anything in: the system itself.
const UNCHANGED: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/boot"];

/// What no box is given as a whole to write to, though a folder in it may be.
const NEVER_GIVEN: &[&str] = &["/home", "/root", "/var", "/opt", "/srv", "/mnt", "/media", "/var/tmp", "/var/lib"];

impl Layout {
    /// A box for a program with this environment. `user` is the host's user whom it becomes where we are root.
    pub(super) fn of(
        sandbox: &Sandbox,
        environment: &[(OsString, OsString)],
        user: Option<u32>,
        plan: &Plan,
    ) -> Result<Self, SandboxError> {
        let mut layout = Self::default();
        layout.namespaces(user.is_some());
        layout.environment(environment);
        layout.system(user.unwrap_or(USER_INSIDE), &plan.hosts)?;
        if user.is_none() && plan.needs_rights() {
            layout.devices_alone();
        } else {
            layout.add(["--dev", "/dev"]);
        }
        let scratch = sandbox.limits.scratch.max(4096).to_string();
        for place in [SCRATCH, "/dev/shm"] {
            layout.add(["--perms", "1777", "--size", &scratch, "--tmpfs", place]);
        }
        layout.add(["--remount-ro", "/dev"]);
        layout.paths(sandbox, user)?;
        let rollhouse = found(&sandbox.rollhouse)?;
        outside_of_writable(&rollhouse, &rollhouse, sandbox)?;
        layout.bind(false, &rollhouse, Path::new(OURS));
        if let Some(shared) = &sandbox.shared {
            check(shared, true)?;
            layout.folder_of(shared);
            // Whoever the program becomes: nobody else is in the box.
            layout.add(["--perms", "1777", "--size", &scratch, "--tmpfs"]);
            layout.options.push(shared.into());
        }
        layout.add(["--remount-ro", "/"]);
        Ok(layout)
    }

    /// The arguments of `bwrap` before those of the program. They lie in a file, for command lines are seen by all.
    pub(super) fn arguments(&mut self) -> io::Result<Vec<OsString>> {
        let bytes: Vec<u8> =
            self.options.iter().flat_map(|option| [option.as_bytes(), b"\0"]).flatten().copied().collect();
        let number = self.file(&bytes)?;
        Ok(vec!["--args".into(), number.into()])
    }

    fn add<const N: usize>(&mut self, words: [&str; N]) {
        self.options.extend(words.map(OsString::from));
    }

    fn namespaces(&mut self, is_root: bool) {
        self.add(["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        self.add(["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
        // Until the last step inside, for the addresses of routes and their ports.
        self.add(["--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE"]);
        if is_root {
            self.add(["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]);
        } else {
            let user = USER_INSIDE.to_string();
            self.add(["--unshare-user", "--uid", &user, "--gid", &user]);
        }
    }

    fn environment(&mut self, environment: &[(OsString, OsString)]) {
        self.add(["--clearenv"]);
        let own = ["HOME", "TMPDIR"];
        for (name, value) in environment.iter().filter(|(name, _)| !own.iter().any(|own| name == own)) {
            self.options.extend([OsStr::new("--setenv"), name, value].map(OsStr::to_owned));
        }
        for name in own {
            self.add(["--setenv", name, SCRATCH]);
        }
    }

    fn system(&mut self, user: u32, hosts: &str) -> Result<(), SandboxError> {
        self.folder_of(Path::new("/etc/any"));
        self.folder_of(Path::new("/run/any"));
        self.add(["--ro-bind", "/usr", "/usr"]);
        for name in SYSTEM {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(target) => {
                    let words = [OsStr::new("--symlink"), target.as_os_str(), path.as_os_str()];
                    self.options.extend(words.map(OsStr::to_owned));
                }
                Err(_) if path.is_dir() => self.bind(false, &path, &path),
                Err(_) => {}
            }
        }
        for name in CONFIGURATION {
            let path = Path::new("/etc").join(name);
            if path.exists() {
                self.bind(false, &path, &path);
            }
        }
        let files = [
            ("/etc/passwd", format!("sandbox:x:{user}:{user}::{SCRATCH}:/bin/sh\n")),
            ("/etc/group", format!("sandbox:x:{user}:\n")),
            ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
            ("/etc/hosts", hosts.to_owned()),
        ];
        for (path, text) in files {
            let number = self.file(text.as_bytes()).map_err(SandboxError::Machine)?;
            self.add(["--perms", "0444", "--file", &number, path]);
        }
        self.add(["--proc", "/proc"]);
        self.add(["--dir", "/var", "--symlink", SCRATCH, "/var/tmp"]);
        Ok(())
    }

    /// Devices without terminals: for those `bwrap` takes a second user namespace, which has no rights over the network of
    /// the first.
    fn devices_alone(&mut self) {
        self.add(["--perms", "0755", "--tmpfs", "/dev", "--dir", "/dev/shm"]);
        for name in ["null", "zero", "full", "random", "urandom", "tty"] {
            let path = format!("/dev/{name}");
            self.add(["--dev-bind", &path, &path]);
        }
        self.add(["--symlink", "/proc/self/fd", "/dev/fd"]);
        for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
            self.add(["--symlink", &format!("/proc/self/fd/{number}"), &format!("/dev/{name}")]);
        }
    }

    fn paths(&mut self, sandbox: &Sandbox, user: Option<u32>) -> Result<(), SandboxError> {
        let readable = sandbox.read_only.iter().map(|path| (path, false));
        let mut paths: Vec<_> = readable.chain(sandbox.writable.iter().map(|path| (path, true))).collect();
        paths.sort();
        // A path that is listed twice is as it was listed last, which is writable.
        paths.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            earlier.1 |= same && later.1;
            same
        });
        let mut places = Vec::new();
        for (path, is_writable) in paths {
            check(path, is_writable)?;
            let real = found(path)?;
            // A link into the system is no way around.
            check(&real, is_writable)?;
            outside_of_writable(path, &real, sandbox)?;
            places.push((path, real, is_writable));
        }
        // Nothing is changed before all of them are in order.
        for (path, real, is_writable) in places {
            if is_writable && let Some(user) = user {
                std::os::unix::fs::lchown(&real, Some(user), Some(user))
                    .map_err(|source| SandboxError::Path { path: real.clone(), source })?;
            }
            self.folder_of(path);
            self.bind(is_writable, &real, path);
        }
        Ok(())
    }

    /// Makes the folders around a path, which else would be as closed as it is.
    fn folder_of(&mut self, path: &Path) {
        let mut around: Vec<&Path> = path.ancestors().skip(1).filter(|folder| *folder != Path::new("/")).collect();
        around.reverse();
        for folder in around {
            self.add(["--perms", "0755", "--dir"]);
            self.options.push(folder.into());
        }
    }

    fn bind(&mut self, is_writable: bool, from: &Path, to: &Path) {
        let word = if is_writable { "--bind" } else { "--ro-bind" };
        self.options.extend([OsStr::new(word), from.as_os_str(), to.as_os_str()].map(OsStr::to_owned));
    }

    /// Gives a file of memory its content, and returns the number of its descriptor.
    pub(super) fn file(&mut self, content: &[u8]) -> io::Result<String> {
        let mut file = fs::File::from(memfd_create("sandbox", MemfdFlags::CLOEXEC)?);
        file.write_all(content)?;
        file.rewind()?;
        let number = file.as_raw_fd().to_string();
        self.descriptors.push(file.into());
        Ok(number)
    }

    /// The filter of system calls.
    pub(super) fn filter(&mut self, filter: &[u8]) -> io::Result<()> {
        let number = self.file(filter)?;
        self.add(["--seccomp", &number]);
        Ok(())
    }
}

/// What lies in a folder that a box may write, the program in the box could have replaced before this start.
fn outside_of_writable(path: &Path, real: &Path, sandbox: &Sandbox) -> Result<(), SandboxError> {
    for folder in &sandbox.writable {
        let leads_to = found(folder)?;
        let within = |path: &Path, folder: &Path| path != folder && path.starts_with(folder);
        if within(path, folder) || within(real, &leads_to) {
            return Err(SandboxError::Nested { path: path.to_owned(), folder: folder.clone() });
        }
    }
    Ok(())
}

/// Where a path leads, all links followed.
fn found(path: &Path) -> Result<PathBuf, SandboxError> {
    fs::canonicalize(path).map_err(|source| SandboxError::Path { path: path.to_owned(), source })
}

fn check(path: &Path, is_writable: bool) -> Result<(), SandboxError> {
    let plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    let below = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let is_one_of = |folders: &[&str]| folders.iter().any(|folder| path == Path::new(folder));
    let holds_home = || std::env::home_dir().is_some_and(|home| home.starts_with(path));
    if !plain || below(&["/dev", "/proc", "/sys"]) || is_one_of(NEVER) {
        return Err(SandboxError::Refused(path.to_owned()));
    }
    if is_writable && (below(UNCHANGED) || is_one_of(NEVER_GIVEN) || holds_home()) {
        return Err(SandboxError::NotGiven(path.to_owned()));
    }
    Ok(())
}
