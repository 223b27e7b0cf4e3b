//! Git's hook that says what changed (`core.fsmonitor`), for git in commands that run in forks.
//!
//! Git runs it in the top of a work tree, with the version of the protocol (2, see githooks(5)) and the token of the
//! last time. The fork that the work tree lies in answers, by an attribute of the directory
//! ([`crate::overlay::touched`]). Whatever goes wrong, the answer is that git has to look at everything: `/`.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::output;
use crate::overlay::touched::{ANYTHING, ASK, LONGEST, MORE, NAMES, WAIT};

/// How long git waits for a base that is only just being followed: about as long as it takes to look at a large one.
const PATIENCE: Duration = Duration::from_secs(2);

/// A token that no fork knows.
const UNKNOWN: &[u8] = b"treefork-unknown";

/// Where the arguments of the process are those of the hook, `fsmonitor VERSION TOKEN`: answers git. Nothing else of the
/// command line is set up for it, since git waits for it at every command.
pub(super) fn as_hook() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != "fsmonitor" {
        return None;
    }
    let (version, token) = (args.next()?, args.next()?);
    if version != "2" {
        return Some(ExitCode::FAILURE);
    }
    let answer = ask(token.as_bytes()).unwrap_or_else(|| [UNKNOWN, b"\0/\0"].concat());
    Some(output::print(&answer).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// What git is told; nothing where no fork answers, or not in time.
fn ask(token: &[u8]) -> Option<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut token = if token.starts_with(b"treefork-") { token.to_vec() } else { UNKNOWN.to_vec() };
    let mut names = Vec::new();
    let mut value = vec![0; LONGEST];
    loop {
        let name = [ASK.as_bytes(), &token].concat();
        let length = rustix::fs::getxattr(".", name, &mut value[..]).ok()?;
        let mut fields = value[..length].splitn(3, |&byte| byte == 0);
        let (next, word, rest) = (fields.next()?, fields.next()?, fields.next()?);
        names.extend_from_slice(rest);
        match std::str::from_utf8(word).ok()? {
            NAMES => return Some([next, b"\0", &names].concat()),
            ANYTHING => return Some([next, b"\0/\0"].concat()),
            MORE => token = next.to_vec(),
            WAIT if Instant::now() < until => std::thread::sleep(Duration::from_millis(3)),
            _ => return None,
        }
    }
}
