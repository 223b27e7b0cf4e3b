//! `fanout`: one command in many forks of one base.
//!
//! Each fork is made when its turn comes, runs the command with its number and its row of the matrix, and is kept where
//! it has something to show. `--merge first` ends the others as soon as one has succeeded; `--merge best` waits for all
//! and takes the highest score. Ctrl-C ends all and leaves no fork.

mod matrix;
mod show;
mod task;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use clap::{Args, ValueEnum};
use parking_lot::Mutex;

use super::super::create;
use super::super::output::Context;
use super::ending::{self, Fate};
use super::options::Options;
use super::{OWN_FAILURE, failure, signals};
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::fork::{Forks, Id, Label};
use crate::run::{Handle, fan_out};
use matrix::Matrix;
use show::Progress;
use task::{Row, Task};

/// Arguments of `fanout`.
#[derive(Args)]
pub(in super::super) struct Fanout {
    /// The directory to fork
    #[arg(default_value = ".", value_name = "BASE")]
    base: PathBuf,
    /// How many forks; with --matrix, how many for each of its rows
    #[arg(short, long = "number", value_name = "N", default_value_t = 1)]
    number: usize,
    /// How many at once [default: one for each processor]
    #[arg(short, long, value_name = "J")]
    jobs: Option<usize>,
    /// A JSON array of objects: one row of variables for each fork
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// What to call the forks: this, a dash and the number
    #[arg(long, value_name = "NAME")]
    label: Option<OsString>,
    /// Which fork to merge at the end
    #[arg(long, value_enum, default_value_t = Merge::None)]
    merge: Merge,
    /// A shell command that prints a fork's score, run in every fork that succeeded
    #[arg(long, value_name = "COMMAND")]
    score: Option<OsString>,
    /// Keep the forks of commands that failed
    #[arg(long)]
    keep_on_error: bool,
    /// Keep all forks that succeeded, also those that changed nothing or were not chosen
    #[arg(long)]
    keep: bool,
    /// Write the output of each fork to a file here
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    way: create::Choice,
    #[command(flatten)]
    quota: create::Quota,
    #[command(flatten)]
    options: Options,
    // clap takes an n in braces for a line break, so that it cannot be shown as it is to be written.
    /// The command and its arguments; names in braces, as {label}, stand for their values: label, n (the number) and the
    /// names of the matrix
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Merge {
    /// None
    None,
    /// The first that succeeds; the others are ended
    First,
    /// The one with the highest score
    Best,
}

/// What the workers share.
struct Shared<'a> {
    args: &'a Fanout,
    forks: Forks,
    settings: Settings,
    prefix: String,
    matrix: Matrix,
    stop: Arc<AtomicBool>,
    /// The commands that run now, by number.
    running: Arc<Mutex<HashMap<usize, Handle>>>,
    /// The number of the first that succeeded, where that decides.
    first: AtomicUsize,
    progress: Progress,
}

const NOBODY: usize = usize::MAX;

impl Fanout {
    pub(in super::super) fn run(self, context: &Context) -> Result<u8> {
        Ok(self.carry_out(context).unwrap_or_else(|e| failure(&e, context)))
    }

    fn carry_out(&self, context: &Context) -> Result<u8> {
        if self.merge == Merge::Best && self.score.is_none() {
            return Err(Error::new(Kind::Usage, "--merge best needs a --score to compare"));
        }
        let matrix = Matrix::load(self.matrix.as_deref())?;
        let count = matrix.rows() * self.number;
        if count == 0 {
            return Err(Error::new(Kind::Usage, "there is nothing to do: no forks"));
        }
        let jobs = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let forks = Forks::open(context.store()?)?;
        let shared = Shared {
            args: self,
            settings: context.settings(&forks.root_of(&self.base)?)?,
            forks,
            prefix: self.prefix()?,
            matrix,
            stop: Arc::default(),
            running: Arc::default(),
            first: AtomicUsize::new(NOBODY),
            progress: Progress::new(count),
        };
        let interrupted = shared.end_all_on_signals()?;
        let mut rows: Vec<Row> = fan_out(count, jobs, &shared.stop, |n| Task::new(&shared, n).row())
            .into_iter()
            .enumerate()
            .map(|(n, row)| row.unwrap_or_else(|| Task::new(&shared, n).not_begun()))
            .collect();
        shared.progress.finish();
        let signal = interrupted.load(Ordering::Relaxed);
        let status = if signal == 0 { shared.choose(&mut rows)? } else { shared.remove_all(&mut rows) };
        create::empty_trash_in_background(shared.forks.store());
        show::results(&rows, context)?;
        if signal != 0 {
            signals::die_of(signal);
        }
        Ok(status)
    }

