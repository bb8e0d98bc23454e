//! The limit of open files, which bounds connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the process's limit of open files to the most it may have and returns it; `None` where there is no limit or
/// it cannot be read.
pub fn raise_descriptor_limit() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return Some(hard);
    }
    Some(soft)
}
