//! What a plan changes in the contents of files, for whoever wants to see it.

use std::collections::HashMap;

use rustix::io::Errno;

use super::compare::read_all;
use super::plan::{Action, Entry, Make, ObjectType, Plan, Step};
use super::{Options, Os, Prepared, Side, Source, prepare, upper_object};
use crate::error::{Context, Result};
use crate::names::RelPath;
use crate::sys::At;

/// What is not shown, but only said to differ.
const LIMIT: u64 = 16 << 20;

/// One side of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is nothing there.
    Nothing,
    /// The bytes of a file, or the target of a symbolic link.
    Bytes(Vec<u8>),
    /// Something without bytes, or with too many to show.
    Opaque,
}

/// Calls `show` with each change of a fork, and the content before and after. The plan holds everything that the fork
/// changed, conflicts decided for it.
pub fn diff(
    source: &Source,
    options: &Options,
    show: &mut dyn FnMut(&Entry, Content, Content) -> Result<()>,
) -> Result<Plan> {
    let mut options = options.clone();
    options.resolve = vec![(RelPath::root(), Side::Ours)];
    let prepared = prepare(source, &options)?;
    let mut made: HashMap<&RelPath, &Make> = HashMap::new();
    for step in &prepared.plan.steps {
        if let Step::Put { path, make, .. } = step {
            made.insert(path, make);
        }
    }
    for entry in &prepared.plan.entries {
        let cannot = "cannot read the change of";
        let before = before(&prepared, entry).context(cannot, entry.path.as_path())?;
        let after = after(source, &made, entry).context(cannot, entry.path.as_path())?;
        show(entry, before, after)?;
    }
    Ok(prepared.plan)
}

fn before(prepared: &Prepared, entry: &Entry) -> Os<Content> {
    if entry.kind == ObjectType::Directory {
        return Ok(Content::Nothing);
    }
    let path = entry.from.as_ref().or(entry.present.as_ref()).unwrap_or(&entry.path);
    match prepared.parent.with(path, read) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Content::Nothing),
        other => other,
    }
}

fn after(source: &Source, made: &HashMap<&RelPath, &Make>, entry: &Entry) -> Os<Content> {
    if entry.action == Action::Delete || entry.kind == ObjectType::Directory {
        return Ok(Content::Nothing);
    }
    match made.get(&entry.path) {
        Some(Make::Content { bytes, .. }) => Ok(Content::Bytes(bytes.clone())),
        Some(Make::Index { name, .. }) => upper_object(source, Some(name), &entry.path, read),
        Some(Make::Upper { path, .. }) => upper_object(source, None, path, read),
        None => Ok(Content::Nothing),
    }
}

fn read(at: At<'_>) -> Os<Content> {
    let stat = at.stat()?;
    if stat.is_symlink() {
        return Ok(Content::Bytes(std::os::unix::ffi::OsStringExt::into_vec(at.readlink()?)));
    }
    if stat.is_file() && stat.size <= LIMIT { read_all(at).map(Content::Bytes) } else { Ok(Content::Opaque) }
}
