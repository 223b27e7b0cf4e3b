//! One file of settings: whether it is to be believed, and what it says.
//!
//! Believed is a regular file of at most [`LARGEST`] bytes that belongs to the user or to root and that not everybody may
//! write; the same for the directory of a base. Nobody else can then have put a command there. A base's file is none that
//! a link leads to, since what it leads to may be anybody's.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{Run, Settings, Wanted};
use crate::error::{Context, Error, Kind, Result};
use crate::layer::hidden::Hide;
use crate::strategy::{Limits, Symlinks, Way};

/// No file of settings is longer, in bytes.
const LARGEST: u64 = 1 << 20;

/// Whose file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Base,
    User,
}

/// What is written, key by key.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    exclude: Vec<Spanned<String>>,
    post_create: Vec<String>,
    pre_merge: Vec<String>,
    strategy: Option<WrittenWay>,
    symlinks: Option<WrittenLinks>,
    max_size: Option<Size>,
    max_files: Option<NonZeroU64>,
    run: WrittenRun,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenWay {
    Auto,
    Overlay,
    Reflink,
    Copy,
    Worktree,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenLinks {
    Keep,
    Confine,
    Skip,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WrittenRun {
    keep: bool,
    keep_on_error: bool,
    ro_root: bool,
    rw: Vec<Spot>,
    hide: Vec<Spot>,
    no_network: bool,
    git_hardening: bool,
    no_fsmonitor: bool,
    timeout: Option<Limit>,
}

/// A path from the root or from the user's home.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Spot(PathBuf);

impl TryFrom<String> for Spot {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let path = match text.strip_prefix("~/") {
            Some(rest) => home().ok_or("there is no HOME for \"~/\"")?.join(rest),
            None => PathBuf::from(&text),
        };
        if path.is_absolute() { Ok(Self(path)) } else { Err(format!("{text:?} begins with neither \"/\" nor \"~/\"")) }
    }
}

/// A size with a unit.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Size(u64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        super::size(&text).map(Self)
    }
}

/// A time with a unit.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Limit(Duration);

impl TryFrom<String> for Limit {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        humantime::parse_duration(&text).map(Self).map_err(|e| format!("{text:?}: {e}; write 90s, 5m or 1h"))
    }
}

/// Reads a file; `None` where there is none.
pub(super) fn read(path: &Path, place: Place) -> Result<Option<Settings>> {
    let flags = libc::O_NONBLOCK | if place == Place::Base { libc::O_NOFOLLOW } else { 0 };
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(untrusted("is a symbolic link", path)),
        other => other.context("cannot open the settings in", path)?,
    };
    let meta = file.metadata().context("cannot look at", path)?;
    if !meta.is_file() || meta.len() > LARGEST {
        return Err(untrusted("is no plain file of a sensible size", path));
    }
    believe(&meta, path)?;
    if let Some(dir) = path.parent().filter(|_| place == Place::Base) {
        let meta = fs::metadata(dir).context("cannot look at", dir)?;
        // Whoever may put things there can put a file of the user's own there.
        if meta.mode() & 0o1002 == 0o002 {
            return Err(untrusted("lies in a directory that everybody can write to", path));
        }
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).context("cannot read the settings in", path)?;
    parse(&text, path).map(Some)
}

/// Refuses what anybody but the user and root may have written.
fn believe(meta: &fs::Metadata, path: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(untrusted(&format!("belongs to user {}, who is neither you nor root", meta.uid()), path));
    }
    if meta.mode() & 0o002 != 0 {
        return Err(untrusted("can be written by everybody", path));
    }
    Ok(())
}

fn untrusted(why: &str, path: &Path) -> Error {
    let what = format!("settings can name commands to run, and this file {why}:");
    Error::new(Kind::Usage, what).at(path).remedy("--no-config goes on without it")
}

fn parse(text: &str, path: &Path) -> Result<Settings> {
    let wrong = |line: usize, what: &str| {
        Error::new(Kind::Usage, format!("line {line}: {what}; in the settings in"))
            .at(path)
            .remedy("docs/configuration.md has all keys; --no-config goes on without the file")
    };
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let written: Written = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        wrong(line_of(at), &e.message().replace('\n', " "))
    })?;
    // Here, where the line can be named, and not only when a fork is made.
    for pattern in &written.exclude {
        let line = line_of(pattern.span().start);
        Hide::check(pattern.get_ref()).map_err(|e| wrong(line, &format!("exclude: {e}")))?;
    }
    let last = written.exclude.last().map_or(1, |pattern| line_of(pattern.span().start));
    let settings = Settings::from(written);
    let hide = Hide { exclude: settings.exclude.clone(), ..Hide::default() };
    hide.of(path).map_err(|e| wrong(last, &format!("exclude: {e}")))?;
    Ok(settings)
}

