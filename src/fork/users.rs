//! Which processes use a fork: a working directory, a root, a program, an open file or a mapping in it.
//!
//! Nothing is asked of the mount itself, which may be dead or hang: the links in `/proc` are read as text and compared
//! by path, and looked at without synchronising (`AT_STATX_DONT_SYNC`) to compare the device, which also finds uses
//! through a bind mount in another namespace.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, major};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::Serialize;

use super::Record;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::mounted_at;

/// How long a process may take from being made to beginning its program.
const START: Duration = Duration::from_secs(2);

/// A process that uses a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// Process number.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub command: String,
    /// What it has there.
    pub by: &'static str,
}

/// All processes that use the fork in `dir`, as far as this user may look; never the calling one.
pub fn users(dir: &Path) -> Result<Vec<User>> {
    users_among(dir, |_| true)
}

/// The users among those processes (directories in `/proc`) that `look_at` accepts.
fn users_among(dir: &Path, look_at: impl Fn(&Path) -> bool) -> Result<Vec<User>> {
    let tree = dir.join("mnt");
    // A mount of its own is on a device of its own; anything else that somebody mounts there is not.
    let device = mounted_at(&tree).ok().flatten().filter(|&device| major(device) == 0);
    let place = Place { tree, device };
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list", "/proc")? {
        let name = entry.context("cannot list", "/proc")?.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|&pid| pid != std::process::id()) else { continue };
        let process = Path::new("/proc").join(name);
        if !look_at(&process) {
            continue;
        }
        if let Some(by) = place.used_by(&process) {
            let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            users.push(User { pid, command: String::from_utf8_lossy(&command).trim_end().to_owned(), by });
        }
    }
    users.sort_by_key(|user| user.pid);
    Ok(users)
}

