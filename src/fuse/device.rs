//! Getting a `/dev/fuse` descriptor that is mounted at a path, and taking the mount away again.
//!
//! Who may call `mount(2)` does; everybody else goes through the setuid helper `fusermount3`, which mounts and sends the
//! descriptor back over a socket.

use std::ffi::{CString, OsString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::Options;
use crate::error::{Context, Error, Kind, Result};

/// The type that `/proc/mounts` shows.
pub const FS_TYPE: &str = "fuse.treefork";
const SUBTYPE: &str = "treefork";
const HELPER: &str = "fusermount3";

/// Mounts at `point` (an absolute path) and returns the descriptor that requests come from.
pub(super) fn mount(point: &Path, options: &Options) -> Result<OwnedFd> {
    match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => match mount_directly(&device, point, options) {
            Err(Errno::PERM) => mount_by_helper(point, options),
            mounted => mounted.map(|()| device).context("cannot mount at", point),
        },
        // Closed to ordinary users, as it is on servers: the helper may.
        Err(Errno::ACCESS | Errno::PERM) => mount_by_helper(point, options),
        Err(e @ (Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
            Err(Error::new(Kind::Unavailable, "there is no FUSE here: cannot open").at("/dev/fuse").because(io(e)))
        }
        Err(e) => Err(e).context("cannot open", "/dev/fuse"),
    }
}

/// Detaches whatever is mounted at `point` from the tree. Those who are inside keep what they hold open.
pub fn detach(point: &Path) -> Result<()> {
    match rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Not ours to unmount, or not without help.
        Err(Errno::PERM) => {
            let mut helper = Command::new(HELPER);
            helper.args(["-u", "-q", "-z", "--"]).arg(point);
            helped(helper.output(), point, "cannot unmount").map(drop)
        }
        unmounted => unmounted.context("cannot unmount", point),
    }
}

/// Cuts the connection of the mount at `point`, and detaches it: in one step, which only root may take.
pub(super) fn cut(point: &Path) -> std::result::Result<(), Errno> {
    rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

fn mount_directly(device: &OwnedFd, point: &Path, options: &Options) -> std::result::Result<(), Errno> {
    let root = rustix::fs::stat(point)?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        root.st_mode & 0o17_0000,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("numbers and words hold no NUL");
    rustix::mount::mount(options.source.as_os_str(), point, FS_TYPE, options.flags, data.as_c_str())
}

fn mount_by_helper(point: &Path, options: &Options) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("cannot make a socket pair", e))?;
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(helper_options(options)).arg("--").arg(point);
    // The helper sends the descriptor over the socket whose number is in this variable: its standard input, which
    // needs no juggling with close-on-exec.
    helper.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    helped(helper.output(), point, "cannot mount at")?;
    drop(helper);
    receive(&ours).context("cannot receive the mount of", point)
}

/// What became of the helper.
fn helped(output: std::io::Result<std::process::Output>, point: &Path, action: &'static str) -> Result<()> {
    let output =
        output.map_err(|e| Error::new(Kind::Unavailable, "cannot run fusermount3 (package fuse3)").because(e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::new(Kind::Unavailable, action).at(point).because(said))
}

/// The options in the helper's words. Commas and backslashes in the source are escaped.
fn helper_options(options: &Options) -> OsString {
    let mut words = format!("subtype={SUBTYPE},default_permissions").into_bytes();
    if options.allow_other {
        words.extend(b",allow_other");
    }
    for (flag, word) in WORDS {
        if options.flags.contains(flag) {
            words.extend(format!(",{word}").bytes());
        }
    }
    words.extend(b",fsname=");
    for &byte in options.source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            words.push(b'\\');
        }
        words.push(byte);
    }
    OsString::from_vec(words)
}

/// Mount flags and their names.
pub(super) const WORDS: [(MountFlags, &str); 7] = [
    (MountFlags::RDONLY, "ro"),
    (MountFlags::NODEV, "nodev"),
    (MountFlags::NOSUID, "nosuid"),
    (MountFlags::NOEXEC, "noexec"),
    (MountFlags::NOATIME, "noatime"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
];

fn receive(socket: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(device) = descriptors.next()
        {
            return Ok(device);
        }
    }
    Err(std::io::Error::other("fusermount3 sent no descriptor"))
}

fn io(e: Errno) -> std::io::Error {
    e.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_commas_stays_one_option() {
        let flags = MountFlags::RDONLY | MountFlags::NODEV;
        let options = Options { source: OsString::from(r"a,b\c"), flags, allow_other: false, threads: 1 };
        assert_eq!(helper_options(&options), r"subtype=treefork,default_permissions,ro,nodev,fsname=a\,b\\c");
    }
}
