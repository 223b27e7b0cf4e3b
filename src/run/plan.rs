//! From a target and a job to the plan of a cell.
//!
//! The order of the steps is what closes the base off: first the mounts are made private and what stays writable is
//! set aside, then all else becomes read-only where asked, then the fork covers every name of the base, then `/proc` is
//! made new, and last come the covers that lie on top of everything.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;

use super::place::{self, Base};
use super::{Attach, Isolation, Job, Root, SharedGit, Target, descriptors, guard};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::cell::{Cwd, IdMaps, Plan, Program, SLOTS, Spaces, Step};
use crate::sys::{Mount, Stat, open_root};

/// A plan, and what the caller's side has to do while it is carried out.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    /// Hands the FUSE connection over, where the cell mounts the fork.
    pub(super) serve: Option<Box<dyn FnOnce(OwnedFd) -> Result<()> + Send>>,
    /// The root of the fork, where it can be reached from outside.
    pub(super) root: Option<Reached>,
}

/// The root of a fork as seen from outside.
pub(super) struct Reached {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
}

/// Checks everything that can be checked beforehand, and writes the plan.
pub(super) fn prepare(target: Target, mut job: Job) -> Result<Prepared> {
    if job.args.is_empty() {
        return Err(Error::new(Kind::Usage, "no command was given"));
    }
    let base = Base::find(&target.base, target.base_ident)?;
    let root = reach(&target.root)?;
    let inside = root.as_ref().map(|root| root.path.as_path());
    let below = place::start_below(&base, inside, job.cwd.as_deref(), &target.start)?;
    let hidden: Vec<PathBuf> = target.hide.iter().chain(&job.hide).filter_map(|p| fs::canonicalize(p).ok()).collect();
    let visible = match (job.isolation, inside) {
        (Isolation::Path, _) => base.path.clone(),
        (Isolation::Cwd, Some(root)) => root.to_path_buf(),
        (Isolation::Cwd, None) => {
            let what = "the fork is not mounted, and only a namespace of its own could mount it";
            return Err(Error::new(Kind::Unavailable, what));
        }
    };
    let cwd = if below.is_root() { visible.clone() } else { visible.join(&below) };
    if job.isolation == Isolation::Cwd {
        nothing_leads_out(&base, &visible, &job.args, &cwd)?;
    }
    let mut environment = std::mem::take(&mut job.environment);
    if target.shared_git.is_some() {
        // Its settings and hooks are the base's, and whoever works in the fork is there to read.
        environment.harden_git();
    }
    let logical = environment.get("PWD").map(PathBuf::from).filter(|pwd| leads_to(pwd, &base, &below));
    environment.enter(&target, logical.as_deref().filter(|_| job.isolation == Isolation::Path).unwrap_or(&cwd));
    let candidates = candidates(&job.args[0], environment.get("PATH"))?;
    let passed = descriptors::sort(&base, &hidden, job.stdio)?;
    let program = Program {
        candidates,
        args: job.args.iter().map(string).collect::<Result<_>>()?,
        env: environment.into_strings().map(|var| string(&var)).collect::<Result<_>>()?,
    };
    let at = if below.is_root() { Path::new(".") } else { below.as_path() };
    let cwd = Cwd { root: string(&visible)?, below: string(at)? };
    let (spaces, steps, serve) = match job.isolation {
        Isolation::Cwd => (None, vec![], None),
        Isolation::Path => {
            let spaces = spaces(job.no_network)?;
            let wishes = Wishes {
                hidden,
                writable: job.writable,
                read_only_root: job.read_only_root,
                loopback: job.no_network,
                privileged: spaces.keeper.is_none(),
            };
            let shared = target.shared_git.as_ref();
            let (steps, serve) = steps(&base, root.as_ref(), target.root, shared, &wishes)?;
            (Some(spaces), steps, serve)
        }
    };
    let plan =
        Plan { spaces, steps, cwd, program, stdio: passed.stdio, reopen: passed.reopen, inherit: passed.inherit };
    Ok(Prepared { plan, serve, root })
}

