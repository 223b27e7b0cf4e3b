//! A whole tree into an empty directory: everything that is in it, in parallel, and a report of what could not be kept.
//!
//! Kept: content with holes, owners, modes, times to the nanosecond, extended attributes, hard links within the tree,
//! special files, read-only directories. Symbolic links are read and written, never followed. A file that changes while
//! it is copied is copied again; what keeps changing is named in the report. Entries that vanish meanwhile are treated
//! as never there. The first error stops everything and leaves a part behind, for the caller to remove.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::links::Symlinks;
use super::walk::Walk;
use crate::error::{Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::Stat;

/// How a tree is to be copied.
pub struct Options<'a> {
    /// The absolute path of the source, by which links into it are known and which errors show.
    pub root: &'a Path,
    /// Share blocks where the file systems can.
    pub reflink: bool,
    /// What becomes of symbolic links.
    pub symlinks: Symlinks,
    /// Objects for which this says so are left out, with everything below them.
    pub skip: &'a (dyn Fn(&RelPath, &Stat) -> bool + Sync),
    /// How many threads copy.
    pub threads: usize,
    /// Told how far it is, now and then and from any thread; breaking off cancels the copy.
    pub watch: &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync),
    /// Told of each object when it is complete, from any thread: its path, the attributes of the original and those of
    /// the copy. A directory comes after everything in it.
    pub observe: &'a (dyn Fn(&RelPath, &Stat, &Stat) + Sync),
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects copied so far.
    pub entries: u64,
    /// Bytes of content copied so far, shared ones included.
    pub bytes: u64,
}

/// What came of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects and bytes.
    pub total: Progress,
    /// Files that share their blocks with the original.
    pub reflinked: u64,
    /// Files that the kernel copied.
    pub copied: u64,
    /// Files that were read and written.
    pub read_written: u64,
    /// Symbolic links left out, as asked.
    pub links_left_out: u64,
    /// Objects whose owner could not be kept, for want of privilege; they belong to this process and have lost their
    /// set-id bits.
    pub owners_lost: u64,
    /// Device nodes left out, for want of privilege.
    pub devices_left_out: Vec<RelPath>,
    /// Mount points whose content came over as ordinary files.
    pub mounts_entered: Vec<RelPath>,
    /// Mount points of kernel interfaces (proc, sysfs...) that are empty directories in the copy.
    pub mounts_left_out: Vec<RelPath>,
    /// Files that changed while they were copied, each time it was tried: the copy may be a mixture.
    pub unstable: Vec<RelPath>,
}

/// Copies the tree below `from` into the empty directory `to`, the attributes of the root included.
///
/// Nothing is synced to disk. Fails with [`Kind::Cancelled`] where `watch` broke off.
pub fn tree(from: BorrowedFd<'_>, to: BorrowedFd<'_>, options: &Options<'_>) -> Result<Report> {
    let shared = Shared::default();
    Walk::new(from, to, options, &shared)?.run()?;
    Ok(shared.into_report())
}

/// A sensible number of threads for a copy on this machine: past a few, the file system is what takes the time.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8))
}

/// What the threads of a copy count together.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) entries: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Everything of the report but the total.
    pub(super) report: Mutex<Report>,
}

