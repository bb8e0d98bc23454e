//! The system calls that no program in a box makes: a filter as the kernel reads it.

use nix::libc;

/// The filter, in the words of the kernel's own machine; `None` for a processor that it is not written for.
pub(super) fn filter() -> Option<Vec<u8>> {
    let processor = PROCESSOR?;
    let mut program = Vec::new();
    let mut put = |code: u32, yes: u8, no: u8, value: u32| {
        program.extend(u16::try_from(code).unwrap_or_default().to_ne_bytes());
        program.extend([yes, no]);
        program.extend(value.to_ne_bytes());
    };
    let refused = |error: i32| libc::SECCOMP_RET_ERRNO | error.cast_unsigned();
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);

    // The calls of another processor, or of an older one, have other numbers.
    put(LOAD, 0, 0, AT_PROCESSOR);
    put(IF_EQUAL, 1, 0, processor);
    put(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS);
    put(LOAD, 0, 0, AT_CALL);
    if cfg!(target_arch = "x86_64") {
        put(IF_NOT_BELOW, 0, 1, X32);
        put(RETURN, 0, 0, refused(libc::ENOSYS));
    }
    for (calls, error) in [(REFUSED, libc::EPERM), (MISSING, libc::ENOSYS)] {
        for call in calls {
            put(IF_EQUAL, 0, 1, number(*call));
            put(RETURN, 0, 0, refused(error));
        }
    }
    put(IF_EQUAL, 0, 4, number(libc::SYS_clone));
    put(LOAD, 0, 0, at_argument(0));
    put(IF_ANY_BIT, 0, 1, NAMESPACES.cast_unsigned());
    put(RETURN, 0, 0, refused(libc::EPERM));
    put(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    // Keys typed into a terminal that is not its own.
    put(IF_EQUAL, 0, 5, number(libc::SYS_ioctl));
    put(LOAD, 0, 0, at_argument(1));
    put(IF_EQUAL, 1, 0, TIOCSTI);
    put(IF_EQUAL, 0, 1, TIOCLINUX);
    put(RETURN, 0, 0, refused(libc::EPERM));
    put(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    // Families of sockets that know nothing of network namespaces, such as that to the host of a virtual machine.
    put(IF_EQUAL, 0, 6, number(libc::SYS_socket));
    put(LOAD, 0, 0, at_argument(0));
    for (left, family) in (0..).zip(FAMILIES.iter().rev()).collect::<Vec<_>>().into_iter().rev() {
        put(IF_EQUAL, left + 1, 0, family.cast_unsigned());
    }
    put(RETURN, 0, 0, refused(libc::EAFNOSUPPORT));
    put(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    Some(program)
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_NOT_BELOW: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Where `struct seccomp_data` has the number of the call and the processor.
const AT_CALL: u32 = 0;
const AT_PROCESSOR: u32 = 4;

/// The lower half of an argument, on a processor with the small end first.
const fn at_argument(index: u32) -> u32 {
    16 + 8 * index
}

/// `AUDIT_ARCH_…`.
const PROCESSOR: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xC000_003E)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xC000_00B7)
} else {
    None
};

/// The bit of calls with 32-bit pointers on x86-64.
const X32: u32 = 0x4000_0000;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;

const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

const NAMESPACES: i32 = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// What makes other boxes, mounts, loads keys or code into the kernel, looks into it, or changes the machine.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// What programs do without when it is not there. The flags of `clone3` lie where no filter sees them.
const MISSING: &[libc::c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
