//! Making forks as environments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::environment::ForkOf;
use super::{
    CancelToken, Cleanup, CommandRunner, Directory, Environment, EnvironmentForker, Fork, Isolated, Workspace, caveat,
    join,
};
use crate::error::{Error, Kind, Result};
use crate::fork::{Forks, Id, LABEL_MAX, Label, Record, Request, Store};
use crate::git::{Git, Repo};
use crate::strategy::{Limits, Way};

/// Makes a runner for the root of a fork; `None` for a fork without a shell.
type RunnerFactory = dyn Fn(&Path) -> Result<Option<Arc<dyn CommandRunner>>> + Send + Sync;
/// Opens the root of a fork as the host's kind of workspace.
type WorkspaceFactory = dyn Fn(&Path) -> Result<Arc<dyn Workspace>> + Send + Sync;

/// Makes forks of directories. Safe to share among threads; clones share everything.
#[derive(Clone)]
pub struct Forker {
    store: PathBuf,
    options: Builder,
}

/// How a [`Forker`] is to make forks.
#[derive(Clone, Default)]
pub struct Builder {
    store: Option<PathBuf>,
    force_copy: bool,
    dirty_overlay: bool,
    limits: Limits,
    runner: Runner,
    workspace: Option<Arc<WorkspaceFactory>>,
}

#[derive(Clone, Default)]
enum Runner {
    #[default]
    None,
    Isolated,
    Host(Arc<RunnerFactory>),
}

impl Builder {
    /// Makes forks that stand for themselves, with a `.git` of their own: an overlay, else reflinks, else copies.
    ///
    /// Without this, callers are taken to be readers: the fork of a git base is a linked work tree of its `HEAD`, which
    /// shares the repository, and everything else is forked as with this.
    #[must_use]
    pub fn force_copy(mut self) -> Self {
        self.force_copy = true;
        self
    }

    /// Brings uncommitted changes into linked work trees. Every other kind of fork has them anyway.
    #[must_use]
    pub fn dirty_overlay(mut self) -> Self {
        self.dirty_overlay = true;
        self
    }

    /// Limits what each fork may take on the disk, in bytes. What would go beyond it fails in the fork with `EDQUOT`.
    ///
    /// Overlays keep limits, and nothing else does: where no overlay can be made, or a linked work tree would be (see
    /// [`force_copy`](Self::force_copy)), there is no fork but an error.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.limits.max_size = Some(bytes);
        self
    }

    /// Limits how many objects each fork may make or change: files, directories, links. As of [`max_size`](Self::max_size).
    #[must_use]
    pub fn max_files(mut self, files: u64) -> Self {
        self.limits.max_files = Some(files);
        self
    }

    /// Gives each fork the runner that this makes for its root, once for each fork; `None` for no shell.
    #[must_use]
    pub fn runner(
        mut self,
        factory: impl Fn(&Path) -> Result<Option<Arc<dyn CommandRunner>>> + Send + Sync + 'static,
    ) -> Self {
        self.runner = Runner::Host(Arc::new(factory));
        self
    }

    /// Gives each fork treefork's own runner, which keeps commands from the base: [`Isolated`].
    #[must_use]
    pub fn isolated_runner(mut self) -> Self {
        self.runner = Runner::Isolated;
        self
    }

    /// Keeps the forks in a store in this directory.
    #[must_use]
    pub fn temp_base(self, dir: impl Into<PathBuf>) -> Self {
        self.store(dir.into().join("treefork"))
    }

    /// Keeps the forks in this store [default: the user's, which the command line uses, too].
    #[must_use]
    pub fn store(mut self, store: impl Into<PathBuf>) -> Self {
        self.store = Some(store.into());
        self
    }

    /// Opens the root of each fork with this [default: as a [`Directory`]].
    #[must_use]
    pub fn workspace(mut self, factory: impl Fn(&Path) -> Result<Arc<dyn Workspace>> + Send + Sync + 'static) -> Self {
        self.workspace = Some(Arc::new(factory));
        self
    }

    /// The forker. Nothing is made or started before the first fork.
    pub fn build(self) -> Result<Forker> {
        Ok(Forker { store: Store::locate(self.store.as_deref())?, options: self })
    }
}

