//! Forks for dispatchers: one for each task, found again by the task.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::forker::exact;
use super::{CancelToken, Cleanup, join};
use crate::error::{Error, Kind, Result};
use crate::fork::gc::{Decision, Policy};
use crate::fork::{Forks, Record, Request, Store};

/// How long what gc moved to the trash can be restored.
const TRASH_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Makes one fork for each task.
#[derive(Clone, Debug)]
pub struct Manager {
    store: PathBuf,
}

/// The fork of a task.
#[derive(Debug)]
pub struct Managed {
    /// Where to work.
    pub workdir: PathBuf,
    /// Takes the fork away; also when the last clone of it is dropped. [`Cleanup::release`] lets it live on.
    pub cleanup: Cleanup,
    /// What is weaker than one could wish, in sentences; empty where nothing is.
    pub advisory: String,
}

impl Manager {
    /// A manager whose forks are in this store [default: the user's].
    pub fn new(store: Option<&Path>) -> Result<Self> {
        Ok(Self { store: Store::locate(store)? })
    }

    /// A fork of `repo` for a task, with a git directory of its own. The fork's label is the task's id.
    ///
    /// # Errors
    /// `Usage` for an empty id or one that is no label (a slash, a line break, more than 100 bytes), `Exists` where the
    /// task has a fork already.
    pub fn create(&self, repo: &Path, task_id: &str, agent: &str, cancel: &CancelToken) -> Result<Managed> {
        let label = exact(task_id)?;
        cancel.check()?;
        let mut request = Request::new(repo)?;
        request.label = Some(label);
        request.agent = Some(agent.to_owned()).filter(|agent| !agent.is_empty());
        request.wishes.cancel = cancel.clone();
        let forks = join::open(&self.store)?;
        let record = forks.create(&request)?.record;
        let cleanup = Cleanup::new(forks.clone(), record.id.clone());
        cancel.check()?;
        let workdir = record.path(&forks.store().fork(&record.id));
        Ok(Managed { workdir, cleanup, advisory: record.advisories.join("; ") })
    }

    /// What is written down about the fork of a task: its marker, `fork.json`.
    pub fn marker(&self, task_id: &str) -> Result<Record> {
        let store = Store::open_existing(&self.store)?;
        let store = store.ok_or_else(|| Error::new(Kind::NotFound, "there is no store at").at(&self.store))?;
        crate::fork::find(&store, task_id)
    }

    /// Reaps the forks whose process is gone, that are older than `min_age` and that nobody needs: each decision with
    /// its reason. Forks with changes that were never merged are kept.
    pub fn gc(&self, min_age: Duration) -> Result<Vec<Decision>> {
        let Some(store) = Store::open_existing(&self.store)? else { return Ok(vec![]) };
        Forks::open(store)?.gc(&Policy { min_age, unmerged: false, trash_age: TRASH_AGE, dry_run: false })
    }
}
