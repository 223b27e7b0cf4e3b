//! What the two copying strategies have in common: the copy, its git, its manifest, and what to say about it.
//!
//! Order: the tree is copied; git directories that lie elsewhere get a counterpart in the copy; the stat data in the
//! copied indexes is carried over, so that the first `git status` opens no tracked file; the manifest is taken; all of
//! it is synced to disk, since a copy of which a power cut left empty files would look like a fork that emptied them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::{Made, Site, Wishes, elsewhere};
use crate::copy::{self, Report};
use crate::error::{Context, Result};
use crate::git::Repo;
use crate::git::index::{self, Carried};
use crate::git::own::{self, Fix};
use crate::layer::ledger::BaseState;
use crate::layer::manifest::{self, Manifest, Pair};
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath, open_root};

/// An object of the base and its copy.
type Seen = HashMap<RelPath, (Stat, Stat)>;

/// Copies the base of `site` into its tree.
pub(super) fn create(site: &Site, wishes: &Wishes, reflink: bool) -> Result<Made> {
    let tree = site.tree();
    fs::create_dir_all(site.work()).context("cannot make", site.work())?;
    let (report, mut seen) = copy_tree(site, wishes, reflink)?;
    let tops = tops(&seen);
    let fixes = own::fixes(&site.base, &tree, &tops)?;
    elsewhere::in_copy(&fixes, &tree, reflink)?;
    let root = open_root(&tree).context("cannot open", &tree)?;
    let untouched = tops.iter().map(|top| carry_index(&tree, top, &seen)).filter(|carried| !carried).count();
    look_again(&root, &fixes, &tops, &mut seen);
    for fix in fixes.iter().filter(|fix| matches!(fix, Fix::Own { .. })) {
        // Made with the fork: no change of its own. The base has nothing there to compare with.
        for (path, stat) in manifest::look(&tree.join(fix.at()))? {
            let path = RelPath::new(&fix.at().as_path().join(&path)).expect("below the tree");
            seen.entry(path).or_insert((stat, stat));
        }
    }
    wishes.cancel.check()?;
    summary(&report, seen).write(&site.work())?;
    rustix::fs::syncfs(At::new(&root, ".").open(OFlags::RDONLY).context("cannot open", &tree)?)
        .context("cannot sync the file system of", &tree)?;
    let mut advisories = say(&report, reflink);
    advisories.extend(fixes.iter().filter_map(elsewhere::own_git));
    if untouched > 0 {
        advisories.push(format!("the first git status reads every file again, in {untouched} repositories"));
    }
    Ok(Made { advisories })
}

fn copy_tree(site: &Site, wishes: &Wishes, reflink: bool) -> Result<(Report, Seen)> {
    let seen = Mutex::new(Seen::new());
    let hidden = site.hide.of(&site.base)?;
    let options = copy::Options {
        root: &site.base,
        reflink,
        symlinks: site.hide.symlinks,
        skip: &|path, stat| hidden.excludes(path, stat.is_dir()),
        threads: copy::default_threads(),
        watch: &|progress| {
            if let Some(tell) = &wishes.progress {
                tell(progress.entries, progress.bytes)?;
            }
            wishes.cancel.flow()
        },
        observe: &|path, base, copy| {
            seen.lock().insert(path.clone(), (*base, *copy));
        },
    };
    let tree = site.tree();
    let from = open_root(&site.base).context("cannot open the base", &site.base)?;
    let to = open_root(&tree).context("cannot open", &tree)?;
    let report = copy::tree(from.as_fd(), to.as_fd(), &options)?;
    Ok((report, seen.into_inner()))
}

/// The directories that have a `.git`.
fn tops(seen: &Seen) -> Vec<RelPath> {
    let mut tops: Vec<RelPath> =
        seen.keys().filter(|path| path.file_name() == Some(OsStr::new(".git"))).filter_map(RelPath::parent).collect();
    tops.sort();
    tops
}

/// Carries the stat data of one index over; false where git will have to read the files again.
fn carry_index(tree: &Path, top: &RelPath, seen: &Seen) -> bool {
    let Ok(tree) = fs::canonicalize(tree) else { return false };
    let Ok(Some(repo)) = Repo::at(&tree.join(top)) else { return true };
    // A pointer that leads out of the copy is none that a fork may have; one that does is not written through.
    if !repo.git_dir.starts_with(&tree) {
        return false;
    }
    let Ok(dir) = open_root(&repo.git_dir) else { return false };
    let copies = |path: &[u8]| {
        let path = RelPath::new(&top.as_path().join(OsStr::new(RelPath::from_bytes(path)?.as_path())))?;
        seen.get(&path).copied()
    };
    match index::carry(At::new(&dir, "index"), copies) {
        Ok(Carried::Done { .. }) | Err(rustix::io::Errno::NOENT) => true,
        Ok(Carried::Untouched) | Err(_) => false,
    }
}

/// Brings what is known of the copy up to date where it was changed after it was copied.
fn look_again(root: &OwnedFd, fixes: &[Fix], tops: &[RelPath], seen: &mut Seen) {
    let git = OsStr::new(".git");
    let changed = |path: &RelPath| {
        let in_git = path.as_path().components().any(|component| component.as_os_str() == git);
        in_git || tops.contains(path) || fixes.iter().any(|fix| fix.at() == path)
    };
    let stat = |path: &RelPath| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            At::new(&open_beneath(root, &parent, OFlags::PATH | OFlags::DIRECTORY).ok()?, name).stat().ok()
        }
        _ => At::new(root, ".").stat().ok(),
    };
    seen.retain(|path, (_, copy)| {
        if !changed(path) {
            return true;
        }
        match stat(path) {
            Some(now) => {
                *copy = now;
                true
            }
            None => false,
        }
    });
}

fn summary(report: &Report, seen: Seen) -> Manifest {
    let mut mounts = report.mounts_entered.clone();
    mounts.extend(report.mounts_left_out.iter().cloned());
    let pair = |(base, copy): (Stat, Stat)| Pair { base: BaseState::from(&base), fork: BaseState::from(&copy) };
    let entries: BTreeMap<_, _> = seen.into_iter().map(|(path, stats)| (path, pair(stats))).collect();
    Manifest { mounts, entries }
}

/// Sentences about what could not be kept.
fn say(report: &Report, reflink: bool) -> Vec<String> {
    let mut say = Vec::new();
    let copied = report.copied + report.read_written;
    if reflink && copied > 0 {
        let all = copied + report.reflinked;
        say.push(format!("{copied} of {all} files could not share their blocks with the base and were copied"));
    }
    if report.owners_lost > 0 {
        let n = report.owners_lost;
        say.push(format!("the owner of {n} objects could not be kept; they are yours and lost their set-id bits"));
    }
    let lists = [
        (&report.devices_left_out, "device nodes were left out, for want of privilege"),
        (&report.mounts_entered, "mounts in the base came over as ordinary files"),
        (&report.mounts_left_out, "mounts of kernel interfaces in the base are empty directories"),
        (&report.unstable, "files kept changing while they were copied and may be a mixture"),
    ];
    for (list, what) in lists {
        if let Some(first) = list.first() {
            let more = if list.len() > 1 { format!(" and {} more", list.len() - 1) } else { String::new() };
            say.push(format!("{what}: {:?}{more}", first.as_path()));
        }
    }
    say
}

/// Whether the tree is what the manifest says.
pub(super) fn is_changed(site: &Site) -> Result<Option<bool>> {
    Ok(Some(!Manifest::read(&site.work())?.compare(&site.tree())?.is_empty()))
}
