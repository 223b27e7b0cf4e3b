//! Named fault points: places between two durable steps, and system calls, where a test can make the world stop.
//!
//! In production a [`point`] or [`call`] is one relaxed load of an atomic. It wakes up when the process is started with
//! [`VARIABLE`] (rules, see [`Rule`]) or [`LOG`] (a file that gets one line with the name of each point passed, so that
//! tests count points rather than guess them), or inside [`scoped`] on the thread that called it.
//!
//! The names of calls begin with `sys.`. They are many, so they count, are logged and listed only where a rule speaks of
//! them: `*` means every point, `sys.*` every call.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// The environment variable with the rules, separated by `;`.
pub const VARIABLE: &str = "TREEFORK_FAULT";
/// The environment variable with the file to log the names of passed points to.
pub const LOG: &str = "TREEFORK_FAULT_LOG";

/// How many reasons there are to look closer: zero in production. The top bit stands for "the environment was not read".
static ARMED: AtomicUsize = AtomicUsize::new(UNREAD);
const UNREAD: usize = 1 << (usize::BITS - 1);

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process kills itself with `SIGKILL`: nothing unwinds, nothing is flushed.
    Kill,
    /// The point fails with this errno.
    Fail(i32),
    /// The process stops itself with `SIGSTOP`; whoever waits for it sees that and sends `SIGCONT`.
    Pause,
    /// The thread goes no further; the others do.
    Hang,
    /// The point panics.
    Panic,
    /// A call that moves bytes moves half of them; nothing else takes notice.
    Short,
}

/// How a call that does not fail is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As asked for.
    Whole,
    /// For half of the bytes.
    Short,
}

/// How the names of calls begin.
const CALLS: &str = "sys.";

/// One rule: `NAME:ACTION@N`, the action at the N-th hit (from 1) of a point of this name.
///
/// `NAME` may end in `*` (any point that begins so; the hits of all of them count together). `ACTION` is `kill`, `pause`,
/// `hang`, `panic`, `short` or `fail=ERRNO` (a number). `@N` may be `@*`: every hit; without it the first.
#[derive(Debug)]
pub struct Rule {
    name: String,
    prefix: bool,
    action: Action,
    /// The hit to act on; zero stands for every one.
    nth: u64,
    hits: AtomicU64,
}

impl Rule {
    /// A rule that acts at the `nth` hit (from 1; zero for every hit) of the points that `pattern` names.
    pub fn new(pattern: &str, action: Action, nth: u64) -> Self {
        let (name, prefix) = pattern.strip_suffix('*').map_or((pattern, false), |p| (p, true));
        Self { name: name.to_owned(), prefix, action, nth, hits: AtomicU64::new(0) }
    }

    fn of_calls(&self) -> bool {
        self.name.starts_with(CALLS)
    }

    /// What this rule wants done at this point; counts the hit.
    fn hit(&self, name: &str) -> Option<Action> {
        let fits = if self.prefix { name.starts_with(&self.name) } else { name == self.name };
        if !fits || self.of_calls() != name.starts_with(CALLS) {
            return None;
        }
        let hit = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        (self.nth == 0 || hit == self.nth).then_some(self.action)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not NAME:ACTION@N");
        let (pattern, rest) = text.rsplit_once(':').ok_or_else(bad)?;
        let (action, nth) = rest.split_once('@').unwrap_or((rest, "1"));
        let nth = if nth == "*" { 0 } else { nth.parse().map_err(|_| bad())? };
        let action = match action.split_once('=') {
            None if action == "kill" => Action::Kill,
            None if action == "pause" => Action::Pause,
            None if action == "hang" => Action::Hang,
            None if action == "panic" => Action::Panic,
            None if action == "short" => Action::Short,
            Some(("fail", errno)) => Action::Fail(errno.parse().map_err(|_| bad())?),
            _ => return Err(bad()),
        };
        Ok(Self::new(pattern, action, nth))
    }
}

/// What the environment asked for at the start of the process.
#[derive(Default)]
struct Global {
    rules: Vec<Rule>,
    log: Option<File>,
}

static GLOBAL: OnceLock<Global> = OnceLock::new();

