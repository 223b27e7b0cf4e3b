//! Commands in forks: `run`, `exec`, `shell`; beside them `check` and `fanout`.
//!
//! Exit statuses: the command's own; a signal that ended it ends `treefork` as well. 120 the fork vanished, 124 the time
//! limit, 125 treefork's own failure, 126 and 127 as shells have them.

mod check;
mod ending;
mod fanout;
mod options;
mod signals;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::create;
use super::forks::say_drift;
use super::output::{self, Context};
use super::prewarm;
use crate::api::{caveat, create_fork, observe, target};
use crate::config;
use crate::error::{Error, Kind, Result};
use crate::fork::{Forks, Record, Request, journal};
use crate::run::{self, Environment, Outcome};
use crate::strategy::Way;

pub(super) use check::Check;
use ending::{Ending, Fate};
pub(super) use fanout::Fanout;
use options::Options;

/// What exit status treefork's own failures have here, so that they are not taken for the command's.
const OWN_FAILURE: u8 = 125;

/// Arguments of `run`.
#[derive(Args)]
pub(super) struct Run {
    /// The directory to fork
    #[arg(default_value = ".", value_name = "BASE")]
    base: PathBuf,
    /// What to call the fork
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    label: Option<OsString>,
    #[command(flatten)]
    way: create::Choice,
    #[command(flatten)]
    quota: create::Quota,
    #[command(flatten)]
    ending: Ending,
    /// Do not fill the kernel's caches in the background, where the base is large and cores are idle
    #[arg(long)]
    no_prewarm: bool,
    #[command(flatten)]
    options: Options,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Arguments of `exec`.
#[derive(Args)]
pub(super) struct Exec {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
    #[command(flatten)]
    options: Options,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Arguments of `shell`.
#[derive(Args)]
pub(super) struct Shell {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
    #[command(flatten)]
    options: Options,
}

/// What `--json` prints on a line of its own after the command's output.
#[derive(Serialize)]
struct Summary<'a> {
    fork: &'a str,
    label: Option<&'a str>,
    status: u8,
    /// `exited`, `signaled`, `timed-out`, `vanished`, `not-executed`.
    end: &'static str,
    signal: Option<i32>,
    wall_seconds: f64,
    cpu_seconds: f64,
    peak_kib: u64,
    /// What became of the fork: `kept`, `removed`, `merged`, `refused` (its merge was, and it is kept); nothing for `exec`.
    fork_is: Option<&'static str>,
}

impl Run {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let failed = |e: &Error| failure(e, context);
        let (outcome, status) = match self.carry_out(context) {
            Ok(done) => done,
            Err(e) => return Ok(failed(&e)),
        };
        Ok(leave(&outcome, status))
    }

    fn carry_out(self, context: &Context) -> Result<(Outcome, u8)> {
        let label = self.label.map(create::label).transpose()?;
        let forks = Forks::open(context.store()?)?;
        let settings = context.settings(&forks.root_of(&self.base)?)?;
        let job = self.options.job(self.command.clone(), &settings.run)?;
        let ending = self.ending.with(&settings.run);
        let mut request = Request::new(&self.base)?;
        request.label = label;
        request.keep = ending.keep;
        request.temporary = !ending.keep;
        request.strategy = self.way.way(&settings);
        request.wishes.hide.symlinks = settings.symlinks.unwrap_or_default();
        request.wishes.limits = self.quota.limits(&settings);
        request.wishes.private_mount = private_mount(request.strategy, &self.options);
        let signals = signals::Forwarding::start()?;
        let record = create_fork(&forks, &request, &settings, Some(rustix::stdio::stderr()))?.record;
        for advisory in &record.advisories {
            output::note(advisory);
        }
        if !self.no_prewarm && prewarm::pays(&record) {
            prewarm::in_background(forks.store(), &record);
        }
        let outcome = in_fork(&forks, &record, job, &signals);
        let success = outcome.as_ref().is_ok_and(|outcome| outcome.end.is_success());
        let fate = ending.settle(&forks, &record, success);
        create::empty_trash_in_background(forks.store());
        let (outcome, fate) = (outcome?, fate?);
        let status = if fate == Fate::Refused { OWN_FAILURE } else { outcome.end.status() };
        if context.json {
            print_summary(&record, &outcome, Some(fate.as_str()))?;
        }
        Ok((outcome, status))
    }
}

impl Exec {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let job = |settings: &config::Run| self.options.job(self.command.clone(), settings);
        match in_existing(context, &self.fork, job, true) {
            Ok(outcome) => Ok(leave(&outcome, outcome.end.status())),
            Err(e) => Ok(failure(&e, context)),
        }
    }
}

impl Shell {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let job = |settings: &config::Run| self.job(context, settings);
        match in_existing(context, &self.fork, job, false) {
            Ok(outcome) => Ok(leave(&outcome, outcome.end.status())),
            Err(e) => Ok(failure(&e, context)),
        }
    }

    /// The caller's own shell, with the fork's name in the prompt where the shell can be told so from outside.
    fn job(&self, context: &Context, settings: &config::Run) -> Result<run::Job> {
        let record = Forks::open(context.store_of(&self.fork)?)?.find(&self.fork)?;
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into());
        let name = std::path::Path::new(&shell).file_name().unwrap_or_default().to_owned();
        let mut command = vec![shell];
        let mark = format!("({}) ", record.name());
        if name == "fish" {
            let prompt = "functions -q fish_prompt; and functions -c fish_prompt treefork_prompt; \
                          function fish_prompt; echo -n \"($TREEFORK_LABEL) \"; treefork_prompt; end";
            command.extend(["--init-command".into(), prompt.into()]);
        }
        let mut job = self.options.job(command, settings)?;
        if name == "bash" {
            // Runs before each prompt, after whatever the user's own files made of PS1.
            let own = job.environment.get("PROMPT_COMMAND").unwrap_or_default().to_owned();
            let mut prompt =
                OsString::from("case $PS1 in \"($TREEFORK_LABEL) \"*) ;; *) PS1=\"($TREEFORK_LABEL) $PS1\";; esac;");
            prompt.push(own);
            job.environment.set("PROMPT_COMMAND", prompt);
        } else {
            job.environment.set("PS1", format!("{mark}$ "));
        }
        Ok(job)
    }
}

