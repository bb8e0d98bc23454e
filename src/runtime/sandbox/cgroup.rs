//! Control groups: how much all processes of a box may take together. Version 1 and 2, below the group we are in.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

use super::{Limits, Unenforced};

/// The groups of one box: one folder in version 2, one for each kind of limit in version 1. They are gone when this is
/// dropped, unless something in them is still alive: then [`Group::end`] was not waited for, and a later box removes them.
#[derive(Debug)]
pub(super) struct Group {
    folders: Vec<PathBuf>,
    /// Where it is counted how often memory ran out.
    counted: Option<PathBuf>,
}

/// What bwrap itself takes of the number of processes.
const PROCESSES_OF_BWRAP: u64 = 2;

impl Group {
    /// Makes the groups, and says which limits must be held without them.
    pub(super) fn make(limits: &Limits) -> (Self, Vec<Unenforced>) {
        let mut group = Self { folders: Vec::new(), counted: None };
        let mut unenforced = Vec::new();
        let name = next_name();
        let processes = limits.processes.map(|count| count.saturating_add(PROCESSES_OF_BWRAP).to_string());
        let memory = limits.memory.map(|bytes| bytes.to_string());
        for (limit, controller, value) in
            [("memory", "memory", memory), ("processes", "pids", processes), ("cpus", "cpu", limits.cpus.map(quota))]
        {
            let Some(value) = value else { continue };
            if let Err(error) = group.hold(controller, &value, &name) {
                unenforced.push(Unenforced { limit, reason: error });
            }
        }
        (group, unenforced)
    }

    /// Holds one limit.
    fn hold(&mut self, controller: &str, value: &str, name: &str) -> Result<(), String> {
        let place = PLACES.iter().find(|place| place.controllers.iter().any(|known| known == controller));
        let Some(place) = place else {
            return Err(format!("there is no control group with `{controller}` here"));
        };
        let refused = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        if place.version == Version::Two {
            place.open_to_children(controller)?;
        }
        let folder = place.folder.join(name);
        if !self.folders.contains(&folder) {
            remove_stale(&place.folder);
            make_folder(&folder).map_err(|error| refused(&folder, &error))?;
            self.folders.push(folder.clone());
        }
        let set = |file: &str, value: &str| {
            let path = folder.join(file);
            write(&path, value).map_err(|error| refused(&path, &error))
        };
        match (place.version, controller) {
            (Version::One, "memory") => {
                set("memory.limit_in_bytes", value)?;
                // Absent where swap is not accounted for.
                let _ = set("memory.memsw.limit_in_bytes", value);
                self.counted = Some(folder.join("memory.oom_control"));
            }
            (Version::Two, "memory") => {
                set("memory.max", value)?;
                let _ = set("memory.swap.max", "0");
                let _ = set("memory.oom.group", "1");
                self.counted = Some(folder.join("memory.events"));
            }
            (Version::One, "cpu") => {
                set("cpu.cfs_period_us", PERIOD)?;
                set("cpu.cfs_quota_us", value)?;
            }
            (Version::Two, "cpu") => set("cpu.max", &format!("{value} {PERIOD}"))?,
            _ => set("pids.max", value)?,
        }
        Ok(())
    }

    /// Descriptors by which a process enters: each takes a `0`.
    pub(super) fn doors(&self) -> io::Result<Vec<OwnedFd>> {
        self.folders.iter().map(|folder| open_to_write(&folder.join("cgroup.procs")).map(Into::into)).collect()
    }

    /// Kills what is left, removes the groups and says whether memory ever ran out.
    pub(super) async fn end(mut self) -> bool {
        let counted = self.counted.as_deref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let until = Instant::now() + PATIENCE;
        while !self.remove() && Instant::now() < until {
            sleep(Duration::from_millis(2)).await;
        }
        let mut lines = counted.lines().filter_map(|line| line.split_once(' '));
        lines.any(|(key, count)| key == "oom_kill" && count.trim() != "0")
    }

