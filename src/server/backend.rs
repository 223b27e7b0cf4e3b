//! Overlays over FUSE: what a [`MountSpec`] becomes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;

use super::observed::{self, Observed};
use super::others::Others;
use super::pointers::Pointers;
use super::protocol::{Layer, MountSpec};
use super::table::{Backend, How, Mounted, Rest};
use crate::error::{Context, Error, Kind, Result};
use crate::fuse::{self, Session};
use crate::layer::watch::Watch;
use crate::names::RelPath;
use crate::overlay::{Config, FdCache, Large, Lower, Overlay, Usage};
use crate::sys::{self, Stat, mount_above};

/// Serves overlays over FUSE. One watch and one cache of descriptors for all of them.
pub struct Fuse {
    watch: Option<Arc<Watch>>,
    fds: Arc<FdCache>,
    observed: Arc<Observed>,
    others: Others,
}

impl Fuse {
    /// Ready to mount. Where the base cannot be watched, drift is noticed by short time limits instead; that is logged.
    pub fn new() -> Self {
        let watch =
            Watch::new().inspect_err(|e| log::warn!("bases cannot be watched, caches are kept short: {e}")).ok();
        Self { watch, fds: FdCache::of_process(), observed: Arc::default(), others: Others::default() }
    }

    fn overlay(&self, spec: &MountSpec) -> Result<Arc<Overlay>> {
        let base = open_base(spec)?;
        let lowers = vec![Lower { root: base, marked: false, image: false, watch: self.watch.is_some() }];
        let upper = sys::open_root(&spec.upper).context("cannot open the upper layer", &spec.upper)?;
        let work = sys::open_root(&spec.work).context("cannot open the work directory", &spec.work)?;
        let config = Config {
            lowers,
            upper: Some(upper),
            work: Some(work),
            watch: self.watch.clone(),
            fds: Arc::clone(&self.fds),
            created: Some(spec.created),
            made_on: Some(spec.base_dev),
            hidden: spec.hide.of(&spec.base)?,
            large: Large::default(),
        };
        let overlay = Overlay::new(config).context("cannot set up the overlay in", &spec.work)?;
        overlay.retarget(vec![spec.base.clone()]);
        overlay.set_stand_ins(Box::new(Pointers::new(spec)));
        if let Some(dir) = spec.upper.parent() {
            overlay.anchor(sys::open_root(dir).context("cannot open", dir)?);
        }
        for layer in &spec.layers {
            preserve(&overlay, layer)?;
        }
        overlay.limit(spec.limits).context("cannot count what the fork takes, in", &spec.upper)?;
        overlay.resume().context("cannot go on with the large files in", &spec.work)?;
        Ok(overlay)
    }
}

impl Default for Fuse {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Fuse {
    fn mount(&self, spec: &MountSpec, how: How) -> Result<Box<dyn Mounted>> {
        let own = spec.upper.parent().and_then(Path::parent).unwrap_or(&spec.upper);
        self.others.refuse_inside(&spec.base, own)?;
        // Opened before the mount: afterwards a path might lead through it.
        let overlay = self.overlay(spec)?;
        let source = format!("treefork-{}", spec.id).into();
        let options = fuse::Options { source, flags: flags(&overlay)?, ..fuse::Options::default() };
        let session = match how {
            How::Here => {
                // What a dead server left there. The one server of the store is the only one that mounts there.
                fuse::clear(&spec.point)?;
                Session::mount(Arc::clone(&overlay), &spec.point, &options)?
            }
            How::Device(device) => Session::serve(Arc::clone(&overlay), device, &options)?,
        };
        let (unwatched, observed) = (self.watch.is_none(), Arc::clone(&self.observed));
        let (base, observes) = (spec.base.clone(), Mutex::default());
        Ok(Box::new(Served { session, overlay, unwatched, observed, base, observes }))
    }

    fn settle(&self, spec: &MountSpec) -> Result<()> {
        let overlay = self.overlay(spec)?;
        let settled = settle(&overlay);
        overlay.quiesce();
        settled
    }
}

struct Served {
    session: Session,
    overlay: Arc<Overlay>,
    /// Nothing at all is watched.
    unwatched: bool,
    observed: Arc<Observed>,
    /// The path of the base.
    base: PathBuf,
    /// The base, once the fork is observed.
    observes: Mutex<Option<Arc<observed::Base>>>,
}

impl Mounted for Served {
    fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    fn unmount(&self) -> Result<()> {
        self.session.end()?;
        self.overlay.quiesce();
        Ok(())
    }

    fn discard(&self) -> Result<Rest> {
        let root = self.session.cut()?;
        Ok(Box::new((root, self.overlay.leave())))
    }

    fn shrink(&self) {
        self.overlay.shrink();
    }

