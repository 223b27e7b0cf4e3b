//! Making and removing forks: `create`, `remove`, and what deletes in the background.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{self, Context};
use super::prewarm;
use crate::api;
use crate::config::{self, Settings};
use crate::error::{Error, Kind, Result};
use crate::fork::{Created, Forks, Id, Label, Owner, Request, Store, status, trash};
use crate::server::this_program;
use crate::strategy::{Hide, Limits, Progress, Symlinks, Way, Wishes};

/// Arguments of `create`.
#[derive(Args)]
pub(super) struct Create {
    /// The directory to fork
    #[arg(default_value = ".", value_name = "BASE")]
    base: PathBuf,
    /// The fork's id, such as `uuidgen` prints: the same command again then answers with the same fork
    #[arg(long)]
    id: Option<String>,
    /// What to call the fork; unique among the forks of the store
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    label: Option<OsString>,
    /// Who will work in it
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    way: Choice,
    #[command(flatten)]
    quota: Quota,
    /// What to do with symbolic links [default: keep]
    #[arg(long, value_enum)]
    symlinks: Option<Links>,
    /// Bring uncommitted changes over (with --strategy worktree)
    #[arg(long)]
    dirty: bool,
    /// Never let gc reap it
    #[arg(long)]
    keep: bool,
    /// Fill the kernel's caches, and have git's index prepared, in the background
    #[arg(long)]
    prewarm: bool,
    /// The process that the fork belongs to [default: the one that called treefork]
    #[arg(long, value_name = "PID")]
    owner: Option<u32>,
}

/// What `create` prints as JSON.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    status: status::Status,
    /// The fork was there already, made for the same request.
    existed: bool,
}

/// The ways to make a fork, as options name them.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Wanted {
    /// The first of overlay, reflink and copy that works
    Auto,
    /// A FUSE mount over the base
    Overlay,
    /// Copies that share their blocks with the base
    Reflink,
    /// Plain copies
    Copy,
    /// A linked git work tree
    Worktree,
}

/// The option for the way to make a fork.
#[derive(Args, Clone, Copy)]
pub(super) struct Choice {
    /// How to make the fork [default: auto]
    #[arg(long, value_enum)]
    strategy: Option<Wanted>,
}

impl Choice {
    /// The one way that is asked for here or in the settings; `None` for the first that works.
    pub(super) fn way(self, settings: &Settings) -> Option<Way> {
        let set = match settings.strategy {
            None | Some(config::Wanted::Auto) => None,
            Some(config::Wanted::Way(way)) => Some(way),
        };
        self.strategy.map_or(set, Wanted::way)
    }
}

/// The options for what a fork may take on the disk.
#[derive(Args, Clone, Copy)]
pub(super) struct Quota {
    /// What the fork may take on the disk: 64K, 512M, 10G
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    max_size: Option<u64>,
    /// How many files, directories and links the fork may make or change
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_files: Option<u64>,
}

impl Quota {
    /// What is asked for here or in the settings.
    pub(super) fn limits(self, settings: &Settings) -> Limits {
        Limits {
            max_size: self.max_size.or(settings.limits.max_size),
            max_files: self.max_files.or(settings.limits.max_files),
        }
    }
}