/// Without isolation, a command that can be seen to work in the base is refused.
fn nothing_leads_out(base: &Base, root: &Path, args: &[OsString], cwd: &Path) -> Result<()> {
    match guard::read(base, root, args, cwd).findings.first() {
        None => Ok(()),
        Some(finding) => {
            let what = format!("{:?} would work outside the fork", finding.words);
            Err(Error::new(Kind::Astray, what).remedy("leave out `--isolation cwd`, or name paths of the fork"))
        }
    }
}

/// Opens the root of the fork, making sure that it is what it should be.
pub(super) fn reach(root: &Root) -> Result<Option<Reached>> {
    let (path, mount) = match root {
        Root::Mount(path) => (path, true),
        Root::Directory(path) => (path, false),
        Root::Unmounted(_) => return Ok(None),
    };
    let gone = |e: std::io::Error| Error::new(Kind::Vanished, "the fork is gone:").at(path).because(e);
    let path = fs::canonicalize(path).map_err(gone)?;
    let fd = open_root(&path).map_err(|e| gone(e.into()))?;
    let stat = Stat::of(fd.as_fd()).map_err(|e| gone(e.into()))?;
    if mount && !stat.mount_root {
        return Err(Error::new(Kind::Vanished, "the fork is not mounted any more at").at(path));
    }
    Ok(Some(Reached { path, fd, stat }))
}

/// Whether the caller's own name for its directory leads to this place below the base, links and all: then it leads to
/// the same place in the fork, and the command keeps it.
fn leads_to(pwd: &Path, base: &Base, below: &crate::names::RelPath) -> bool {
    pwd.is_absolute() && fs::canonicalize(pwd).is_ok_and(|path| base.below(&path).as_ref() == Some(below))
}

/// What [`steps`] needs to know besides base and fork.
struct Wishes {
    hidden: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    read_only_root: bool,
    loopback: bool,
    privileged: bool,
}

/// Where the covers come from, in the numbering of [`Step::Take`].
const FORK: usize = 0;
const GIT: usize = SLOTS - 1;

type Serve = Box<dyn FnOnce(OwnedFd) -> Result<()> + Send>;

fn steps(
    base: &Base,
    reached: Option<&Reached>,
    root: Root,
    shared: Option<&SharedGit>,
    wishes: &Wishes,
) -> Result<(Vec<Step>, Option<Serve>)> {
    let here = string(&base.path)?;
    let expect = |stat: &Stat| Step::Expect { path: here.clone(), dev: stat.dev, ino: stat.ino };
    let mut steps = vec![Step::Private, expect(&base.stat)];
    let mut serve = None;
    match root {
        Root::Mount(path) | Root::Directory(path) => {
            let path = reached.map_or(path.as_path(), |r| &r.path);
            steps.push(Step::Take { path: string(path)?, slot: FORK });
        }
        Root::Unmounted(attach) => {
            steps.push(fuse(&attach)?);
            serve = Some(attach.serve);
        }
    }
    if let Some(git) = shared {
        steps.push(Step::Take { path: string(&git.common)?, slot: GIT });
    }
    if wishes.read_only_root {
        read_only(&mut steps, &wishes.writable)?;
    }
    steps.push(Step::Put { path: here.clone(), slot: FORK });
    steps.extend(reached.map(|r| expect(&r.stat)));
    let shown = shared.map(|git| show_git(&mut steps, base, git)).transpose()?.flatten();
    for alias in &base.aliases {
        steps.push(Step::Take { path: here.clone(), slot: FORK });
        steps.push(Step::Put { path: string(alias)?, slot: FORK });
    }
    for (place, below) in &base.parts {
        match reached.and_then(|r| crate::sys::open_beneath(&r.fd, below, rustix::fs::OFlags::PATH).ok()) {
            Some(_) => {
                steps.push(Step::Take { path: string(base.path.join(below))?, slot: FORK });
                steps.push(Step::Put { path: string(place)?, slot: FORK });
            }
            None => steps.push(hide(place)?),
        }
    }
    steps.push(Step::Proc);
    for path in wishes.hidden.iter().filter(|path| shown.as_ref() != Some(*path)) {
        steps.push(hide(path)?);
    }
    if wishes.privileged {
        disarm_root(&base.mounts, &mut steps)?;
    }
    if wishes.loopback {
        steps.push(Step::Loopback);
    }
    Ok((steps, serve))
}

