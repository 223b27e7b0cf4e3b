//! Making a copy of a lower object ready in the staging area: content, mark and attributes.
//!
//! The lower is checked to have stood still meanwhile. This is where rewriting a tree spends its time, so a regular file
//! takes as few calls as it can: by its descriptor all along, made with the attributes that it is to have where they can
//! be had that way, and a small one read once, for the copy as for the digest.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::copyup::{Bring, Lower, Original};
use super::fds::Opened;
use super::large::Begun;
use super::node::Node;
use super::quota::Hold;
use super::{Overlay, Result, Upper};
use crate::copy::{self, Sharing};
use crate::layer::ledger::{self, BaseState, Digest};
use crate::layer::marks::{self, Origin};
use crate::layer::prepared;
use crate::layer::staging::Made;
use crate::names::RelPath;
use crate::sys::{At, Stat, calls};

/// A copy that is staged.
pub(super) struct Staged<'a> {
    /// What the original shows.
    pub(super) shown: Stat,
    /// What the ledger is to say of it.
    pub(super) state: BaseState,
    /// The copy of a regular file, open.
    pub(super) copy: Option<Arc<Opened>>,
    /// It has content that has to get to the disk.
    pub(super) filled: bool,
    /// The room that it takes.
    pub(super) hold: Option<Hold<'a>>,
}

/// The copy of a regular file.
struct FileCopy {
    fd: OwnedFd,
    content: Content,
    /// It has no attributes but our mark.
    bare: bool,
}

/// How the content of a file came over.
struct Content {
    /// What the lower holds, of a small file.
    digest: Option<Digest>,
    /// The rest comes later.
    begun: Option<Begun>,
    filled: bool,
}

/// File systems whose files cannot share blocks with those of the upper: the last one that was found to be so.
#[derive(Debug)]
pub(super) struct Unshared(AtomicU64);

impl Default for Unshared {
    fn default() -> Self {
        // Nobody's device number.
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Unshared {
    /// Has `to` share the blocks of `original`, if that can be; not asked again where it never can.
    fn share(&self, original: &Original, to: &OwnedFd) -> Result<bool> {
        let dev = original.stat.dev;
        if self.0.load(Ordering::Relaxed) == dev {
            return Ok(false);
        }
        let sharing = copy::share(original.fd.as_fd(), to.as_fd())?;
        if sharing == Sharing::Never {
            self.0.store(dev, Ordering::Relaxed);
        }
        Ok(sharing == Sharing::Shared)
    }
}

impl Overlay {
    /// Copies the lower object to the staging area; `None` where it changed meanwhile.
    pub(super) fn stage<'a>(
        &self,
        upper: &'a Upper,
        node: &Arc<Node>,
        lower: &Lower,
        staged: &OsString,
        bring: Bring,
    ) -> Result<Option<Staged<'a>>> {
        let to = upper.staging.at(staged);
        let regular = node.file_type() == FileType::RegularFile;
        let flags = if regular { OFlags::RDONLY | OFlags::NONBLOCK } else { OFlags::PATH | OFlags::NOFOLLOW };
        let original = self.open_lower(node, &lower.layer, &lower.path, flags)?;
        let shown = original.shown;
        let mut hold = upper.hold_copy(node.file_type(), &original, bring)?;
        let origin = Origin {
            ident: node.ident,
            dev: self.written_dev(shown.dev),
            indexed: lower.shared.is_some(),
            ctime: None,
        };
        let copied = match regular {
            true => Some(self.stage_file(upper, &original, &lower.path, to, &origin, bring)?),
            false => stage_special(&original, to).map(|()| None)?,
        };
        let (before, after) = (original.stat, Stat::of(original.fd.as_fd())?);
        if (after.size, after.mtime, after.ctime) != (before.size, before.mtime, before.ctime) {
            return Ok(None);
        }
        if !regular {
            upper.origins.set(to.stat()?.ident(), origin)?;
        }
        if let Some(hold) = &mut hold {
            hold.fit(&to.stat()?);
        }
        let mut state = BaseState::from(&shown);
        let Some(FileCopy { fd, content: Content { digest, begun, filled }, bare }) = copied else {
            return Ok(Some(Staged { state, shown, copy: None, filled: false, hold }));
        };
        state.content = digest;
        let fd = Arc::new(fd);
        let partial = match begun {
            Some(begun) => Some(self.begun(node.id, begun, Arc::clone(&fd), Arc::clone(&lower.layer), original)?),
            None => None,
        };
        let copy = Opened::of(fd, partial);
        copy.incapable.store(bare, Ordering::Relaxed);
        Ok(Some(Staged { state, shown, copy: Some(copy), filled, hold }))
    }