/// Runs a job in a fork that exists.
fn in_existing(
    context: &Context,
    name: &str,
    job: impl FnOnce(&config::Run) -> Result<run::Job>,
    summary: bool,
) -> Result<Outcome> {
    let forks = Forks::open(context.store_of(name)?)?;
    let job = job(&context.settings(&forks.find(name)?.base.path)?.run)?;
    let signals = signals::Forwarding::start()?;
    let (record, _) = forks.ready(name)?;
    let outcome = in_fork(&forks, &record, job, &signals)?;
    if context.json && summary {
        print_summary(&record, &outcome, None)?;
    }
    Ok(outcome)
}

/// Runs a job in the fork of a record, and writes down that it did.
fn in_fork(forks: &Forks, record: &Record, mut job: run::Job, signals: &signals::Forwarding) -> Result<Outcome> {
    let shown = shown(&job.args);
    if let Some(caveat) = caveat(record).filter(|_| job.isolation == run::Isolation::Path) {
        output::note(&format!("{caveat}; --isolation cwd lets it write"));
    }
    let terminal = signals::Terminal::remember();
    let mut target = target(forks, record)?;
    observe(&mut target, forks, record, &mut job.environment);
    signals.expect();
    let running = run::start(target, job).inspect_err(|_| signals.rest())?;
    signals.reach(running.handle());
    let outcome = running.wait(signals::stop_along);
    signals.rest();
    terminal.take_back();
    let outcome = outcome?;
    let said = format!("{shown}: {}", said(&outcome));
    journal::note(&forks.store().fork(&record.id), "run", &said);
    say_drift(forks.store(), record);
    Ok(outcome)
}

/// Whether a fork for commands with these options is to be mounted by their namespaces.
fn private_mount(strategy: Option<Way>, options: &Options) -> bool {
    strategy.is_none() && options.isolates() && only_a_namespace_can_mount()
}

/// Whether this user may mount FUSE in a namespace of its own only: it is not root, and fusermount3 is not installed.
fn only_a_namespace_can_mount() -> bool {
    let capable = rustix::thread::capabilities(None)
        .is_ok_and(|own| own.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helper = || std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists());
    let device = || std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    !capable && !helper() && device()
}

fn print_summary(record: &Record, outcome: &Outcome, fork_is: Option<&'static str>) -> Result<()> {
    let signal = match outcome.end {
        run::End::Signaled(signal) => Some(signal),
        _ => None,
    };
    let summary = Summary {
        fork: record.id.as_str(),
        label: record.label.as_ref().map(|label| label.as_str()),
        status: outcome.end.status(),
        end: end_word(&outcome.end),
        signal,
        wall_seconds: outcome.wall.as_secs_f64(),
        cpu_seconds: (outcome.user + outcome.system).as_secs_f64(),
        peak_kib: outcome.peak_kib,
        fork_is,
    };
    output::print_json_line(&summary)
}

/// The word for an end in JSON.
fn end_word(end: &run::End) -> &'static str {
    match end {
        run::End::Exited(_) => "exited",
        run::End::Signaled(_) => "signaled",
        run::End::TimedOut => "timed-out",
        run::End::Vanished => "vanished",
        run::End::NotExecuted(_) => "not-executed",
    }
}

/// How it ended, for a person.
fn said(outcome: &Outcome) -> String {
    match &outcome.end {
        run::End::Exited(status) => format!("exit status {status}"),
        run::End::Signaled(signal) => format!("signal {signal}"),
        run::End::TimedOut => "time limit".into(),
        run::End::Vanished => "the fork vanished".into(),
        run::End::NotExecuted(errno) => format!("cannot be executed: {}", std::io::Error::from(*errno)),
    }
}

/// The first words of a command line, for logs.
fn shown(args: &[OsString]) -> String {
    const LONGEST: usize = 200;
    let line = args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
}

/// Says what has to be said about an end, and ends the way the command did. The exit status where that is one.
fn leave(outcome: &Outcome, status: u8) -> u8 {
    match &outcome.end {
        run::End::Exited(_) => {}
        run::End::Signaled(signal) if status != OWN_FAILURE => signals::die_of(*signal),
        run::End::Signaled(_) => {}
        run::End::TimedOut => output::note("the command was ended: its time is up"),
        run::End::Vanished => output::note("the command was ended: its fork is gone"),
        run::End::NotExecuted(_) => output::note(&format!("the command {}", said(outcome))),
    }
    status
}

/// Reports a failure of treefork's own: 125 except where it has a number of its own.
fn failure(error: &Error, context: &Context) -> u8 {
    let status = output::report(error, context.json);
    match error.kind() {
        Kind::Vanished | Kind::TimedOut => status,
        _ => OWN_FAILURE,
    }
}

/// The caller's environment, with what a file says on top.
fn environment(file: Option<&std::path::Path>) -> Result<Environment> {
    let mut environment = Environment::default();
    if let Some(file) = file {
        environment.load(file)?;
    }
    Ok(environment)
}
