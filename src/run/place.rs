//! Where the base is, by all its names, and which place in the fork a place outside means.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::{Ident, Mount, Stat, mount_of, mounts, open_root};

/// The base and its other names.
#[derive(Debug)]
pub(super) struct Base {
    /// Its own path.
    pub(super) path: PathBuf,
    /// Its root.
    pub(super) stat: Stat,
    /// Where else it shows whole: through bind mounts of it or of a directory above.
    pub(super) aliases: Vec<PathBuf>,
    /// Where a directory or file below it is mounted elsewhere: the place, and what it is below the base.
    pub(super) parts: Vec<(PathBuf, RelPath)>,
    /// All that was mounted when it was looked for. It takes a millisecond for a few hundred mounts, so it is read once.
    pub(super) mounts: Vec<Mount>,
}

impl Base {
    /// Finds it and checks that it is the one meant.
    pub(super) fn find(path: &Path, ident: Option<Ident>) -> Result<Self> {
        let canonical = std::fs::canonicalize(path).context("cannot resolve the base", path)?;
        if canonical == Path::new("/") {
            return Err(Error::new(Kind::Usage, "nothing can be bound over the root directory; the base is").at("/"));
        }
        let root = open_root(&canonical).context("cannot open the base", path)?;
        let stat = Stat::of(root.as_fd()).context("cannot look at the base", path)?;
        if ident.is_some_and(|ident| ident != stat.ident()) {
            let what = "another mount or directory is where the base was:";
            return Err(Error::new(Kind::Covered, what).at(path));
        }
        let mounts = mounts().context("cannot read", "/proc/self/mountinfo")?;
        let (aliases, parts) = other_names(&canonical, &mounts);
        let same = |place: &Path, original: &Path| {
            // A name that another mount hides leads elsewhere, and needs no cover.
            let ident = |path| Some(Stat::of(open_any(path)?.as_fd()).ok()?).map(|s| (s.dev, s.ino));
            ident(place).is_some() && ident(place) == ident(original)
        };
        let aliases = aliases.into_iter().filter(|alias| same(alias, &canonical)).collect();
        let parts = parts.into_iter().filter(|(place, below)| same(place, &canonical.join(below))).collect();
        Ok(Self { path: canonical, stat, aliases, parts, mounts })
    }

    /// What a path outside is below the base, by whichever name it goes.
    pub(super) fn below(&self, path: &Path) -> Option<RelPath> {
        let names = std::iter::once(&self.path).chain(&self.aliases);
        let whole = names.filter_map(|name| RelPath::new(path.strip_prefix(name).ok()?));
        let parts = self.parts.iter().filter_map(|(place, below)| {
            let rest = path.strip_prefix(place).ok()?;
            RelPath::new(&below.as_path().join(rest))
        });
        whole.chain(parts).next()
    }
}

fn open_any(path: &Path) -> Option<std::os::fd::OwnedFd> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
}

/// Where the mount table shows the base or a part of it a second time.
fn other_names(base: &Path, mounts: &[Mount]) -> (Vec<PathBuf>, Vec<(PathBuf, RelPath)>) {
    let (mut aliases, mut parts) = (vec![], vec![]);
    let Some(own) = mount_of(mounts, base) else { return (aliases, parts) };
    let Ok(below) = base.strip_prefix(&own.point) else { return (aliases, parts) };
    let inside = own.root.join(below);
    for mount in mounts.iter().filter(|m| m.dev == own.dev) {
        if let Ok(rest) = inside.strip_prefix(&mount.root) {
            let alias = if rest.as_os_str().is_empty() { mount.point.clone() } else { mount.point.join(rest) };
            if !alias.starts_with(base) && !aliases.contains(&alias) {
                aliases.push(alias);
            }
        } else if let Ok(rest) = mount.root.strip_prefix(&inside)
            && !mount.point.starts_with(base)
            && let Some(rest) = RelPath::new(rest)
        {
            parts.push((mount.point.clone(), rest));
        }
    }
    (aliases, parts)
}

/// Where a command starts: the place of the caller below the base, else where the fork says.
///
/// `inside` is where the files of the fork themselves are, for callers that stand there.
pub(super) fn start_below(base: &Base, inside: Option<&Path>, caller: Option<&Path>, start: &Path) -> Result<RelPath> {
    let caller = match caller {
        Some(path) => std::fs::canonicalize(path).map_err(|e| astray(path).because(e))?,
        None => std::env::current_dir().map_err(|e| astray(Path::new(".")).because(e))?,
    };
    let below = inside.and_then(|root| RelPath::new(caller.strip_prefix(root).ok()?)).or_else(|| base.below(&caller));
    match below {
        Some(below) => Ok(below),
        None => RelPath::new(start).ok_or_else(|| astray(start)),
    }
}

/// The refusal of a working directory.
pub(super) fn astray(path: &Path) -> Error {
    Error::new(Kind::Astray, "the working directory has no counterpart in the fork:").at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, dev: u64, root: &str, point: &str) -> Mount {
        Mount { id, dev, root: root.into(), point: point.into(), kind: "ext4".into(), source: "x".into() }
    }

    #[test]
    fn every_name_of_the_base_is_found() {
        let mounts = [
            mount(1, 1, "/", "/"),
            mount(2, 2, "/", "/data"),
            mount(3, 2, "/", "/mirror"),
            mount(4, 2, "/work/b", "/short"),
            mount(5, 2, "/work/b/sub", "/part"),
            mount(6, 2, "/work/b/sub", "/data/work/b/again"),
            mount(7, 2, "/other", "/elsewhere"),
            mount(8, 1, "/data/work/b", "/under"),
        ];
        let (aliases, parts) = other_names(Path::new("/data/work/b"), &mounts);
        assert_eq!(aliases, [Path::new("/mirror/work/b"), Path::new("/short")]);
        assert_eq!(parts, [("/part".into(), RelPath::new(Path::new("sub")).expect("relative"))]);
    }

    #[test]
    fn places_map_by_any_name() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = std::fs::canonicalize(dir.path()).expect("there");
        let mut base = Base::find(&path, None).expect("a directory");
        base.aliases.push("/alias".into());
        base.parts.push(("/part".into(), RelPath::new(Path::new("sub")).expect("relative")));
        let below = |path: &str| base.below(Path::new(path)).map(|p| p.as_path().to_path_buf());
        assert_eq!(below("/alias/x"), Some("x".into()));
        assert_eq!(below("/part/x"), Some("sub/x".into()));
        assert_eq!(below("/parts"), None);
        assert_eq!(base.below(&path), Some(RelPath::root()));
    }

    #[test]
    fn another_directory_than_the_recorded_one_is_covered() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let other = Ident { ino: 1, ..Ident::default() };
        assert_eq!(Base::find(dir.path(), Some(other)).expect_err("another").kind(), Kind::Covered);
        assert_eq!(Base::find(Path::new("/"), None).expect_err("the root").kind(), Kind::Usage);
    }
}