/// Shows the repository that the fork shares with the base, so that it can only be read. Where its place is covered by
/// the fork, in a hidden directory, which is returned, with a `.git` in the fork that leads there.
fn show_git(steps: &mut Vec<Step>, base: &Base, git: &SharedGit) -> Result<Option<PathBuf>> {
    if base.below(&git.common).is_none() {
        let common = string(&git.common)?;
        steps.push(Step::Put { path: common.clone(), slot: GIT });
        steps.push(Step::ReadOnly { path: common, below: true });
        return Ok(None);
    }
    let place = fs::canonicalize(&git.place).context("cannot resolve", &git.place)?;
    let (repository, pointer) = (place.join("git"), place.join("dot-git"));
    let leads = [b"gitdir: ", repository.join(&git.own).as_os_str().as_bytes(), b"\n"].concat();
    steps.push(Step::Scratch(string(&place)?));
    steps.push(Step::MakeDir(string(&repository)?));
    steps.push(Step::Put { path: string(&repository)?, slot: GIT });
    steps.push(Step::ReadOnly { path: string(&repository)?, below: true });
    steps.push(Step::MakeFile { path: string(&pointer)?, content: leads });
    steps.push(Step::ReadOnly { path: string(&place)?, below: false });
    steps.push(Step::Bind { from: string(&pointer)?, to: string(base.path.join(".git"))? });
    Ok(Some(place))
}

fn fuse(attach: &Attach) -> Result<Step> {
    let number = |n: u32| string(n.to_string()).map(Some);
    let options = vec![
        (c"rootmode".to_owned(), string(format!("{:o}", attach.mode)).map(Some)?),
        (c"user_id".to_owned(), number(rustix::process::getuid().as_raw())?),
        (c"group_id".to_owned(), number(rustix::process::getgid().as_raw())?),
        (c"subtype".to_owned(), Some(c"treefork".to_owned())),
        (c"default_permissions".to_owned(), None),
    ];
    Ok(Step::Fuse { slot: FORK, options, source: string(&attach.source)? })
}

/// Everything read-only but `/tmp`, devices and what is named; the fork is put in place after this.
fn read_only(steps: &mut Vec<Step>, writable: &[PathBuf]) -> Result<()> {
    let mut paths = vec![];
    for path in ["/tmp", "/dev"].iter().map(Path::new).chain(writable.iter().map(PathBuf::as_path)) {
        let path = fs::canonicalize(path).context("cannot keep writable", path)?;
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    // An outer directory goes before what lies in it, which would end up below it otherwise.
    paths.sort();
    if paths.len() >= GIT {
        return Err(Error::new(Kind::Usage, format!("at most {} paths can stay writable", GIT - 3)));
    }
    for (path, slot) in paths.iter().zip(FORK + 1..) {
        steps.push(Step::Take { path: string(path)?, slot });
    }
    steps.push(Step::ReadOnly { path: c"/".to_owned(), below: true });
    for (path, slot) in paths.iter().zip(FORK + 1..) {
        steps.push(Step::Put { path: string(path)?, slot });
    }
    Ok(())
}

fn hide(path: &Path) -> Result<Step> {
    let hidden = string(path)?;
    Ok(if path.is_dir() { Step::HideDir(hidden) } else { Step::HideFile(hidden) })
}

/// What real root could reach the base or the machine's other processes through, although it has no privilege over
/// them in its user namespace, because the kernel asks for user 0 alone: settings of the kernel and disks.
fn disarm_root(mounts: &[Mount], steps: &mut Vec<Step>) -> Result<()> {
    const SETTINGS: [&str; 6] =
        ["/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/scsi"];
    for path in SETTINGS.map(Path::new).into_iter().filter(|path| path.exists()) {
        let path = string(path)?;
        steps.push(Step::Bind { from: path.clone(), to: path.clone() });
        steps.push(Step::ReadOnly { path, below: false });
    }
    // Programs that the kernel starts, its tracing, the connections of other forks. Control groups ask for privileges.
    for mount in mounts {
        if mount.point.starts_with("/sys") && !mount.kind.starts_with("cgroup") {
            steps.push(Step::ReadOnly { path: string(&mount.point)?, below: false });
        }
    }
    for dir in ["/dev", "/dev/mapper"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_block_device() || is_disk(&kind, &entry.file_name())) {
                steps.push(Step::HideFile(string(entry.path())?));
            }
        }
    }
    if Path::new("/dev/bsg").is_dir() {
        steps.push(hide(Path::new("/dev/bsg"))?);
    }
    Ok(())
}