impl Shared {
    pub(super) fn progress(&self) -> Progress {
        Progress { entries: self.entries.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    fn into_report(self) -> Report {
        let total = self.progress();
        let mut report = Report { total, ..self.report.into_inner() };
        for list in [
            &mut report.devices_left_out,
            &mut report.mounts_entered,
            &mut report.mounts_left_out,
            &mut report.unstable,
        ] {
            list.sort();
        }
        report
    }
}

/// The error of a copy that was broken off.
pub(super) fn cancelled() -> Error {
    Error::new(Kind::Cancelled, "the copy was cancelled")
}

/// Where in the source an error happened.
pub(super) fn place(options: &Options<'_>, path: &RelPath) -> PathBuf {
    options.root.join(path)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::sys::open_root;

    fn options(root: &Path) -> Options<'_> {
        Options {
            root,
            reflink: true,
            symlinks: Symlinks::Keep,
            skip: &|_, _| false,
            threads: 4,
            watch: &|_| ControlFlow::Continue(()),
            observe: &|_, _, _| {},
        }
    }

    fn copy(to: &Path, options: &Options<'_>) -> Result<Report> {
        tree(open_root(options.root).unwrap().as_fd(), open_root(to).unwrap().as_fd(), options)
    }

    /// Every path below `root` with what a copy must keep; hard links show as the first path of their inode.
    fn picture(root: &Path) -> BTreeMap<PathBuf, String> {
        let mut paths = vec![root.to_path_buf()];
        let mut at = 0;
        while at < paths.len() {
            if fs::symlink_metadata(&paths[at]).unwrap().is_dir() {
                paths.extend(fs::read_dir(&paths[at]).unwrap().map(|entry| entry.unwrap().path()));
            }
            at += 1;
        }
        paths.sort();
        let mut first: HashMap<u64, PathBuf> = HashMap::new();
        let mut picture = BTreeMap::new();
        for path in paths {
            let stat = fs::symlink_metadata(&path).unwrap();
            let rel = path.strip_prefix(root).unwrap().to_path_buf();
            let same = first.entry(stat.ino()).or_insert_with(|| rel.clone()).clone();
            let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let target = fs::read_link(&path).ok();
            let size = if stat.is_dir() { 0 } else { stat.size() };
            let line = format!(
                "{:o} {}:{} {size} {}.{} {} {same:?} {target:?} {content:?}",
                stat.mode(),
                stat.uid(),
                stat.gid(),
                stat.mtime(),
                stat.mtime_nsec(),
                stat.rdev()
            );
            picture.insert(rel, line);
        }
        picture
    }

    #[test]
    fn everything_comes_over() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("d/e/f")).unwrap();
        fs::create_dir(&to).unwrap();
        for i in 0..600 {
            fs::write(from.join("d").join(format!("{i}\n")), i.to_string()).unwrap();
        }
        fs::hard_link(from.join("d/7\n"), from.join("linked")).unwrap();
        fs::hard_link(from.join("d/7\n"), from.join("d/e/linked too")).unwrap();
        symlink("/nowhere", from.join("d/dangling")).unwrap();
        symlink(from.join("d/e"), from.join("d/own")).unwrap();
        let fd = open_root(&from).unwrap();
        crate::sys::At::new(&fd, "fifo").mknod(libc::S_IFIFO | 0o640, 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
        fs::set_permissions(from.join("d/e"), fs::Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o2711)).unwrap();
        let seen = AtomicUsize::new(0);
        let observe = |path: &RelPath, _: &Stat, copy: &Stat| {
            seen.fetch_add(1, Ordering::Relaxed);
            let now = fs::symlink_metadata(to.join(path)).unwrap();
            // Until all links are made, their change time still moves.
            if copy.nlink == 1 {
                assert_eq!((copy.ino, copy.ctime.nsec), (now.ino(), now.ctime_nsec() as u32), "{path:?}");
            }
        };
        let report = copy(&to, &Options { observe: &observe, ..options(&from) }).unwrap();
        let mut expected = picture(&from);
        let own = expected.get_mut(Path::new("d/own")).unwrap();
        *own = own.replace(from.to_str().unwrap(), "..");
        let mut actual = picture(&to);
        // The re-targeted link has another length.
        for map in [&mut expected, &mut actual] {
            let own = map.remove(Path::new("d/own")).unwrap();
            assert!(own.contains("\"../d/e\""), "{own}");
        }
        assert_eq!(actual, expected);
        let entries = expected.len() + 1;
        assert_eq!((report.total.entries, seen.into_inner()), (entries as u64, entries));
        assert_eq!(report.unstable, []);
    }

    #[test]
    fn links_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("d")).unwrap();
        symlink("..", from.join("d/inside")).unwrap();
        symlink("../..", from.join("d/outside")).unwrap();
        for (symlinks, left) in [(Symlinks::Keep, 2), (Symlinks::Confine, 1), (Symlinks::Skip, 0)] {
            let to = dir.path().join(format!("{symlinks:?}"));
            fs::create_dir(&to).unwrap();
            let report = copy(&to, &Options { symlinks, ..options(&from) }).unwrap();
            assert_eq!(fs::read_dir(to.join("d")).unwrap().count(), left, "{symlinks:?}");
            assert_eq!(report.links_left_out as usize, 2 - left);
        }
    }

    #[test]
    fn cancelling_and_a_target_inside_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("file"), "x").unwrap();
        let error = copy(&from.join("inner"), &options(&from)).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        let to = dir.path().join("to");
        fs::create_dir(&to).unwrap();
        let error = copy(&to, &Options { watch: &|_| ControlFlow::Break(()), ..options(&from) }).unwrap_err();
        assert_eq!(error.kind(), Kind::Cancelled);
    }

    #[test]
    fn a_file_that_never_stands_still_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir(&to).unwrap();
        let file = fs::File::create(from.join("busy")).unwrap();
        file.set_len(1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 0).unwrap();
        // Each look at the progress in the middle of the file changes the file: the watch of a step sees n < size.
        let watch = |progress: Progress| {
            if progress.bytes > 0 {
                std::os::unix::fs::FileExt::write_all_at(&file, &progress.bytes.to_le_bytes(), 0).unwrap();
            }
            ControlFlow::Continue(())
        };
        let report = copy(&to, &Options { watch: &watch, reflink: false, ..options(&from) }).unwrap();
        assert_eq!(report.unstable, [RelPath::new(Path::new("busy")).unwrap()]);
    }
}
