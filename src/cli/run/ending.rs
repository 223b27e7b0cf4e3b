//! What becomes of a fork when its command has ended.
//!
//! | | no changes | success | failure |
//! |---|---|---|---|
//! | (default) | removed | kept, with a line that says how to go on | removed |
//! | `--keep-on-error` | removed | as above | kept |
//! | `--keep` | kept | kept | kept |

use clap::Args;

use super::super::output;
use crate::error::Result;
use crate::fork::{Forks, Record};
use crate::strategy::strategy;

#[derive(Args)]
pub(super) struct Ending {
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
}

impl Fate {
    /// The word in JSON.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Removed => "removed",
        }
    }
}

impl Ending {
    /// Keeps, merges or removes the fork of a command that is over.
    pub(super) fn settle(&self, forks: &Forks, record: &Record, success: bool) -> Result<Fate> {
        let keep = if success { self.keep || changed(forks, record)? } else { self.keep || self.keep_on_error };
        if !keep {
            // Nothing of the command is left that could use it.
            forks.remove(record.id.as_str(), true)?;
            return Ok(Fate::Removed);
        }
        output::note(&kept(record));
        Ok(Fate::Kept)
    }
}

/// Whether anything in the fork differs from its base; where that is not known cheaply, it may.
pub(super) fn changed(forks: &Forks, record: &Record) -> Result<bool> {
    let site = record.site(forks.store().root(), &forks.store().fork(&record.id));
    Ok(strategy(record.strategy).is_changed(&site)?.unwrap_or(true))
}

/// How to go on with a kept fork.
fn kept(record: &Record) -> String {
    let name = record.name();
    format!("the fork {name} is kept: `treefork diff {name}`, `treefork merge {name}`, `treefork remove {name}`")
}
