//! Finding a repository and its parts by reading files, as git does, without running git.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::command::{Git, Head};
use super::read::read;
use crate::error::{Context, Error, Kind, Result};

/// Parts of a git directory that `git-new-workdir` and others make links to elsewhere of.
const PARTS: [&str; 8] = ["objects", "refs", "packed-refs", "config", "info", "logs", "HEAD", "index"];

/// What stands at `.git` of a work tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotGit {
    /// The git directory itself.
    Dir,
    /// A file that names it (linked work tree, submodule, `--separate-git-dir`).
    File,
    /// A symbolic link to either.
    Symlink,
}

/// A repository with a work tree. All paths are absolute and without symbolic links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// The root of the work tree: the directory with `.git` in it.
    pub top: PathBuf,
    /// The git directory of this work tree.
    pub git_dir: PathBuf,
    /// Where objects, refs and configuration are; the git directory itself except in a linked work tree.
    pub common_dir: PathBuf,
    /// How the work tree leads to it.
    pub dot_git: DotGit,
}

/// A part of a repository that does not lie in its work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The git directory.
    GitDir(PathBuf),
    /// The common directory of a linked work tree.
    CommonDir(PathBuf),
    /// Objects of another repository.
    Alternate(PathBuf),
    /// `core.worktree` names another directory than the one with `.git` in it.
    WorkTree(PathBuf),
    /// A part of the git directory is a link.
    Part(PathBuf),
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, path) = match self {
            Self::GitDir(path) => ("the git directory is", path),
            Self::CommonDir(path) => ("it is a linked work tree of", path),
            Self::Alternate(path) => ("it borrows objects from", path),
            Self::WorkTree(path) => ("core.worktree leads to", path),
            Self::Part(path) => ("there is a link at", path),
        };
        write!(f, "{what} {path:?}")
    }
}

impl Repo {
    /// The repository that a directory belongs to: the first `.git` upwards, on the same file system.
    ///
    /// [`Kind::Git`] where there is a `.git` that leads to no repository.
    pub fn discover(dir: &Path) -> Result<Option<Self>> {
        let dir = fs::canonicalize(dir).context("cannot resolve", dir)?;
        let device = fs::metadata(&dir).context("cannot look at", &dir)?.dev();
        for top in dir.ancestors() {
            if !fs::metadata(top).is_ok_and(|stat| stat.dev() == device) {
                break;
            }
            if let Some(repo) = Self::at(top)? {
                return Ok(Some(repo));
            }
        }
        Ok(None)
    }

    /// The repository whose work tree has this root (a canonical path), if it is one.
    pub fn at(top: &Path) -> Result<Option<Self>> {
        let entry = top.join(".git");
        let stat = match fs::symlink_metadata(&entry) {
            Ok(stat) => stat,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(e).context("cannot look at", &entry),
        };
        let followed = fs::metadata(&entry).context("cannot follow", &entry)?;
        let dot_git = match (stat.is_symlink(), followed.is_dir()) {
            (true, _) => DotGit::Symlink,
            (false, true) => DotGit::Dir,
            (false, false) => DotGit::File,
        };
        let git_dir = if followed.is_dir() { entry.clone() } else { git_file(&entry)? };
        if !is_git_dir(&git_dir) {
            // Git takes an unsuitable directory for none, and an unsuitable file for an error; so do we.
            return if dot_git == DotGit::File { Err(broken(&entry)) } else { Ok(None) };
        }
        let git_dir = fs::canonicalize(&git_dir).context("cannot resolve", &git_dir)?;
        let common_dir = common_dir(&git_dir)?;
        Ok(Some(Self { top: top.to_path_buf(), git_dir, common_dir, dot_git }))
    }

