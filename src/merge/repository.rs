//! What git knows about the paths of a merge: tracked, ignored, busy, and old contents.
//!
//! Everything runs hardened, on the parent's repository, without writing to it. The fork's side comes in as plain files:
//! its index as an index file, its objects as an alternate object directory, its ignore rules as files in a skeleton of
//! directories. Its configuration is never read.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;

use super::Source;
use super::changes::{Changes, What};
use super::parent::Parent;
use super::scratch::Scratch;
use super::view::View;
use crate::error::{Context, Error, Kind, Result};
use crate::git::{DotGit, Git, Repo};
use crate::layer::ledger::BaseState;
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath};

/// What stands in a git directory while something is under way.
const UNDER_WAY: [(&str, &str); 7] = [
    ("index.lock", "another git command holds index.lock"),
    ("MERGE_HEAD", "it is in the middle of a git merge"),
    ("rebase-merge", "it is in the middle of a rebase"),
    ("rebase-apply", "it is in the middle of a rebase"),
    ("CHERRY_PICK_HEAD", "it is in the middle of a cherry-pick"),
    ("REVERT_HEAD", "it is in the middle of a revert"),
    ("BISECT_LOG", "it is in the middle of a bisection"),
];

/// Parts of a git directory that the git step carries over in its own way, or that mean nothing outside the fork.
const CARRIED: [&str; 20] = [
    "objects",
    "refs",
    "packed-refs",
    "HEAD",
    "index",
    "logs",
    "ORIG_HEAD",
    "FETCH_HEAD",
    "COMMIT_EDITMSG",
    "MERGE_MSG",
    "MERGE_HEAD",
    "MERGE_MODE",
    "AUTO_MERGE",
    "REBASE_HEAD",
    "rebase-merge",
    "rebase-apply",
    "gc.log",
    "gc.pid",
    "index.lock",
    "reftable",
];

/// The git repository that a parent is the top of.
#[derive(Debug)]
pub(crate) struct Repository {
    /// Where its parts are.
    pub(crate) repo: Repo,
    /// Git, hardened for it.
    pub(crate) git: Git,
}

impl Repository {
    /// The repository of a parent; `None` where its root is not the top of one.
    pub(crate) fn open(parent: &Parent) -> Result<Option<Self>> {
        let Some(repo) = Repo::at(&parent.path)? else { return Ok(None) };
        let git = Git::new(&repo)?;
        Ok(Some(Self { repo, git }))
    }

    /// Whether the git directory is an ordinary one: `.git` itself, in the tree.
    pub(crate) fn is_plain(&self) -> bool {
        self.repo.dot_git == DotGit::Dir && !self.repo.is_linked()
    }

    /// Refuses a repository in which something is under way.
    pub(crate) fn check_idle(&self) -> Result<()> {
        for (name, what) in UNDER_WAY {
            if fs::symlink_metadata(self.repo.git_dir.join(name)).is_ok() {
                let text = format!("the parent cannot take a merge now: {what} in");
                return Err(Error::new(Kind::Git, text).at(&self.repo.top));
            }
        }
        Ok(())
    }

    /// Refuses objects of the fork that are no files: git would wait for a pipe for ever, and follow a link to anywhere.
    pub(crate) fn check_objects(source: &Source, changes: &Changes) -> Result<()> {
        let strange = changes.list.iter().find(|change| {
            change.path.as_path().starts_with(".git/objects")
                && matches!(&change.what, What::Put(put) if !put.stat.is_file())
        });
        let Some(change) = strange else { return Ok(()) };
        let what = "there is something else than a file among the objects of the fork's repository:";
        Err(Error::new(Kind::Git, what).at(source.path.join(&change.path)).remedy("remove it"))
    }

