//! One fork of a fan-out, from its making to its row in the table.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::ending::{Fate, changed};
use super::super::{end_word, said};
use super::Shared;
use super::matrix::{Variables, fill};
use crate::api::{create_fork, observe, target};
use crate::error::{Context, Error, Kind, Result};
use crate::fork::{Record, Request, journal, status};
use crate::run::{self, Outcome};

/// How much of the end of an output is kept.
const TAIL: u64 = 64 * 1024;

/// One line of the result table.
pub(super) struct Row {
    pub(super) n: usize,
    pub(super) label: String,
    /// The fork, while there is one.
    pub(super) record: Option<Record>,
    pub(super) fork: Option<String>,
    pub(super) success: bool,
    /// `exited`, `signaled`, ..., `failed` where treefork did, `not-begun`.
    pub(super) end: &'static str,
    pub(super) said: String,
    pub(super) status: Option<u8>,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) peak_kib: u64,
    pub(super) changes: Option<u64>,
    pub(super) score: Option<f64>,
    pub(super) fate: Option<&'static str>,
    /// The end of what the command wrote.
    pub(super) output: String,
    pub(super) variables: Variables,
}

impl Row {
    /// Notes what became of the fork.
    pub(super) fn settled(&mut self, fate: Fate) {
        self.fate = Some(fate.as_str());
        if fate == Fate::Removed {
            self.record = None;
        }
    }

    fn failed(&mut self, error: &Error) {
        self.success = false;
        self.end = "failed";
        self.said = error.to_string();
    }
}

/// The work for one fork.
pub(super) struct Task<'a> {
    shared: &'a Shared<'a>,
    row: Row,
}

