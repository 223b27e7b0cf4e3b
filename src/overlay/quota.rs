//! What a fork may take on the disk, and what it takes.
//!
//! Counted is what `du` counts: the blocks of every object in the upper and in the index of hard links, each once
//! whatever its names, files without a name while somebody has them open, and the record of what the fork changed; and,
//! for the limit of files, the objects themselves. Whiteouts count as nothing.
//!
//! Room is *held* before an operation begins, in one step with the check, so that writers at the same time cannot go past
//! a limit together; when it is over the object is *charged* with what it takes then. What an object was charged stands in
//! its node, so that nothing counts twice or is given back twice, whatever the file system does in between. What the fork
//! took before the mount is counted by [`count`](super::count); until that is done changes wait.
//!
//! The refusal is `EDQUOT`. Taking things away is never refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Result;
use super::node::Node;
use crate::sys::{At, Stat};

/// How long whoever is refused waits for the kernel to let go of what was just removed.
const LETTING_GO: Duration = Duration::from_millis(20);

/// With so many bytes left beyond what an operation may need at the most, it does not matter what it needs exactly.
const ROOMY: u64 = 64 << 20;

/// What a fork may take; `None` where that is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes on the disk.
    #[serde(default)]
    pub max_size: Option<u64>,
    /// Objects: files, directories, links, whatever was made or copied up.
    #[serde(default)]
    pub max_files: Option<u64>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What a fork takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes on the disk.
    pub size: u64,
    /// Objects.
    pub files: u64,
}

/// The account of a fork that has limits. Its lock is a leaf in the order of locks.
#[derive(Debug)]
pub(super) struct Quota {
    limits: Limits,
    /// Bytes in a block of the upper's file system.
    pub(super) block: u64,
    account: Mutex<Account>,
    changed: Condvar,
    /// The overlay ends: nobody needs the count any more.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Account {
    /// Charged or held.
    used: Usage,
    /// Whether all that was there before is counted; an error where that cannot be done.
    counted: Option<Result<()>>,
    /// Objects without a name that the kernel has not let go of yet.
    leaving: u64,
}

impl Account {
    fn refuses(&self, limits: &Limits, need: Usage) -> bool {
        let beyond =
            |used: u64, need: u64, most: Option<u64>| most.is_some_and(|most| used.saturating_add(need) > most);
        beyond(self.used.size, need.size, limits.max_size)
            || need.files > 0 && beyond(self.used.files, need.files, limits.max_files)
    }

    /// Puts something else in the place of what was charged or held.
    fn change(&mut self, from: Usage, to: Usage) {
        let changed = |used: u64, from: u64, to: u64| used.saturating_add(to).saturating_sub(from);
        self.used.size = changed(self.used.size, from.size, to.size);
        self.used.files = changed(self.used.files, from.files, to.files);
    }
}

impl Quota {
    pub(super) fn new(limits: Limits, block: u64) -> Self {
        let ended = AtomicBool::new(false);
        Self { limits, block, account: Mutex::default(), changed: Condvar::new(), ended }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Says what the fork took before the mount.
    pub(super) fn counted(&self, before: Result<Usage>) {
        let mut account = self.account.lock();
        account.used = *before.as_ref().unwrap_or(&Usage::default());
        account.counted = Some(before.map(drop));
        self.changed.notify_all();
    }

    /// Ends a count that is under way.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// What the fork takes; `None` while that is being counted.
    pub(super) fn usage(&self) -> Option<Usage> {
        let account = self.account.lock();
        account.counted?.ok().map(|()| account.used)
    }

    /// The account, once all is counted. Not being able to count is `EIO`: a limit that nobody knows to be kept is none.
    fn ready(&self) -> Result<MutexGuard<'_, Account>> {
        let mut account = self.account.lock();
        loop {
            match account.counted {
                Some(Ok(())) => return Ok(account),
                Some(Err(_)) => return Err(Errno::IO),
                None => self.changed.wait(&mut account),
            }
        }
    }

    /// Whether there is so much left that nobody has to look closely.
    pub(super) fn is_roomy(&self, size: u64) -> Result<bool> {
        let account = self.ready()?;
        Ok(!account.refuses(&self.limits, Usage { size: size.saturating_add(ROOMY), files: 0 }))
    }