    /// A path in the fork's git directory in its upper, where the fork changed it.
    pub(crate) fn fork_file(source: &Source, name: &str) -> Option<PathBuf> {
        let inside = RelPath::new(&Path::new(".git").join(name))?;
        let (dir, file) = (inside.parent()?, inside.file_name()?);
        let dir = open_beneath(&source.upper, &dir, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        let stat = At::new(&dir, file).stat().ok().filter(Stat::is_file)?;
        let before = source.manifest.as_ref().and_then(|manifest| manifest.entries.get(&inside));
        let unchanged = before.is_some_and(|pair| pair.fork == BaseState::from(&stat));
        (!unchanged).then(|| source.upper_path.join(inside))
    }

    /// A command that also sees the fork's new objects.
    pub(crate) fn with_fork_objects(&self, source: &Source, args: &[&str]) -> Command {
        let mut command = self.git.command(args);
        let objects = source.upper_path.join(".git/objects");
        if objects.is_dir() {
            command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(&objects));
        }
        command
    }

    /// What either side's index has.
    pub(crate) fn tracked(&self, source: &Source) -> Result<HashSet<RelPath>> {
        let mut listings = vec![self.git.run(["ls-files", "-z"])?];
        if let Some(index) = Self::fork_file(source, "index") {
            let mut command = self.with_fork_objects(source, &["ls-files", "-z"]);
            listings.push(finish(command.env("GIT_INDEX_FILE", index), &[])?);
        }
        let paths = listings.iter().flat_map(|text| text.split(|&b| b == 0)).filter(|path| !path.is_empty());
        Ok(paths.filter_map(RelPath::from_bytes).collect())
    }

    /// Which of these paths the rules that hold in the fork ignore.
    ///
    /// The rules are those of the `.gitignore` files that the fork shows and of the parent's `info/exclude`.
    pub(crate) fn ignored(&self, paths: &[RelPath], view: &View<'_>) -> Result<HashSet<RelPath>> {
        if paths.is_empty() {
            return Ok(HashSet::new());
        }
        let skeleton = Skeleton::new(paths, view)?;
        let mut input = Vec::new();
        for path in paths {
            // A path that begins with a colon would be taken for a pattern.
            input.extend_from_slice(b"./");
            input.extend_from_slice(path.as_bytes());
            input.push(0);
        }
        // With --no-index a path counts as untracked: the caller has taken the tracked ones out.
        let git = self.git.within(&self.repo.git_dir, &skeleton.0.0);
        let mut command = git.command(["check-ignore", "--no-index", "-z", "--stdin"]);
        // The one command that refuses to take paths literally.
        let output = output(command.env_remove("GIT_LITERAL_PATHSPECS"), &input)?;
        match output.status.code() {
            // 1: none of them.
            Some(0 | 1) => Ok(output
                .stdout
                .split(|&b| b == 0)
                .filter(|path| !path.is_empty())
                .filter_map(RelPath::from_bytes)
                .collect()),
            _ => Err(failure("check-ignore", &output.stderr).at(&self.repo.top)),
        }
    }

    /// The content of a file in the state that the fork noted, from the object database.
    pub(crate) fn ancestor(&self, source: &Source, path: &RelPath, was: &BaseState) -> Option<Vec<u8>> {
        let from_index = [None, Self::fork_file(source, "index")].into_iter();
        let blob = from_index.filter_map(|index| self.described(path, was, index)).next();
        // Without the digest in the ledger nothing would prove that the base was clean there.
        match blob {
            Some(blob) => self.blob(&blob),
            None => was.content.and_then(|_| self.committed(source, path)),
        }
    }

    /// The content of a file in the commit that the fork was made from.
    pub(crate) fn committed(&self, source: &Source, path: &RelPath) -> Option<Vec<u8>> {
        let mut name = OsString::from(source.base_ref.as_deref()?);
        name.push(":");
        name.push(path);
        self.blob(&name)
    }

    fn blob(&self, name: &OsStr) -> Option<Vec<u8>> {
        self.git.run([OsStr::new("cat-file"), OsStr::new("blob"), name]).ok()
    }