    /// Whether this is a linked work tree (`git worktree add`).
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }

    /// Everything of the repository that lies outside its work tree, or that does not lead back to it. Empty for an
    /// ordinary repository.
    pub fn elsewhere(&self) -> Result<Vec<Elsewhere>> {
        let mut found = Vec::new();
        if self.is_linked() {
            found.push(Elsewhere::CommonDir(self.common_dir.clone()));
        }
        if !self.git_dir.starts_with(&self.top) || self.dot_git == DotGit::Symlink {
            found.push(Elsewhere::GitDir(self.git_dir.clone()));
        }
        let links = PARTS.iter().map(|part| self.common_dir.join(part));
        let is_link = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|stat| stat.is_symlink());
        // HEAD was a link to a ref once, within the directory: that is no harm.
        let leaves = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.is_absolute() || has_up(&target));
        found.extend(links.filter(|path| is_link(path) && leaves(path)).map(Elsewhere::Part));
        found.extend(alternates(&self.common_dir)?.into_iter().map(Elsewhere::Alternate));
        if let Some(tree) = self.configured_work_tree()?.filter(|tree| *tree != self.top) {
            found.push(Elsewhere::WorkTree(tree));
        }
        Ok(found)
    }

    /// Where `core.worktree` leads, if it is set.
    fn configured_work_tree(&self) -> Result<Option<PathBuf>> {
        let Some(value) = self.core_worktree()? else { return Ok(None) };
        let path = self.git_dir.join(value);
        Ok(Some(fs::canonicalize(&path).unwrap_or(path)))
    }

    /// The value of `core.worktree`, if it is set: absolute, or from the git directory. Asks git only where the
    /// configuration speaks of a work tree, or of another file.
    pub(super) fn core_worktree(&self) -> Result<Option<PathBuf>> {
        let mut text = Vec::new();
        for file in [self.common_dir.join("config"), self.git_dir.join("config.worktree")] {
            match read(&file) {
                Ok(bytes) => text.extend(bytes.to_ascii_lowercase()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e).context("cannot read", file),
            }
        }
        let speaks_of = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
        if !speaks_of(b"worktree") && !speaks_of(b"include") {
            return Ok(None);
        }
        Ok(Git::new(self)?.config("core.worktree")?.map(PathBuf::from))
    }

    /// What `HEAD` names, read from the files where refs are files, else asked of git.
    pub fn head(&self) -> Result<Head> {
        let file = self.git_dir.join("HEAD");
        let text = read(&file).context("cannot read", &file)?;
        let text = std::str::from_utf8(&text).unwrap_or_default().trim_end();
        // Reftables have a HEAD that names no valid ref.
        let plain = |branch: &&str| branch.starts_with("refs/") && !branch.contains("..") && !self.has_reftable();
        let Some(branch) = text.strip_prefix("ref: ").map(str::trim_start).filter(plain) else {
            return if is_hex(text) {
                Ok(Head { branch: None, commit: Some(text.to_owned()) })
            } else {
                Git::new(self)?.head()
            };
        };
        let commit = match read(&self.common_dir.join(branch)).map(|text| String::from_utf8(text).unwrap_or_default()) {
            Ok(text) if is_hex(text.trim_end()) => Some(text.trim_end().to_owned()),
            // A ref that names a ref, or whatever else git may make of it.
            Ok(_) => return Git::new(self)?.head(),
            Err(_) => self.packed(branch)?,
        };
        Ok(Head { branch: Some(branch.to_owned()), commit })
    }

    /// Whether refs are kept in reftables.
    pub fn has_reftable(&self) -> bool {
        self.common_dir.join("reftable").exists()
    }

    fn packed(&self, branch: &str) -> Result<Option<String>> {
        let file = self.common_dir.join("packed-refs");
        let text = match read(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context("cannot read", file),
        };
        // `<commit> <ref>`
        let found =
            text.split(|&b| b == b'\n').find_map(|line| line.strip_suffix(branch.as_bytes())?.strip_suffix(b" "));
        Ok(found.and_then(|commit| std::str::from_utf8(commit).ok()).filter(|text| is_hex(text)).map(str::to_owned))
    }
}

fn is_hex(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn has_up(path: &Path) -> bool {
    path.components().any(|component| component == std::path::Component::ParentDir)
}

/// What git takes for a git directory: `HEAD`, `refs` and `objects`, the latter two possibly of the common directory.
pub(super) fn is_git_dir(dir: &Path) -> bool {
    let Ok(common) = common_dir(dir) else { return false };
    fs::symlink_metadata(dir.join("HEAD")).is_ok() && common.join("objects").is_dir() && common.join("refs").is_dir()
}

/// The directory that a `.git` file names.
pub(super) fn git_file(file: &Path) -> Result<PathBuf> {
    let text = read(file).context("cannot read", file)?;
    let target = text.strip_prefix(b"gitdir: ").ok_or_else(|| broken(file))?;
    let target = Path::new(OsStr::from_bytes(target.trim_ascii_end()));
    // A link to such a file: the path in it counts from where the file is.
    let file = fs::canonicalize(file).context("cannot resolve", file)?;
    Ok(file.parent().unwrap_or(Path::new("/")).join(target))
}

/// The common directory of a git directory.
fn common_dir(git_dir: &Path) -> Result<PathBuf> {
    let file = git_dir.join("commondir");
    match read(&file) {
        Ok(text) => {
            let path = git_dir.join(OsStr::from_bytes(text.trim_ascii_end()));
            fs::canonicalize(&path).context("cannot resolve the common directory", &path)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(git_dir.to_path_buf()),
        Err(e) => Err(e).context("cannot read", file),
    }
}

/// The object directories that a repository borrows from, those of the borrowed included.
pub(super) fn alternates(common_dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut todo = vec![common_dir.join("objects")];
    while let Some(objects) = todo.pop() {
        let list = objects.join("info/alternates");
        let text = match read(&list) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e).context("cannot read", list),
        };
        for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty() && line[0] != b'#') {
            let path = objects.join(OsStr::from_bytes(line));
            // One that is gone lends nothing; git only warns.
            let Ok(path) = fs::canonicalize(path) else { continue };
            if !found.contains(&path) {
                found.push(path.clone());
                todo.push(path);
            }
        }
    }
    Ok(found)
}

