//! The last steps inside a box, before the program takes the place of ours.

use std::{
    ffi::OsString,
    fs, io,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    libc,
    sys::resource::{Resource, getrlimit, setrlimit},
};
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType},
    process::{Pid, PidfdFlags, getpid, pidfd_open},
    thread::{
        CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set, set_capabilities, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};
use serde::{Deserialize, Serialize};

use super::{super::turn_into, message};

/// What is to be done inside; the packet brings the program's standard error along, if it has one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Addresses that the box takes for its own.
    pub(super) addresses: Vec<IpAddr>,
    /// Where the box listens, for us.
    pub(super) listen: Vec<SocketAddr>,
    /// The folder that we reach too.
    pub(super) shared: Option<PathBuf>,
    /// The user and group to become.
    pub(super) user: Option<u32>,
    /// The most processes, where no control group holds them.
    pub(super) processes: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) file_size: Option<u64>,
    /// Bytes of data of each process.
    pub(super) data: Option<u64>,
}

/// The hidden command `rollhouse box FOLDER PROGRAM ARGUMENT…`, which is run by `bwrap` inside the box: it hands out the
/// listeners of the routes, gives up all rights and becomes the program. Returns only when that cannot be, with the reason.
///
/// # Errors
/// Always: whoever comes back has failed.
pub fn enter(words: &[OsString]) -> io::Result<std::convert::Infallible> {
    let [folder, program, arguments @ ..] = words else {
        return Err(io::Error::other("this command is for sandboxes alone"));
    };
    let standard = io::stderr();
    if rustix::net::sockopt::socket_type(&standard).ok() != Some(SocketType::SEQPACKET) {
        return Err(io::Error::other("this command is for sandboxes alone"));
    }
    close_strays()?;
    let (failure, mut told) = io::pipe()?;
    let error = match prepare(standard.as_fd(), failure) {
        Ok(()) => become_program(Path::new(folder), &PathBuf::from(program), arguments),
        Err(error) => error,
    };
    // Nobody listens when we are to end anyway.
    let _ = told.write_all(error.to_string().as_bytes());
    Err(error)
}

fn prepare(control: BorrowedFd<'_>, failure: io::PipeReader) -> io::Result<()> {
    let packet = message::receive(control)?;
    let orders: Orders = serde_json::from_slice(&packet.text)?;
    for address in &orders.addresses {
        own(*address).map_err(|error| said(&format!("cannot take the address {address}"), &error))?;
    }
    let process = |pid| pidfd_open(pid, PidfdFlags::empty());
    let mut descriptors: Vec<OwnedFd> = vec![failure.into(), process(Pid::INIT)?, process(getpid())?];
    if let Some(shared) = &orders.shared {
        descriptors.push(rustix::fs::open(shared, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?);
    }
    for address in &orders.listen {
        let listener = listen(*address).map_err(|error| said(&format!("cannot listen on {address}"), &error))?;
        descriptors.push(listener.into());
    }
    let lent: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    message::send(control, READY, &lent)?;
    match packet.descriptors.first() {
        Some(errors) => rustix::stdio::dup2_stderr(errors)?,
        None => rustix::stdio::dup2_stderr(rustix::fs::open("/dev/null", OFlags::WRONLY, Mode::empty())?)?,
    }
    give_up(&orders)
}

/// The text of the packet that brings the descriptors.
pub(super) const READY: &[u8] = b"ready";

fn said(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// What some process before us left open by mistake, no program in a box shall have. Nothing of ours is open yet.
fn close_strays() -> io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in open {
        // That of the listing is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Adds an address to the loopback device, by a message to the kernel (`RTM_NEWADDR`).
fn own(address: IpAddr) -> io::Result<()> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let loopback = 1_u32;
    let mut body = vec![u8::try_from(family).unwrap_or_default(), u8::try_from(8 * bytes.len()).unwrap_or_default()];
    // No duplicate can be elsewhere: `IFA_F_NODAD`.
    body.extend([0x02, libc::RT_SCOPE_HOST]);
    body.extend(loopback.to_ne_bytes());
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        body.extend(u16::try_from(4 + bytes.len()).unwrap_or_default().to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(&bytes);
    }
    let mut packet = u32::try_from(16 + body.len()).unwrap_or_default().to_ne_bytes().to_vec();
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE).unwrap_or_default();
    packet.extend(libc::RTM_NEWADDR.to_ne_bytes());
    packet.extend(flags.to_ne_bytes());
    packet.extend([0; 8]);
    packet.extend(body);

    // Of the protocols of netlink the first is that of addresses.
    let kernel = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&kernel, &packet, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::empty())?;
    let error = answer[..length].get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match error {
        Some(0) => Ok(()),
        // It has it already.
        Some(error) if error == -libc::EEXIST => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other("the kernel gave no answer")),
    }
}

#[allow(clippy::disallowed_methods, reason = "a route listens in the network of its box alone")]
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Gives up every right and takes the limits.
fn give_up(orders: &Orders) -> io::Result<()> {
    if let Some(user) = orders.user {
        set_thread_groups(&[])?;
        let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let limits = [
        (Resource::RLIMIT_NPROC, orders.processes),
        (Resource::RLIMIT_NOFILE, orders.open_files),
        (Resource::RLIMIT_FSIZE, orders.file_size),
        (Resource::RLIMIT_DATA, orders.data),
    ];
    for (resource, limit) in limits {
        if let Some(limit) = limit {
            let (_, allowed) = getrlimit(resource)?;
            setrlimit(resource, limit.min(allowed), limit.min(allowed))?;
        }
    }
    Ok(())
}

fn become_program(folder: &Path, program: &Path, arguments: &[OsString]) -> io::Error {
    if let Err(error) = std::env::set_current_dir(folder) {
        return said(&format!("cannot go to {} in the sandbox", folder.display()), &error);
    }
    let error = turn_into(program, arguments, &[("PWD", folder.as_os_str())]).source;
    if error.kind() == io::ErrorKind::NotFound {
        let hint = "is it, and all that it leads to, among what the sandbox may read?";
        return io::Error::new(error.kind(), format!("{error} in the sandbox; {hint}"));
    }
    error
}
