//! Bringing work back: `merge`, `conflicts`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::forks::say_drift;
use super::output::{self, Context, counted};
use crate::api::{self, Landing, PreMerge, source};
use crate::durable::{Holder, Wait};
use crate::error::{Error, Kind, Result};
use crate::fork::{self, Forks, Record, Store};
use crate::merge::{self, Omission, Options, Overlap, Plan, Reason, Side};
use crate::names::RelPath;

/// Arguments of `merge`.
#[derive(Args)]
pub(super) struct Merge {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Merge into this directory instead of the base
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Keep the fork afterwards; it goes on from the merged state
    #[arg(long)]
    keep: bool,
    /// Wait at most so long for another merge into the same directory
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    choice: Choice,
}

/// What is to be part of a merge.
#[derive(Args)]
pub(super) struct Choice {
    /// Only what is at or below this path; the rest stays in the fork
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
    /// Decide conflicts at or below PATH for the fork (ours) or for the parent (theirs)
    #[arg(long, num_args = 2, value_names = ["SIDE", "PATH"])]
    resolve: Vec<PathBuf>,
    /// Bring along what git ignores
    #[arg(long)]
    ignored: bool,
    /// Allow the deletion of what git does not track
    #[arg(long)]
    allow_delete: bool,
    /// Bring along this hook or setting of the git directory, such as .git/hooks/pre-commit
    #[arg(long, value_name = "PATH")]
    with_git: Vec<PathBuf>,
}

impl Choice {
    pub(super) fn options(&self) -> Result<Options> {
        let mut resolve = Vec::new();
        for pair in self.resolve.chunks(2) {
            let [side, path] = pair else { continue };
            let side = match side.to_str() {
                Some("ours") => Side::Ours,
                Some("theirs") => Side::Theirs,
                _ => {
                    let what =
                        format!("--resolve {}: the side is ours (the fork's) or theirs (the parent's)", side.display());
                    return Err(Error::new(Kind::Usage, what));
                }
            };
            resolve.push((relative(path)?, side));
        }
        Ok(Options {
            only: self.only.iter().map(|path| relative(path)).collect::<Result<_>>()?,
            resolve,
            ignored: self.ignored,
            allow_delete: self.allow_delete,
            git_paths: self.with_git.iter().map(|path| relative(path)).collect::<Result<_>>()?,
            ..Options::default()
        })
    }
}

fn relative(path: &std::path::Path) -> Result<RelPath> {
    RelPath::new(path)
        .ok_or_else(|| Error::new(Kind::Usage, "a path of the fork is relative to its root, without ..:").at(path))
}

/// What a merge says with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    fork: String,
    label: Option<String>,
    #[serde(with = "crate::names::json")]
    parent: PathBuf,
    /// The parent has everything now.
    merged: bool,
    /// The fork is gone.
    removed: bool,
    #[serde(flatten)]
    plan: &'a Plan,
}

impl Merge {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let store = context.store_of(&self.fork)?;
        let forks = Forks::open(store.clone())?;
        let record = forks.find(&self.fork)?;
        let mut options = self.choice.options()?;
        options.into.clone_from(&self.into);
        options.keep = self.keep || !options.only.is_empty();
        say_drift(&store, &record);
        if self.dry_run {
            let source = source(&store, &record)?;
            let plan = merge::plan(&source, &options)?;
            say_unmatched(&plan, &options);
            return self.report(context, &record, &plan, false, false);
        }
        let Landing { plan, merged, removed, .. } =
            carry_out(&forks, &record, &options, context.pre_merge(), self.wait())?;
        say_unmatched(&plan, &options);
        if removed {
            super::create::empty_trash_in_background(forks.store());
        }
        self.report(context, &record, &plan, merged, removed)
    }

    fn wait(&self) -> Wait {
        self.wait.map_or(Wait::No, |seconds| Wait::For(Duration::from_secs(seconds)))
    }

    fn report(&self, context: &Context, record: &Record, plan: &Plan, merged: bool, removed: bool) -> Result<u8> {
        let parent = self.into.clone().unwrap_or_else(|| record.base.path.clone());
        if context.json {
            let label = record.label.as_ref().map(ToString::to_string);
            output::print_json(&Report { fork: record.id.to_string(), label, parent, merged, removed, plan })?;
        } else {
            output::print(lines(plan).as_bytes())?;
            summary(plan, merged, self.dry_run, removed);
            if !plan.conflicts.is_empty() {
                output::hint(&way_out(plan, &output::word(record.name())));
            }
        }
        Ok(u8::from(!plan.conflicts.is_empty()))
    }
}

/// Merges a fork into its parent, and says whom it waits for. Where it is refused the fork is kept.
pub(super) fn carry_out(
    forks: &Forks,
    record: &Record,
    options: &Options,
    pre_merge: PreMerge<'_>,
    wait: Wait,
) -> Result<Landing> {
    api::merge_fork(forks, record, options, pre_merge, wait, waiting)
}

/// Who holds the lock that a merge waits for.
fn waiting(holder: Option<&Holder>) {
    let by = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
    output::note(&format!("waiting for {by}"));
}

/// Undoes or finishes merges that were broken off, and says so. Cheap where there are none.
pub(super) fn recover(store: &Store) -> Result<()> {
    for recovered in api::recover(store)? {
        let how = if recovered.landed { "finished" } else { "undone" };
        let (fork, parent) = (&recovered.fork, recovered.parent.display());
        output::note(&format!("a merge of {fork} into {parent:?} had been broken off; it was {how}"));
    }
    Ok(())
}

