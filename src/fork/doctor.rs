//! What this machine and the store can do, and what stands in the way: findings, each with its remedy.
//!
//! Looks and tries, and changes nothing that stays.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::XattrFlags;
use serde::Serialize;

use super::{Store, find, recover};
use crate::error::Result;
use crate::git;
use crate::server::{Client, MOUNT_KIND};
use crate::sys::{mount_of, mounts};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Something works less well, or another way.
    Weak,
    /// Something does not work.
    Bad,
}

impl Level {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Good => "good",
            Level::Weak => "weak",
            Level::Bad => "bad",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub about: &'static str,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What can be done about it.
    pub remedy: Option<String>,
}

impl Finding {
    fn good(about: &'static str, what: impl Into<String>) -> Self {
        Self { about, level: Level::Good, what: what.into(), remedy: None }
    }

    fn weak(about: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, level: Level::Weak, what: what.into(), remedy: Some(remedy.into()) }
    }

    fn bad(about: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, level: Level::Bad, what: what.into(), remedy: Some(remedy.into()) }
    }
}

/// Looks at the machine, and at the store where there is one (`place` says where it is or would be).
pub fn examine(place: &Path, store: Result<Option<Store>>) -> Vec<Finding> {
    let may_mount = has_sys_admin();
    let mut findings = vec![fuse_device(may_mount), user_namespaces(may_mount), privileges(may_mount), git_version()];
    findings.extend(inotify());
    findings.extend(file_system(place));
    match store {
        Err(e) => findings.push(Finding::bad("store", e.to_string(), e.hint().unwrap_or("put it right by hand"))),
        Ok(None) => findings.push(Finding::good("store", format!("none yet at {place:?}"))),
        Ok(Some(store)) => {
            findings.extend(server(&store));
            findings.extend(records(&store));
            findings.extend(leftover_mounts(&store));
        }
    }
    findings
}

fn fuse_device(may_mount: bool) -> Finding {
    let about = "fuse";
    let helper = find_program("fusermount3");
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) if may_mount => Finding::good(about, "/dev/fuse can be opened"),
        Ok(_) if rustix::process::geteuid().is_root() => {
            let what = "root without CAP_SYS_ADMIN may not mount, nor may fusermount3; forks will be copies";
            Finding::bad(about, what, "run outside of the container, or give it CAP_SYS_ADMIN")
        }
        Ok(_) if helper.as_ref().is_some_and(|path| !is_setuid_root(path)) => {
            let what = format!("{:?} is not set-user-id root: it cannot mount for others", helper.unwrap_or_default());
            Finding::bad(about, what, "install the package fuse3 anew")
        }
        Ok(_) if helper.is_some() => Finding::good(about, "mounts go through fusermount3"),
        Ok(_) => Finding::weak(
            about,
            "/dev/fuse can be opened, but fusermount3 is not installed: only `run` can mount",
            "install the package fuse3",
        ),
        // The helper opens it with the user's own rights, too.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let what = "/dev/fuse is closed to this user; forks will be copies";
            Finding::bad(about, what, "have root open it: chmod 666 /dev/fuse")
        }
        Err(e) => Finding::bad(about, format!("/dev/fuse: {e}; forks will be copies"), "load the fuse module"),
    }
}

fn is_setuid_root(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o4000 != 0)
}

/// Tries it: limits, security modules and containers all have a say.
fn user_namespaces(may_mount: bool) -> Finding {
    let about = "namespaces";
    let args: &[&str] = if may_mount { &["-m", "-p", "-f", "true"] } else { &["-U", "-r", "-m", "-p", "-f", "true"] };
    let tried = Command::new("unshare").args(args).stdin(Stdio::null()).stdout(Stdio::null()).output();
    let why = match tried {
        Ok(output) if output.status.success() => return Finding::good(about, "mount and process namespaces work"),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(e) => return Finding::weak(about, format!("not tried: unshare: {e}"), "install util-linux"),
    };
    let set = |name: &str, value: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(name)).is_ok_and(|text| text.trim() == value)
    };
    let remedy = if set("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts them: set kernel.apparmor_restrict_unprivileged_userns=0, or give treefork a profile"
    } else if set("user/max_user_namespaces", "0") {
        "set user.max_user_namespaces above 0"
    } else if set("kernel/unprivileged_userns_clone", "0") {
        "set kernel.unprivileged_userns_clone=1"
    } else {
        "run as root, or outside of the container that forbids them"
    };
    Finding::bad(about, format!("an isolated `run` is not possible: {why}"), remedy)
}

/// Whether this process may mount by itself.
fn has_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0) & CAP_SYS_ADMIN != 0
}

fn privileges(may_mount: bool) -> Finding {
    if may_mount {
        Finding::good("privileges", "CAP_SYS_ADMIN: mounts by itself")
    } else {
        Finding::good("privileges", "no CAP_SYS_ADMIN: mounts through fusermount3 or in a user namespace")
    }
}

fn git_version() -> Finding {
    match git::version() {
        Some((major, minor)) => Finding::good("git", format!("version {major}.{minor}")),
        None => Finding::weak("git", "not found: bases with a repository cannot be forked", "install git"),
    }
}

