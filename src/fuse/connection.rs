//! The kernel's end of a session: which connection it is, whether it lives, and how to cut it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

const FUSECTL: &str = "/sys/fs/fuse/connections";

/// How far the kernel reads ahead, in KiB: as far as one request goes. Its own default is 128.
const READ_AHEAD_KIB: u32 = 1024;

/// The number of the connection behind a `/dev/fuse` descriptor: the minor device number of the mount, and the name in
/// fusectl. `None` before it is mounted, and on a kernel that does not tell.
pub(super) fn number(device: BorrowedFd<'_>) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Whether the kernel still has this connection. Asks the descriptor, never the mount.
pub(super) fn alive(device: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&device, PollFlags::empty())];
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => !fds[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}

/// Cuts a connection: whoever waits in the mount gets an error, the mount answers `ENOTCONN`, the server's reads end.
///
/// `ENOENT` where there is no such connection (any more).
pub fn abort(number: u32) -> io::Result<()> {
    let name = format!("{number}/abort");
    match std::fs::write(Path::new(FUSECTL).join(&name), "1") {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(abort_by_own_mount(&name)?),
        done => done,
    }
}

/// The same where nobody has mounted fusectl: through a mount of it that no tree shows.
fn abort_by_own_mount(name: &str) -> Result<(), Errno> {
    let root = match fusectl() {
        // An ordinary user may not mount; for all that can be seen from here there is no such connection.
        Err(Errno::PERM) => return Err(Errno::NOENT),
        root => root?,
    };
    let file = rustix::fs::openat(&root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, b"1").map(drop)
}

fn fusectl() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Lets the kernel read ahead further. Only root may; without it large files are read in smaller pieces.
pub(super) fn raise_read_ahead(number: u32) {
    let file = format!("/sys/class/bdi/0:{number}/read_ahead_kb");
    if let Err(e) = std::fs::write(&file, READ_AHEAD_KIB.to_string()) {
        log::debug!("reading ahead as the kernel does by default: {file}: {e}");
    }
}
