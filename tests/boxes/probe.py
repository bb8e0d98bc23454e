"""Tries to reach what is out of reach. Prints each attempt that got somewhere, and nothing else."""
import ctypes, errno, json, os, platform, resource, socket, struct, subprocess, sys

given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
found = []

def refused(name, attempt, *reasons):
    """The attempt must raise, for one of these reasons if any are named."""
    try:
        got = attempt()
    except OSError as error:
        if reasons and error.errno not in reasons:
            found.append(f"{name}: fails by {error!r}")
    else:
        found.append(f"{name}: {got!r}")

def expect(name, value, wanted):
    if value != wanted:
        found.append(f"{name}: {value!r} and not {wanted!r}")

def call(function, *arguments):
    result = function(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def read(path):
    with open(path, "rb") as file:
        return file.read()

# What is open.
for number in range(3, 512):
    try:
        target = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if not target.startswith("/proc/"):
        found.append(f"descriptor {number} is open: {target}")

# Files.
for path in given["hidden"]:
    refused(f"see {path}", lambda: os.stat(path), errno.ENOENT)
for folder, content in given["folders"].items():
    expect(f"what lies in {folder}", sorted(os.listdir(folder)), content)
for folder in ("/", "/usr", "/etc", "/dev", "/run", "/var", given["read_only"]):
    refused(f"write into {folder}", lambda: open(folder + "/new", "w"), errno.EROFS, errno.EACCES)
refused("change a file", lambda: open(given["read_only"] + "/file", "a"), errno.EROFS, errno.EACCES)
refused("change a file's mode", lambda: os.chmod(given["read_only"] + "/file", 0o777), errno.EROFS, errno.EPERM)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
    refused(f"write to {path}", lambda: os.open(path, os.O_WRONLY), errno.EROFS, errno.EACCES, errno.ENOENT)
writable = given["writable"]
open(writable + "/mine", "w").write("kept")
os.symlink(given["secret"], writable + "/link")
refused("read through a link", lambda: read(writable + "/link"), errno.ENOENT)
refused("read over the edge", lambda: read(writable + "/../../" + given["secret"]), errno.ENOENT)
refused("link a file out of reach", lambda: os.link(given["read_only"] + "/file", writable + "/hard"), errno.EXDEV, errno.EPERM)
refused("move the folder", lambda: os.rename(writable, writable + "2"), errno.EBUSY, errno.EROFS, errno.EACCES, errno.EPERM)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for way in ("root", "cwd"):
        refused(f"secret through {pid}/{way}", lambda: read(f"/proc/{pid}/{way}{given['secret']}"), errno.ENOENT, errno.EACCES)

# Devices.
expect("devices", sorted(set(os.listdir("/dev")) - {
    "console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
}), [])
refused("make a device", lambda: os.mknod(writable + "/memory", 0o20666, os.makedev(1, 1)), errno.EPERM)
refused("make a device in memory", lambda: os.mknod("/tmp/memory", 0o20666, os.makedev(1, 1)), errno.EPERM)
for line in open("/proc/mounts"):
    device, point, kind, options, *_ = line.split()
    if "nosuid" not in options.split(","):
        found.append(f"set-user-id counts in {point}")

# Rights.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
    expect(name, int(status[name], 16), 0)
expect("NoNewPrivs", status["NoNewPrivs"].strip(), "1")
expect("Seccomp", status["Seccomp"].strip(), "2")
if os.getuid() == 0:
    found.append("it is root")
expect("groups", [group for group in os.getgroups() if group != os.getgid()], given["groups"])
for program in given["setuid"]:
    user = subprocess.run([program, "-u"], capture_output=True, text=True).stdout.strip()
    expect(f"the user of {program}", user, str(os.getuid()))
expect("core dumps", resource.getrlimit(resource.RLIMIT_CORE), (0, 0))
expect("open files", resource.getrlimit(resource.RLIMIT_NOFILE), (512, 512))
expect("file size", resource.getrlimit(resource.RLIMIT_FSIZE), (1 << 20, 1 << 20))

# The kernel.
NEW_USER, NEW_MOUNTS, NEW_NETWORK = 0x10000000, 0x20000, 0x40000000
for flag in (NEW_USER, NEW_MOUNTS, NEW_NETWORK, NEW_USER | NEW_MOUNTS):
    refused(f"unshare {flag:#x}", lambda: call(libc.unshare, flag), errno.EPERM)
refused("mount", lambda: call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None), errno.EPERM)
refused("unmount", lambda: call(libc.umount2, b"/tmp", 2), errno.EPERM)
refused("chroot", lambda: os.chroot("/tmp"), errno.EPERM)
refused("another namespace", lambda: call(libc.setns, os.open("/proc/self/ns/net", os.O_RDONLY), 0), errno.EPERM)
refused("another name", lambda: socket.sethostname("other"), errno.EPERM)
numbers = {
    "x86_64": dict(clone=56, add_key=248, keyctl=250, perf_event_open=298, open_by_handle_at=304, bpf=321, userfaultfd=323, io_uring_setup=425, clone3=435),
    "aarch64": dict(clone=220, add_key=217, keyctl=219, perf_event_open=241, open_by_handle_at=265, bpf=280, userfaultfd=282, io_uring_setup=425, clone3=435),
}[platform.machine()]
for name, number in numbers.items():
    flags = NEW_USER if name == "clone" else 0
    reason = errno.ENOSYS if name in ("clone3", "io_uring_setup") else errno.EPERM
    refused(name, lambda: call(libc.syscall, ctypes.c_long(number), ctypes.c_long(flags), None, None, None, None), reason)