impl From<Written> for Settings {
    fn from(written: Written) -> Self {
        let spots = |spots: Vec<Spot>| spots.into_iter().map(|spot| spot.0).collect();
        let run = written.run;
        Self {
            exclude: written.exclude.into_iter().map(Spanned::into_inner).collect(),
            post_create: written.post_create,
            pre_merge: written.pre_merge,
            strategy: written.strategy.map(|way| match way {
                WrittenWay::Auto => Wanted::Auto,
                WrittenWay::Overlay => Wanted::Way(Way::Overlay),
                WrittenWay::Reflink => Wanted::Way(Way::Reflink),
                WrittenWay::Copy => Wanted::Way(Way::Copy),
                WrittenWay::Worktree => Wanted::Way(Way::Worktree),
            }),
            symlinks: written.symlinks.map(|links| match links {
                WrittenLinks::Keep => Symlinks::Keep,
                WrittenLinks::Confine => Symlinks::Confine,
                WrittenLinks::Skip => Symlinks::Skip,
            }),
            limits: Limits {
                max_size: written.max_size.map(|size| size.0),
                max_files: written.max_files.map(NonZeroU64::get),
            },
            run: Run {
                keep: run.keep,
                keep_on_error: run.keep_on_error,
                ro_root: run.ro_root,
                rw: spots(run.rw),
                hide: spots(run.hide),
                no_network: run.no_network,
                git_hardening: run.git_hardening,
                no_fsmonitor: run.no_fsmonitor,
                timeout: run.timeout.map(|limit| limit.0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn every_key_is_read_and_no_other() {
        let text = r#"
            exclude = ["target/", "*.iso"]
            post_create = ["npm ci"]
            pre_merge = ["make check", "make lint"]
            strategy = "copy"
            symlinks = "skip"
            max_size = "10G"
            max_files = 100_000
            [run]
            keep = true
            keep_on_error = true
            ro_root = true
            rw = ["/var/cache"]
            hide = ["/root/.ssh"]
            no_network = true
            git_hardening = true
            no_fsmonitor = true
            timeout = "5m"
        "#;
        let settings = parse(text, Path::new("f")).expect("all known");
        assert_eq!((settings.exclude.len(), settings.pre_merge.len()), (2, 2));
        assert_eq!((settings.strategy, settings.symlinks), (Some(Wanted::Way(Way::Copy)), Some(Symlinks::Skip)));
        assert_eq!(settings.run.timeout, Some(Duration::from_secs(300)));
        assert_eq!(settings.limits, Limits { max_size: Some(10 << 30), max_files: Some(100_000) });
        assert!(settings.run.keep && settings.run.ro_root && settings.run.git_hardening && settings.run.no_fsmonitor);
        assert_eq!(parse("", Path::new("f")).expect("nothing"), Settings::default());
        for (text, line, says) in [
            ("\nexcludes = []\n", "line 2", "unknown field `excludes`"),
            ("[run]\n\nisolation = 'cwd'", "line 3", "unknown field `isolation`"),
            ("[hooks]", "line 1", "unknown field `hooks`"),
            ("strategy = 'best'", "line 1", "unknown variant `best`"),
            ("pre_merge = 'make'", "line 1", "expected a sequence"),
            ("exclude = [\n'a',\n'']", "line 3", "no pattern"),
            ("exclude = ['*']", "line 1", ".git"),
            ("[run]\ntimeout = 'soon'", "line 2", "write 90s"),
            ("max_size = '10'\nmax_size = '2'", "line 2", "duplicate key"),
            ("max_size = '10 potatoes'", "line 1", "write 64K"),
            ("max_files = 0", "line 1", "nonzero"),
            ("[run]\nhide = ['relative']", "line 2", "begins with neither"),
            ("a = ", "line 1", ""),
        ] {
            let error = parse(text, Path::new("/b/.treefork.toml")).expect_err(text);
            assert_eq!(error.kind(), Kind::Usage);
            let said = error.to_string();
            assert!(said.contains(line) && said.contains(says) && said.contains("/b/.treefork.toml"), "{text}: {said}");
        }
    }

    #[test]
    fn only_a_file_that_nobody_else_may_write_is_believed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(super::super::FILE);
        let read = || super::read(&path, Place::Base);
        assert_eq!(read().expect("absent"), None);
        fs::write(&path, "exclude = ['x']").expect("writable");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        set(&path, 0o664);
        assert!(read().expect("ours").is_some());
        set(&path, 0o666);
        assert!(read().expect_err("anybody's").to_string().contains("by everybody"));
        set(&path, 0o644);
        set(dir.path(), 0o777);
        assert!(read().expect_err("anybody's directory").to_string().contains("lies in a directory"));
        set(dir.path(), 0o1777);
        assert!(read().expect("sticky").is_some());
        let other = dir.path().join("other");
        fs::rename(&path, &other).expect("ours");
        symlink(&other, &path).expect("writable");
        assert!(read().expect_err("a link").to_string().contains("symbolic link"));
        assert!(super::read(&path, Place::User).expect("a user's may be").is_some());
        fs::remove_file(&path).expect("ours");
        if rustix::process::geteuid().is_root() {
            fs::write(&path, "").expect("writable");
            std::os::unix::fs::chown(&path, Some(1234), None).expect("root may");
            assert!(read().expect_err("somebody's").to_string().contains("user 1234"));
        }
    }
}