impl Forker {
    /// A forker yet to be described.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where the forks are kept.
    pub fn store(&self) -> &Path {
        &self.store
    }

    fn request(&self, base: &Path) -> Result<Request> {
        let mut request = Request::new(base)?;
        request.wishes.limits = self.options.limits;
        if !self.options.force_copy && has_commit(base)? {
            request.strategy = Some(Way::Worktree);
            request.wishes.dirty = self.options.dirty_overlay;
        }
        Ok(request)
    }

    fn environment(&self, forks: &Forks, record: &Record) -> Result<Environment> {
        let root = record.path(&forks.store().fork(&record.id));
        let workspace = match &self.options.workspace {
            Some(open) => open(&root)?,
            None => Arc::new(Directory(root.clone())),
        };
        let runner = match &self.options.runner {
            Runner::None => None,
            Runner::Isolated => {
                Some(Arc::new(Isolated::new(forks.clone(), record.id.clone())) as Arc<dyn CommandRunner>)
            }
            Runner::Host(factory) => factory(&root)?,
        };
        let fork = ForkOf { store: forks.store().root().to_path_buf(), id: record.id.clone() };
        Ok(Environment::new(workspace, runner).of_fork(fork))
    }
}

impl EnvironmentForker for Forker {
    fn fork(&self, base: &Environment, label: &str, cancel: &CancelToken) -> Result<Fork> {
        cancel.check()?;
        let mut request = self.request(base.root()?)?;
        request.label = sanitized(label);
        request.wishes.cancel = cancel.clone();
        let forks = join::open(&self.store)?;
        let created = match forks.create(&request) {
            Err(e) if e.kind() == Kind::Exists && request.label.is_some() => {
                request.label = request.label.map(|label| unique(&label)).transpose()?;
                forks.create(&request)?
            }
            other => other?,
        };
        let record = created.record;
        // From here on whatever fails takes the fork away again.
        let cleanup = Cleanup::new(forks.clone(), record.id.clone());
        cancel.check()?;
        let environment = self.environment(&forks, &record)?;
        let isolated = matches!(self.options.runner, Runner::Isolated);
        let caveat = caveat(&record).filter(|_| isolated).map(str::to_owned);
        let advisories: Vec<String> = record.advisories.iter().cloned().chain(caveat).collect();
        Ok(Fork { environment, cleanup, advisory: advisories.join("; ") })
    }
}

/// Whether a directory belongs to a git repository that has something to check out.
fn has_commit(dir: &Path) -> Result<bool> {
    match Repo::discover(dir) {
        // The forks' own check of the base says it better.
        Err(e) if e.kind() == Kind::Io => Ok(false),
        Ok(Some(repo)) => Ok(Git::new(&repo)?.head()?.commit.is_some()),
        other => other.map(|_| false),
    }
}

/// The label that comes closest to a hint; `None` where nothing of it is left.
pub(super) fn sanitized(hint: &str) -> Option<Label> {
    let plain: String = hint.chars().map(|c| if c == '/' || c.is_control() { '-' } else { c }).collect();
    // Leaves room for what makes it unique.
    let end = (0..=plain.len().min(LABEL_MAX - 10)).rev().find(|&end| plain.is_char_boundary(end))?;
    let short = &plain[..end];
    short.trim_matches(|c: char| c == '-' || c == '.' || c.is_whitespace()).parse().ok()
}

/// The same label with something random after it.
fn unique(label: &Label) -> Result<Label> {
    format!("{label}-{}", Id::random()?).parse()
}

/// A label for a task: nothing is changed about it.
pub(super) fn exact(task: &str) -> Result<Label> {
    if task.trim().is_empty() {
        return Err(Error::new(Kind::Usage, "the task has no id"));
    }
    task.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_become_labels() {
        let label = |hint: &str| sanitized(hint).map(|label| label.to_string());
        assert_eq!(label("try the other parser"), Some("try the other parser".into()));
        assert_eq!(label("../a/b\n"), Some("a-b".into()));
        assert_eq!(label("feature/x"), Some("feature-x".into()));
        assert_eq!(label(" -- "), None);
        assert_eq!(label(""), None);
        let long = sanitized(&"ü".repeat(300)).expect("a short one");
        assert!(unique(&long).expect("fits").as_str().starts_with("üü"));
    }
}
