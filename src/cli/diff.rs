//! What a fork changed: `diff`.

// Writing to a string cannot fail: the results are dropped.
use std::fmt::Write;
use std::ops::Range;

use clap::Args;
use similar::algorithms::{Capture, Replace, diff_slices};
use similar::{Algorithm, DiffOp, DiffTag};

use super::forks::say_drift;
use super::inside;
use super::merge::{Choice, lines, say_unmatched, shown};
use super::output::{self, Context, counted};
use crate::api::source;
use crate::error::Result;
use crate::merge::{self, Content, Entry, ObjectType};
use crate::sys::Time;

/// Arguments of `diff`.
#[derive(Args)]
pub(super) struct Diff {
    /// The fork: its id, its label, or the beginning of either [default: the one that the caller is in]
    fork: Option<String>,
    /// Only letters and paths
    #[arg(long, conflicts_with = "stat")]
    name_status: bool,
    /// Only how many lines changed where
    #[arg(long)]
    stat: bool,
    #[command(flatten)]
    choice: Choice,
}

impl Diff {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let (store, record) = inside::named_or_here(context, self.fork.as_deref())?;
        let source = source(&store, &record)?;
        say_drift(&store, &record);
        let options = self.choice.options()?;
        let brief = self.name_status || context.json;
        let mut stat = Stat::default();
        let plan = merge::diff(&source, &options, &mut |entry, before, after| {
            if brief {
                return Ok(());
            }
            if self.stat {
                stat.add(entry, &before, &after);
                return Ok(());
            }
            output::print(&unified(entry, &before, &after))
        })?;
        if context.json {
            output::print_json(&plan)?;
        } else if self.name_status {
            output::print(lines(&plan).as_bytes())?;
        } else if self.stat {
            output::print(stat.text().as_bytes())?;
        }
        say_unmatched(&plan, &options);
        let left = plan.left_out.iter().filter(|left| left.why == merge::Omission::Ignored).count();
        if left > 0 {
            output::note(&format!("{left} changed paths are ignored by git and left out; --ignored shows them"));
        }
        Ok(0)
    }
}

/// Both sides as text; `None` where one has no text to show.
fn texts<'a>(before: &'a Content, after: &'a Content) -> Option<(&'a [u8], &'a [u8])> {
    let side = |content: &'a Content| match content {
        Content::Nothing => Some(&[][..]),
        Content::Bytes(bytes) if !bytes[..bytes.len().min(8000)].contains(&0) => Some(&bytes[..]),
        Content::Bytes(_) | Content::Opaque => None,
    };
    Some((side(before)?, side(after)?))
}

/// The lines about modes: git's for what git knows, alike ones for the rest.
fn modes(entry: &Entry) -> String {
    let (what, kind) = match entry.kind {
        ObjectType::File => ("file", 0o100_000),
        // The kernel's permissions of a link mean nothing, and git writes none.
        ObjectType::Symlink => return link_modes(entry),
        ObjectType::Directory => ("directory", 0),
        ObjectType::Special => ("special file", 0),
    };
    match entry.mode {
        (Some(old), Some(new)) if old != new => format!("old mode {:o}\nnew mode {:o}\n", kind | old, kind | new),
        (None, Some(new)) if entry.from.is_none() => format!("new {what} mode {:o}\n", kind | new),
        (Some(old), None) => format!("deleted {what} mode {:o}\n", kind | old),
        _ => String::new(),
    }
}

fn link_modes(entry: &Entry) -> String {
    match entry.mode {
        (None, Some(_)) if entry.from.is_none() => "new file mode 120000\n".to_owned(),
        (Some(_), None) => "deleted file mode 120000\n".to_owned(),
        _ => String::new(),
    }
}

/// Whether git has a word for the change: of permissions it knows the owner's to execute.
fn git_knows(entry: &Entry, same_content: bool) -> bool {
    match (entry.kind, entry.mode) {
        _ if entry.from.is_some() => true,
        _ if entry.mtime.is_some() => false,
        (ObjectType::File, (Some(old), Some(new))) if same_content => (old ^ new) & 0o100 != 0,
        (ObjectType::File | ObjectType::Symlink, _) => true,
        (ObjectType::Directory | ObjectType::Special, _) => false,
    }
}

/// A time to the nanosecond, as `touch -d` takes it.
fn moment(time: Time) -> String {
    format!("@{}.{:09}", time.sec, time.nsec)
}