    /// The blob that an index has for a path, when the index describes the very object that the fork saw.
    fn described(&self, path: &RelPath, was: &BaseState, index: Option<PathBuf>) -> Option<OsString> {
        let args: [&OsStr; 5] = ["ls-files", "--stage", "--debug", "--"]
            .map(OsStr::new)
            .into_iter()
            .chain([path.as_ref()])
            .collect::<Vec<_>>()
            .try_into()
            .ok()?;
        let mut command = self.git.command(args);
        if let Some(index) = index {
            command.env("GIT_INDEX_FILE", index);
        }
        let text = finish(&mut command, &[]).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut lines = text.lines();
        let mut words = lines.next()?.split([' ', '\t']);
        let (_mode, blob, stage) = (words.next()?, words.next()?, words.next()?);
        let field = |name: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(name).map(str::to_owned));
        let mtime = field("mtime: ")?;
        let size = text.split("size: ").nth(1)?.split(['\t', '\n', ' ']).next()?.to_owned();
        let seen = format!("{}:{}", was.mtime.sec, was.mtime.nsec);
        // The index keeps the lower 32 bits of the size.
        let fits = stage == "0" && mtime == seen && size == (was.size as u32).to_string();
        fits.then(|| blob.into())
    }
}

/// Whether a path in the git directory is none of the settings that could make git run something.
pub(crate) fn is_carried(path: &RelPath) -> bool {
    let mut parts = path.as_path().components().skip(1).map(|c| c.as_os_str());
    match parts.next() {
        None => true,
        Some(first) => CARRIED.iter().any(|name| first == *name),
    }
}

/// Whether a path in a nested git directory is part of its history, rather than of its caches and settings.
pub(crate) fn is_history(below_git: &Path) -> bool {
    ["objects", "refs", "packed-refs", "HEAD", "reftable"].iter().any(|name| below_git.starts_with(name))
}

/// A path in a list of paths separated by colons.
fn quoted(path: &Path) -> OsString {
    let mut quoted = vec![b'"'];
    for &b in path.as_os_str().as_bytes() {
        if matches!(b, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(b);
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}

/// Runs a prepared command with this input.
pub(crate) fn output(command: &mut Command, input: &[u8]) -> Result<std::process::Output> {
    use std::io::Write;
    let failed = |e: std::io::Error| Error::io("cannot run git", e);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().map_err(failed)?;
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        // EPIPE where git has heard enough; its exit status tells whether that was all right.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })
    .map_err(failed)
}

/// Runs a prepared command to its end; its output.
pub(crate) fn finish(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let output = output(command, input)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let verb = command.get_args().skip(5).find_map(|arg| arg.to_str()).unwrap_or("command").to_owned();
    Err(failure(&verb, &output.stderr))
}

fn failure(verb: &str, stderr: &[u8]) -> Error {
    let said = String::from_utf8_lossy(stderr).lines().next().unwrap_or_default().to_owned();
    Error::new(Kind::Git, format!("git {verb} failed ({said}) in the repository of the parent"))
}

/// Directories that hold nothing but the fork's ignore rules.
struct Skeleton(Scratch);

impl Skeleton {
    fn new(paths: &[RelPath], view: &View<'_>) -> Result<Self> {
        let cannot = "cannot write down the ignore rules in";
        let skeleton = Self(Scratch::new("rules")?);
        let mut dirs = BTreeSet::from([RelPath::root()]);
        for path in paths {
            dirs.extend(path.as_path().ancestors().skip(1).filter_map(RelPath::new));
            if view.is_dir(path) {
                dirs.insert(path.clone());
            }
        }
        for dir in dirs {
            let there = skeleton.0.0.join(&dir);
            fs::create_dir_all(&there).context(cannot, &there)?;
            let rules = dir.join(OsStr::new(".gitignore"));
            if let Some(text) = view.read(&rules).context("cannot read", rules.as_path())? {
                fs::write(skeleton.0.0.join(&rules), text).context(cannot, &there)?;
            }
        }
        Ok(skeleton)
    }
}
