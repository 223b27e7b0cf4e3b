//! How a fork gets its files: one trait, four ways, and the order in which `auto` tries them.
//!
//! A strategy fills a [`Site`] (a fork's directory in the store) from a base and takes it away again. It promises what
//! its [`Guarantees`] say, as data, so that a caller and `show` can tell what they got. Nothing degrades in silence:
//! whatever `auto` passed over is recorded with the reason ([`Refusal`]).

mod copied;
mod copy;
pub mod elsewhere;
mod overlay;
mod reflink;
mod worktree;

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::copy::Copy;
pub use self::overlay::Overlay;
pub use self::reflink::Reflink;
pub use self::worktree::Worktree;
pub use crate::copy::Symlinks;
use crate::durable::CancelToken;
use crate::error::{Error, Kind, Result};
pub use crate::layer::hidden::Hide;
pub use crate::overlay::Limits;
use crate::server::refuse_any_inside;
use crate::sys::{Ident, Time};

/// The ways to make a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// A FUSE overlay mount: O(1), follows drift of the base and names it.
    Overlay,
    /// Files that share their blocks with the base's.
    Reflink,
    /// Plain copies.
    Copy,
    /// `git worktree add`: shares the repository of the base.
    Worktree,
}

impl Way {
    /// What `auto` tries, best first. Never `worktree`: it shares the base's `.git`, so one has to ask for it.
    pub const AUTO: [Way; 3] = [Way::Overlay, Way::Reflink, Way::Copy];

    /// The word for it on the command line and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Overlay => "overlay",
            Way::Reflink => "reflink",
            Way::Copy => "copy",
            Way::Worktree => "worktree",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Way {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        let all = [Way::Overlay, Way::Reflink, Way::Copy, Way::Worktree];
        all.into_iter().find(|way| way.as_str() == word).ok_or_else(|| {
            Error::new(Kind::Usage, format!("{word:?} is no strategy: overlay, reflink, copy or worktree"))
        })
    }
}

/// What a fork made one way may be relied on for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Guarantees {
    /// The fork keeps its picture of the base whatever is merged into it.
    pub frozen_against_merges: bool,
    /// The fork keeps its picture of the base whatever anybody does to it.
    pub frozen_against_drift: bool,
    /// The fork has a git directory of its own.
    pub own_git: bool,
    /// Inode numbers and times are the base's, so that git re-reads nothing.
    pub same_identity: bool,
    /// What making one costs, in words: "O(1)", "O(files)".
    pub cost: &'static str,
}

/// Called now and then while files are copied, with the entries and bytes done so far; breaking off cancels the copy.
pub type Progress = Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>;

/// How the caller wants the fork.
#[derive(Clone, Default)]
pub struct Wishes {
    /// What to leave out of the base.
    pub hide: Hide,
    /// What the fork may take on the disk. Means the overlay strategy or nothing.
    pub limits: Limits,
    /// Bring the uncommitted changes over (worktree only).
    pub dirty: bool,
    /// Mount nothing: whoever uses the fork mounts it in a namespace of its own and hands the device to the server
    /// ([`Client::attach`](crate::server::Client::attach) with [`Overlay::spec`]). For users who may not mount outside
    /// of one. Means the overlay strategy or nothing.
    pub private_mount: bool,
    /// Who wants to hear how far a copy is.
    pub progress: Option<Progress>,
    /// Cancelling this ends the making of the fork.
    pub cancel: CancelToken,
}

/// Where a fork is made: its base and its own directory in the store, which exists and is private to the fork.
#[derive(Clone, Debug)]
pub struct Site {
    /// The root of the tree that is forked; absolute, without symbolic links.
    pub base: PathBuf,
    /// Which directory that has to be.
    pub base_ident: Ident,
    /// The device that it was on when the fork was made; see [`crate::overlay::Config::made_on`].
    pub base_dev: u64,
    /// The store.
    pub store: PathBuf,
    /// The directories of the preserved layers that the fork reads through, in the order of the merges.
    pub layers: Vec<PathBuf>,
    /// `forks/<id>` in the store. A strategy keeps there what it likes, beside `fork.json` and `lock`.
    pub dir: PathBuf,
    /// The fork's id.
    pub id: String,
    /// When the fork was made, by the real clock.
    pub created: Time,
    /// What it leaves out of the base.
    pub hide: Hide,
    /// What it may take on the disk.
    pub limits: Limits,
    /// Its users mount it, each in a namespace of its own.
    pub private_mount: bool,
}

impl Site {
    /// Where the fork's tree shows, whatever the strategy. The directory exists, empty, when `create` is called.
    pub fn tree(&self) -> PathBuf {
        self.dir.join("mnt")
    }
    /// The private layer of an overlay.
    pub fn upper(&self) -> PathBuf {
        self.dir.join("upper")
    }
    /// What an overlay keeps beside its upper.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }
}

/// Why a better way was passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The way that was refused.
    pub strategy: Way,
    /// Why, as a clause: "/dev/fuse cannot be opened: permission denied".
    pub reason: String,
}