impl<'a> Task<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, n: usize) -> Self {
        let label = format!("{}-{}", shared.prefix, n + 1);
        let mut variables = shared.matrix.row(n, shared.args.number).clone();
        variables.insert("n".into(), (n + 1).to_string());
        variables.insert("label".into(), label.clone());
        let row = Row {
            n,
            label,
            record: None,
            fork: None,
            success: false,
            end: "not-begun",
            said: "not begun".into(),
            status: None,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_kib: 0,
            changes: None,
            score: None,
            fate: None,
            output: String::new(),
            variables,
        };
        Self { shared, row }
    }

    /// The row of a fork that never got its turn.
    pub(super) fn not_begun(self) -> Row {
        self.row
    }

    /// Does the work.
    pub(super) fn row(mut self) -> Row {
        self.shared.progress.begin(self.row.n, &self.row.label);
        if let Err(e) = self.work() {
            self.row.failed(&e);
        }
        if let Err(e) = self.tidy() {
            self.row.failed(&e);
        }
        self.shared.progress.end(&self.row);
        self.row
    }

    fn work(&mut self) -> Result<()> {
        let shared = self.shared;
        let mut request = Request::new(&shared.args.base)?;
        request.label = Some(shared.label(self.row.n)?);
        request.temporary = true;
        request.strategy = shared.args.way.way(&shared.settings);
        request.wishes.limits = shared.args.quota.limits(&shared.settings);
        request.wishes.hide.symlinks = shared.settings.symlinks.unwrap_or_default();
        request.wishes.private_mount = super::super::private_mount(request.strategy, &shared.args.options);
        let mut log = self.log()?;
        let record = create_fork(&shared.forks, &request, &shared.settings, Some(log.as_fd()))?.record;
        self.row.fork = Some(record.id.to_string());
        self.row.record = Some(record.clone());
        let args = shared.args.command.iter().map(|arg| fill(arg, &self.row.variables)).collect();
        let outcome = self.run_in(&record, args, duplicate(&log)?, duplicate(&log)?)?;
        self.row.output = tail(&mut log)?;
        self.row.end = end_word(&outcome.end);
        self.row.said = said(&outcome);
        self.row.status = Some(outcome.end.status());
        self.row.success = outcome.end.is_success();
        (self.row.wall, self.row.cpu) = (outcome.wall, outcome.user + outcome.system);
        self.row.peak_kib = outcome.peak_kib;
        self.row.changes = status::of(shared.forks.store(), record.clone())?.changes;
        if self.row.success {
            self.score(&record)?;
            shared.succeeded(self.row.n);
        }
        Ok(())
    }

    /// Runs a command in the fork, where a signal or another's success can end it.
    fn run_in(&self, record: &Record, args: Vec<OsString>, output: OwnedFd, error: OwnedFd) -> Result<Outcome> {
        let mut job = self.shared.args.options.job(args, &self.shared.settings.run)?;
        for (name, value) in &self.row.variables {
            if !matches!(name.as_str(), "n" | "label") {
                job.environment.set(name, value);
            }
        }
        job.environment.set("TREEFORK_N", (self.row.n + 1).to_string());
        let null = File::open("/dev/null").context("cannot open", "/dev/null")?;
        job.stdio = [Some(null.into()), Some(output), Some(error)];
        if self.shared.stop.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Cancelled, "ended before it began"));
        }
        let mut target = target(&self.shared.forks, record)?;
        observe(&mut target, &self.shared.forks, record, &mut job.environment);
        let running = run::start(target, job)?;
        self.shared.began(self.row.n, running.handle());
        let outcome = running.wait(|_, _| {});
        self.shared.running.lock().remove(&self.row.n);
        let outcome = outcome?;
        journal::note(&self.shared.forks.store().fork(&record.id), "run", &said(&outcome));
        Ok(outcome)
    }

    /// Runs the score command; the last line that it prints is the score.
    fn score(&mut self, record: &Record) -> Result<()> {
        let Some(score) = &self.shared.args.score else { return Ok(()) };
        let mut printed = anonymous(self.shared)?;
        let args = vec!["sh".into(), "-c".into(), fill(score, &self.row.variables)];
        let outcome = self.run_in(record, args, duplicate(&printed)?, duplicate(&printed)?)?;
        let text = tail(&mut printed)?;
        let number = text.trim_end().lines().next_back().and_then(|line| line.trim().parse::<f64>().ok());
        self.row.score = number.filter(|number| outcome.end.is_success() && number.is_finite());
        if self.row.score.is_none() {
            self.row.said = format!("no score: {}", text.trim_end().lines().next_back().unwrap_or("nothing printed"));
        }
        Ok(())
    }

    /// Removes the fork where it has nothing to show.
    fn tidy(&mut self) -> Result<()> {
        let Some(record) = self.row.record.clone() else { return Ok(()) };
        let (args, forks) = (self.shared.args, &self.shared.forks);
        let keep = args.keep || self.shared.settings.run.keep;
        let keep = if self.row.success {
            keep || args.merge != super::Merge::None || changed(forks, &record)?
        } else {
            keep || args.keep_on_error || self.shared.settings.run.keep_on_error
        };
        if keep {
            if args.merge == super::Merge::None {
                // Else it is not decided yet.
                forks.settle_for_good(&record)?;
            }
            self.row.settled(Fate::Kept);
        } else {
            forks.remove(record.id.as_str(), true)?;
            self.row.settled(Fate::Removed);
        }
        Ok(())
    }

    /// Where the command's output goes: a file that was asked for, else one without a name.
    fn log(&self) -> Result<File> {
        let Some(dir) = &self.shared.args.output else { return anonymous(self.shared) };
        std::fs::create_dir_all(dir).context("cannot make the directory", dir)?;
        let path = dir.join(format!("{}.log", self.row.label));
        File::options().read(true).append(true).create(true).open(&path).context("cannot write to", &path)
    }
}

/// A file without a name, on the store's file system.
fn anonymous(shared: &Shared<'_>) -> Result<File> {
    let store = shared.forks.store().root();
    let unnamed = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
    let file = File::options().read(true).write(true).mode(0o600).custom_flags(unnamed).open(store);
    file.context("cannot make a temporary file in", store)
}

/// Another descriptor of the same open file, so that all writers append one after the other.
fn duplicate(file: &File) -> Result<OwnedFd> {
    Ok(file.try_clone().map_err(|e| Error::io("cannot duplicate a descriptor", e))?.into())
}

/// The end of what is in a file, as text.
fn tail(file: &mut File) -> Result<String> {
    let cannot = |e| Error::io("cannot read the command's output", e);
    let length = file.metadata().map_err(cannot)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).map_err(cannot)?;
    let mut bytes = vec![];
    file.take(TAIL).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