fn inotify() -> Option<Finding> {
    /// A watch for each directory that a fork has looked at.
    const ENOUGH: u64 = 65_536;
    let text = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok()?;
    let watches: u64 = text.trim().parse().ok()?;
    Some(if watches >= ENOUGH {
        Finding::good("inotify", format!("{watches} watches"))
    } else {
        let what =
            format!("only {watches} watches: changes of a large base are noticed later, and caches kept shorter");
        Finding::weak("inotify", what, format!("set fs.inotify.max_user_watches={ENOUGH}"))
    })
}

/// What the store's file system can do, tried in the nearest directory that exists.
fn file_system(place: &Path) -> Vec<Finding> {
    let about = "file system";
    let Some(dir) = place.ancestors().find(|dir| dir.is_dir()).and_then(|dir| dir.canonicalize().ok()) else {
        return vec![Finding::bad(about, format!("{place:?} has no parent that exists"), "choose another --store")];
    };
    let kind = mounts().ok().and_then(|mounts| mount_of(&mounts, &dir).map(|m| m.kind.clone())).unwrap_or_default();
    let mut findings = Vec::new();
    if kind.starts_with("nfs") || kind == "cifs" || kind == "9p" {
        let what = format!("the store is on {kind}: locks and times may not hold");
        findings.push(Finding::weak(about, what, "put the store on a local file system with --store"));
    }
    let tried = Scratch::new(&dir).and_then(|scratch| scratch.examine());
    findings.push(match tried {
        Err(e) => Finding::bad(about, format!("cannot write in {dir:?}: {e}"), "choose another --store"),
        Ok((false, _)) => {
            let what = format!("{kind} at {dir:?} keeps no user attributes: no overlays");
            Finding::bad(about, what, "put the store on another file system with --store")
        }
        Ok((true, true)) => Finding::good(about, format!("{kind} at {dir:?}: copies share their blocks (reflink)")),
        Ok((true, false)) => {
            Finding::good(about, format!("{kind} at {dir:?}: no reflinks, copies take space and time"))
        }
    });
    findings
}

/// Two files that are gone when it is dropped.
struct Scratch(PathBuf, PathBuf);

impl Scratch {
    fn new(dir: &Path) -> io::Result<Self> {
        let name = |n: u32| dir.join(format!(".tmp.doctor.{}.{n}", std::process::id()));
        let scratch = Self(name(0), name(1));
        fs::write(&scratch.0, vec![b'x'; 8192])?;
        File::create_new(&scratch.1)?;
        Ok(scratch)
    }

    /// Whether user attributes can be set, and whether blocks can be shared.
    fn examine(&self) -> io::Result<(bool, bool)> {
        let marks = rustix::fs::setxattr(&self.0, "user.overlay.opaque", b"y", XattrFlags::empty()).is_ok();
        let to = File::options().write(true).open(&self.1)?;
        let shares = rustix::fs::ioctl_ficlone(&to, File::open(&self.0)?).is_ok();
        Ok((marks, shares))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in [&self.0, &self.1] {
            let _ = fs::remove_file(path);
        }
    }
}

fn server(store: &Store) -> Option<Finding> {
    let about = "server";
    let expected = recover::mounted(store).len();
    let client = Client::new(store.root());
    let alive = client.mounts().ok().flatten().map_or(0, |mounts| mounts.len());
    Some(match client.ping() {
        Ok(Some(pong)) if alive < expected => Finding::bad(
            about,
            format!("process {} serves {alive} of {expected} forks", pong.pid),
            "`treefork path FORK` mounts a fork again, and says why if it cannot",
        ),
        Ok(Some(pong)) => Finding::good(about, format!("process {} serves {alive} forks", pong.pid)),
        Ok(None) if expected == 0 => Finding::good(about, "not running, and nothing to serve"),
        Ok(None) => {
            let what = format!("not running: {expected} forks are stale");
            Finding::bad(about, what, "any command that uses a fork starts it, such as `treefork path FORK`")
        }
        Err(e) => {
            let remedy = e.hint().unwrap_or("end it by its process number, then try again").to_owned();
            Finding::bad(about, e.to_string(), remedy)
        }
    })
}

fn records(store: &Store) -> Vec<Finding> {
    let about = "forks";
    let forks = match find::all(store) {
        Ok(forks) => forks,
        Err(e) => return vec![Finding::bad(about, e.to_string(), "see to it that the store can be read")],
    };
    let count = forks.len();
    let broken = forks.into_iter().filter_map(|(id, record)| {
        let remedy = format!("save what you need from {:?}, then `treefork remove --force {id}`", store.fork(&id));
        record.err().map(|e| Finding::bad(about, e.to_string(), remedy))
    });
    let mut findings: Vec<Finding> = broken.collect();
    if findings.is_empty() {
        findings.push(Finding::good(about, format!("{count}, all readable")));
    }
    findings
}

/// Mounts in the store that nobody serves.
fn leftover_mounts(store: &Store) -> Vec<Finding> {
    let served = Client::new(store.root()).mounts().ok().flatten().unwrap_or_default();
    let ours = mounts().unwrap_or_default().into_iter();
    let ours = ours.filter(|m| m.kind == MOUNT_KIND && m.point.starts_with(store.forks()));
    let is_served = |point: &Path| served.iter().any(|mount| mount.point.as_ref().is_some_and(|at| at.0 == point));
    let left = ours.filter(|mount| !is_served(&mount.point));
    let remedy = "`treefork path FORK` mounts it again; `treefork gc` takes away what has no fork";
    left.map(|mount| Finding::weak("mounts", format!("nobody serves {:?}", mount.point), remedy)).collect()
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}
