//! The mounts that the server serves, by fork.
//!
//! Lock order: the table's lock is held only to find or drop a slot, never while a slot's lock is taken or while
//! anything is mounted. A slot's lock is held while its fork is mounted or unmounted, so that two requests about one
//! fork come one after the other and those about different forks do not wait for each other.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::protocol::{Layer, MountInfo, MountSpec, PlacedAt};
use super::reaper::Reaper;
use crate::error::{Error, Kind, Result};
use crate::overlay::Usage;

/// Whatever can serve overlays. The server is written against this, so that its tests need no FUSE.
pub trait Backend: Send + Sync {
    /// Begins to serve an overlay; ready for requests when it returns.
    fn mount(&self, spec: &MountSpec, how: How) -> Result<Box<dyn Mounted>>;
    /// Completes the large files of an overlay that is not mounted.
    fn settle(&self, spec: &MountSpec) -> Result<()>;
}

/// Where a mount comes from.
pub enum How {
    /// The server mounts it at the path in the spec.
    Here,
    /// A client has mounted it, in a namespace of its own, and hands over the device.
    Device(OwnedFd),
}

/// What is left of a mount that has ended: descriptors that lead to no base.
pub type Rest = Box<dyn Send>;

/// A mount that is being served. Dropping it ends it.
pub trait Mounted: Send + Sync {
    /// Whether the kernel still sends requests: false once it was unmounted by somebody else.
    fn is_alive(&self) -> bool;
    /// Ends it: unmounts, cuts the connection where that is needed, and returns without waiting for its users. All that was
    /// written is in the upper.
    fn unmount(&self) -> Result<()>;
    /// Ends it where nothing of it is wanted any more. What is left: to drop that takes a while.
    fn discard(&self) -> Result<Rest>;
    /// Requests so far, by name.
    fn stats(&self) -> Vec<(String, u64)>;
    /// What it takes on the disk, where it has limits and that is known.
    fn usage(&self) -> Option<Usage>;
    /// Base paths that changed under the fork.
    fn drift(&self) -> Vec<PathBuf>;
    /// Whether some directories of the base could not be watched: what changes there is noticed a moment later, and
    /// reading there costs more.
    fn is_unwatched(&self) -> bool;
    /// Observes it for git. `kept` is what the store keeps for its base; whether a prepared index is there for it, which
    /// with `wait` is waited for.
    fn observe(&self, kept: &Path, wait: bool) -> Result<bool>;
    /// Completes the large files that are still being copied up.
    fn settle(&self) -> Result<()>;
    /// Gives back room that it does not need at the moment.
    fn shrink(&self);
    /// Brings all that was written to the disk, large files complete.
    fn sync(&self) -> Result<()>;
    /// Reads through a new preserved layer from now on.
    fn preserve(&self, layer: &Layer) -> Result<()>;
    /// Shows the attributes of a layer that is being made for objects that only gain a name by it.
    fn expect(&self, layer: &Layer) -> Result<()>;
    /// Reads past a preserved layer, which is about to be emptied, from now on.
    fn withdraw(&self, layer: &Layer) -> Result<()>;
}

#[derive(Default)]
struct Slot {
    live: Mutex<Option<Live>>,
}

struct Live {
    spec: MountSpec,
    mounted: Arc<dyn Mounted>,
    /// Mounted here, not by a client.
    here: bool,
}

impl Live {
    /// Reads through one more preserved layer; nothing to do where it does already.
    fn preserve(&mut self, layer: Layer) -> Result<()> {
        if !self.spec.layers.contains(&layer) {
            self.mounted.preserve(&layer)?;
            self.spec.layers.push(layer);
        }
        Ok(())
    }
}

/// The table of mounts.
pub(super) struct Table {
    backend: Box<dyn Backend>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    /// Forks that earlier servers served and this one has yet to mount. Only held to look or change, never with another.
    awaited: Mutex<HashSet<String>>,
    reaper: Arc<Reaper>,
}

impl Table {
    pub(super) fn new(backend: Box<dyn Backend>) -> Self {
        Self { backend, slots: Mutex::default(), awaited: Mutex::default(), reaper: Arc::default() }
    }