/// Whether a character device leads to a disk: the generic ones of SCSI and NVMe.
fn is_disk(kind: &fs::FileType, name: &OsStr) -> bool {
    let name = name.as_bytes();
    kind.is_char_device() && (name.starts_with(b"sg") || name.starts_with(b"ng"))
}

/// The namespaces that the privileges of this process call for.
fn spaces(network: bool) -> Result<Spaces> {
    let wanted = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    let own = rustix::thread::capabilities(None).map_err(|e| Error::io("cannot read the capabilities", e))?;
    if own.effective.contains(wanted) {
        // Identity for all ids that there are here: files keep their owners, and chown goes on working.
        let same = |path| fs::read_to_string(path).context("cannot read", path).map(|map| identity(&map));
        let maps =
            IdMaps { users: same("/proc/self/uid_map")?, groups: same("/proc/self/gid_map")?, no_setgroups: false };
        return Ok(Spaces { keeper: None, command: maps, network });
    }
    let own = |id: u32| format!("{id} {id} 1\n").into_bytes();
    let maps = IdMaps {
        users: own(rustix::process::geteuid().as_raw()),
        groups: own(rustix::process::getegid().as_raw()),
        no_setgroups: true,
    };
    Ok(Spaces { keeper: Some(maps.clone()), command: maps, network })
}

/// The map onto itself of whatever a map of `/proc` maps.
fn identity(map: &str) -> Vec<u8> {
    let mut same = String::new();
    for line in map.lines() {
        if let [inside, _, count] = line.split_whitespace().collect::<Vec<_>>()[..] {
            same.push_str(&format!("{inside} {inside} {count}\n"));
        }
    }
    same.into_bytes()
}

/// The paths that a program's name may mean, as `execvp(3)` looks them up.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Result<Vec<CString>> {
    if name.as_bytes().contains(&b'/') {
        return Ok(vec![string(name)?]);
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/bin:/usr/bin"));
    let dirs = path.as_bytes().split(|&b| b == b':');
    // An empty entry is the working directory.
    let dirs = dirs.map(|dir| if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) });
    dirs.filter(|_| !name.is_empty()).map(|dir| string(dir.join(name))).collect()
}

fn string(text: impl AsRef<OsStr>) -> Result<CString> {
    let text: OsString = text.as_ref().to_owned();
    CString::new(text.clone().into_vec())
        .map_err(|_| Error::new(Kind::Usage, format!("no command can be given a NUL byte: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_map_onto_themselves() {
        assert_eq!(identity("         0     100000      65536\n     65536 7 1\n"), b"0 0 65536\n65536 65536 1\n");
    }

    #[test]
    fn programs_are_looked_up_like_a_shell_does() {
        let paths = |name: &str, path: &str| -> Vec<String> {
            let found = candidates(OsStr::new(name), Some(OsStr::new(path))).expect("no NUL");
            found.into_iter().map(|c| c.into_string().expect("text")).collect()
        };
        assert_eq!(paths("ls", "/a::/b"), ["/a/ls", "./ls", "/b/ls"]);
        assert_eq!(paths("./ls", "/a"), ["./ls"]);
        assert!(paths("", "/a").is_empty());
        assert!(candidates(OsStr::new("a\0b/"), None).is_err());
    }
}
