//! What is written down about a fork while a strategy makes it.
//!
//! An overlay is complete before it is mounted: mounting it is what any later command can do again. So its record goes to the
//! disk in the time that the server takes to mount it.

use std::path::Path;

use super::forks::fault_point;
use super::{Record, State};
use crate::error::Result;
use crate::strategy::{Chosen, Hide, Records, Symlinks, Way};

/// The record of a fork that is being made, and the directory it is in.
pub(super) struct Making<'a> {
    pub(super) record: &'a mut Record,
    pub(super) dir: &'a Path,
}

impl Records for Making<'_> {
    fn complete(&mut self, chosen: &Chosen) -> Result<()> {
        fault_point("fork.made")?;
        let record = &mut *self.record;
        record.strategy = chosen.way;
        record.advisories.clone_from(&chosen.made.advisories);
        if let Some(refusal) = chosen.refusals.first() {
            let what =
                format!("made as a {}: {} is not possible here: {}", chosen.way, refusal.strategy, refusal.reason);
            record.advisories.push(what);
        }
        record.advisories.extend(left_out(&record.hide, record.strategy));
        record.refusals.clone_from(&chosen.refusals);
        record.complete(self.dir)
    }

    fn begin_anew(&mut self) -> Result<()> {
        if self.record.state == State::Creating {
            return Ok(());
        }
        self.record.state = State::Creating;
        self.record.write(self.dir)
    }
}

/// The sentence about what of the base is left out, as asked.
fn left_out(hide: &Hide, way: Way) -> Option<String> {
    let links = match hide.symlinks {
        Symlinks::Keep => None,
        Symlinks::Confine => Some("symbolic links that lead out of the base"),
        Symlinks::Skip => Some("symbolic links of the base"),
    };
    let patterns = (!hide.exclude.is_empty()).then(|| format!("what fits {}", hide.exclude.join(", ")));
    let what: Vec<&str> = links.into_iter().chain(patterns.as_deref()).collect();
    let what = (!what.is_empty()).then(|| what.join(" and "))?;
    let git = if way == Way::Worktree { "" } else { "; git takes what it tracks of that for deleted" };
    Some(format!("left out, as asked: {what}{git}"))
}
