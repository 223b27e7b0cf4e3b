//! What a failure in the cell means for a person: which kind, which words, which remedy.

use std::ffi::CStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use super::place;
use crate::error::{Error, Kind};
use crate::sys::cell::{Part, Plan, Step};

/// The keeper could not even be cloned.
pub(super) fn of_launch(errno: Errno) -> Error {
    no_spaces("this machine gives no namespaces to isolate a command in", errno)
}

/// A part of the work in the cell failed, other than executing the program.
pub(super) fn of_part(part: Part, errno: Errno, plan: &Plan) -> Error {
    match part {
        Part::Spaces => no_spaces("cannot map the user into a namespace of its own", errno),
        Part::Inner => no_spaces("cannot make the command's own namespaces", errno),
        Part::Cwd => {
            let below = Path::new(std::ffi::OsStr::from_bytes(plan.cwd.below.as_bytes()));
            if is_dead(errno) { vanished(errno) } else { place::astray(below).because(io::Error::from(errno)) }
        }
        Part::Step(number) => match plan.steps.get(number) {
            Some(step) => of_step(step, errno),
            None => Error::io("cannot build the command's namespace", errno),
        },
        Part::Input => {
            let what = "standard input is a file of the base that the fork does not have";
            Error::new(Kind::Astray, what).because(io::Error::from(errno))
        }
        Part::Exec | Part::Plumbing => Error::io("cannot start the command", errno),
    }
}

fn of_step(step: &Step, errno: Errno) -> Error {
    if is_dead(errno) {
        return vanished(errno);
    }
    let denied = matches!(errno, Errno::PERM | Errno::ACCESS);
    let cause = |error: Error, path: &CStr| {
        error.at(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))).because(io::Error::from(errno))
    };
    match step {
        Step::Private if denied => no_spaces("mounts cannot be made private", errno),
        Step::Proc if denied => no_spaces("a /proc of the command's own cannot be mounted", errno),
        Step::Fuse { .. } => Error::new(Kind::Unavailable, "cannot mount FUSE in the command's namespace")
            .because(io::Error::from(errno))
            .remedy("a user without fusermount3 needs a /dev/fuse that it may open"),
        Step::Expect { path, .. } if errno == Errno::STALE => {
            cause(Error::new(Kind::Covered, "another mount or directory is where the base was:"), path)
        }
        Step::Expect { path, .. } => cause(Error::new(Kind::Io, "cannot look at"), path),
        Step::Take { path, .. } => cause(Error::new(Kind::Io, "cannot take the mounts at"), path),
        Step::Bind { to: path, .. } | Step::Put { path, .. } => cause(Error::new(Kind::Io, "cannot mount over"), path),
        Step::ReadOnly { path, .. } => cause(Error::new(Kind::Io, "cannot make read-only"), path),
        Step::HideDir(path) | Step::HideFile(path) | Step::Scratch(path) => {
            cause(Error::new(Kind::Io, "cannot hide"), path)
        }
        Step::MakeDir(path) | Step::MakeFile { path, .. } => cause(Error::new(Kind::Io, "cannot make"), path),
        Step::Private | Step::Proc => Error::io("cannot arrange the command's mounts", errno),
        Step::Loopback => Error::io("cannot set up the loopback interface", errno),
    }
}

fn no_spaces(what: &'static str, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::NOSPC | Errno::USERS => "raise user.max_user_namespaces (sysctl), or end other namespaces",
        Errno::NOSYS | Errno::INVAL => "the kernel needs user, mount and PID namespaces and clone3 (Linux 5.12)",
        _ => {
            "user namespaces may be restricted here (sysctl kernel.apparmor_restrict_unprivileged_userns, \
             kernel.unprivileged_userns_clone, or a container's seccomp filter)"
        }
    };
    let remedy = format!("{remedy}; `--isolation cwd` is weaker and needs none");
    Error::new(Kind::Unavailable, what).because(io::Error::from(errno)).remedy(remedy)
}

/// The errnos of a mount whose server is gone.
pub(super) fn is_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

fn vanished(errno: Errno) -> Error {
    Error::new(Kind::Vanished, "the fork is gone").because(io::Error::from(errno))
}