    fn stage_file(
        &self,
        upper: &Upper,
        original: &Original,
        path: &RelPath,
        to: At<'_>,
        origin: &Origin,
        bring: Bring,
    ) -> Result<FileCopy> {
        let made = upper.staging.made()?;
        let mode = made.mode_of(&original.shown, 0o600);
        let fd = to.create(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        let content = self.stage_content(upper, original, path, &fd, bring)?;
        calls::fsetxattr(&fd, marks::ORIGIN, &origin.encode(), XattrFlags::empty())?;
        let bare = matches!(calls::flistxattr(&original.fd, &mut [0; 1024]), Ok(0) | Err(Errno::NOTSUP));
        stage_attributes((At::object(&original.fd), &original.shown, bare), &fd, mode, made)?;
        // Cut short it is changed already, whatever becomes of the call that asked for it: its times are those of the copy.
        let cut = matches!(bring, Bring::First(most) if most == 0 || most < original.stat.size);
        if !cut {
            let Stat { atime, mtime, .. } = original.shown;
            calls::futimens(&fd, &Timestamps { last_access: atime.into(), last_modification: mtime.into() })?;
        }
        Ok(FileCopy { fd, content, bare })
    }

    /// Brings over the content, or begins to.
    fn stage_content(
        &self,
        upper: &Upper,
        original: &Original,
        path: &RelPath,
        to: &OwnedFd,
        bring: Bring,
    ) -> Result<Content> {
        let Stat { size, blocks, .. } = original.stat;
        let most = if let Bring::First(most) = bring { size.min(most) } else { size };
        let small = small_content(original)?;
        let digest = small.as_deref().map(Digest::of);
        let mut content = Content { digest, begun: None, filled: most > 0 };
        if most == 0 {
            return Ok(content);
        }
        // A prepared index may be gone from its layer by the time that the rest of it is wanted.
        let stays = path.as_bytes() != prepared::INDEX.as_bytes();
        if upper.unshared.share(original, to)? {
            return Ok(content);
        }
        if bring == Bring::Blocks && stays && size >= self.large.from {
            content.begun = self.begin(upper, original, path, to)?;
        }
        match small {
            _ if content.begun.is_some() => {}
            // Less on the disk than that has holes, which are to stay.
            Some(bytes) if blocks * 512 >= size => {
                let most = bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX));
                copy::write_all_at(to.as_fd(), &bytes[..most], 0)?;
            }
            _ => {
                let go_on = &mut |_| ControlFlow::Continue(());
                copy::file_data_watched(original.fd.as_fd(), to.as_fd(), most, go_on).map(drop)?;
            }
        }
        Ok(content)
    }
}

/// What a small file holds, whether it is copied or about to be overwritten; `None` of others.
fn small_content(original: &Original) -> Result<Option<Vec<u8>>> {
    if original.stat.size > ledger::NOTED {
        return Ok(None);
    }
    let mut content = vec![0; usize::try_from(original.stat.size).map_err(|_| Errno::FBIG)?];
    let mut done = 0;
    while done < content.len() {
        match calls::pread(&original.fd, &mut content[done..], done as u64) {
            // Shorter by now: the check whether it stood still comes next.
            Ok(0) => return Ok(None),
            Ok(n) => done += n,
            Err(e) => return Err(e),
        }
    }
    Ok(Some(content))
}

/// Owner, attributes and permissions of a staged file or directory that was made with this mode. `bare`: the original has no
/// attributes.
pub(super) fn stage_attributes(
    (original, shown, bare): (At<'_>, &Stat, bool),
    copy: &OwnedFd,
    made_with: u32,
    made: Made,
) -> Result<()> {
    let mut mode = shown.mode & 0o7777;
    if (shown.uid, shown.gid) != (made.uid, made.gid) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(shown.uid), rustix::fs::Gid::from_raw(shown.gid));
        match calls::fchown(copy, Some(uid), Some(gid)) {
            Err(Errno::PERM) if made.uid != 0 => mode &= !0o6000,
            other => other?,
        }
    }
    if !bare {
        copy::xattrs(original, At::object(copy), marks::is_ours)?;
    }
    // An access list of the original's has changed the mode.
    if !bare || mode != made_with {
        calls::fchmod(copy, rustix::fs::Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// The copy of what is no regular file.
fn stage_special(original: &Original, to: At<'_>) -> Result<()> {
    let (from, shown) = (&original.fd, &original.shown);
    if shown.is_symlink() {
        let target = calls::readlinkat(from, "")?;
        to.symlink(OsStr::from_bytes(target.as_bytes()))?;
    } else {
        to.mknod(shown.mode, shown.rdev)?;
    }
    metadata(At::object(from), to, shown)
}

/// Owner, attributes, permissions and times, without our marks.
///
/// An ordinary user cannot give files away: what somebody else owns in the base becomes the user's own copy, without
/// set-id bits.
pub(super) fn metadata(from: At<'_>, to: At<'_>, stat: &Stat) -> Result<()> {
    let mut wanted = *stat;
    match copy::owner(to, stat) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => wanted.mode &= !0o6000,
        other => other?,
    }
    copy::xattrs(from, to, marks::is_ours)?;
    copy::permissions(to, &wanted)?;
    copy::times(to, stat)
}