/// The users of a fork whose lock is held: the same as [`users`], but fast where there are none.
///
/// With hundreds of processes, looking at every descriptor of each takes longer than all else that removing a fork takes.
///
/// A child that another thread of the calling process has made, and that has not begun its program yet, has copies of all
/// descriptors that the process had open. It is waited for: with its program they are closed.
pub fn users_quickly(dir: &Path) -> Result<Vec<User>> {
    let until = Instant::now() + START;
    // Who had begun a program before the latest look: what he has there, he has.
    let mut begun: Vec<u32> = Vec::new();
    loop {
        let users = users_now(dir)?;
        if users.iter().all(|user| begun.contains(&user.pid)) || Instant::now() > until {
            return Ok(users);
        }
        begun = users.iter().map(|user| user.pid).filter(|&pid| !is_being_started(pid)).collect();
        if begun.len() < users.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether a process is a child of this one that has not begun a program of its own.
fn is_being_started(pid: u32) -> bool {
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent == Some(std::process::id()) && program(&pid.to_string()) == program("self")
}

fn users_now(dir: &Path) -> Result<Vec<User>> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let ours = namespace(Path::new("/proc/self"));
    if ours.is_some() && idle(&dir.join("mnt")) {
        // The kernel spoke of this mount namespace. Whoever has one of his own is still to be looked at.
        users_among(dir, |process| namespace(process) != ours)
    } else {
        users(dir)
    }
}

/// Whether the kernel says that nobody in this mount namespace uses the mount. False where there is none, and where only
/// root may ask. The caller holds the fork's lock: of two who ask at once the second would unmount it.
fn idle(point: &Path) -> bool {
    // umount2(2): the first such call only marks a mount that is not in use; it fails with EAGAIN then.
    let flags = UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW;
    let idle = rustix::mount::unmount(point, flags) == Err(Errno::AGAIN);
    if idle {
        // Any use takes the mark away again, so that the next to ask gets the same answer.
        drop(crate::sys::open_root(point));
    }
    idle
}

/// An error that names the users of a fork, if it has any. The caller holds the fork's lock.
pub(super) fn refuse_if_used(record: &Record, dir: &Path) -> Result<()> {
    const SHOWN: usize = 5;
    super::prewarm::end(dir);
    let users = users_quickly(dir)?;
    if users.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> =
        users.iter().take(SHOWN).map(|user| format!("{} (pid {}, {})", user.command, user.pid, user.by)).collect();
    if users.len() > SHOWN {
        names.push(format!("{} more", users.len() - SHOWN));
    }
    let what = format!("the fork {} is in use by {}", record.name(), names.join(", "));
    Err(Error::new(Kind::InUse, what).remedy("end those processes, or use --force: what they do there then fails"))
}

struct Place {
    tree: PathBuf,
    device: Option<u64>,
}

impl Place {
    fn used_by(&self, process: &Path) -> Option<&'static str> {
        for (link, by) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")] {
            match self.holds(&process.join(link)) {
                Ok(true) => return Some(by),
                // Another user's process, or one that nobody may look into: its files and mappings are closed as well, each
                // of which would have to say so.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return None,
                Ok(false) | Err(_) => {}
            }
        }
        let mut files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        if files.any(|fd| self.holds(&fd.path()).unwrap_or(false)) {
            return Some("open file");
        }
        self.maps(process).then_some("mapped file")
    }

    /// Whether a link in `/proc` leads into the fork; the error where it cannot be read.
    fn holds(&self, link: &Path) -> io::Result<bool> {
        let target = fs::read_link(link)?;
        if target.starts_with(&self.tree) {
            return Ok(true);
        }
        // Sockets, pipes and the like have no path: spare the call.
        let Some(device) = self.device.filter(|_| target.is_absolute()) else { return Ok(false) };
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        Ok(rustix::fs::statx(CWD, link, flags, StatxFlags::empty())
            .is_ok_and(|stat| rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor) == device))
    }

    /// Whether a process maps a file of the fork: the fourth field of `/proc/PID/maps` is the device, the sixth the path.
    fn maps(&self, process: &Path) -> bool {
        let Ok(maps) = fs::read(process.join("maps")) else { return false };
        let device = self.device.map(|d| format!("{:02x}:{:02x}", rustix::fs::major(d), rustix::fs::minor(d)));
        let tree = self.tree.as_os_str().as_bytes();
        maps.split(|&b| b == b'\n').any(|line| {
            let mut fields = line.split(|&b| b == b' ').filter(|field| !field.is_empty());
            let same_device = fields.nth(3).is_some_and(|field| device.as_ref().is_some_and(|d| d.as_bytes() == field));
            let path = fields.nth(1).unwrap_or_default();
            same_device || path.strip_prefix(tree).is_some_and(|rest| rest.first() == Some(&b'/'))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_kernel_is_asked_and_nothing_is_unmounted() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("only root can mount here: not tested");
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let point = dir.path().join("mnt");
        fs::create_dir(&point).expect("made");
        assert!(!idle(&point), "nothing is mounted");
        assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&point).status().expect("mount").success());
        let (first, again) = (idle(&point), idle(&point));
        let file = fs::File::create(point.join("f")).expect("made");
        let busy = !idle(&point);
        drop(file);
        let after = idle(&point);
        assert!(Command::new("umount").arg(&point).status().expect("umount").success(), "it was unmounted");
        assert_eq!((first, again, busy, after), (true, true, true, true));
    }

    #[test]
    fn a_working_directory_is_a_use() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir = dir.path().canonicalize().expect("canonical");
        fs::create_dir_all(dir.join("mnt/sub")).expect("made");
        assert_eq!(users(&dir).expect("procfs"), []);
        let mut cat = Command::new("cat");
        let mut child = cat.current_dir(dir.join("mnt/sub")).stdin(Stdio::piped()).spawn().expect("spawns");
        let found = users(&dir).expect("procfs");
        drop(child.stdin.take());
        child.wait().expect("ends");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].pid, found[0].by), (child.id(), "working directory"));
    }
}