    /// Whether nothing is left.
    fn remove(&mut self) -> bool {
        self.folders.retain(|folder| !remove(folder));
        self.folders.is_empty()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// How long killed processes may take to be gone.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Microseconds over which a share of the processors is measured.
const PERIOD: &str = "100000";

fn quota(cpus: f64) -> String {
    // The kernel takes no less than a millisecond.
    format!("{:.0}", (cpus * 100_000.0).max(1000.0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group we are in, in one hierarchy.
#[derive(Debug)]
struct Place {
    version: Version,
    controllers: Vec<String>,
    folder: PathBuf,
}

static PLACES: LazyLock<Vec<Place>> = LazyLock::new(|| {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut places = places(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    for place in &mut places {
        if place.version == Version::Two {
            let listed = fs::read_to_string(place.folder.join("cgroup.controllers")).unwrap_or_default();
            place.controllers = listed.split_whitespace().map(str::to_owned).collect();
        }
    }
    places
});

/// Where our groups lie, from what the kernel says of mounts and groups.
fn places(mounts: &str, groups: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let controllers: Vec<String> =
            controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let version = if controllers.is_empty() { Version::Two } else { Version::One };
        let mounted = mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(3);
            let (root, point) = (before.next()?, before.next()?);
            let mut after = after.split(' ');
            let kind = after.next()?;
            let options: Vec<&str> = after.nth(1)?.split(',').collect();
            let fits = match version {
                Version::Two => kind == "cgroup2",
                Version::One => kind == "cgroup" && controllers.iter().all(|name| options.contains(&name.as_str())),
            };
            // Mounted may be a part alone, as in containers.
            fits.then(|| Path::new(point).join(inside(path, root).trim_start_matches('/')))
        });
        if let Some(folder) = mounted {
            places.push(Place { version, controllers, folder });
        }
    }
    places
}

fn inside<'a>(path: &'a str, root: &str) -> &'a str {
    match path.strip_prefix(root.trim_end_matches('/')) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => "",
    }
}

impl Place {
    /// Lets groups below this one have a controller. Version 2 does so only for a group that holds no processes itself:
    /// where all of them are ours, or a whole container's, they move to a group beside those of the boxes.
    fn open_to_children(&self, controller: &str) -> Result<(), String> {
        let path = self.folder.join("cgroup.subtree_control");
        let word = format!("+{controller}");
        let Err(error) = write(&path, &word) else { return Ok(()) };
        if error.raw_os_error() == Some(nix::libc::EBUSY) && self.make_room() && write(&path, &word).is_ok() {
            return Ok(());
        }
        let advice = "run it in a group of its own, as by `systemd-run --user --scope -p Delegate=yes`";
        Err(format!("{}: {error}; {advice}", path.display()))
    }

    fn make_room(&self) -> bool {
        let listed = self.folder.join("cgroup.procs");
        let processes = || numbers(&fs::read_to_string(&listed).unwrap_or_default());
        let is_containers = fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| text.contains("0::/\n"));
        if !is_containers && !processes().iter().all(|process| descends(*process)) {
            return false;
        }
        let room = self.folder.join("rollhouse");
        if make_folder(&room).is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            return false;
        }
        // What starts meanwhile starts there, or is found at the next look.
        for _ in 0..3 {
            for process in processes() {
                let _ = write(&room.join("cgroup.procs"), &process.to_string());
            }
        }
        processes().is_empty()
    }
}

/// Whether a process is this one or was started by it.
fn descends(mut process: Pid) -> bool {
    while process.as_raw() > 1 {
        if process == Pid::this() {
            return true;
        }
        let Some(parent) = stat(process.as_raw()).and_then(|fields| fields.get(1)?.parse().ok()) else { return false };
        process = Pid::from_raw(parent);
    }
    false
}

/// What the kernel tells of a process, from its state on.
fn stat(process: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// When a process started, by which its number is told from the same number of a later process.
fn started(process: i32) -> Option<String> {
    stat(process)?.get(19).cloned()
}

/// What the names of all our groups begin with: whose they are.
static OWNER: LazyLock<String> = LazyLock::new(|| {
    let us = Pid::this().as_raw();
    format!("{}{us}-{}-", owners(), started(us).unwrap_or_default())
});

/// The beginning of the names of groups whose owners have process numbers like ours.
fn owners() -> String {
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("rollhouse-{digits}-")
}

fn next_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}{}", *OWNER, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What the paths of all groups of this process begin with, for whoever removes them after its end.
pub(in crate::runtime) fn prefixes() -> Vec<PathBuf> {
    PLACES.iter().map(|place| place.folder.join(&*OWNER)).collect()
}

