//! What there is: `list`, `show`, `path`, `log`.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use super::inside::{self, Inside};
use super::output::{self, Colour, Context};
use crate::error::Result;
use crate::fork::status::{self, Mount, Status};
use crate::fork::{self, Forks, Record, State, Store, journal};
use crate::server::Client;
use crate::sys::Time;

/// Arguments of `list`.
#[derive(Args)]
pub(super) struct List {
    /// Print only what the forks are called: their labels, else their ids
    #[arg(long)]
    names: bool,
}

impl List {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        if self.names {
            return names(context);
        }
        let forks = match context.existing_store()? {
            Some(store) => status::all(&store)?,
            None if output::in_command() => {
                output::hint(output::OUTSIDE);
                vec![]
            }
            None => vec![],
        };
        let (mut statuses, mut broken) = (vec![], 0);
        for (id, status) in forks {
            match status {
                Ok(status) => statuses.push(status),
                Err(e) => {
                    broken += 1;
                    output::note(&format!("the fork {id} cannot be read, and is kept as it is: {e}"));
                }
            }
        }
        context.print(&statuses, |statuses| list(statuses))?;
        Ok(u8::from(broken > 0))
    }
}

/// What the forks are called, without a look at anything but their records: quick enough to complete names by.
fn names(context: &Context) -> Result<u8> {
    let forks = context.existing_store()?.map(|store| fork::all(&store)).transpose()?.unwrap_or_default();
    let names: Vec<String> = forks.into_iter().filter_map(|(_, record)| Some(record.ok()?.name().to_owned())).collect();
    context.print(&names, |names| names.iter().map(|name| format!("{name}\n")).collect())?;
    Ok(0)
}

fn list(statuses: &[Status]) -> String {
    if statuses.is_empty() {
        return String::new();
    }
    let mut table = output::table(&["ID", "LABEL", "STATE", "STRATEGY", "AGE", "OWNER", "SIZE", "CHANGES", "BASE"]);
    for status in statuses {
        let record = &status.record;
        table.add_row([
            record.id.to_string(),
            record.label.as_ref().map_or("-".into(), ToString::to_string),
            condition(status).to_owned(),
            record.strategy.to_string(),
            age(status.age_seconds),
            owner(status),
            indicatif::HumanBytes(status.upper_bytes).to_string(),
            changes(status).unwrap_or("-".into()),
            record.base.path.display().to_string().replace('\n', "\\n"),
        ]);
    }
    output::lines(&table, |row| colour(&statuses[row]))
}

/// The state, or what is wrong with a live fork.
fn condition(status: &Status) -> &'static str {
    match (status.record.state, status.mount) {
        (State::Live, _) if status.base_problem.is_some() => "no base",
        (State::Live, Mount::Stale) => "stale",
        (State::Live, _) if !status.drift.is_empty() => "drifted",
        (state, _) => state.as_str(),
    }
}

fn colour(status: &Status) -> Option<Colour> {
    match condition(status) {
        "live" => None,
        "no base" => Some(Colour::Red),
        _ => Some(Colour::Yellow),
    }
}

fn owner(status: &Status) -> String {
    let alive = match status.owner_alive {
        Some(true) => "",
        Some(false) => " gone",
        None => "?",
    };
    format!("{}{alive}", status.record.owner.pid)
}

/// How much changed: files, and what git wrote for itself.
fn changes(status: &Status) -> Option<String> {
    let files = status.changes?;
    Some(match status.git_changes.unwrap_or_default() {
        0 => files.to_string(),
        git => format!("{files} +{git} in .git"),
    })
}

/// What counts against the limits of a fork, and what they are; nothing for one that has none.
fn limits(status: &Status) -> String {
    let limits = status.record.limits;
    let bytes = |n: u64| indicatif::HumanBytes(n).to_string();
    let of = |used: Option<u64>, most: Option<u64>, say: &dyn Fn(u64) -> String| {
        most.map(|most| format!("{} of {}", used.map_or("?".into(), say), say(most)))
    };
    let size = of(status.used_bytes, limits.max_size, &bytes);
    let files = of(status.used_files, limits.max_files, &|n| n.to_string()).map(|files| format!("{files} files"));
    size.into_iter().chain(files).collect::<Vec<_>>().join(", ")
}

/// An age in its largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Arguments of `show`.
#[derive(Args)]
pub(super) struct Show {
    /// The fork: its id, its label, or the beginning of either [default: the one that the caller is in]
    fork: Option<String>,
    /// Show how often the kernel has asked for what, since the fork was mounted
    #[arg(long)]
    stats: bool,
}

/// What a command in a fork knows about it.
#[derive(Serialize)]
struct Known {
    id: String,
    label: Option<String>,
    base: Option<String>,
}

impl Show {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let (store, record) = match &self.fork {
            Some(name) => inside::named_or_here(context, Some(name))?,
            None => match inside::find()? {
                Inside::Fork(store, record) => (store, *record),
                Inside::Command { id } => {
                    let variable = |name: &str| std::env::var(name).ok();
                    let known = Known { id, label: variable("TREEFORK_LABEL"), base: variable("TREEFORK_BASE") };
                    context.print(&known, Known::lines)?;
                    return Ok(0);
                }
            },
        };
        if self.stats {
            let stats = Client::new(store.root()).stats(record.id.as_str())?;
            context
                .print(&stats, |stats| stats.iter().map(|(name, count)| format!("{count:>9} {name}\n")).collect())?;
        } else {
            context.print(&status::of(&store, record)?, show)?;
        }
        Ok(0)
    }
}