/// A plan as lines of text.
pub(super) fn lines(plan: &Plan) -> String {
    let mut text = String::new();
    for entry in &plan.entries {
        let path = shown(&entry.path);
        let from = entry.from.as_ref().map(|from| format!("{} -> ", shown(from))).unwrap_or_default();
        let mode = match entry.mode {
            (Some(before), Some(after)) if before != after => format!(" (mode {before:o} -> {after:o})"),
            _ => String::new(),
        };
        let notes: String = entry.notes.iter().map(|note| format!(" ({note})")).collect();
        text += &format!("{} {from}{path}{mode}{notes}\n", entry.action.letter());
    }
    for conflict in &plan.conflicts {
        let theirs = format!("; fork's: {}", conflict.fork.display());
        let look = if conflict.reason.is_deletion() { "" } else { &theirs };
        text += &format!("C {} ({}{look})\n", shown(&conflict.path), conflict.reason);
    }
    for left in plan.left_out.iter().filter(|left| left.why != Omission::Ignored) {
        text += &format!("- {} ({})\n", shown(&left.path), why(left.why));
    }
    for line in &plan.git {
        text += &format!("G {line}\n");
    }
    text
}

/// A path on one line.
pub(super) fn shown(path: &RelPath) -> String {
    let text = path.as_path().display().to_string();
    let text = if text.is_empty() { ".".to_owned() } else { text };
    if text.contains(char::is_control) { format!("{text:?}") } else { text }
}

fn why(why: Omission) -> &'static str {
    match why {
        Omission::Ignored => "ignored by git",
        Omission::GitSetting => "git setting; --with-git brings it along",
        Omission::Resolved => "decided for the parent",
    }
}

fn summary(plan: &Plan, merged: bool, dry_run: bool, removed: bool) {
    let ignored = plan.left_out.iter().filter(|left| left.why == Omission::Ignored).count();
    if ignored > 0 {
        let fate = if removed { "went with the fork" } else { "are left out" };
        output::note(&format!(
            "{}, ignored by git, {fate}; --ignored brings them along",
            counted(ignored, "changed path")
        ));
    }
    let gone = if removed { "; the fork is removed" } else { "" };
    match plan.conflicts.len() {
        0 if dry_run => output::note(&format!("would change {}", counted(plan.entries.len(), "path"))),
        0 if merged && plan.entries.is_empty() && plan.git.is_empty() => {
            output::note(&format!("nothing to merge{gone}"));
        }
        0 if merged => output::note(&format!("merged {}{gone}", counted(plan.entries.len(), "path"))),
        0 => {}
        n => output::note(&format!("{}; nothing was written, the fork is kept", counted(n, "conflict"))),
    }
    if merged && !removed && !dry_run {
        output::note("the fork is kept");
    }
}

/// How to go on where there are conflicts.
fn way_out(plan: &Plan, name: &str) -> String {
    let any = |reason| plan.conflicts.iter().any(|conflict| conflict.reason == reason);
    let mut ways = vec![];
    if any(Reason::ChangedMeanwhile) {
        ways.push("merge again".to_owned());
    }
    if any(Reason::UntrackedDeletion) {
        ways.push("--allow-delete deletes what git does not track".to_owned());
    }
    let decided = |reason| !matches!(reason, Reason::ChangedMeanwhile | Reason::UntrackedDeletion);
    if let Some(conflict) = plan.conflicts.iter().find(|conflict| decided(conflict.reason)) {
        let path = shown(&conflict.path);
        let path = if path.contains(char::is_whitespace) { format!("{path:?}") } else { path };
        ways.push(format!(
            "`treefork merge {name} --resolve ours {path}` takes the fork's side, `theirs` the parent's"
        ));
    }
    ways.join("; ")
}

/// Says which of the paths in the options name nothing that the fork changed.
pub(super) fn say_unmatched(plan: &Plan, options: &Options) {
    let entries = plan.entries.iter().flat_map(|entry| entry.from.iter().chain([&entry.path]));
    let others = plan.conflicts.iter().map(|conflict| &conflict.path);
    let changed: Vec<&RelPath> = entries.chain(others).chain(plan.left_out.iter().map(|left| &left.path)).collect();
    for asked in options.only.iter().chain(options.resolve.iter().map(|(path, _)| path)) {
        if !changed.iter().any(|path| path.as_path().starts_with(asked.as_path())) {
            output::note(&format!("the fork changed nothing at or below {}", shown(asked)));
        }
    }
}

/// Arguments of `conflicts`.
#[derive(Args)]
pub(super) struct Conflicts {
    /// The forks to compare with each other
    #[arg(required = true, num_args = 2..)]
    forks: Vec<String>,
}

#[derive(Serialize)]
struct Pair {
    first: String,
    second: String,
    paths: Vec<RelPath>,
}

impl Conflicts {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let store = context.store_of(&self.forks[0])?;
        let mut sources: Vec<merge::Source> = Vec::new();
        for name in &self.forks {
            let source = source(&store, &fork::find(&store, name)?)?;
            if sources.iter().any(|earlier| earlier.id == source.id) {
                return Err(Error::new(Kind::Usage, format!("the fork {} is named twice", source.name)));
            }
            sources.push(source);
        }
        let pair = |Overlap { first, second, paths }: Overlap| Pair {
            first: sources[first].name.clone(),
            second: sources[second].name.clone(),
            paths,
        };
        let pairs: Vec<Pair> = merge::overlaps(&sources)?.into_iter().map(pair).collect();
        context.print(&pairs, |pairs| {
            let line = |pair: &Pair, path: &RelPath| format!("{} {} {}\n", pair.first, pair.second, shown(path));
            pairs.iter().flat_map(|pair| pair.paths.iter().map(move |path| line(pair, path))).collect()
        })?;
        Ok(u8::from(!pairs.is_empty()))
    }
}
