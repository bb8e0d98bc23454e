//! Folders for sockets and the like, which are gone with this process, however that ends.

use std::{
    env,
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::{Builder, TempDir};

use super::{guard, process::mark, thread};

/// Longer paths leave too little room for the name of a socket, which has 107 bytes in all.
const LONGEST: usize = 40;

/// A folder that only this user can enter. Dropping it removes it with all that is in it; the end of this process does so
/// too, even SIGKILL.
#[derive(Debug)]
pub struct PrivateFolder(TempDir);

impl PrivateFolder {
    /// Makes one, with a path short enough for sockets.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub async fn new() -> io::Result<Self> {
        // Before there is anything that somebody must remove.
        thread::run(async { guard::stand() }).await?;
        let (parent, prefix) = place();
        make(&prefix, &parent)
    }

    /// Makes one within it, which may go before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn within(&self, prefix: &str) -> io::Result<Self> {
        make(prefix, self.path())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn make(prefix: &str, parent: &Path) -> io::Result<PrivateFolder> {
    Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir_in(parent).map(PrivateFolder)
}

/// Where the folders of this process lie, and what their names begin with.
fn place() -> (PathBuf, String) {
    let folder = Some(env::temp_dir()).filter(|folder| folder.is_absolute() && folder.as_os_str().len() <= LONGEST);
    let of_ours: String = mark().chars().rev().filter(char::is_ascii_hexdigit).take(12).collect();
    (folder.unwrap_or_else(|| "/tmp".into()), format!("rollhouse-{of_ours}-"))
}

/// What the paths of all folders of this process begin with.
pub(super) fn paths() -> PathBuf {
    let (folder, prefix) = place();
    folder.join(prefix)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead as _, BufReader},
        os::unix::{net::UnixListener, process::CommandExt as _},
        process::Stdio,
    };

    use super::*;

    #[test]
    fn a_folder_is_private_and_goes() {
        let folder = thread::block_on(PrivateFolder::new()).unwrap().unwrap();
        let inner = folder.within("w").unwrap();
        let _socket = UnixListener::bind(inner.path().join("x")).unwrap();
        assert_eq!(fs::metadata(inner.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(folder.path().starts_with(paths().parent().unwrap()));
        assert!(inner.path().as_os_str().len() < 90, "{}", inner.path().display());
        let path = folder.path().to_owned();
        drop((inner, folder));
        assert!(!path.exists());
    }

    /// The owner of the test below, in a process of its own.
    #[test]
    #[ignore = "started by another test"]
    #[allow(clippy::print_stdout, reason = "the other test reads it")]
    fn owner() {
        let folder = thread::block_on(PrivateFolder::new()).unwrap().unwrap();
        let _socket = UnixListener::bind(folder.path().join("x")).unwrap();
        println!("\nfolder {}", folder.path().display());
        std::thread::park();
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this process must not own it")]
    fn killing_the_owner_removes_the_folder() {
        let mut owner = std::process::Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "runtime::folder::tests::owner"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
        let folder = lines.find_map(|line| line.strip_prefix("folder ").map(PathBuf::from)).unwrap();
        assert!(folder.join("x").exists());
        owner.kill().unwrap();
        owner.wait().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while folder.exists() {
            assert!(std::time::Instant::now() < deadline, "{} stays", folder.display());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