/// Removes the groups of owners that are no more.
fn remove_stale(folder: &Path) {
    let owners = owners();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&owners)) else { continue };
        let mut parts = rest.split('-');
        let (Some(owner), Some(since)) = (parts.next().and_then(|pid| pid.parse().ok()), parts.next()) else {
            continue;
        };
        if started(owner).is_none_or(|started| started != since) {
            remove(&entry.path());
        }
    }
}

fn numbers(text: &str) -> Vec<Pid> {
    text.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
}

#[allow(clippy::disallowed_methods, reason = "control groups look like files, and are none")]
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

#[allow(clippy::disallowed_methods, reason = "control groups look like files, and are none")]
fn open_to_write(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(path)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut open_to_write(path)?, text.as_bytes())
}

/// Kills what is in a group and removes it; whether it is gone.
#[allow(clippy::disallowed_methods, reason = "control groups look like files, and are none")]
fn remove(folder: &Path) -> bool {
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(_) => {
            for process in numbers(&fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default()) {
                let _ = kill(process, Signal::SIGKILL);
            }
            fs::remove_dir(folder).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mounts: &str, groups: &str) -> Vec<(String, String)> {
        let places = places(mounts, groups).into_iter();
        places.map(|place| (place.controllers.join(","), place.folder.display().to_string())).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 25 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n\
                      32 25 0:28 / /sys/fs/cgroup/unified rw shared:11 - cgroup2 cgroup2 rw,nsdelegate\n";
        let groups = "4:memory:/user/1\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/user/1\n";
        assert_eq!(
            found(mounts, groups),
            [
                ("memory".to_owned(), "/sys/fs/cgroup/memory/user/1".to_owned()),
                ("cpu,cpuacct".to_owned(), "/sys/fs/cgroup/cpu,cpuacct/".to_owned()),
                (String::new(), "/sys/fs/cgroup/unified/user/1".to_owned()),
            ]
        );
    }

    #[test]
    fn a_container_sees_a_part_of_the_tree() {
        let mounts = "31 25 0:27 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let folder = |groups| found(mounts, groups)[0].1.clone();
        assert_eq!(folder("4:memory:/docker/ab\n"), "/sys/fs/cgroup/memory/");
        assert_eq!(folder("4:memory:/docker/ab/in\n"), "/sys/fs/cgroup/memory/in");
        assert_eq!(folder("4:memory:/docker/abc\n"), "/sys/fs/cgroup/memory/", "another group is not ours");
    }

    #[test]
    fn only_what_is_ours_counts_as_ours() {
        assert!(descends(Pid::this()));
        assert!(!descends(nix::unistd::getppid()));
        assert!(!descends(Pid::from_raw(1)));
        assert!(started(Pid::this().as_raw()).is_some_and(|ticks| ticks.parse::<u64>().is_ok()));
    }

    /// Only where this user may make control groups.
    #[test]
    fn groups_of_dead_owners_are_removed_and_no_others() {
        for place in PLACES.iter() {
            // No process has the number 0, and none has it at two times.
            let dead = place.folder.join(format!("{}0-1-0", owners()));
            let reused = place.folder.join(format!("{}{}-1-0", owners(), Pid::this()));
            let ours = place.folder.join(next_name());
            let elsewhere = place.folder.join("rollhouse-1-0-1-0");
            let all = [&dead, &reused, &ours, &elsewhere];
            if all.iter().any(|folder| make_folder(folder).is_err()) {
                assert!(!nix::unistd::geteuid().is_root() || !place.folder.exists(), "{}", place.folder.display());
                continue;
            }
            remove_stale(&place.folder);
            assert_eq!(all.map(|folder| folder.exists()), [false, false, true, true]);
            assert!(remove(&ours) && remove(&elsewhere));
        }
    }

    #[test]
    fn a_share_of_the_processors_is_never_nothing() {
        assert_eq!(quota(1.5), "150000");
        assert_eq!(quota(0.0), "1000");
    }
}
