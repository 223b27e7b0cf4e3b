//! Which number an object goes by: its own where it is new, that of the base's object where it was copied from one.

use std::sync::Arc;

use super::node::{Node, Place};
use super::{Overlay, Result, Upper};
use crate::layer::marks::Origin;
use crate::layer::resolve::upper_origin;
use crate::sys::{At, Ident, Stat, Time};

/// Set in the numbers of objects that are new in an upper on another device than the base.
const ELSEWHERE: u64 = 1 << 63;

impl Overlay {
    /// Node number, device and identity of an object in the upper.
    pub(super) fn identity(&self, stat: &Stat, origin: Option<Origin>) -> (u64, u64, Ident) {
        match origin {
            Some(origin) if origin.dev == self.made_on => (origin.ident.ino, self.base_dev, origin.ident),
            // 0 is nobody's number: an alias will be given.
            Some(origin) => (0, origin.dev, origin.ident),
            None if stat.dev == self.base_dev => (stat.ino, stat.dev, stat.ident()),
            None => (stat.ino | ELSEWHERE, stat.dev, stat.ident()),
        }
    }

    /// The number by which a mark of origin calls a device.
    pub(super) fn written_dev(&self, dev: u64) -> u64 {
        // Another device that has the old number of the base's by now gets one that no device has.
        match dev {
            dev if dev == self.base_dev => self.made_on,
            dev if dev == self.made_on => u64::MAX,
            other => other,
        }
    }

    pub(super) fn lower_id(&self, stat: &Stat) -> u64 {
        if stat.dev == self.base_dev && stat.ino < 1 << 62 { stat.ino } else { 0 }
    }

    /// The number that an object in the upper shows.
    pub(super) fn shown_ino(&self, upper: &Upper, ino: u64, origin: Option<Origin>) -> u64 {
        match origin {
            Some(origin) => origin.ident.ino,
            None if upper.dev == self.base_dev => ino,
            None => ino | ELSEWHERE,
        }
    }

    /// The origin of a non-directory in the upper. What the fork has made has none; of a node that is known to be so the mark
    /// need not be looked for.
    pub(super) fn origin_of(&self, at: At<'_>, stat: &Stat) -> Result<Option<Origin>> {
        let (id, _, ident) = self.identity(stat, None);
        let is_own = |node: Arc<Node>| {
            node.ident == ident && node.file().is_ok_and(|file| matches!(file.state.read().place, Place::Upper))
        };
        // Without birth times a number may stand for one object here and for another in the base.
        if ident.btime != Time::default() && self.table.get(id).is_some_and(is_own) {
            return Ok(None);
        }
        upper_origin(at, stat, self.upper.as_ref().map(|upper| &upper.origins))
    }
}