    /// What the labels of the forks begin with.
    fn prefix(&self) -> Result<String> {
        match &self.label {
            Some(label) => Ok(create::label(label.clone())?.to_string()),
            None => Ok(format!("fan-{}", &Id::random()?.as_str()[..4])),
        }
    }
}

impl Shared<'_> {
    fn label(&self, n: usize) -> Result<Label> {
        format!("{}-{}", self.prefix, n + 1).parse()
    }

    /// On a signal nothing is begun any more and everything that runs is ended. The signal's number, once there is one.
    fn end_all_on_signals(&self) -> Result<Arc<AtomicI32>> {
        let signal = Arc::new(AtomicI32::new(0));
        let (caught, stop, running) = (signal.clone(), self.stop.clone(), self.running.clone());
        signals::listen(&signals::ENDING, move |signal| {
            caught.store(signal.signal, Ordering::Relaxed);
            end(&stop, &running);
        })?;
        Ok(signal)
    }

    /// A command runs. Where all has been ended meanwhile, it is too.
    fn began(&self, n: usize, command: Handle) {
        let mut running = self.running.lock();
        if self.stop.load(Ordering::SeqCst) {
            command.end();
        }
        running.insert(n, command);
    }

    /// A command has succeeded. Where the first one decides, it ends the others.
    fn succeeded(&self, n: usize) {
        if self.args.merge == Merge::First
            && self.first.compare_exchange(NOBODY, n, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            end(&self.stop, &self.running);
        }
    }

    /// Merges the one that is to be merged, and removes those that were not chosen. The exit status.
    fn choose(&self, rows: &mut [Row]) -> Result<u8> {
        let winner = match self.args.merge {
            Merge::None => return Ok(u8::from(rows.iter().any(|row| !row.success))),
            Merge::First => Some(self.first.load(Ordering::SeqCst)).filter(|&n| n != NOBODY),
            Merge::Best => {
                let scored = rows.iter().enumerate().filter(|(_, row)| row.success);
                let scored = scored.filter_map(|(n, row)| Some((n, row.score?)));
                // Of equals the one that comes first.
                scored.rev().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(n, _)| n)
            }
        };
        let mut status = u8::from(winner.is_none());
        for (n, row) in rows.iter_mut().enumerate() {
            let Some(record) = row.record.clone() else { continue };
            if Some(n) == winner {
                let fate = ending::merge(&self.forks, &record, self.args.keep)?;
                status = if fate == Fate::Refused { OWN_FAILURE } else { status };
                row.settled(fate);
            } else if row.success && !self.args.keep {
                self.forks.remove(record.id.as_str(), true)?;
                row.settled(Fate::Removed);
            } else {
                self.forks.settle_for_good(&record)?;
            }
        }
        Ok(status)
    }

    /// After a signal nothing stays.
    fn remove_all(&self, rows: &mut [Row]) -> u8 {
        for row in rows {
            let Some(record) = row.record.clone() else { continue };
            match self.forks.remove(record.id.as_str(), true) {
                Ok(_) => row.settled(Fate::Removed),
                Err(e) => super::super::output::note(&format!("the fork {} stays: {e}", record.name())),
            }
        }
        OWN_FAILURE
    }
}

fn end(stop: &AtomicBool, running: &Mutex<HashMap<usize, Handle>>) {
    // Under the lock: whoever has begun a command looks at `stop` under it, too.
    let running = running.lock();
    stop.store(true, Ordering::SeqCst);
    running.values().for_each(Handle::end);
}
