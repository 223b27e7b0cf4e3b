//! The system calls of a cell that no safe wrapper offers, each as narrow as its one use.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

use super::Ended;

/// The arguments of `clone3(2)`, as far as Linux 5.3 knew them.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// Clones this process, as `fork` does; 0 in the child. All handlers of signals are back at their defaults there.
///
/// # Safety
/// As after `fork` in a process with threads, the child must keep to system calls: no allocation, no lock, and it must
/// never return into code of the caller.
pub(super) unsafe fn clone(flags: c_int, pidfd: &mut RawFd) -> Result<c_int, Errno> {
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    let own = CLONE_CLEAR_SIGHAND | u64::from(libc::CLONE_PIDFD as u32);
    let args = CloneArgs {
        flags: u64::from(flags as u32) | own,
        pidfd: ptr::from_mut(pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: the structure has the size that is given and lives through the call; without CLONE_VM the child has a copy
    // of all memory and goes on with the same stack. The rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<CloneArgs>()) };
    check(result as c_int)
}

/// Gives SIGPIPE its default back, which the Rust runtime takes away from every program.
pub(super) fn default_sigpipe() {
    // SAFETY: sets a disposition to a constant of the kernel's.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Takes away from this process, and from all that it starts, what would type for others at a terminal that they share:
/// `TIOCSTI`, and `TIOCLINUX` of a console. Both fail with `EPERM` from then on.
///
/// The filter of `seccomp(2)` sees the numbers of a call. Of a request only the lower half counts, as in the kernel; and
/// what is called from 32-bit code (by other numbers) is looked at, too.
pub(super) fn refuse_typing() -> Result<(), Errno> {
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const REQUEST: u32 = 24 + if cfg!(target_endian = "big") { 4 } else { 0 };
    // i386, or arm beside aarch64: there `ioctl` has the number 54.
    const OTHER: u32 = if cfg!(target_arch = "aarch64") { 0x4000_0028 } else { 0x4000_0003 };
    const X32_IOCTL: u32 = 0x4000_0000 + 514;
    let load = |offset| filter((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, offset, 0, 0);
    let same = |value, yes, no| filter((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, value, yes, no);
    let end = |action| filter((libc::BPF_RET | libc::BPF_K) as u16, action, 0, 0);
    let mut program = [
        load(ARCHITECTURE),
        same(OTHER, 0, 2),
        load(NUMBER),
        same(54, 3, 6),
        load(NUMBER),
        same(libc::SYS_ioctl as u32, 1, 0),
        same(X32_IOCTL, 0, 3),
        load(REQUEST),
        same(libc::TIOCSTI as u32, 2, 0),
        same(0x541c, 1, 0),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program and the array that it points to live through the call, which copies them.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) } as c_int).map(|_| ())
}

fn filter(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A descriptor that is readable while children have news.
pub(super) fn children_fd() -> Result<OwnedFd, Errno> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is filled before it is read; a descriptor that comes back is new and ours.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        let fd = check(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// What the children that were waited for took; `status` is put beside it.
pub(super) fn children_usage(status: i32) -> Ended {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid for writing, and all zeroes is a valid value of it where the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.try_into().unwrap_or(0)) + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
    };
    let peak_kib = u64::try_from(usage.ru_maxrss).unwrap_or(0);
    Ended { status, user: time(usage.ru_utime), system: time(usage.ru_stime), peak_kib }
}

/// Closes the descriptors of a range, ends included. An empty range is nothing.
///
/// For the children only: there every descriptor is a copy, and whoever owned it will never run again.
pub(super) fn close_range(first: RawFd, last: RawFd) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes numbers only. Descriptors that Rust values own are closed under them, but those values belong to the
    // caller's code, which does not go on in this process.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } as c_int).map(|_| ())
}

/// Makes `to` the same as `from`, inherited by what is executed.
///
/// For the children only, like [`close_range`].
pub(super) fn duplicate(from: BorrowedFd<'_>, to: RawFd) -> Result<(), Errno> {
    if from.as_raw_fd() == to {
        return rustix::io::fcntl_setfd(from, rustix::io::FdFlags::empty());
    }
    // SAFETY: takes numbers only; what is closed by it is a copy, as in `close_range`.
    check(unsafe { libc::dup2(from.as_raw_fd(), to) }).map(|_| ())
}

/// Executes the program; comes back only where that fails.
///
/// `table` holds the arguments and, from `env` on, the environment, each ended by a null pointer.
pub(super) fn exec(path: &CStr, table: &Table) -> Errno {
    // SAFETY: the path and all strings of the table live as long as the plan that they come from, both parts of the table
    // end with a null pointer, and execve reads them only.
    unsafe { libc::execve(path.as_ptr(), table.args.as_ptr(), table.env.as_ptr()) };
    last_errno()
}

/// Arguments and environment as `execve` takes them, with room for one argument more in front.
pub(super) struct Table {
    args: Vec<*const c_char>,
    env: Vec<*const c_char>,
}

impl Table {
    /// Made before the fork: this allocates. The strings must outlive the table's use.
    pub(super) fn new(args: &[CString], env: &[CString]) -> Self {
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        Self { args: pointers(args), env: pointers(env) }
    }

    /// The table of a script without an interpreter line, as shells run it: `sh` in front, the path for the name.
    pub(super) fn script(args: &[CString], env: &[CString]) -> Self {
        let mut table = Self::new(args, env);
        table.args.insert(0, c"sh".as_ptr());
        table
    }

    /// Names the script of a [`script`](Self::script) table.
    pub(super) fn name_script(&mut self, path: &CStr) {
        self.args[1] = path.as_ptr();
    }
}

/// Makes a mount read-only; `below` also what is mounted below it (Linux 5.12).
pub(super) fn mount_read_only(path: &CStr, below: bool) -> Result<(), Errno> {
    let attr = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    let flags = if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a string, the structure has the size that is given, and both are only read.
    let result = unsafe {
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, &attr, size_of::<MountAttr>())
    };
    check(result as c_int).map(|_| ())
}

/// Sets the loopback interface of this network namespace up.
pub(super) fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all zeroes is a valid `ifreq`; the name is shorter than its field and stays ended by a zero.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    request.ifr_name[0] = b'l' as c_char;
    request.ifr_name[1] = b'o' as c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) }).map(|_| ())
}

/// Ends this process at once: no handlers, no destructors.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: `_exit` has no conditions; nothing of the caller's is meant to run in this process.
    unsafe { libc::_exit(status) }
}
