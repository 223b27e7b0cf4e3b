//! Replies: what the overlay returned, in the words of the FUSE library.

use std::ffi::OsString;
use std::time::Duration;

use fuser::{
    Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request,
};

use super::convert::{absent, attr, errno, file_type};
use crate::overlay::{Attr, Caller, DirEntry, Entry, Lookup, Result};

/// On whose behalf a request runs.
pub(super) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

/// A node, or the certainty that there is none.
pub(super) fn found(reply: ReplyEntry, result: Result<Lookup>) {
    match result {
        Ok(Lookup::Found(found)) => entry(reply, Ok(found)),
        Ok(Lookup::Absent(ttl)) => reply.entry_with_ttls(&ttl, &ttl, &absent(), Generation(0)),
        Err(e) => reply.error(errno(e)),
    }
}

/// A node.
pub(super) fn entry(reply: ReplyEntry, result: Result<Entry>) {
    match result {
        Ok(e) => {
            let mut shown = attr(&e.attr);
            // The library takes the node number from the attributes. Where st_ino is another, nobody may believe these:
            // GETATTR, which can tell the two apart, gives the right ones.
            let ttl = if e.node == e.attr.ino { e.attr_ttl } else { Duration::ZERO };
            shown.ino = INodeNo(e.node);
            reply.entry_with_ttls(&ttl, &e.entry_ttl, &shown, Generation(e.generation));
        }
        Err(e) => reply.error(errno(e)),
    }
}

/// Adds an entry of a listing with the node behind it, or a dot entry without one; whether there was no room.
pub(super) fn add_ahead(reply: &mut ReplyDirectoryPlus, listed: &DirEntry<'_>, entry: Option<&Entry>) -> bool {
    let (mut shown, ttl, generation) = match entry {
        // One time is for both here: names and attributes are believed as long as the one that is believed less.
        Some(e) if e.node == e.attr.ino => (attr(&e.attr), e.entry_ttl.min(e.attr_ttl), e.generation),
        Some(e) => (attr(&e.attr), Duration::ZERO, e.generation),
        None => (absent(), Duration::ZERO, 0),
    };
    shown.kind = file_type(listed.kind);
    shown.ino = INodeNo(entry.map_or(listed.ino, |e| e.node));
    reply.add(shown.ino, listed.next, listed.name, &ttl, &shown, Generation(generation))
}

/// Attributes.
pub(super) fn attributes(reply: ReplyAttr, result: Result<(Attr, Duration)>) {
    match result {
        Ok((a, ttl)) => reply.attr(&ttl, &attr(&a)),
        Err(e) => reply.error(errno(e)),
    }
}

/// Nothing but success.
pub(super) fn empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

/// A number of bytes.
pub(super) fn written(reply: ReplyWrite, result: Result<usize>) {
    match result {
        Ok(n) => reply.written(u32::try_from(n).unwrap_or(u32::MAX)),
        Err(e) => reply.error(errno(e)),
    }
}

/// An attribute value or list, for a caller with room for `size` bytes; 0 asks for the length.
pub(super) fn sized(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
    match result {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(e)),
    }
}

/// Names as `listxattr` returns them: each with a NUL behind it.
pub(super) fn joined(names: &[OsString]) -> Vec<u8> {
    names.iter().flat_map(|name| name.as_encoded_bytes().iter().copied().chain([0])).collect()
}
