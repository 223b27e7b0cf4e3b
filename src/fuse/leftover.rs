//! Mounts that outlived whoever served them, or that nobody is to use any more.

use std::path::Path;

use super::{FS_TYPE, abort, detach};
use crate::error::{Context, Result};
use crate::sys::{Mount, mounted_at, mounts};

/// Takes away all that is mounted at a directory; nothing to do is success, and costs the same however many mounts there
/// are.
pub fn clear(point: &Path) -> Result<()> {
    if !is_mounted(point) {
        return Ok(());
    }
    let mounts = mounts().context("cannot read", "/proc/self/mountinfo")?;
    mounts.iter().rev().filter(|mount| mount.point == point).try_for_each(end_mount)
}

/// Takes a mount away; one of a fork is cut first, so that nobody waits for an answer there.
pub fn end_mount(mount: &Mount) -> Result<()> {
    if mount.kind == FS_TYPE
        && let Err(e) = abort(mount.minor())
    {
        log::debug!("cannot cut the connection of {:?}: {e}", mount.point);
    }
    detach(&mount.point)
}

/// Whether something is mounted at a directory; true also where that cannot be told.
fn is_mounted(point: &Path) -> bool {
    match mounted_at(point) {
        Ok(device) => device.is_some(),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    }
}