/// What came of making a fork.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// Sentences for the caller about whatever is weaker than asked.
    pub advisories: Vec<String>,
}

/// One way to make forks.
pub trait Strategy: Send + Sync {
    /// Which way this is.
    fn way(&self) -> Way;
    /// What its forks may be relied on for.
    fn guarantees(&self) -> Guarantees;
    /// Whether it would work here. The error is the reason; nothing is left behind either way.
    fn probe(&self, site: &Site) -> Result<()>;
    /// Fills `site`: all that [`present`](Self::present) needs. On an error whatever was begun may stay in `site.dir`: the caller calls `destroy` and deletes it.
    fn create(&self, site: &Site, wishes: &Wishes) -> Result<Made>;
    /// Makes what [`create`](Self::create) has made usable, which [`revive`](Self::revive) can do again at any time. `meanwhile` is
    /// done once, in the time that this takes.
    fn present(&self, site: &Site, meanwhile: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _ = site;
        meanwhile()
    }
    /// Ends whatever of the fork lives outside `site.dir` (a mount, an entry in a repository), so that the directory can
    /// be deleted. Nothing to do is success: it may run twice, and after a `create` that failed or was killed.
    fn destroy(&self, site: &Site) -> Result<()>;
    /// The same for a directory that is kept, with all that was written in the fork.
    fn put_away(&self, site: &Site) -> Result<()> {
        self.destroy(site)
    }
    /// Makes a fork usable again after its server or the machine went down; nothing to do is success.
    fn revive(&self, site: &Site) -> Result<()> {
        let _ = site;
        Ok(())
    }
    /// Whether anything in the fork differs from its base as it was; `None` where that is not known cheaply. May say yes
    /// where a change was taken back.
    fn is_changed(&self, site: &Site) -> Result<Option<bool>> {
        let _ = site;
        Ok(None)
    }
}

/// The strategy for a way.
pub fn strategy(way: Way) -> Box<dyn Strategy> {
    match way {
        Way::Overlay => Box::new(Overlay),
        Way::Reflink => Box::new(Reflink),
        Way::Copy => Box::new(Copy),
        Way::Worktree => Box::new(Worktree),
    }
}

/// A fork that was made, and what led to it.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The way that worked.
    pub way: Way,
    /// The ways that did not, best first.
    pub refusals: Vec<Refusal>,
    /// What came of it.
    pub made: Made,
}

/// What is written down about a fork that is being made.
pub trait Records {
    /// All of the fork is there.
    fn complete(&mut self, chosen: &Chosen) -> Result<()>;
    /// It is not usable that way, and is being made another way.
    fn begin_anew(&mut self) -> Result<()>;
}

/// Whether a limit of what the fork takes is kept. One that is not kept must not be taken for one that is.
fn enforces(way: Way) -> Result<()> {
    if way == Way::Overlay {
        return Ok(());
    }
    let what = format!("a limit of size or files is kept by overlays only, not by the strategy {way}");
    let how =
        "--strategy overlay, or no --max-size and --max-files (--no-config where a file of settings asks for them)";
    Err(Error::new(Kind::Usage, what).remedy(how))
}

/// Makes a fork the wanted way, or without a wish the first way that works.
///
/// A way is passed over when its probe refuses, or when making the fork turns out to be impossible on this machine
/// ([`Kind::Unavailable`]); any other failure is the failure of the whole. What failed is destroyed before the next try.
/// `records` is told when the fork is complete.
pub fn make(wanted: Option<Way>, site: &Site, wishes: &Wishes, records: &mut dyn Records) -> Result<()> {
    let only_overlay = wishes.private_mount || !wishes.limits.is_nothing();
    let wanted = if only_overlay { wanted.or(Some(Way::Overlay)) } else { wanted };
    if let Some(way) = wanted {
        if !wishes.limits.is_nothing() {
            enforces(way)?;
        }
        return attempt(way, &[], site, wishes, records);
    }
    let mut refusals: Vec<Refusal> = Vec::new();
    for way in Way::AUTO {
        match attempt(way, &refusals, site, wishes, records) {
            Err(e) if e.kind() == Kind::Unavailable => {
                records.begin_anew()?;
                strategy(way).destroy(site)?;
                let hint = e.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                refusals.push(Refusal { strategy: way, reason: format!("{e}{hint}") });
            }
            done => return done,
        }
    }
    let reasons: Vec<String> = refusals.iter().map(|r| format!("{}: {}", r.strategy, r.reason)).collect();
    Err(Error::new(Kind::Unavailable, format!("no strategy works here ({})", reasons.join("; "))))
}

fn attempt(way: Way, refusals: &[Refusal], site: &Site, wishes: &Wishes, records: &mut dyn Records) -> Result<()> {
    let strategy = strategy(way);
    strategy.probe(site)?;
    if way != Way::Overlay {
        // Of an overlay the server sees to it.
        refuse_any_inside(&site.base)?;
    }
    let chosen = Chosen { way, refusals: refusals.to_vec(), made: strategy.create(site, wishes)? };
    strategy.present(site, &mut || records.complete(&chosen))
}
