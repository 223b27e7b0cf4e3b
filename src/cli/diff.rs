//! What a fork changed: `diff`.

use std::fmt::Write;

use clap::Args;
use similar::TextDiff;

use super::forks::say_drift;
use super::inside;
use super::merge::{Choice, lines, say_unmatched, shown};
use super::output::{self, Context, counted};
use crate::api::source;
use crate::error::Result;
use crate::merge::{self, Content, Entry, ObjectType};

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
            output::print(unified(entry, &before, &after).as_bytes())
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

/// The word for a type of object.
fn word(kind: ObjectType) -> &'static str {
    match kind {
        ObjectType::File => "file",
        ObjectType::Directory => "directory",
        ObjectType::Symlink => "link",
        ObjectType::Special => "special file",
    }
}

fn unified(entry: &Entry, before: &Content, after: &Content) -> String {
    let to = shown(&entry.path);
    let from = entry.from.as_ref().map_or_else(|| to.clone(), shown);
    let mut text = format!("diff a/{from} b/{to}\n");
    match entry.mode {
        (Some(old), Some(new)) if old != new => {
            let _ = writeln!(text, "old mode {old:o}\nnew mode {new:o}");
        }
        (None, Some(new)) => {
            let _ = writeln!(text, "new {} mode {new:o}", word(entry.kind));
        }
        (Some(old), None) => {
            let _ = writeln!(text, "deleted {} mode {old:o}", word(entry.kind));
        }
        _ => {}
    }
    if entry.from.is_some() {
        let _ = writeln!(text, "rename from {from}\nrename to {to}");
    }
    if before == after {
        return text;
    }
    let Some((old, new)) = texts(before, after) else {
        return text + &format!("Binary files a/{from} and b/{to} differ\n");
    };
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let a = if *before == Content::Nothing { "/dev/null".to_owned() } else { format!("a/{from}") };
    let b = if *after == Content::Nothing { "/dev/null".to_owned() } else { format!("b/{to}") };
    text + &TextDiff::from_lines(&old, &new).unified_diff().header(&a, &b).to_string()
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
                let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
                let diff = TextDiff::from_lines(&old, &new);
                let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
                let (added, removed) = (count(similar::ChangeTag::Insert), count(similar::ChangeTag::Delete));
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
