//! What becomes of a fork when its command has ended.
//!
//! | | no changes | success | failure |
//! |---|---|---|---|
//! | (default) | removed | kept, with a line that says how to go on | removed |
//! | `--merge` | removed | merged and removed; kept where the merge is refused | removed |
//! | `--keep-on-error` | removed | as above | kept |
//! | `--keep` | kept | kept | kept |

use std::time::Duration;

use clap::Args;

use super::super::merge::{carry_out, shown};
use super::super::output;
use crate::api::PreMerge;
use crate::config;
use crate::durable::Wait;
use crate::error::Result;
use crate::fork::{Forks, Record};
use crate::merge::Options;

#[derive(Args, Clone)]
pub(super) struct Ending {
    /// Merge the fork into its base when the command succeeds
    #[arg(long)]
    pub(super) merge: bool,
    /// Keep the fork, whatever happens
    #[arg(long)]
    pub(super) keep: bool,
    /// Keep the fork of a command that failed
    #[arg(long)]
    pub(super) keep_on_error: bool,
}

/// What became of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    Removed,
    /// Merged; gone unless it was to be kept.
    Merged,
    /// Kept since its merge was refused.
    Refused,
}

impl Fate {
    /// The word in JSON.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Removed => "removed",
            Fate::Merged => "merged",
            Fate::Refused => "refused",
        }
    }
}

impl Ending {
    /// The same with what is set in files.
    pub(super) fn with(&self, settings: &config::Run) -> Self {
        let (keep, keep_on_error) = (self.keep || settings.keep, self.keep_on_error || settings.keep_on_error);
        Self { merge: self.merge, keep, keep_on_error }
    }

    /// Keeps, merges or removes the fork of a command that is over.
    pub(super) fn settle(&self, forks: &Forks, record: &Record, success: bool) -> Result<Fate> {
        let keep = if success { self.keep || changed(forks, record)? } else { self.keep || self.keep_on_error };
        if !keep {
            if !success && changed(forks, record)? {
                output::note("the command failed, and what it changed is removed; --keep-on-error keeps it");
            }
            // Nothing of the command is left that could use it.
            forks.remove(record.id.as_str(), true)?;
            return Ok(Fate::Removed);
        }
        if success && self.merge && changed(forks, record)? {
            return merge(forks, record, self.keep);
        }
        forks.settle_for_good(record)?;
        output::note(&kept(record));
        Ok(Fate::Kept)
    }
}

/// How long a merge waits for another one into the same base.
const PATIENCE: Wait = Wait::For(Duration::from_secs(60));

/// Merges the fork. A refusal is said, and no error: the fork has everything.
pub(super) fn merge(forks: &Forks, record: &Record, keep: bool) -> Result<Fate> {
    let options = Options { keep, ..Options::default() };
    let done = match carry_out(forks, record, &options, PreMerge::Run(Some(rustix::stdio::stderr())), PATIENCE) {
        Ok(done) => done,
        Err(e) => {
            forks.settle_for_good(record)?;
            output::note(&format!("the merge failed: {e}"));
            output::note(&kept(record));
            return Ok(Fate::Refused);
        }
    };
    if done.merged {
        output::note(&format!(
            "merged {} into {:?}",
            output::counted(done.plan.entries.len(), "path"),
            record.base.path
        ));
        return Ok(Fate::Merged);
    }
    forks.settle_for_good(record)?;
    for conflict in &done.plan.conflicts {
        output::note(&format!("conflict: {} ({})", shown(&conflict.path), conflict.reason));
    }
    output::note(&kept(record));
    Ok(Fate::Refused)
}

/// Whether anything in the fork differs from its base; where that is not known cheaply, it may.
pub(super) fn changed(forks: &Forks, record: &Record) -> Result<bool> {
    Ok(forks.is_changed(record)?.unwrap_or(true))
}

/// How to go on with a kept fork.
fn kept(record: &Record) -> String {
    let (name, typed) = (record.name(), output::word(record.name()));
    format!("the fork {name} is kept: `treefork diff {typed}`, `treefork merge {typed}`, `treefork remove {typed}`")
}