impl Wanted {
    fn way(self) -> Option<Way> {
        match self {
            Wanted::Auto => None,
            Wanted::Overlay => Some(Way::Overlay),
            Wanted::Reflink => Some(Way::Reflink),
            Wanted::Copy => Some(Way::Copy),
            Wanted::Worktree => Some(Way::Worktree),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Links {
    /// They are kept; absolute ones into the base lead into the fork
    Keep,
    /// Those that lead outside are hidden
    Confine,
    /// They are left out
    Skip,
}

impl Create {
    pub(super) fn run(mut self, context: &Context) -> Result<u8> {
        // What is wrong with these is said before anything is looked at.
        let label = self.label.take().map(label).transpose()?;
        let id = self.id.take().as_deref().map(str::parse::<Id>).transpose()?;
        let prewarm = self.prewarm;
        let forks = Forks::open(context.store()?)?;
        let settings = context.settings(&forks.root_of(&self.base)?)?;
        let request = Request { label, id, ..self.request(&settings)? };
        let Created { record, existed } = api::create_fork(&forks, &request, &settings, Some(rustix::stdio::stderr()))?;
        // With it goes the line that says how far a copy is.
        drop(request);
        if existed {
            output::note(&format!("the fork {} was there already, made the same way", record.name()));
        }
        for advisory in &record.advisories {
            output::note(advisory);
        }
        if prewarm && record.strategy == Way::Overlay {
            prewarm::in_background(forks.store(), &record);
        }
        let path = record.path(&forks.store().fork(&record.id));
        if context.json {
            output::print_json(&Answer { status: status::of(forks.store(), record)?, existed })?;
        } else {
            output::print(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
        }
        Ok(0)
    }

    fn request(self, settings: &Settings) -> Result<Request> {
        // The command itself is gone in a moment; whoever called it is who will use the fork.
        let owner = match self.owner {
            Some(pid) => Owner::of(pid)?,
            None => rustix::process::getppid()
                .and_then(|pid| Owner::of(pid.as_raw_nonzero().get().unsigned_abs()).ok())
                .map_or_else(Owner::current, Ok)?,
        };
        let strategy = self.way.way(settings);
        if self.dirty && strategy != Some(Way::Worktree) {
            let what = "--dirty is for --strategy worktree: the other strategies bring uncommitted changes anyway";
            return Err(Error::new(Kind::Usage, what));
        }
        let symlinks = match self.symlinks {
            None => settings.symlinks.unwrap_or_default(),
            Some(Links::Keep) => Symlinks::Keep,
            Some(Links::Confine) => Symlinks::Confine,
            Some(Links::Skip) => Symlinks::Skip,
        };
        let wishes = Wishes {
            hide: Hide { symlinks, ..Hide::default() },
            limits: self.quota.limits(settings),
            dirty: self.dirty,
            progress: progress(),
            ..Wishes::default()
        };
        let request = Request::new(&self.base)?;
        Ok(Request { agent: self.agent, owner, strategy, wishes, keep: self.keep, ..request })
    }
}

/// A label from the command line.
pub(super) fn label(text: OsString) -> Result<Label> {
    let text = text.into_string().map_err(|text| {
        Error::new(Kind::Usage, format!("the label {text:?} is not UTF-8")).remedy("use letters, digits and dashes")
    })?;
    text.parse::<Label>().map_err(|e| e.remedy("use letters, digits and dashes"))
}

/// A line on a terminal that says how far a copy is, once it has taken a second.
fn progress() -> Option<Progress> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = indicatif::ProgressBar::new_spinner();
    let start = std::time::Instant::now();
    Some(Arc::new(move |entries, bytes| {
        if start.elapsed().as_secs() >= 1 {
            bar.set_message(format!("{entries} entries, {}", indicatif::HumanBytes(bytes)));
            bar.tick();
        }
        std::ops::ControlFlow::Continue(())
    }))
}

/// Arguments of `remove`.
#[derive(Args)]
pub(super) struct Remove {
    /// The forks: their ids, labels, or the beginning of either
    #[arg(required = true, value_name = "FORK")]
    forks: Vec<String>,
    /// Even if processes use it; what they do there then fails
    #[arg(long, short)]
    force: bool,
}

#[derive(Serialize)]
struct Removed {
    fork: String,
    removed: bool,
}

impl Remove {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let forks = Forks::open(context.store_of(&self.forks[0])?)?;
        if self.forks.len() > 1 {
            all_known(&forks, &self.forks)?;
        }
        let (mut done, mut failed) = (Vec::new(), None);
        for name in self.forks {
            match forks.remove(&name, self.force) {
                Ok(removed) => {
                    if !removed {
                        output::note(&format!("there is no fork {name} any more"));
                    }
                    done.push(Removed { fork: name, removed });
                }
                // The others are removed all the same; the last error is the one that decides.
                Err(e) => {
                    if let Some(earlier) = failed.replace(e) {
                        output::report(&earlier, false);
                    }
                }
            }
        }
        empty_trash_in_background(forks.store());
        if context.json && failed.is_none() {
            output::print_json(&done)?;
        }
        failed.map_or(Ok(0), Err)
    }
}

/// Each of several names has to mean a fork before any is removed: after a slip nothing is gone.
fn all_known(forks: &Forks, names: &[String]) -> Result<()> {
    // A whole id may be one of a fork that is gone already, which is what is wanted.
    let unknown = |name: &&String| match forks.find(name) {
        Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Ambiguous) && name.parse::<Id>().is_err() => Some(e),
        _ => None,
    };
    let mut unknown = names.iter().filter_map(|name| unknown(&name));
    match unknown.next() {
        Some(first) => {
            unknown.for_each(|more| {
                output::report(&more, false);
            });
            Err(Error::new(first.kind(), format!("{first}; nothing was removed")))
        }
        None => Ok(()),
    }
}

/// Has another process delete what is in the trash, so that nobody waits for it.
pub(super) fn empty_trash_in_background(store: &Store) {
    if !trash::has_work(store) {
        return;
    }
    let mut command = this_program();
    command.arg("--store").arg(store.root()).arg("empty-trash").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(e) = crate::sys::spawn_behind(&mut command) {
        // Not lost: the next removal, and gc, delete it.
        output::note(&format!("the trash is not being emptied: {e}"));
    }
}

/// Arguments of `empty-trash`, which `remove` starts in the background.
#[derive(Args)]
pub(super) struct EmptyTrash {}

impl EmptyTrash {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        crate::sys::leave_session();
        if let Some(store) = context.existing_store()? {
            trash::empty(&store)?;
        }
        Ok(0)
    }
}