struct Scope {
    rules: Vec<Rule>,
    passed: Vec<&'static str>,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// A place where a test may stop the world. Costs one relaxed load unless faults were asked for.
///
/// # Errors
/// Only what a rule asks for.
#[inline]
pub fn point(name: &'static str) -> io::Result<()> {
    if ARMED.load(Ordering::Relaxed) == 0 { Ok(()) } else { Ok(slow(name).map(drop)?) }
}

/// A system call that is about to be made, by a name that begins with `sys.`; costs as much as a [`point`].
#[inline]
pub(super) fn call(name: &'static str) -> Result<Outcome, Errno> {
    if ARMED.load(Ordering::Relaxed) == 0 { Ok(Outcome::Whole) } else { slow(name) }
}

#[cold]
fn slow(name: &'static str) -> Result<Outcome, Errno> {
    let global = GLOBAL.get_or_init(|| {
        let global = from_environment();
        let active = usize::from(!global.rules.is_empty() || global.log.is_some());
        // Scopes may have been opened meanwhile: take the top bit away, keep their count.
        ARMED.fetch_add(active.wrapping_sub(UNREAD), Ordering::Relaxed);
        global
    });
    let counts = |rules: &[Rule]| !name.starts_with(CALLS) || rules.iter().any(Rule::of_calls);
    if let Some(mut log) = global.log.as_ref().filter(|_| counts(&global.rules)) {
        // One write, appended: lines of several processes do not mix.
        log.write_all(format!("{name}\n").as_bytes()).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    }
    let scoped = SCOPE.with_borrow_mut(|scope| {
        let scope = scope.as_mut()?;
        if counts(&scope.rules) {
            scope.passed.push(name);
        }
        scope.rules.iter().filter_map(|rule| rule.hit(name)).last()
    });
    // Every rule counts the hit, also when another one acts.
    let action = global.rules.iter().filter_map(|rule| rule.hit(name)).last().or(scoped);
    action.map_or(Ok(Outcome::Whole), act)
}

fn act(action: Action) -> Result<Outcome, Errno> {
    match action {
        Action::Kill => {
            kill_process(getpid(), Signal::KILL)?;
            // The signal takes effect at the latest when this thread returns from a system call.
            hang()
        }
        Action::Hang => hang(),
        Action::Pause => kill_process(getpid(), Signal::STOP).map(|()| Outcome::Whole),
        Action::Panic => panic!("a fault rule asks for it"),
        Action::Fail(errno) => Err(Errno::from_raw_os_error(errno)),
        Action::Short => Ok(Outcome::Short),
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn from_environment() -> Global {
    let mut global = Global::default();
    if let Ok(rules) = std::env::var(VARIABLE) {
        for rule in rules.split(';').filter(|r| !r.is_empty()) {
            match rule.parse() {
                Ok(rule) => global.rules.push(rule),
                // A test with a typing error must not pass because nothing happened.
                Err(e) => panic!("{VARIABLE}: {e}"),
            }
        }
    }
    if let Some(path) = std::env::var_os(LOG) {
        let log = File::options().append(true).create(true).open(&path);
        global.log = Some(log.unwrap_or_else(|e| panic!("{LOG} {path:?}: {e}")));
    }
    global
}

/// Runs `body` with these rules for the points it passes on this thread; also returns the names of those points.
///
/// For tests within one process: other threads notice nothing. Does not nest.
pub fn scoped<T>(rules: Vec<Rule>, body: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    /// Takes the scope down also when `body` panics.
    struct Disarm;
    impl Drop for Disarm {
        fn drop(&mut self) {
            SCOPE.set(None);
            ARMED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let previous = SCOPE.replace(Some(Scope { rules, passed: Vec::new() }));
    assert!(previous.is_none(), "fault scopes do not nest");
    ARMED.fetch_add(1, Ordering::Relaxed);
    let disarm = Disarm;
    let value = body();
    let passed = SCOPE.with_borrow_mut(|scope| scope.as_mut().map(|s| std::mem::take(&mut s.passed)));
    drop(disarm);
    (value, passed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_a_text_form() {
        let rule: Rule = "merge.*:fail=28@3".parse().expect("well-formed");
        assert_eq!((rule.name.as_str(), rule.prefix, rule.action, rule.nth), ("merge.", true, Action::Fail(28), 3));
        assert_eq!("a:kill".parse::<Rule>().expect("well-formed").nth, 1);
        assert_eq!("a:pause@*".parse::<Rule>().expect("well-formed").nth, 0);
        for bad in ["", "a", "a:", "a:die", "a:kill@x", "a:fail=x@1"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn scoped_rules_count_and_fail() {
        let rules = vec![Rule::new("t.*", Action::Fail(5), 2)];
        let (results, passed) = scoped(rules, || [point("t.a"), point("u"), point("t.b"), point("t.a")]);
        assert_eq!(results.map(|r| r.err().and_then(|e| e.raw_os_error())), [None, None, Some(5), None]);
        assert_eq!(passed, ["t.a", "u", "t.b", "t.a"]);
        assert!(point("t.a").is_ok(), "nothing is left behind");
    }

    #[test]
    fn other_threads_are_left_alone() {
        let rules = vec![Rule::new("*", Action::Fail(5), 0)];
        let (elsewhere, _) =
            scoped(rules, || std::thread::spawn(|| point("x").is_ok()).join().expect("does not panic"));
        assert!(elsewhere);
    }
}