fn broken(file: &Path) -> Error {
    Error::new(Kind::Git, "leads to no git repository:").at(file)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs git as a test does: own configuration, fixed identity.
    fn git(dir: &Path, args: &[&str]) {
        let mut command = Command::new("git");
        command.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=T", "-c", "user.email=t@e", "-c", "protocol.file.allow=always"]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn repo(top: &Path) -> PathBuf {
        fs::create_dir_all(top).unwrap();
        git(top, &["init", "-q"]);
        git(top, &["commit", "-q", "--allow-empty", "-m", "x"]);
        fs::canonicalize(top).unwrap()
    }

    #[test]
    fn an_ordinary_repository_and_none() {
        let dir = tempfile::tempdir().unwrap();
        let top = repo(&dir.path().join("r"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        let found = Repo::discover(&top.join("a/b")).unwrap().unwrap();
        assert_eq!((&found.top, &found.git_dir, found.dot_git), (&top, &top.join(".git"), DotGit::Dir));
        assert_eq!(found.elsewhere().unwrap(), []);
        let head = Git::new(&found).unwrap().head().unwrap();
        assert!(head.commit.is_some() && head.branch.is_some());
        assert_eq!(found.head().unwrap(), head);
        git(&top, &["pack-refs", "--all"]);
        assert_eq!(found.head().unwrap(), head);
        git(&top, &["checkout", "-q", "--detach"]);
        assert_eq!(found.head().unwrap(), Head { branch: None, commit: head.commit });
        git(&top, &["checkout", "-q", "--orphan", "unborn"]);
        assert_eq!(found.head().unwrap(), Git::new(&found).unwrap().head().unwrap());
        assert_eq!(Repo::at(&top.join("a")).unwrap(), None);
        fs::write(top.join("a/.git"), "gitdir: nowhere\n").unwrap();
        assert_eq!(Repo::at(&top.join("a")).unwrap_err().kind(), Kind::Git);
    }

    #[test]
    fn git_directories_that_lie_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let main = repo(&dir.join("main"));
        git(&main, &["worktree", "add", "-q", "--detach", "../linked"]);
        let linked = Repo::discover(&dir.join("linked")).unwrap().unwrap();
        assert!(linked.is_linked());
        let elsewhere = linked.elsewhere().unwrap();
        assert_eq!(elsewhere[0], Elsewhere::CommonDir(main.join(".git")));

        git(&dir, &["init", "-q", "--separate-git-dir=apart.git", "apart"]);
        let apart = Repo::at(&dir.join("apart")).unwrap().unwrap();
        assert_eq!(apart.elsewhere().unwrap(), [Elsewhere::GitDir(dir.join("apart.git"))]);

        git(&dir, &["clone", "-q", "--shared", "main", "shared"]);
        let shared = Repo::at(&dir.join("shared")).unwrap().unwrap();
        assert_eq!(shared.elsewhere().unwrap(), [Elsewhere::Alternate(main.join(".git/objects"))]);

        repo(&dir.join("other"));
        git(&main, &["submodule", "--quiet", "add", "../other", "sub"]);
        let sub = Repo::at(&main.join("sub")).unwrap().unwrap();
        assert_eq!(sub.elsewhere().unwrap(), [Elsewhere::GitDir(main.join(".git/modules/sub"))]);

        git(&dir.join("shared"), &["config", "core.worktree", "/"]);
        assert!(shared.elsewhere().unwrap().contains(&Elsewhere::WorkTree("/".into())));

        fs::create_dir(dir.join("link")).unwrap();
        std::os::unix::fs::symlink(main.join(".git"), dir.join("link/.git")).unwrap();
        let link = Repo::at(&dir.join("link")).unwrap().unwrap();
        assert_eq!((link.dot_git, link.elsewhere().unwrap().len()), (DotGit::Symlink, 1));
    }
}
