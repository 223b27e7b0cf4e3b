//! Listings that bring their entries with them, so that whoever walks a fresh tree does not ask for each by itself.
//!
//! A lookup of an entry costs microseconds here and a turn of two processes if the kernel asks for it; but it is wasted on
//! an entry that the kernel knows already, as git, which looks at every tracked file before it lists a directory. The
//! kernel asks for the first part of a listing in this way, and for later ones only if names were looked up
//! meanwhile. So a first part that is cut short is a way to say that the plain listing will do.

use std::ffi::OsString;

use rustix::fs::FileType;

use super::listing::DOT_DOT;
use super::{DirEntry, Entry, Lookup, Overlay, Result};

/// How many entries are looked up for one answer. One of 32 KiB, which is what the C library asks for, has room for 200.
const MOST: usize = 256;

/// Of so many entries it does not matter who knows them: asking once more would cost as much.
const FEW: usize = 8;

/// What is collected before it is looked up, which must be done without the locks of the listing.
struct Item {
    name: OsString,
    ino: u64,
    kind: FileType,
    next: u64,
}

impl Overlay {
    /// Lists a directory like [`readdir`](Self::readdir), and looks up what it lists: each `Entry` that `emit` took counts
    /// as one lookup. The dot entries come without one.
    ///
    /// `emit` says that there was no room for what it was given. The list may be cut short anywhere but before its first
    /// entry; the rest is to be asked for.
    pub fn readdirplus(
        &self,
        node: u64,
        offset: u64,
        emit: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let mut from = offset;
        loop {
            let items = self.page(node, from)?;
            let Some(last) = items.last() else { return Ok(()) };
            from = last.next;
            let only_dots = offset == 0 && self.is_mostly_known(&items);
            // An answer without an entry is the end of the list.
            let mut empty = true;
            for item in &items {
                let listed = DirEntry { ino: item.ino, kind: item.kind, name: &item.name, next: item.next };
                if item.next <= DOT_DOT {
                    if emit(listed, None) {
                        return Ok(());
                    }
                    empty = false;
                    continue;
                }
                if only_dots && !empty {
                    return Ok(());
                }
                let entry = match self.lookup(node, &item.name) {
                    Ok(Lookup::Found(entry)) => entry,
                    // Gone since it was listed.
                    Ok(Lookup::Absent(_)) => continue,
                    // The plain listing shows what cannot be looked at.
                    Err(_) if !empty => return Ok(()),
                    Err(e) => return Err(e),
                };
                // FUSE takes one number for the node and for what the listing shows. Where the two differ, the plain one can tell.
                let differs = entry.node != entry.attr.ino && !empty;
                if differs || emit(listed, Some(&entry)) {
                    self.forget(entry.node, 1);
                    return Ok(());
                }
                empty = false;
            }
            if !empty {
                return Ok(());
            }
        }
    }

    /// The next entries after an offset.
    fn page(&self, node: u64, offset: u64) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        self.readdir(node, offset, &mut |entry| {
            let DirEntry { ino, kind, name, next } = entry;
            items.push(Item { name: name.to_os_string(), ino, kind, next });
            items.len() == MOST
        })?;
        Ok(items)
    }

    /// Whether the kernel knows so much of what is listed that looking it up would be for nothing.
    fn is_mostly_known(&self, items: &[Item]) -> bool {
        let named = items.iter().filter(|item| item.next > DOT_DOT);
        let (all, known) = (named.clone().count(), named.filter(|item| self.table.holds(item.ino)).count());
        all > FEW && known > all / 2
    }
}