    /// Holds room, or `EDQUOT`.
    pub(super) fn hold(&self, need: Usage) -> Result<Hold<'_>> {
        let mut account = self.ready()?;
        let until = Instant::now() + LETTING_GO;
        while account.refuses(&self.limits, need) {
            // Who has just removed something may not know that the kernel tells us a moment later.
            if account.leaving == 0 || self.changed.wait_until(&mut account, until).timed_out() {
                return Err(Errno::DQUOT);
            }
        }
        account.change(Usage::default(), need);
        Ok(Hold { quota: self, held: need })
    }

    /// Holds room whatever the limits are, for what has to be possible.
    pub(super) fn hold_anyway(&self, need: Usage) -> Result<Hold<'_>> {
        self.ready()?.change(Usage::default(), need);
        Ok(Hold { quota: self, held: need })
    }

    fn change(&self, from: Usage, to: Usage) {
        self.account.lock().change(from, to);
    }
}

/// What a node was charged with. Nothing stands there without limits, where there may be a million nodes.
#[derive(Debug, Default)]
pub(super) struct Charged(Mutex<Option<Box<Charge>>>);

#[derive(Debug, Default)]
struct Charge {
    /// Bytes; `None` before this server has changed the object: then it is what it takes.
    size: Option<u64>,
    /// Everything counts that was set aside, wherever the file ends.
    whole: bool,
    /// It has no name any more, and its room is given back when the kernel lets go of it.
    leaving: bool,
}

impl Charge {
    /// The bytes that count of an object.
    ///
    /// XFS sets as much aside again as a growing file has, and takes that back when it likes: that is not the fork's. Beyond the
    /// end of a file counts only so much as attributes and the map of the file may take, unless the fork asked for more.
    fn of(&self, stat: &Stat) -> u64 {
        let taken = stat.blocks * 512;
        if self.whole || !stat.is_file() { taken } else { taken.min(most_of(stat.size)) }
    }

    /// Takes over what was counted before.
    fn open(&mut self, stat: &Stat) {
        self.whole = stat.is_file() && stat.blocks * 512 > most_of(stat.size);
        self.size = Some(stat.blocks * 512);
    }
}

fn most_of(size: u64) -> u64 {
    size.saturating_add(size / 128).saturating_add(64 << 10)
}

impl Charged {
    /// Whether what lies beyond the end of the file counts, too.
    pub(super) fn is_whole(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|charge| charge.whole)
    }

    /// The fork has set something aside beyond the end of the file.
    pub(super) fn set_whole(&self) {
        self.0.lock().get_or_insert_default().whole = true;
    }
}

/// Room that is held for something new. What is not charged to a node when this is dropped is given back.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    quota: &'a Quota,
    held: Usage,
}

impl Hold<'_> {
    /// The new object is there: holds what it takes.
    pub(super) fn fit(&mut self, stat: &Stat) {
        let now = Usage { size: Charge::default().of(stat), files: self.held.files };
        self.quota.change(self.held, now);
        self.held = now;
    }

    /// Charges the node of the new object.
    pub(super) fn charge(mut self, node: &Node) {
        // Whoever found it already, and was quicker, took it to be counted, which it is.
        node.charged.0.lock().get_or_insert_default().size.get_or_insert(self.held.size);
        self.held = Usage::default();
    }

    /// It counts, and has no node yet.
    pub(super) fn keep(mut self) {
        self.held = Usage::default();
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.quota.change(self.held, Usage::default());
    }
}

/// Room for a change of an object that is there. When this is dropped the object is charged with what it takes then.
pub(super) struct Room<'a> {
    hold: Hold<'a>,
    node: &'a Node,
    at: At<'a>,
}

