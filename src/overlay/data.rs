//! Content: reading, writing, truncating, allocating, seeking, copying, syncing.
//!
//! A descriptor is found in the cache or opened; which of lower and upper it leads to is decided under the node's lock,
//! so that no descriptor of the lower is kept once the file is in the upper.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::copyup::Bring;
use super::fds::{Opened, Slot};
use super::flush;
use super::node::{FileState, Kind, Node, Place};
use super::partial::write_all;
use super::{Caller, Overlay, Result};
use crate::sys::calls::{self, Dir};
use crate::sys::{At, Stat};

impl Overlay {
    /// Reads from a file; short only at its end.
    pub fn read(&self, node: u64, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let node = self.node(node)?;
        let opened = self.opened(&node)?;
        if let Some(partial) = opened.partial() {
            return partial.read(self, offset, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            match calls::pread(&*opened.fd, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return Err(e),
            }
            // To ask once more would only show that this is still the end.
            if opened.end == Some(offset + done as u64) {
                break;
            }
        }
        let file = node.file()?;
        if done < buffer.len() && file.ends_early(offset, done) {
            self.tell_soon(&node, file);
            return Err(Errno::INTR);
        }
        Ok(done)
    }

    /// Whether a read may have to wait for what is being written to the same file: better run off the thread that
    /// answers requests.
    pub fn reads_slowly(&self, node: u64) -> bool {
        let none = self.upper.as_ref().is_none_or(|upper| upper.partials.is_empty());
        !none && self.node(node).is_ok_and(|node| self.is_partial(&node))
    }

    /// Writes to a file; all of it, or an error. `kill_set_id`: the writer may not keep set-id bits on the file.
    pub fn write(&self, node: u64, offset: u64, data: &[u8], kill_set_id: bool) -> Result<usize> {
        let written = self.write_data(node, offset, data, kill_set_id);
        self.touched(node);
        written
    }

    fn write_data(&self, node: u64, offset: u64, data: &[u8], kill_set_id: bool) -> Result<usize> {
        let node = self.node(node)?;
        let opened = self.opened_for_writing(&node, Bring::Blocks)?;
        let _room = self.writable()?.room_to_write(&node, &opened.fd, offset, data.len() as u64)?;
        if kill_set_id {
            self.clear_set_id(&opened)?;
        }
        match opened.partial() {
            Some(partial) => partial.write(self, offset, data),
            None => write_all(&opened.fd, offset, data),
        }
    }

    /// Sets the size. The kernel asks for it as part of `setattr`. `empty`: the file has that size, and the present time.
    pub(super) fn truncate(&self, node: &Arc<Node>, size: u64, empty: bool, kill_set_id: bool) -> Result<()> {
        let opened = self.opened_for_writing(node, Bring::First(size))?;
        let _room = self.writable()?.room(node, At::object(&*opened.fd))?;
        if let Some(partial) = opened.partial() {
            if size == 0 {
                partial.empty()?;
            }
            self.settle(partial)?;
        }
        if !empty {
            calls::ftruncate(&*opened.fd, size)?;
        }
        if size == 0 {
            flush::later(Arc::clone(&opened));
        }
        if kill_set_id { self.clear_set_id(&opened) } else { Ok(()) }
    }

    /// Allocates or punches, as `fallocate(2)`.
    pub fn fallocate(&self, caller: Caller, node: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        let flags = FallocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
        let of = self.node(node)?;
        let opened = self.opened_whole(&of)?;
        let _room = self.writable()?.room_to_allocate(&of, &opened.fd, flags, (offset, len))?;
        let allocated = calls::fallocate(&*opened.fd, flags, offset, len);
        self.touched(node);
        allocated?;
        if caller.uid != 0 { self.clear_set_id(&opened) } else { Ok(()) }
    }

    /// Finds the next data or hole (`SEEK_DATA`, `SEEK_HOLE`).
    pub fn lseek(&self, node: u64, offset: i64, whence: i32) -> Result<i64> {
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let from = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        let node = self.node(node)?;
        // What is still to be brought up looks like a hole.
        self.settle_node(&node)?;
        let opened = self.opened(&node)?;
        let found = calls::seek(&*opened.fd, from)?;
        i64::try_from(found).map_err(|_| Errno::OVERFLOW)
    }

    /// Copies a range between files without its passing through the caller; how much was copied.
    pub fn copy_file_range(
        &self,
        caller: Caller,
        (from, mut from_offset): (u64, u64),
        (to, mut to_offset): (u64, u64),
        len: u64,
    ) -> Result<usize> {
        let to_node = self.node(to)?;
        let target = self.opened_whole(&to_node)?;
        let from = self.node(from)?;
        self.settle_node(&from)?;
        let from = self.opened(&from)?;
        // The reply has 32 bits for the count; one page less than that keeps file systems that want alignment happy.
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(0xffff_f000);
        let len = len.min(usize::try_from(left_of(&from.fd, from_offset)?).unwrap_or(usize::MAX));
        let _room = self.writable()?.room_to_write(&to_node, &target.fd, to_offset, len as u64)?;
        let copied = calls::copy_file_range(&*from.fd, Some(&mut from_offset), &*target.fd, Some(&mut to_offset), len);
        self.touched(to);
        let copied = copied?;
        if caller.uid != 0 {
            self.clear_set_id(&target)?;
        }
        Ok(copied)
    }

    /// Names the directory around the upper. Whatever is synced in the fork counts only where that is on the disk, with the
    /// files right in it and its own name: so they are synced before the first of it, and then not again.
    pub fn anchor(&self, dir: OwnedFd) {
        *self.anchor.lock() = Some(dir);
    }

    fn sync_anchor(&self) -> Result<()> {
        let mut anchor = self.anchor.lock();
        let Some(dir) = &*anchor else { return Ok(()) };
        let list = At::object(dir).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&list)? {
            let entry = entry?;
            let at = At::new(dir, OsStr::from_bytes(entry.file_name().to_bytes()));
            if entry.file_type() == FileType::RegularFile {
                match at.open(OFlags::RDONLY).and_then(|file| calls::fsync(&file)) {
                    // Replaced since it was listed.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        calls::fsync(&list)?;
        calls::fsync(&At::new(dir, "..").open(OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        *anchor = None;
        Ok(())
    }

    /// Makes content (and unless `data_only` attributes) of a file, or the entries of a directory, survive a power cut.
    pub fn fsync(&self, node: u64, data_only: bool) -> Result<()> {
        self.sync_anchor()?;
        let node = self.node(node)?;
        let fd = match &node.kind {
            Kind::Dir(dir) => {
                let _names = self.names.read();
                let state = dir.state.read();
                if !state.upper || state.is_removed() {
                    return Ok(());
                }
                drop(state);
                At::object(&*self.upper_dir(&node)?.fd).open(OFlags::RDONLY | OFlags::DIRECTORY)?
            }
            Kind::File(file) => {
                if matches!(file.state.read().place, Place::Lower { .. }) || file.file_type != FileType::RegularFile {
                    return Ok(());
                }
                let opened = self.opened(&node)?;
                if let Some(partial) = opened.partial() {
                    return partial.sync(data_only);
                }
                return if data_only { calls::fdatasync(&*opened.fd) } else { calls::fsync(&*opened.fd) };
            }
        };
        calls::fsync(&fd)
    }

    /// A descriptor that reads the file.
    pub(super) fn opened(&self, node: &Arc<Node>) -> Result<Arc<Opened>> {
        let cached = |slot| self.fds.get(self.owner, node.id, slot);
        if let Some(opened) = cached(Slot::Write).or_else(|| cached(Slot::Read)) {
            return Ok(opened);
        }
        let file = node.file()?;
        if file.file_type != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let _names = self.names.read();
        let state = file.state.read();
        let opened = match &state.place {
            Place::Lower { layer, path, .. } => {
                let original = self.open_lower(node, layer, path, OFlags::RDONLY | OFlags::NONBLOCK)?;
                Opened::of_lower(original.fd, original.stat.size)
            }
            _ => self.open_upper(&state, OFlags::RDONLY)?,
        };
        self.fds.put(self.owner, node.id, Slot::Read, Arc::clone(&opened));
        Ok(opened)
    }

    /// A descriptor that writes the file, which is whole in the upper.
    fn opened_whole(&self, node: &Arc<Node>) -> Result<Arc<Opened>> {
        let opened = self.opened_for_writing(node, Bring::All)?;
        if let Some(partial) = opened.partial() {
            self.settle(partial)?;
        }
        Ok(opened)
    }

    /// A descriptor that writes the file, brought into the upper first.
    fn opened_for_writing(&self, node: &Arc<Node>, bring: Bring) -> Result<Arc<Opened>> {
        if let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write) {
            return Ok(opened);
        }
        let file = node.file()?;
        if file.file_type != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        self.copy_up(node, bring)?;
        if let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write) {
            return Ok(opened);
        }
        let _names = self.names.read();
        let state = file.state.read();
        let opened = self.open_upper(&state, OFlags::RDWR)?;
        let mode = At::object(&*opened.fd).stat()?.mode;
        opened.set_id.store(mode & 0o6000 != 0, Ordering::Relaxed);
        self.fds.put(self.owner, node.id, Slot::Write, Arc::clone(&opened));
        Ok(opened)
    }

    /// Opens a file in the upper. The caller holds `names` and the node's state.
    fn open_upper(&self, state: &FileState, flags: OFlags) -> Result<Arc<Opened>> {
        let upper = self.writable()?;
        let fd = match &state.place {
            Place::Lower { .. } => return Err(Errno::STALE),
            Place::Upper => {
                let (parent, name) = state.links.first().ok_or(Errno::STALE)?;
                let dir = self.upper_dir(parent)?;
                open_ours(At::new(&*dir.fd, name), flags)?
            }
            Place::Index(key) => open_ours(At::new(upper.index.dir(), &key.file_name()), flags)?,
            Place::Orphan(grip) => open_ours(grip.at(), flags)?,
        };
        let partial = upper.partials.behind(&fd)?;
        Ok(Opened::of(Arc::new(fd), partial))
    }
}

/// How many bytes of a file there are from an offset on.
fn left_of(fd: &OwnedFd, offset: u64) -> Result<u64> {
    Ok(Stat::of(fd.as_fd())?.size.saturating_sub(offset))
}

/// Opens a file of the upper whatever its permissions: the kernel has checked the caller's. As an ordinary user, the
/// owner of a read-only file, that takes a moment with other permissions.
pub(super) fn open_ours(at: At<'_>, flags: OFlags) -> Result<OwnedFd> {
    match at.open(flags | OFlags::NONBLOCK) {
        Err(Errno::ACCESS) => {
            let mode = at.stat()?.mode;
            at.chmod(mode | 0o600)?;
            let opened = at.open(flags | OFlags::NONBLOCK);
            at.chmod(mode)?;
            opened
        }
        other => other,
    }
}
