//! Bringing the changes of a fork back into its parent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::{CancelToken, Environment, EnvironmentMerger, Merged, PreMerge, join};
use crate::durable::Wait;
use crate::error::{Context, Error, Kind, Result};
use crate::fork::Record;
use crate::merge::{Omission, Options, Plan};

/// How long a merge waits for one into the same parent.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a merge that waits for its turn does not look whether it was cancelled.
const GLANCE: Duration = Duration::from_millis(20);

/// Merges forks of treefork's.
#[derive(Clone, Debug)]
pub struct Merger {
    options: Options,
    wait: Wait,
}

impl Default for Merger {
    /// A merger that leaves out what git ignores, deletes nothing that git does not track, and waits for other merges.
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Merger {
    /// A merger with these options; `keep` and `into` are its own business.
    pub fn new(options: Options) -> Self {
        Self { options, wait: Wait::For(PATIENCE) }
    }

    /// Waits at most so long for another merge into the same parent.
    #[must_use]
    pub fn wait(self, at_most: Duration) -> Self {
        Self { wait: Wait::For(at_most), ..self }
    }
}

impl EnvironmentMerger for Merger {
    fn merge(&self, child: &Environment, parent: &Environment, cancel: &CancelToken) -> Result<Merged> {
        cancel.check()?;
        let Some(fork) = child.fork() else {
            return Err(
                Error::new(Kind::Usage, "no fork of treefork's, so that it cannot be merged:").at(child.root()?)
            );
        };
        let forks = join::open(&fork.store)?;
        let record = forks.find(fork.id.as_str())?;
        // The child stays until its cleanup, as the caller was promised.
        let into = target(&record, parent.root()?)?;
        let options = Options { keep: true, into, cancel: cancel.clone(), ..self.options.clone() };
        let landing = join::merge_fork(&forks, &record, &options, PreMerge::Run(None), self.wait, |_| {});
        let kept = record.path(&forks.store().fork(&record.id));
        match landing {
            Ok(landing) if landing.merged => Ok(merged(&landing.plan)),
            Ok(landing) => Err(refusal(&landing.plan, &kept)),
            Err(e) => Err(Error::new(e.kind(), "the merge failed; the changes are in the fork").at(kept).because(e)),
        }
    }
}

/// Where to merge, where that is not the base: the root of the tree that corresponds to the root of the fork.
fn target(record: &Record, parent: &Path) -> Result<Option<PathBuf>> {
    let parent = std::fs::canonicalize(parent).context("cannot resolve the parent", parent)?;
    if parent == record.base.path.join(&record.subdir) {
        return Ok(None);
    }
    let below = record.subdir.components().count();
    match parent.ancestors().nth(below) {
        Some(root) if parent.ends_with(&record.subdir) => Ok(Some(root.to_path_buf())),
        _ => {
            let what = format!("the fork is one of {:?} below its base, which the parent is not:", record.subdir);
            Err(Error::new(Kind::Usage, what).at(parent))
        }
    }
}

fn merged(plan: &Plan) -> Merged {
    let mut notes = plan.git.clone();
    let ignored = plan.left_out.iter().filter(|left| left.why == Omission::Ignored).count();
    if ignored > 0 && !plan.entries.is_empty() {
        notes.push(format!("{ignored} changed paths are ignored by git and were left out"));
    }
    Merged { changed: plan.entries.iter().map(|entry| entry.path.as_path().to_path_buf()).collect(), notes }
}

fn refusal(plan: &Plan, kept: &Path) -> Error {
    let shown = plan.conflicts.iter().take(3).map(|c| format!("{:?}: {}", c.path.as_path(), c.reason));
    let mut what = format!("{} conflicts ({}", plan.conflicts.len(), shown.collect::<Vec<_>>().join("; "));
    what += if plan.conflicts.len() > 3 { "; ...); " } else { "); " };
    Error::new(Kind::Conflict, what + "nothing was written, the changes are in the fork").at(kept)
}

/// Merges one at a time in this process, whichever merger it wraps. (Merges of treefork's own exclude each other for
/// one parent anyway, across processes too.)
#[derive(Debug, Default)]
pub struct SerializingMerger<M> {
    inner: M,
    /// Lock order: before everything else, held for a whole merge.
    one: Mutex<()>,
}

impl<M: EnvironmentMerger> SerializingMerger<M> {
    /// Wraps a merger.
    pub fn new(inner: M) -> Self {
        Self { inner, one: Mutex::new(()) }
    }
}

impl<M: EnvironmentMerger> EnvironmentMerger for SerializingMerger<M> {
    fn merge(&self, child: &Environment, parent: &Environment, cancel: &CancelToken) -> Result<Merged> {
        // A lock that one can stop waiting for.
        let _one = loop {
            cancel.check()?;
            if let Some(one) = self.one.try_lock_for(GLANCE) {
                break one;
            }
        };
        self.inner.merge(child, parent, cancel)
    }
}