impl<'a> Room<'a> {
    /// For so many bytes more, `EDQUOT` where they are too many; without any, nothing is refused.
    pub(super) fn new(quota: &'a Quota, node: &'a Node, at: At<'a>, more: u64) -> Result<Self> {
        take_over(quota, node, at)?;
        let need = Usage { size: more, files: 0 };
        let hold = if more == 0 { quota.hold_anyway(need) } else { quota.hold(need) }?;
        Ok(Self { hold, node, at })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut charged = self.node.charged.0.lock();
        let charge = charged.get_or_insert_default();
        let before = charge.size.unwrap_or_default();
        // Looked at under the lock: of two who look at once the later look counts. Who cannot look takes it that all of it
        // was needed.
        let now = self.at.stat().map_or(before + self.hold.held.size, |stat| charge.of(&stat));
        charge.size = Some(now);
        let from = Usage { size: before + self.hold.held.size, files: 0 };
        self.hold.quota.change(from, Usage { size: now, files: 0 });
        self.hold.held = Usage::default();
    }
}

/// Notes what an object was counted with, before this server changes it for the first time.
pub(super) fn take_over(quota: &Quota, node: &Node, at: At<'_>) -> Result<()> {
    drop(quota.ready()?);
    let mut charged = node.charged.0.lock();
    let charge = charged.get_or_insert_default();
    if charge.size.is_none() {
        charge.open(&at.stat()?);
    }
    Ok(())
}

/// The last name of an object is gone.
pub(super) fn leave(quota: &Quota, node: &Node) {
    if let Some(charge) = &mut *node.charged.0.lock()
        && charge.size.is_some()
        && !std::mem::replace(&mut charge.leaving, true)
    {
        quota.account.lock().leaving += 1;
    }
}

/// The kernel has let go of a node.
pub(super) fn let_go(quota: &Quota, node: &Node) {
    let Some(charge) = node.charged.0.lock().take_if(|charge| charge.leaving) else { return };
    let freed = Usage { size: charge.size.unwrap_or_default(), files: 1 };
    let mut account = quota.account.lock();
    account.change(freed, Usage::default());
    account.leaving -= 1;
    quota.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(max_size: u64, max_files: u64) -> Quota {
        let quota = Quota::new(Limits { max_size: Some(max_size), max_files: Some(max_files) }, 4096);
        quota.counted(Ok(Usage { size: 10, files: 1 }));
        quota
    }

    #[test]
    fn what_is_held_is_taken_until_it_is_given_back() {
        let quota = quota(100, 3);
        let hold = quota.hold(Usage { size: 90, files: 1 }).expect("it fits, to the last byte");
        assert_eq!(quota.hold(Usage { size: 1, files: 0 }).map(drop), Err(Errno::DQUOT));
        drop(hold);
        quota.hold(Usage { size: 90, files: 2 }).expect("it fits again").keep();
        assert_eq!(quota.hold(Usage { size: 0, files: 1 }).map(drop), Err(Errno::DQUOT));
        quota.hold(Usage::default()).map(drop).expect("nothing fits always");
        quota.hold_anyway(Usage { size: 50, files: 1 }).expect("never refused").keep();
        assert_eq!(quota.usage(), Some(Usage { size: 150, files: 4 }));
        assert_eq!(quota.hold(Usage::default()).map(drop), Err(Errno::DQUOT), "beyond the limit nothing is made");
    }

    #[test]
    fn many_at_once_hold_no_more_than_there_is() {
        let quota = quota(1010, 1000);
        let held: u64 = std::thread::scope(|scope| {
            let take =
                || (0..100).filter(|_| quota.hold(Usage { size: 7, files: 1 }).map(Hold::keep).is_ok()).count() as u64;
            let takers: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
            takers.into_iter().map(|taker| taker.join().expect("no panic")).sum()
        });
        assert_eq!(held, 1000 / 7);
    }

    #[test]
    fn nobody_gets_room_before_all_is_counted() {
        let quota = Quota::new(Limits { max_size: Some(100), max_files: None }, 4096);
        assert_eq!(quota.usage(), None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| quota.hold(Usage { size: 50, files: 1 }).map(drop));
            quota.counted(Ok(Usage { size: 60, files: 7 }));
            assert_eq!(waits.join().expect("no panic"), Err(Errno::DQUOT));
        });
        let lost = Quota::new(Limits { max_size: Some(100), max_files: None }, 4096);
        lost.counted(Err(Errno::IO));
        assert_eq!(lost.hold(Usage::default()).map(drop), Err(Errno::IO));
    }
}
