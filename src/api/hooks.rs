//! The commands that settings name: in a new fork, and in one that is about to be merged.
//!
//! Each is a line for `/bin/sh` and runs in the root of the fork, isolated as commands of `run` are: the base is out of its
//! reach. Where no isolation is to be had it is refused, never run without. The first one that fails is the last.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;

use super::runner::target;
use crate::config::Settings;
use crate::durable::CancelToken;
use crate::error::{Context, Error, Kind, Result};
use crate::fork::{Created, Forks, Record, Request, journal};
use crate::run::{self, Job};

/// Whether a fork's `pre_merge` commands run before it is merged.
#[derive(Clone, Copy, Debug)]
pub enum PreMerge<'a> {
    /// They run, and write to this; without one, the end of what they wrote stands in the error where one fails.
    Run(Option<BorrowedFd<'a>>),
    /// They do not run.
    Skip,
}

/// Makes a fork as the settings of its base want it: without what they exclude, and with their `post_create` commands
/// done, which write to `output`. Where one of those fails there is no fork.
///
/// # Errors
/// As [`Forks::create`]; `Hook` for a command that failed, `Unavailable` where it cannot be isolated.
pub fn create_fork(
    forks: &Forks,
    request: &Request,
    settings: &Settings,
    output: Option<BorrowedFd<'_>>,
) -> Result<Created> {
    let mut request = request.clone();
    request.wishes.hide.exclude.extend_from_slice(&settings.exclude);
    request.pre_merge.extend_from_slice(&settings.pre_merge);
    let mut created = forks.create(&request)?;
    // One that was there already has had its own, unless it was never finished.
    if settings.post_create.is_empty() || !created.record.post_create.is_empty() {
        return Ok(created);
    }
    // Held while they run: who asks for the same fork meanwhile waits, and finds it set up or gone.
    let Some(mut locked) = forks.lock(&created.record.id, "post_create")? else {
        return Err(Error::new(Kind::NotFound, format!("the fork {} is gone", created.record.name())));
    };
    if locked.record.post_create.is_empty() {
        let hook = Hook { forks, record: &locked.record, name: "post_create", output, cancel: &request.wishes.cancel };
        if let Err(e) = hook.run(&settings.post_create) {
            forks.finish_removal(locked)?;
            return Err(e);
        }
        locked.record.post_create.clone_from(&settings.post_create);
        locked.record.write(&locked.dir)?;
    }
    created.record = locked.record.clone();
    Ok(created)
}

/// Runs the commands that decide whether a fork may be merged.
pub(super) fn pre_merge(forks: &Forks, record: &Record, how: PreMerge<'_>, cancel: &CancelToken) -> Result<()> {
    match how {
        PreMerge::Run(output) if !record.pre_merge.is_empty() => {
            forks.ready(record.id.as_str())?;
            Hook { forks, record, name: "pre_merge", output, cancel }.run(&record.pre_merge)
        }
        PreMerge::Run(_) | PreMerge::Skip => Ok(()),
    }
}

/// A point in the life of a fork at which commands run.
struct Hook<'a> {
    forks: &'a Forks,
    record: &'a Record,
    name: &'static str,
    output: Option<BorrowedFd<'a>>,
    cancel: &'a CancelToken,
}

impl Hook<'_> {
    fn run(&self, commands: &[String]) -> Result<()> {
        commands.iter().try_for_each(|command| self.one(command))
    }

    fn one(&self, command: &str) -> Result<()> {
        self.cancel.check()?;
        let kept = if self.output.is_none() { Some(unnamed()?) } else { None };
        let to = || -> Result<OwnedFd> {
            let fd = self.output.or(kept.as_ref().map(AsFd::as_fd)).expect("one of the two is there");
            fd.try_clone_to_owned().map_err(|e| Error::io("cannot duplicate a descriptor", e))
        };
        let null = File::open("/dev/null").context("cannot open", "/dev/null")?;
        let mut job = Job {
            args: ["/bin/sh", "-c", command].map(OsString::from).into(),
            cwd: Some(self.record.base.path.clone()),
            stdio: [Some(null.into()), Some(to()?), Some(to()?)],
            ..Job::default()
        };
        job.environment.set("TREEFORK_HOOK", self.name);
        let said = |how: &str| format!("the {} command {command:?} {how}", self.name);
        let running = run::start(target(self.forks, self.record)?, job).map_err(|e| {
            let remedy = "--no-config goes on without it";
            Error::new(e.kind(), said("cannot be run in the fork")).because(e).remedy(remedy)
        })?;
        let handle = running.handle();
        let ended = {
            let _cancelling = self.cancel.on_cancel(move || handle.end());
            running.wait(|_, _| {})
        };
        self.cancel.check()?;
        let end = ended?.end;
        let outcome = format!("{command}: exit status {}", end.status());
        journal::note(&self.forks.store().fork(&self.record.id), self.name, &outcome);
        if end.is_success() {
            return Ok(());
        }
        let error = Error::new(Kind::Hook, said(&format!("failed with exit status {}", end.status())));
        Err(match kept.map(last_words).transpose()?.filter(|words| !words.is_empty()) {
            Some(words) => error.because(words),
            None => error,
        })
    }
}

/// A file for what a command writes.
fn unnamed() -> Result<File> {
    let fd = rustix::fs::memfd_create("treefork-hook", MemfdFlags::CLOEXEC);
    fd.map(File::from).map_err(|e| Error::io("cannot make a temporary file", e))
}

/// The end of what was written.
fn last_words(mut file: File) -> Result<String> {
    const END: u64 = 2000;
    let cannot = |e| Error::io("cannot read the command's output", e);
    let length = file.metadata().map_err(cannot)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END))).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(cannot)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
