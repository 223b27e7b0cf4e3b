//! Whose fork it is: a process, told apart from a later one of the same number.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Kind, Result};
use crate::sys::calls;

/// A process for as long as the machine runs: number, start time, and the boot they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start: u64,
    /// The kernel's random name of this boot.
    pub boot: String,
}

impl Owner {
    /// The calling process.
    pub fn current() -> Result<Self> {
        Self::of(std::process::id())
    }

    /// The process of this number; `NotFound` where there is none.
    pub fn of(pid: u32) -> Result<Self> {
        let start = start_time(pid)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no process {pid} to own the fork")))?;
        Ok(Self { pid, start, boot: boot_id()?.to_owned() })
    }

    /// Whether that very process still runs. A zombie does not.
    pub fn is_alive(&self) -> Result<bool> {
        Ok(self.boot == boot_id()? && start_time(self.pid)? == Some(self.start))
    }
}

/// The kernel's random name of this boot.
fn boot_id() -> Result<&'static str> {
    crate::sys::boot_id().context("cannot read", "/proc/sys/kernel/random/boot_id")
}

/// When the process of this number started; `None` where there is none or it is a zombie.
fn start_time(pid: u32) -> Result<Option<u64>> {
    let path = format!("/proc/{pid}/stat");
    let stat = match calls::File::read(path.as_ref()) {
        Ok(stat) => stat,
        // ESRCH: it ended between open and read.
        Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(e) => return Err(Error::io("cannot read", std::io::Error::from(e)).at(path)),
    };
    parse_stat(&stat).ok_or_else(|| Error::new(Kind::Corrupt, "cannot understand").at(path))
}

/// The start time in a line of `/proc/PID/stat`; the inner `None` for a zombie.
fn parse_stat(stat: &[u8]) -> Option<Option<u64>> {
    // The second field is the command in parentheses and may hold anything, parentheses too.
    let after = stat.iter().rposition(|&b| b == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    // `nth(18)` after the state (field 3) is field 22.
    let start = fields.nth(18)?.parse().ok()?;
    Some((!matches!(state, "Z" | "X" | "x")).then_some(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_its_namesakes_are_not() {
        let me = Owner::current().expect("own stat");
        assert!(me.is_alive().expect("own stat"));
        assert!(!Owner { start: me.start + 1, ..me.clone() }.is_alive().expect("own stat"));
        assert!(!Owner { boot: "another".into(), ..me }.is_alive().expect("own stat"));
        assert_eq!(Owner::of(u32::MAX / 2).expect_err("no such process").kind(), Kind::NotFound);
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("spawns");
        let owner = Owner::of(child.id()).expect("it waits for input");
        drop(child.stdin.take());
        rustix::process::waitid(
            rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .expect("waits without reaping");
        assert!(!owner.is_alive().expect("stat of a zombie"));
        child.wait().expect("reaps");
    }

    #[test]
    fn commands_with_parentheses() {
        let line = b"12 (a) S) Z) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(line), Some(Some(4711)));
    }
}
