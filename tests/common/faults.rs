//! Failing every system call of some work once: which faults a call gets, and the run over all of them.
//!
//! The calls are those that the thread of the test makes through `sys::calls`; they are counted by a run without faults.
//! Each gets one of the faults that make sense for it, in turn, and all of them with `TREEFORK_FAULTS=all`, which takes
//! minutes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use treefork::sys::fault::{Action, Rule, scoped};

/// What a disk or a process can give.
pub(crate) const FAULTS: [Action; 6] = [
    Action::Fail(libc::EIO),
    Action::Fail(libc::ENOSPC),
    Action::Fail(libc::EDQUOT),
    Action::Fail(libc::EMFILE),
    Action::Fail(libc::EINTR),
    Action::Short,
];

/// Only calls that move bytes can be cut short.
pub(crate) fn applies(fault: Action, call: &str) -> bool {
    fault != Action::Short || ["read", "pread", "write", "pwrite", "copy_file_range"].contains(&&call[4..])
}

/// Whether nobody is to notice.
pub(crate) fn is_harmless(fault: Action) -> bool {
    matches!(fault, Action::Short | Action::Fail(libc::EINTR))
}

/// Whether every call is to get every fault.
pub(crate) fn all_asked_for() -> bool {
    std::env::var_os("TREEFORK_FAULTS").is_some_and(|v| v == "all")
}

/// Does some work with one fault in its `nth` call (from 1); also the names of its calls.
pub(crate) fn with_fault<T>(fault: Action, nth: usize, work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let (value, mut passed) = scoped(vec![Rule::new("sys.*", fault, nth as u64)], work);
    passed.retain(|name| name.starts_with("sys."));
    (value, passed)
}

/// Does some work without a fault; also the names of its calls.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    with_fault(Action::Short, usize::MAX, work)
}

/// A fault in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    pub(crate) fault: Action,
    call: &'static str,
    /// Which one of those of this name, from 1: names are listed in an order that may differ from time to time.
    nth: usize,
}

impl Strike {
    /// Does some work with the fault in it; also the names of its calls.
    pub(crate) fn within<T>(self, work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
        let (value, mut passed) = scoped(vec![self.rule_after(&[])], work);
        passed.retain(|name| name.starts_with("sys."));
        (value, passed)
    }

    /// The rule for the fault, where these calls come first.
    pub(crate) fn rule_after(self, before: &[&str]) -> Rule {
        Rule::new(self.call, self.fault, (times(before, self.call) + self.nth) as u64)
    }
}

/// How often a call was made.
fn times(calls: &[&str], call: &str) -> usize {
    calls.iter().filter(|name| **name == call).count()
}

/// Has `trial` do the work once for each call and fault; in a scene that is made anew when something went wrong in it.
pub(crate) fn fail_every_call<S>(
    what: &'static str,
    calls: &[&'static str],
    scene: impl Fn() -> S,
    trial: impl Fn(&S, Strike) -> Vec<&'static str>,
) {
    assert!(!calls.is_empty(), "{what}: no call at all");
    let (mut faults, mut wrong, mut here) = (0, Vec::new(), scene());
    for (n, call) in calls.iter().enumerate() {
        let fit: Vec<Action> = FAULTS.into_iter().filter(|fault| applies(*fault, call)).collect();
        let chosen = if all_asked_for() { &fit[..] } else { &fit[n % fit.len()..][..1] };
        for &fault in chosen {
            faults += 1;
            let strike = Strike { fault, call, nth: times(&calls[..=n], call) };
            let said = match catch_unwind(AssertUnwindSafe(|| trial(&here, strike))) {
                Ok(passed) if times(&passed, call) >= strike.nth => continue,
                Ok(_) => "is not made this time".into(),
                Err(panic) => said(&*panic),
            };
            wrong.push(format!("{what}, {fault:?} in call {} of {call}: {said}", strike.nth));
            here = scene();
        }
    }
    eprintln!("{what}: {} system calls, {faults} faults, none skipped", calls.len());
    assert!(wrong.is_empty(), "{} faults left something wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a panic said.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".into())
}