/// One change as `git apply` and a person can read it. What git does not know (an empty directory, permissions, special
/// files) it passes over, being there for the person; a directory with another name it refuses.
fn unified(entry: &Entry, before: &Content, after: &Content) -> Vec<u8> {
    let to = shown(&entry.path);
    let from = entry.from.as_ref().map_or_else(|| to.clone(), shown);
    let git = if git_knows(entry, before == after) { "--git " } else { "" };
    let mut text = format!("diff {git}a/{from} b/{to}\n{}", modes(entry));
    if entry.from.is_some() {
        // What a file leaves behind is a deletion of its own.
        let what = if entry.kind == ObjectType::Directory { "rename" } else { "copy" };
        let _ = writeln!(text, "{what} from {from}\n{what} to {to}");
    }
    if let Some((old, new)) = entry.mtime {
        let _ = writeln!(text, "old time {}\nnew time {}", moment(old), moment(new));
    }
    if before == after {
        return text.into_bytes();
    }
    let Some((old, new)) = texts(before, after) else {
        return (text + &format!("Binary files a/{from} and b/{to} differ\n")).into_bytes();
    };
    if old == new {
        // An empty file came or went.
        return text.into_bytes();
    }
    let a = if *before == Content::Nothing { "/dev/null".to_owned() } else { format!("a/{from}") };
    let b = if *after == Content::Nothing { "/dev/null".to_owned() } else { format!("b/{to}") };
    let _ = writeln!(text, "--- {a}\n+++ {b}");
    [text.into_bytes(), hunks(old, new)].concat()
}

/// The steps from one list of lines to the other. (What `TextDiff` makes of them moves them about, and then counts wrongly
/// where hunks begin.)
fn steps(old: &[&[u8]], new: &[&[u8]]) -> Capture {
    let mut steps = Replace::new(Capture::new());
    diff_slices(Algorithm::Myers, &mut steps, old, new).unwrap_or_else(|never| match never {});
    steps.into_inner()
}

fn lines_of(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n').collect()
}

/// What changed in a text, with three lines around it.
fn hunks(old: &[u8], new: &[u8]) -> Vec<u8> {
    let (old, new) = (lines_of(old), lines_of(new));
    let mut text = Vec::new();
    for hunk in steps(&old, &new).into_grouped_ops(3) {
        let span = |range: &dyn Fn(&DiffOp) -> Range<usize>| {
            let count: usize = hunk.iter().map(|step| range(step).len()).sum();
            // Lines count from one; a side without lines names the one before.
            let start = hunk.first().map_or(0, |step| range(step).start) + usize::from(count > 0);
            if count == 1 { start.to_string() } else { format!("{start},{count}") }
        };
        text.extend(format!("@@ -{} +{} @@\n", span(&DiffOp::old_range), span(&DiffOp::new_range)).bytes());
        let mut add = |mark: u8, lines: &[&[u8]]| {
            for line in lines {
                text.push(mark);
                text.extend_from_slice(line);
                if !line.ends_with(b"\n") {
                    text.extend_from_slice(b"\n\\ No newline at end of file\n");
                }
            }
        };
        for step in &hunk {
            if step.tag() == DiffTag::Equal {
                add(b' ', &old[step.old_range()]);
            } else {
                add(b'-', &old[step.old_range()]);
                add(b'+', &new[step.new_range()]);
            }
        }
    }
    text
}

#[derive(Default)]
struct Stat {
    rows: Vec<(String, String)>,
    added: usize,
    removed: usize,
}

impl Stat {
    fn add(&mut self, entry: &Entry, before: &Content, after: &Content) {
        let path = match &entry.from {
            Some(from) => format!("{} -> {}", shown(from), shown(&entry.path)),
            None => shown(&entry.path),
        };
        let what = match texts(before, after) {
            None => "binary".to_owned(),
            Some((old, new)) => {
                let steps = steps(&lines_of(old), &lines_of(new)).into_ops();
                let changes = || steps.iter().filter(|step| step.tag() != DiffTag::Equal);
                let added: usize = changes().map(|step| step.new_range().len()).sum();
                let removed: usize = changes().map(|step| step.old_range().len()).sum();
                self.added += added;
                self.removed += removed;
                format!("+{added} -{removed}")
            }
        };
        self.rows.push((path, what));
    }

    fn text(&self) -> String {
        let width = self.rows.iter().map(|(path, _)| path.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (path, what) in &self.rows {
            let _ = writeln!(text, " {path:width$} | {what}");
        }
        let (n, added, removed) = (self.rows.len(), self.added, self.removed);
        let _ = writeln!(text, " {} changed, {} added, {removed} removed", counted(n, "path"), counted(added, "line"));
        text
    }
}