    /// Announces what [`restore`](Self::restore) is going to mount.
    pub(super) fn await_all(&self, specs: &[MountSpec]) {
        self.awaited.lock().extend(specs.iter().map(|spec| spec.id.clone()));
    }

    /// Mounts an announced fork, unless it was unmounted since: its record may be gone by now.
    pub(super) fn restore(&self, spec: MountSpec) -> Result<()> {
        // The slot is there before the look, so that an unmount that comes after the look finds it, and waits.
        let slot = self.slot(&spec.id);
        let mut live = slot.live.lock();
        if !self.awaited.lock().remove(&spec.id) {
            drop(live);
            self.drop_empty(&spec.id, &slot);
            return Ok(());
        }
        let id = spec.id.clone();
        let done = self.mount_in(&mut live, spec, How::Here);
        drop(live);
        self.drop_empty(&id, &slot);
        done
    }

    /// Mounts a fork; nothing to do where it is mounted already.
    pub(super) fn mount(&self, spec: MountSpec, how: How) -> Result<()> {
        let slot = self.slot(&spec.id);
        let mut live = slot.live.lock();
        let id = spec.id.clone();
        let done = self.mount_in(&mut live, spec, how);
        drop(live);
        self.drop_empty(&id, &slot);
        done
    }

    fn slot(&self, id: &str) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(id.to_owned()).or_default())
    }

    fn mount_in(&self, live: &mut Option<Live>, spec: MountSpec, how: How) -> Result<()> {
        let here = matches!(how, How::Here);
        if let Some(old) = live.as_ref().filter(|old| !here && !old.here) {
            await_end(old.mounted.as_ref());
        }
        match live {
            Some(old) if old.mounted.is_alive() => {
                // A merge may just be telling everybody of a new layer, or have taken one back that hides nothing.
                let same = MountSpec { layers: old.spec.layers.clone(), ..spec.clone() } == old.spec;
                if !(here && old.here && same) {
                    return Err(Error::new(Kind::InUse, format!("the fork {} is being served already", spec.id)));
                }
                return spec.layers.into_iter().try_for_each(|layer| old.preserve(layer));
            }
            _ => *live = None,
        }
        let mounted = self.backend.mount(&spec, how)?.into();
        *live = Some(Live { spec, mounted, here });
        Ok(())
    }

    /// Completes the large files of a fork, mounted or not.
    pub(super) fn settle(&self, spec: &MountSpec) -> Result<()> {
        let slot = self.slot(&spec.id);
        let live = slot.live.lock();
        let settled = match live.as_ref().filter(|live| live.mounted.is_alive()) {
            Some(live) => live.mounted.settle(),
            None => self.backend.settle(spec),
        };
        drop(live);
        self.drop_empty(&spec.id, &slot);
        settled
    }

    /// Ends the mount of a fork, with all that was written in it; nothing to do is success.
    pub(super) fn unmount(&self, id: &str) -> Result<()> {
        self.end(id, |mounted| mounted.unmount()).map(drop)
    }

    /// Ends the mount of a fork of which nothing is wanted any more; nothing to do is success.
    pub(super) fn discard(&self, id: &str) -> Result<()> {
        if let Some(rest) = self.end(id, |mounted| mounted.discard())? {
            self.reaper.take(rest);
        }
        Ok(())
    }

    /// Ends a mount, and returns what that returned; `None` where nothing is mounted.
    fn end<T>(&self, id: &str, end: impl FnOnce(&dyn Mounted) -> Result<T>) -> Result<Option<T>> {
        self.awaited.lock().remove(id);
        let Some(slot) = self.slots.lock().get(id).map(Arc::clone) else { return Ok(None) };
        let mut live = slot.live.lock();
        let ended = live.as_ref().map(|old| end(old.mounted.as_ref())).transpose()?;
        // Dropped outside of the lock: the last of it may still be on its way through a worker.
        let old = live.take();
        drop(live);
        drop(old);
        self.drop_empty(id, &slot);
        Ok(ended)
    }

    /// Waits until nothing is left of the mounts that were discarded.
    pub(super) fn finish_discarding(&self) {
        self.reaper.finish();
    }

    /// Ends all mounts; the errors are logged.
    pub(super) fn unmount_all(&self) {
        let ids: Vec<String> = self.slots.lock().keys().cloned().collect();
        for id in ids {
            if let Err(e) = self.unmount(&id) {
                log::error!("cannot unmount the fork {id}: {e}");
            }
        }
    }

    /// A mount that is served, for a question about it.
    pub(super) fn get(&self, id: &str) -> Result<Arc<dyn Mounted>> {
        let slot = self.slots.lock().get(id).map(Arc::clone);
        let mounted = slot.and_then(|slot| slot.live.lock().as_ref().map(|live| Arc::clone(&live.mounted)));
        mounted.ok_or_else(|| not_mounted(id))
    }

    /// Puts a preserved layer into a mount. The spec has it from then on, so that mounting again is still the same.
    pub(super) fn preserve(&self, id: &str, layer: Layer) -> Result<()> {
        let slot = self.slots.lock().get(id).map(Arc::clone);
        let mut live = slot.as_ref().map(|slot| slot.live.lock());
        let Some(live) = live.as_mut().and_then(|live| live.as_mut()) else { return Err(not_mounted(id)) };
        live.preserve(layer)
    }

    /// Has all mounts give back room that they do not need.
    pub(super) fn shrink(&self) {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().map(Arc::clone).collect();
        for slot in slots {
            if let Some(live) = slot.live.try_lock().as_deref().and_then(Option::as_ref) {
                live.mounted.shrink();
            }
        }
    }

    /// How many mounts there are, those that just come and go among them.
    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }

    /// All mounts that are alive, by id.
    pub(super) fn list(&self) -> Vec<MountInfo> {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().map(Arc::clone).collect();
        let info = |slot: &Arc<Slot>| {
            // One that is just being mounted or unmounted counts as not there.
            let live = slot.live.try_lock()?;
            let live = live.as_ref().filter(|live| live.mounted.is_alive())?;
            let point = live.here.then(|| PlacedAt(live.spec.point.clone()));
            Some(MountInfo { id: live.spec.id.clone(), point, usage: live.mounted.usage() })
        };
        let mut list: Vec<MountInfo> = slots.iter().filter_map(info).collect();
        list.sort_by(|a, b| a.id.cmp(&b.id));
        list
    }

    /// Drops what was unmounted behind the server's back, up to the first that is served; whether there is none.
    pub(super) fn is_idle(&self) -> bool {
        loop {
            let next = self.slots.lock().iter().next().map(|(id, slot)| (id.clone(), Arc::clone(slot)));
            let Some((id, slot)) = next else { return true };
            let Some(mut live) = slot.live.try_lock() else { return false };
            if live.as_ref().is_some_and(|live| live.mounted.is_alive()) {
                return false;
            }
            let old = live.take();
            drop(live);
            drop(old);
            self.drop_empty(&id, &slot);
            if self.slots.lock().get(&id).is_some_and(|there| Arc::ptr_eq(there, &slot)) {
                // Somebody is about to mount into it.
                return false;
            }
        }
    }

    /// Takes an empty slot out, unless somebody else got hold of it meanwhile: slots are cloned only under the lock of
    /// the table, so with two owners (the table and the caller) nobody can be about to mount into it.
    fn drop_empty(&self, id: &str, mine: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        let same = slots.get(id).is_some_and(|slot| Arc::ptr_eq(slot, mine));
        if same && Arc::strong_count(mine) == 2 && mine.live.try_lock().is_some_and(|live| live.is_none()) {
            slots.remove(id);
        }
    }
}