impl Known {
    fn lines(&self) -> String {
        let line = |name: &str, value: &str| format!("{name:<7}{value}\n");
        let more = [("label", &self.label), ("base", &self.base)];
        let more = more.into_iter().filter_map(|(name, value)| Some(line(name, value.as_deref()?)));
        std::iter::once(line("id", &self.id)).chain(more).collect()
    }
}

fn show(status: &Status) -> String {
    let record = &status.record;
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.add_row([name.to_owned(), value.replace('\n', "\\n")]);
        }
    };
    row("id", record.id.to_string());
    row("label", record.label.as_ref().map(ToString::to_string).unwrap_or_default());
    row("agent", record.agent.clone().unwrap_or_default());
    row("path", status.path.display().to_string());
    row("base", record.base.path.display().to_string());
    row("base commit", record.base_ref.clone().unwrap_or_default());
    row("base problem", status.base_problem.clone().unwrap_or_default());
    row("strategy", record.strategy.to_string());
    row("state", condition(status).to_owned());
    row("mount", status.mount.as_str().to_owned());
    row("made", format!("{} ({} ago)", timestamp(record.created_at), age(status.age_seconds)));
    row("owner", owner(status));
    row("size", indicatif::HumanBytes(status.upper_bytes).to_string());
    row("limits", limits(status));
    row("changes", changes(status).unwrap_or_default());
    row("kept from gc", if record.keep { "yes".into() } else { String::new() });
    let set =
        [("excluded", &record.hide.exclude), ("post_create", &record.post_create), ("pre_merge", &record.pre_merge)];
    for (name, list) in set {
        list.iter().for_each(|text| row(name, text.clone()));
    }
    for refusal in &record.refusals {
        row("refused", format!("{}: {}", refusal.strategy, refusal.reason));
    }
    for advisory in &record.advisories {
        row("advisory", advisory.clone());
    }
    if status.unwatched {
        let what = "the base is too large to watch: changes by others show a moment later, and reading costs more";
        row("advisory", format!("{what}; fs.inotify.max_user_watches says how much is watched"));
    }
    for path in &status.drift {
        row("drift", named(&path.0).display().to_string());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    output::lines(&table, |_| None)
}

/// Says which paths of the base have changed under a fork, before a person relies on what it shows.
///
/// `git status` in the base rewrites its index now and then, which is no news: only `show` names it.
pub(super) fn say_drift(store: &Store, record: &Record) {
    // Where no server runs nobody has looked at anything.
    let Ok(drift) = Client::new(store.root()).drift(record.id.as_str()) else { return };
    let no_news = |path: &PathBuf| {
        path.starts_with(".git/index")
            // Git's locks come and go with each thing that it does.
            || (path.starts_with(".git") && path.extension().is_some_and(|extension| extension == "lock"))
    };
    let paths: Vec<&PathBuf> = drift.paths.iter().filter(|path| !no_news(path)).collect();
    if let Some(first) = paths.first() {
        let count = output::counted(paths.len(), "path");
        let have = if paths.len() == 1 { "has" } else { "have" };
        let more = if paths.len() == 1 { "" } else { ", ..." };
        output::note(&format!(
            "{count} of the base {have} changed since {name} was made: {:?}{more}; `treefork show {typed}` has all",
            named(first),
            name = record.name(),
            typed = output::word(record.name())
        ));
    }
}

/// A path of the base, which itself is the dot.
fn named(path: &std::path::Path) -> &std::path::Path {
    if path.as_os_str().is_empty() { std::path::Path::new(".") } else { path }
}

/// The time in UTC. None before 1970 or after the year 9999 can be written in this form: the nearest that can stands for it.
fn timestamp(time: Time) -> String {
    const LAST: u64 = 253_402_300_799;
    let seconds = u64::try_from(time.sec).unwrap_or(0).min(LAST);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// Arguments of `path`.
#[derive(Args)]
pub(super) struct Path {
    /// The fork: its id, its label, or the beginning of either [default: the one that the caller is in]
    fork: Option<String>,
}

#[derive(Serialize)]
struct Place {
    id: String,
    #[serde(with = "crate::names::json")]
    path: PathBuf,
}

impl Path {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let (store, record) = inside::named_or_here(context, self.fork.as_deref())?;
        let (record, path) = Forks::open(store)?.ready(record.id.as_str())?;
        if context.json {
            output::print_json(&Place { id: record.id.to_string(), path })?;
        } else {
            output::print(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
        }
        Ok(0)
    }
}

/// Arguments of `log`.
#[derive(Args)]
pub(super) struct Log {
    /// The fork: its id, its label, or the beginning of either [default: the one that the caller is in]
    fork: Option<String>,
}

impl Log {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let (store, record) = inside::named_or_here(context, self.fork.as_deref())?;
        let events = journal::events(&store.fork(&record.id))?;
        context.print(&events, |events| {
            let line = |event: &journal::Event| {
                let detail = event.detail.replace('\n', "\\n");
                format!("{} {} {detail}", timestamp(event.at), event.what).trim_end().to_owned() + "\n"
            };
            events.iter().map(line).collect()
        })?;
        Ok(0)
    }
}