    fn stats(&self) -> Vec<(String, u64)> {
        self.session.stats().snapshot().into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    fn usage(&self) -> Option<Usage> {
        self.overlay.usage()
    }

    fn drift(&self) -> Vec<PathBuf> {
        self.overlay.drift().into_iter().map(|path| path.as_path().to_path_buf()).collect()
    }

    fn is_unwatched(&self) -> bool {
        self.unwatched || self.overlay.watch_limited()
    }

    fn preserve(&self, layer: &Layer) -> Result<()> {
        preserve(&self.overlay, layer)
    }

    fn expect(&self, layer: &Layer) -> Result<()> {
        let dir = sys::open_root(&layer.dir).context("cannot open the preserved layer", &layer.dir)?;
        self.overlay.expect(&dir).context("cannot read the attributes in", &layer.dir)
    }

    fn settle(&self) -> Result<()> {
        settle(&self.overlay)
    }

    fn withdraw(&self, layer: &Layer) -> Result<()> {
        let dir = sys::open_root(&layer.dir).context("cannot open the preserved layer", &layer.dir)?;
        self.overlay.withdraw(&dir).context("cannot do without the preserved layer", &layer.dir)
    }

    fn observe(&self, kept: &Path, wait: bool) -> Result<bool> {
        let root = self.overlay.base().context("cannot open the base", &self.base)?;
        let base = self.observed.base(&self.base, root, kept)?;
        *self.observes.lock() = Some(Arc::clone(&base));
        let prepared = base.prepared(wait);
        let there = prepared.is_some();
        self.overlay.observe(base.monitor(), prepared).context("cannot observe the fork of", &self.base)?;
        Ok(there)
    }

    fn sync(&self) -> Result<()> {
        self.settle()?;
        self.overlay.sync_all().map_err(|e| Error::io("cannot sync the fork", e))
    }
}

/// Completes the large files of an overlay.
fn settle(overlay: &Overlay) -> Result<()> {
    let settled = overlay.settle_all();
    let Some(path) = overlay.lost().into_iter().next() else {
        return settled.map_err(|e| Error::io("cannot copy up the rest of a large file", e));
    };
    let what = "the base changed before all of a large file was copied up, and the rest of it is lost:";
    let how = "write the whole file anew in the fork, or delete it there";
    Err(Error::new(Kind::Io, what).at(path.as_path()).remedy(how))
}

impl Drop for Served {
    fn drop(&mut self) {
        // The next mount of the fork takes over what was under way.
        self.overlay.quiesce();
    }
}

/// Devices and set-user-id programs work in a fork as they do in its base, where it is root who mounts.
fn flags(overlay: &Overlay) -> Result<MountFlags> {
    if !rustix::process::geteuid().is_root() {
        return Ok(MountFlags::NODEV | MountFlags::NOSUID);
    }
    let base = overlay.base_flags().map_err(|e| Error::io("cannot look at the base's file system", e))?;
    let same = [(StatVfsMountFlags::NODEV, MountFlags::NODEV), (StatVfsMountFlags::NOSUID, MountFlags::NOSUID)];
    Ok(same.into_iter().filter(|(theirs, _)| base.contains(*theirs)).map(|(_, ours)| ours).collect())
}

fn preserve(overlay: &Overlay, layer: &Layer) -> Result<()> {
    let dir = sys::open_root(&layer.dir).context("cannot open the preserved layer", &layer.dir)?;
    overlay.preserve(&dir).context("cannot read through the preserved layer", &layer.dir)
}

/// Opens the base without touching any mount of a fork, and makes sure that it is the directory that was forked.
fn open_base(spec: &MountSpec) -> Result<OwnedFd> {
    let base = &spec.base;
    let gone = |why: &str| Error::new(Kind::NotFound, format!("the base {why}:")).at(base);
    let below = base.strip_prefix("/").ok().and_then(RelPath::new);
    let below = below.ok_or_else(|| Error::new(Kind::Usage, "the base is no absolute path:").at(base))?;
    let top = sys::open_root(Path::new("/")).context("cannot open", "/")?;
    use rustix::fs::OFlags;
    use rustix::io::Errno;
    if !is_cached_on_a_disk(&top, &below) {
        // Opening it might ask us ourselves.
        if let Some(fork) = mount_above(base, super::MOUNT_KIND).context("cannot look for mounts above", base)? {
            let what = format!("the base lies inside the fork at {fork:?} now:");
            return Err(Error::new(Kind::Usage, what).at(base));
        }
    }
    // No link anywhere on the way: one that was put there meanwhile may lead into a fork.
    let root = match sys::open_beneath(&top, &below, OFlags::PATH | OFlags::DIRECTORY) {
        Err(Errno::NOENT) => return Err(gone("is gone")),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(gone("is not a directory any more")),
        other => other.context("cannot open the base", base)?,
    };
    let stat = Stat::of(root.as_fd()).context("cannot look at the base", base)?;
    if stat.ident() != spec.base_ident {
        return Err(gone("is another directory than the one that was forked, or its file system is not mounted"));
    }
    Ok(root)
}

/// Whether a path leads to a directory on a block device, found by the kernel's cached names alone: so no file system was
/// asked on the way, nor would it be. False where that cannot be told.
fn is_cached_on_a_disk(top: &OwnedFd, path: &RelPath) -> bool {
    use rustix::fs::{Mode, OFlags, ResolveFlags, major, openat2};
    let path = if path.is_root() { Path::new(".") } else { path.as_path() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(top, path, flags, Mode::empty(), resolve);
    opened.and_then(|fd| Stat::of(fd.as_fd())).is_ok_and(|stat| major(stat.dev) != 0)
}