fn not_mounted(id: &str) -> Error {
    Error::new(Kind::Vanished, format!("the fork {id} is not mounted"))
}

/// Waits a little for a mount whose namespace is gone: the kernel ends its connection some time after the last process
/// of the namespace has ended, and the next command in the fork may be quicker.
fn await_end(mounted: &dyn Mounted) {
    const PATIENCE: Duration = Duration::from_secs(2);
    let until = Instant::now() + PATIENCE;
    while mounted.is_alive() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Fake {
        mounts: Arc<AtomicUsize>,
        fails: bool,
    }

    struct FakeMount {
        alive: AtomicBool,
        mounts: Arc<AtomicUsize>,
    }

    impl Backend for Fake {
        fn mount(&self, _: &MountSpec, _: How) -> Result<Box<dyn Mounted>> {
            if self.fails {
                return Err(Error::new(Kind::Unavailable, "no FUSE here"));
            }
            assert_eq!(self.mounts.fetch_add(1, Ordering::SeqCst), 0, "one fork is mounted once");
            Ok(Box::new(FakeMount { alive: true.into(), mounts: Arc::clone(&self.mounts) }))
        }

        fn settle(&self, _: &MountSpec) -> Result<()> {
            Ok(())
        }
    }

    impl Mounted for FakeMount {
        fn is_alive(&self) -> bool {
            self.alive.load(Ordering::SeqCst)
        }
        fn unmount(&self) -> Result<()> {
            if self.alive.swap(false, Ordering::SeqCst) {
                self.mounts.fetch_sub(1, Ordering::SeqCst);
            }
            Ok(())
        }
        fn discard(&self) -> Result<Rest> {
            self.unmount().map(|()| Box::new(()) as Rest)
        }
        fn stats(&self) -> Vec<(String, u64)> {
            vec![]
        }
        fn usage(&self) -> Option<Usage> {
            None
        }
        fn drift(&self) -> Vec<PathBuf> {
            vec![]
        }
        fn is_unwatched(&self) -> bool {
            false
        }
        fn settle(&self) -> Result<()> {
            Ok(())
        }
        fn observe(&self, _: &Path, _: bool) -> Result<bool> {
            Ok(false)
        }
        fn shrink(&self) {}
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn preserve(&self, _: &Layer) -> Result<()> {
            Ok(())
        }
        fn expect(&self, _: &Layer) -> Result<()> {
            Ok(())
        }
        fn withdraw(&self, _: &Layer) -> Result<()> {
            Ok(())
        }
    }

    fn spec(id: &str) -> MountSpec {
        MountSpec {
            id: id.into(),
            base: "/b".into(),
            base_ident: Default::default(),
            base_dev: 0,
            layers: vec![],
            upper: "/u".into(),
            work: "/w".into(),
            point: "/m".into(),
            created: Default::default(),
            hide: Default::default(),
            limits: Default::default(),
        }
    }

    #[test]
    fn one_fork_is_mounted_once_whoever_asks() {
        let table = Table::new(Box::new(Fake::default()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        table.mount(spec("a"), How::Here).expect("mounts");
                        table.unmount("a").expect("unmounts");
                        table.is_idle();
                    }
                });
            }
        });
        assert!(table.is_idle());
        table.mount(spec("a"), How::Here).expect("mounts");
        assert_eq!(table.list().len(), 1);
        let other = MountSpec { base: "/c".into(), ..spec("a") };
        assert_eq!(table.mount(other, How::Here).expect_err("another base").kind(), Kind::InUse);
        assert!(!table.is_idle());
    }

    #[test]
    fn what_was_unmounted_before_its_turn_is_not_restored() {
        let table = Table::new(Box::new(Fake::default()));
        table.await_all(&[spec("a"), spec("b")]);
        table.unmount("a").expect("nothing mounted");
        table.restore(spec("a")).expect("left alone");
        assert!(table.is_idle());
        table.restore(spec("b")).expect("mounts");
        assert_eq!(table.list().len(), 1);
    }

    #[test]
    fn a_spec_with_a_new_layer_is_still_the_same_fork() {
        let table = Table::new(Box::new(Fake::default()));
        let layer = |n: u32| Layer { dir: format!("/b/preserved/{n}").into() };
        table.mount(MountSpec { layers: vec![layer(1)], ..spec("a") }, How::Here).expect("mounts");
        table.mount(MountSpec { layers: vec![layer(1), layer(2)], ..spec("a") }, How::Here).expect("the same");
        table.preserve("a", layer(2)).expect("known already");
        table.mount(spec("a"), How::Here).expect("a layer that was taken back");
        assert_eq!(table.preserve("b", layer(1)).expect_err("not mounted").kind(), Kind::Vanished);
    }

    #[test]
    fn a_mount_that_fails_leaves_nothing() {
        let table = Table::new(Box::new(Fake { fails: true, ..Fake::default() }));
        assert_eq!(table.mount(spec("a"), How::Here).expect_err("no FUSE").kind(), Kind::Unavailable);
        assert!(table.slots.lock().is_empty());
        assert_eq!(table.get("a").map(|_| ()).expect_err("not mounted").kind(), Kind::Vanished);
    }
}
