//! Which open files of the caller a command in a fork inherits.
//!
//! A descriptor is a way around every cover: an open directory of the base leads to all of it, and a file that is open
//! for reading can be opened again for writing through `/proc/self/fd`. So directories never pass; files of the base
//! and of the store do not either, but for two cases. Standard input that reads a file of the base becomes the fork's
//! file of that name. Standard output and error may write to a file of the base: that redirection is the caller's own
//! act, made outside. Pipes, sockets, terminals and other files pass as they would without treefork.

use std::ffi::CString;
use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};

use super::place::Base;
use crate::error::{Context, Error, Result};
use crate::sys::cell::Reopen;

/// What passes: numbers above 2 in ascending order, and replacements for 0 to 2.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) inherit: Vec<RawFd>,
    pub(super) stdio: [Option<OwnedFd>; 3],
    pub(super) reopen: Vec<Reopen>,
}

/// Decides for all open descriptors of this process. `given` are replacements that the job brings itself, and `hidden`
/// is what commands do not see.
pub(super) fn sort(base: &Base, hidden: &[PathBuf], given: [Option<OwnedFd>; 3]) -> Result<Passed> {
    let mut passed = Passed::default();
    for (slot, fd) in passed.stdio.iter_mut().zip(given) {
        *slot = fd.map(above_stdio).transpose()?;
    }
    for entry in fs::read_dir("/proc/self/fd").context("cannot read", "/proc/self/fd")? {
        let entry = entry.context("cannot read", "/proc/self/fd")?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // Gone meanwhile: the descriptor of the listing itself, or one that another thread closed.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        match usize::try_from(number) {
            Ok(n @ 0..=2) if passed.stdio[n].is_none() => passed.replace(number, n, &entry.path(), &target, base)?,
            Ok(0..=2) => {}
            _ => {
                if inheritable(number) && harmless(&entry.path(), &target, base, hidden) {
                    passed.inherit.push(number);
                }
            }
        }
    }
    passed.inherit.sort_unstable();
    Ok(passed)
}

impl Passed {
    /// What becomes of one of the caller's own 0 to 2.
    fn replace(&mut self, number: RawFd, n: usize, fd: &Path, target: &Path, base: &Base) -> Result<()> {
        match file_type(fd) {
            Some(FileType::Directory | FileType::BlockDevice) => {
                let null = fs::File::options().read(true).write(true).open("/dev/null");
                self.stdio[n] = Some(above_stdio(null.context("cannot open", "/dev/null")?.into())?);
            }
            Some(FileType::RegularFile) => {
                let info = Info::of(number);
                if let Some(below) = base.below(target).filter(|_| info.flags & OFlags::ACCMODE == OFlags::RDONLY) {
                    let below = CString::new(below.as_bytes()).expect("a path of the kernel's has no NUL");
                    self.reopen.push(Reopen { number, below, offset: info.offset });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// What the kernel says about a descriptor that is only known by number.
struct Info {
    flags: OFlags,
    offset: u64,
}

impl Info {
    fn of(number: RawFd) -> Self {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
        let flags = field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(u32::MAX);
        let offset = field("pos:").and_then(|pos| pos.parse().ok()).unwrap_or(0);
        Self { flags: OFlags::from_bits_retain(flags), offset }
    }
}

/// Moves a descriptor out of the way of 0 to 2, which the children overwrite one after the other.
fn above_stdio(fd: OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(&fd, 3).map_err(|e| Error::io("cannot duplicate a descriptor", e))
}

/// Whether it would survive an exec.
fn inheritable(number: RawFd) -> bool {
    !Info::of(number).flags.contains(OFlags::CLOEXEC)
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
