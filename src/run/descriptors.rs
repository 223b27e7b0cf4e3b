//! Which open files of the caller a command in a fork inherits.
//!
//! A descriptor is a way around every cover: an open directory of the base leads to all of it, and a file that is open
//! for reading can be opened again for writing through `/proc/self/fd`. So directories never pass; files of the base
//! and of the store do not either, but for two cases. Standard input that reads a file of the base becomes the fork's
//! file of that name. Standard output and error may write to a file of the base: that redirection is the caller's own
//! act, made outside. Pipes, sockets, terminals and other files pass as they would without treefork.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::place::Base;
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::{Stat, open_beneath, reopen};

/// What passes: numbers above 2 in ascending order, and replacements for 0 to 2.
pub(super) struct Passed {
    pub(super) inherit: Vec<RawFd>,
    pub(super) stdio: [Option<OwnedFd>; 3],
}

/// Decides for all open descriptors of this process. `given` are replacements that the job brings itself, `root` is the
/// root of the fork where it can be reached from here, and `hidden` what commands do not see.
pub(super) fn sort(
    base: &Base,
    root: Option<BorrowedFd<'_>>,
    hidden: &[PathBuf],
    given: [Option<OwnedFd>; 3],
) -> Result<Passed> {
    let mut inherit = vec![];
    let mut stdio = given.map(|fd| fd.map(above_stdio).transpose());
    for entry in fs::read_dir("/proc/self/fd").context("cannot read", "/proc/self/fd")? {
        let entry = entry.context("cannot read", "/proc/self/fd")?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // Gone meanwhile: the descriptor of the listing itself, or one that another thread closed.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        match usize::try_from(number) {
            Ok(n @ 0..=2) => {
                if matches!(stdio[n], Ok(None)) {
                    stdio[n] = replace_stdio(&entry.path(), &target, base, root);
                }
            }
            _ => {
                if inheritable(number) && harmless(&entry.path(), &target, base, hidden) {
                    inherit.push(number);
                }
            }
        }
    }
    inherit.sort_unstable();
    let [input, output, error] = stdio;
    Ok(Passed { inherit, stdio: [input?, output?, error?] })
}

/// Moves a descriptor out of the way of 0 to 2, which the children overwrite one after the other.
fn above_stdio(fd: OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(&fd, 3).map_err(|e| Error::io("cannot duplicate a descriptor", e))
}

/// Whether it would survive an exec.
fn inheritable(number: RawFd) -> bool {
    // The flags of a descriptor that is only known by number, without touching it.
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
}

fn file_type(fd: &Path) -> Option<FileType> {
    use std::os::unix::fs::MetadataExt;
    Some(FileType::from_raw_mode(fs::metadata(fd).ok()?.mode()))
}

fn harmless(fd: &Path, target: &Path, base: &Base, hidden: &[PathBuf]) -> bool {
    match file_type(fd) {
        Some(FileType::Fifo | FileType::Socket | FileType::CharacterDevice) => true,
        // Namespaces and other files of the kernel's have no absolute path.
        Some(FileType::RegularFile) => {
            target.is_absolute() && base.below(target).is_none() && !hidden.iter().any(|h| target.starts_with(h))
        }
        _ => false,
    }
}

fn replace_stdio(fd: &Path, target: &Path, base: &Base, root: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>> {
    match file_type(fd) {
        Some(FileType::Directory | FileType::BlockDevice) => null().map(Some),
        Some(FileType::RegularFile) => match base.below(target) {
            Some(below) => in_fork(fd, &below, root),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// The fork's file in place of the base's, at the same offset; `None` where the caller's may be written.
fn in_fork(fd: &Path, below: &RelPath, root: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>> {
    let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.file_name().unwrap_or_default()));
    let info = info.context("cannot look at standard input", fd)?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
    let flags = field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(0);
    if flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits() {
        return Ok(None);
    }
    let missing = |e: Errno| {
        let what = "standard input is a file of the base that the fork does not have:";
        Error::new(Kind::Astray, what).at(below.as_path()).because(std::io::Error::from(e))
    };
    let root = root.ok_or_else(|| missing(Errno::NOTCONN))?;
    let path = open_beneath(&root, below, OFlags::PATH).map_err(missing)?;
    if !Stat::of(path.as_fd()).is_ok_and(|stat| stat.is_file()) {
        return Err(missing(Errno::INVAL));
    }
    let file = reopen(path.as_fd(), OFlags::RDONLY).map_err(missing)?;
    let offset = field("pos:").and_then(|pos| pos.parse().ok()).unwrap_or(0);
    rustix::fs::seek(&file, SeekFrom::Start(offset)).map_err(missing)?;
    above_stdio(file).map(Some)
}

fn null() -> Result<OwnedFd> {
    let null = fs::File::options().read(true).write(true).open("/dev/null").context("cannot open", "/dev/null")?;
    above_stdio(null.into())
}