import fcntl
refused("type into a terminal", lambda: fcntl.ioctl(0, 0x5412, b"x"), errno.EPERM)

# Processes.
expect("processes", sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit()), [1, os.getpid()])
refused("a process outside", lambda: os.kill(given["process"], 0), errno.ESRCH)
refused("trace a process outside", lambda: call(libc.ptrace, 16, given["process"], None, None), errno.ESRCH)
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        environment = read(f"/proc/{pid}/environ")
    except PermissionError:
        continue
    for value in given["environment"]:
        if value.encode() in environment:
            found.append(f"the environment of {pid} holds {value[:3]}…")
expect("environment", dict(os.environ), {"HOME": "/tmp", "TMPDIR": "/tmp", "LC_CTYPE": os.environ.get("LC_CTYPE", ""), "MINE": "1", "PWD": writable})
expect("descriptors", sorted(map(int, os.listdir("/proc/self/fd")))[:3], [0, 1, 2])
# The network.
expect("devices of the network", [name for _, name in socket.if_nameindex()], ["lo"])
def connect(family, kind, address):
    client = socket.socket(family, kind)
    client.settimeout(5)
    client.connect(address)
refused("TCP", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", given["tcp"])), errno.ECONNREFUSED)
refused("TCP elsewhere", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)), errno.ENETUNREACH)
refused("TCP elsewhere by IPv6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)), errno.ENETUNREACH, errno.EADDRNOTAVAIL)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"leak", ("127.0.0.1", given["udp"]))
refused("UDP elsewhere", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)), errno.ENETUNREACH)
refused("a name", lambda: socket.getaddrinfo("example.com", 80))
refused("an abstract socket", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + given["abstract"]), errno.ECONNREFUSED)
refused("a socket of the host", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, given["socket"]), errno.ENOENT)
refused("raw packets", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), errno.EPERM)
refused("packets of the device", lambda: socket.socket(17, socket.SOCK_RAW, 0), errno.EAFNOSUPPORT)
refused("the virtual machine's host", lambda: socket.socket(40, socket.SOCK_STREAM, 0), errno.EAFNOSUPPORT)
def netlink():
    """Asks for an address more, as the kernel's own message."""
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 2, 254, 1) + struct.pack("=HH4s", 8, 2, bytes([192, 0, 2, 9]))
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    kernel.send(struct.pack("=IHHII", 16 + len(body), 20, 0x405, 1, 0) + body)
    error = -struct.unpack_from("=i", kernel.recv(256), 16)[0]
    if error:
        raise OSError(error, "refused")
refused("an address more", netlink, errno.EPERM)

print("\n".join(found))
