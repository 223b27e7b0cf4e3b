//! The uncommitted state of one work tree, brought over to another that stands at the same commit.
//!
//! What is tracked, staged or deleted comes as one binary diff against `HEAD` that is applied to the files; what is
//! untracked and not ignored comes as copies, regular files only. The index of the target stays that of `HEAD`. Of the
//! source nothing is written, not even its index.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::command::Git;
use crate::copy;
use crate::error::{self, Context, Error, Kind};
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath, open_root};

/// Brings the uncommitted changes of `from` to `to`, a fresh work tree of the same commit.
///
/// A clean `from` is found out by one git command, and nothing else runs. Where anything fails, `to` is reset to its
/// commit and the result is a sentence that says so; an error only where even that fails.
pub fn bring(from: &Git, to: &Git) -> error::Result<Option<String>> {
    let problem = match attempt(from, to) {
        Ok(()) => return Ok(None),
        Err(problem) => problem,
    };
    to.run(["reset", "--quiet", "--hard", "HEAD"])?;
    to.run(["clean", "--quiet", "-ffdx"])?;
    Ok(Some(format!(
        "the fork shows the committed HEAD only: uncommitted changes could not be brought over: {problem}"
    )))
}

fn attempt(from: &Git, to: &Git) -> error::Result<()> {
    let status = from.run([
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=dirty",
    ])?;
    if status.is_empty() {
        return Ok(());
    }
    let entries = || status.split(|&b| b == 0).filter(|entry| entry.len() > 3);
    if entries().any(|entry| !entry.starts_with(b"?? ")) {
        apply(&diff(from)?, to)?;
    }
    let (source, target) = (root(from)?, root(to)?);
    for entry in entries() {
        // A trailing slash is a repository of its own, which is not looked into.
        let Some(path) = entry.strip_prefix(b"?? ").filter(|path| !path.ends_with(b"/")) else { continue };
        let path = RelPath::from_bytes(path).ok_or_else(|| Error::new(Kind::Git, "git names an impossible path"))?;
        copy_file(&source, &target, &path).context("cannot copy", &path)?;
    }
    Ok(())
}

/// Everything that differs from `HEAD` in tracked files, staged or not, in a form that configuration cannot bend.
fn diff(from: &Git) -> error::Result<Vec<u8>> {
    from.run([
        "diff",
        "--binary",
        "--full-index",
        "--no-color",
        "--no-renames",
        "--no-relative",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--submodule=short",
        "--ignore-submodules=dirty",
        "HEAD",
        "--",
    ])
}

fn apply(patch: &[u8], to: &Git) -> error::Result<()> {
    if patch.is_empty() {
        return Ok(());
    }
    to.run_with(["apply", "--binary", "--whitespace=nowarn", "--no-ignore-whitespace", "-p1", "-"], patch).map(drop)
}

fn root(git: &Git) -> error::Result<OwnedFd> {
    open_root(git.top()).context("cannot open", git.top())
}

/// Copies one untracked file, if it still is a regular one, making its directories. Nothing on the way is followed.
fn copy_file(source: &OwnedFd, target: &OwnedFd, path: &RelPath) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let source = match open_beneath(source, &parent, OFlags::PATH | OFlags::DIRECTORY) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let from = At::new(&source, name);
    let Some(stat) = from.try_stat()?.filter(Stat::is_file) else { return Ok(()) };
    let reader = from.open_quiet(OFlags::RDONLY | OFlags::NONBLOCK)?;
    let target = directories(target, &parent)?;
    let to = At::new(&target, name);
    let writer = to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?;
    copy::file_data(reader.as_fd(), writer.as_fd(), stat.size)?;
    copy::metadata(from, to, &stat, |_| false)
}

/// Opens the directory `path`, making what is missing of it.
fn directories(root: &OwnedFd, path: &RelPath) -> Result<OwnedFd, Errno> {
    let mut dir = At::new(root, ".").open(OFlags::PATH | OFlags::DIRECTORY)?;
    for name in path.as_path().iter() {
        dir = directory(&dir, name)?;
    }
    Ok(dir)
}

fn directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => At::new(parent, name).open(OFlags::PATH | OFlags::DIRECTORY),
        Err(e) => Err(e),
    }
}
