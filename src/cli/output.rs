//! What commands share: the store, text or JSON, tables, errors with a hint.
//!
//! Results go to standard output and everything said about them to standard error. Colours are for terminals, and
//! `NO_COLOR` turns them off. A closed pipe ends the command in silence.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::api::PreMerge;
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::fork::Store;

/// What the options before the command said.
pub(super) struct Context {
    store: Option<PathBuf>,
    /// Print JSON instead of text.
    pub(super) json: bool,
    /// Read no files of settings.
    no_config: bool,
}

impl Context {
    pub(super) fn new(store: Option<PathBuf>, json: bool, no_config: bool) -> Self {
        Self { store, json, no_config }
    }

    /// Where the store is or would be.
    pub(super) fn place(&self) -> Result<PathBuf> {
        Store::locate(self.store.as_deref())
    }

    /// The store, made where there is none.
    pub(super) fn store(&self) -> Result<Store> {
        Store::open(&self.place()?).map_err(|e| if in_command() { e.remedy(OUTSIDE) } else { e })
    }

    /// The store, or `None` where there is none yet.
    pub(super) fn existing_store(&self) -> Result<Option<Store>> {
        Store::open_existing(&self.place()?)
    }

    /// The store of a fork that is asked for by name; an error that says so where there is none.
    pub(super) fn store_of(&self, fork: &str) -> Result<Store> {
        let path = self.place()?;
        Store::open_existing(&path)?.ok_or_else(|| {
            let what = format!("no fork is called {fork:?}: there is no store");
            let remedy = if in_command() { OUTSIDE } else { "make a fork with `treefork create`, or name its --store" };
            Error::new(Kind::NotFound, what).at(path).remedy(remedy)
        })
    }

    /// What files set for forks of the base with this root.
    pub(super) fn settings(&self, base: &Path) -> Result<Settings> {
        if self.no_config { Ok(Settings::default()) } else { Settings::load(base) }
    }

    /// Whether the commands that hold up a merge run.
    pub(super) fn pre_merge(&self) -> PreMerge<'static> {
        if self.no_config { PreMerge::Skip } else { PreMerge::Run(Some(rustix::stdio::stderr())) }
    }

    /// Prints a value as JSON, or as the text that `text` makes of it.
    pub(super) fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json { print_json(value) } else { print(text(value).as_bytes()) }
    }
}

/// What helps where a command in a fork looks for the store.
pub(super) const OUTSIDE: &str = "from a command in a fork the store has no name: do this outside of the fork";

/// Whether this is part of a command of `run`, `exec` or `shell`.
pub(super) fn in_command() -> bool {
    std::env::var_os("TREEFORK_ID").is_some()
}

/// Writes to standard output. A reader that went away is no error of ours: the process ends, as `SIGPIPE` would do it.
pub(super) fn print(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
        other => other.map_err(|e| Error::io("cannot write to standard output", e)),
    }
}

/// Prints a value as JSON.
pub(super) fn print_json<T: Serialize>(value: &T) -> Result<()> {
    let mut text =
        serde_json::to_vec_pretty(value).map_err(|e| Error::new(Kind::Io, "cannot encode JSON").because(e))?;
    text.push(b'\n');
    print(&text)
}

/// Prints a value as one line of JSON.
pub(super) fn print_json_line<T: Serialize>(value: &T) -> Result<()> {
    let mut text = serde_json::to_vec(value).map_err(|e| Error::new(Kind::Io, "cannot encode JSON").because(e))?;
    text.push(b'\n');
    print(&text)
}

/// Says something about a result, on standard error.
pub(super) fn note(text: &str) {
    complain(format!("treefork: {text}\n"));
}

/// Says how to go on, on standard error.
pub(super) fn hint(text: &str) {
    complain(format!("hint: {text}\n"));
}

/// Has the warnings of the library said on standard error as well. `TREEFORK_LOG` chooses others, as `env_logger` has it.
pub(super) fn show_warnings() {
    let filter = std::env::var("TREEFORK_LOG").unwrap_or_else(|_| "treefork=warn".into());
    let format = |out: &mut env_logger::fmt::Formatter, record: &log::Record<'_>| {
        writeln!(out, "treefork: {}", one_line(&record.args().to_string()))
    };
    // Set already where the library's host has one of its own.
    let _ = env_logger::Builder::new().parse_filters(&filter).format(format).try_init();
}

/// "1 path", "2 paths".
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A table with these headings: plain columns, one line a row, so that it can be cut and searched.
pub(super) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headings.iter().copied());
    table.set_content_arrangement(ContentArrangement::Disabled);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The text of a table, without spaces at line ends; `colour` may give a row one, for terminals.
pub(super) fn lines(table: &Table, colour: impl Fn(usize) -> Option<Colour>) -> String {
    let coloured = paints(std::io::stdout().is_terminal());
    let line = |(n, line): (usize, String)| {
        let line = line.trim_end();
        // Line 0 holds the headings.
        match n.checked_sub(1).filter(|_| coloured).and_then(&colour) {
            Some(colour) => format!("\x1b[{}m{line}\x1b[0m\n", colour as u8),
            None => format!("{line}\n"),
        }
    };
    table.lines().enumerate().map(line).collect()
}

/// The colours in use.
#[derive(Clone, Copy)]
pub(super) enum Colour {
    Red = 31,
    Yellow = 33,
}

fn paints(terminal: bool) -> bool {
    let unset = |name| std::env::var_os(name).is_none_or(|v| v.is_empty());
    terminal && unset("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[derive(Serialize)]
struct Failure<'a> {
    error: FailureOf<'a>,
}

#[derive(Serialize)]
struct FailureOf<'a> {
    kind: &'static str,
    message: String,
    hint: Option<&'a str>,
}

/// Reports an error: one line and a hint; with `--json` an object on standard output as well. Returns the exit status.
pub(super) fn report(error: &Error, json: bool) -> u8 {
    let mark = if paints(std::io::stderr().is_terminal()) { "\x1b[31mtreefork:\x1b[0m" } else { "treefork:" };
    let message = one_line(&error.to_string());
    let hint = error.hint().or_else(|| general_hint(error.kind()));
    let hint_line = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    complain(format!("{mark} {message}\n{hint_line}"));
    if json {
        let failure = Failure { error: FailureOf { kind: error.kind().as_str(), message, hint } };
        let _ = print_json(&failure);
    }
    error.kind().exit_status()
}

/// Writes to standard error in one go, so that lines of several processes do not mix. Where it is gone there is nobody to
/// tell.
fn complain(text: String) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// What helps with most errors of a kind, where the error does not know better.
fn general_hint(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Usage => Some("`treefork help` and `treefork COMMAND --help` say how it is used"),
        Kind::NotFound | Kind::Ambiguous => Some("`treefork list` shows the forks"),
        Kind::InUse => Some("end those processes, or use --force"),
        Kind::Locked => Some("wait until the other command is done, then try again"),
        Kind::Unavailable => Some("`treefork doctor` says what this machine lacks"),
        Kind::Corrupt => Some("nothing was changed; `treefork doctor` looks closer"),
        Kind::Vanished => Some("`treefork doctor` looks closer; the fork's changes are kept in the store"),
        Kind::Covered => Some("unmount what covers the base, or fork the base anew"),
        Kind::Astray => Some("start from a directory that the fork has too"),
        Kind::Exists
        | Kind::Conflict
        | Kind::Hook
        | Kind::Git
        | Kind::TimedOut
        | Kind::Cancelled
        | Kind::NoShell
        | Kind::Io => None,
    }
}

/// A name as it has to be typed in a shell.
pub(super) fn word(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '@' | '+');
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

/// Causes from elsewhere may hold line breaks; an error is one line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Reports arguments that make no sense the way all errors are reported; help and version go to standard output.
pub(super) fn refuse_arguments(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match print(error.to_string().as_bytes()) {
            Ok(()) => 0,
            Err(e) => report(&e, false),
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        complain(error.to_string());
        return Kind::Usage.exit_status();
    }
    let text = error.to_string();
    // Clap's paragraphs: the error, then tips, then usage. The first one is the error.
    let first = text.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let words: Vec<&str> = first.split_whitespace().collect();
    let error = Error::new(Kind::Usage, words.join(" "));
    report(&if let Some(remedy) = remedy(&text) { error.remedy(remedy) } else { error }, asks_for_json())
}

/// What helps with wrong arguments, from what clap says of them.
fn remedy(text: &str) -> Option<String> {
    let after = |prefix| text.lines().find_map(|line| line.trim_start().strip_prefix(prefix));
    let usage = after("Usage: ");
    if usage.is_some_and(|usage| usage.ends_with("-- <COMMAND>...")) && !std::env::args_os().any(|arg| arg == "--") {
        return usage.map(|usage| format!("the command goes after two dashes: {usage}"));
    }
    // How to pass on what looks like an option helps nobody who has mistyped one.
    let tip = after("tip: ").filter(|tip| !tip.starts_with("to pass "));
    tip.map(str::to_owned).or(usage.map(|usage| format!("usage: {usage}")))
}

/// Whether the arguments ask for JSON, as far as that can be said of arguments that make no sense.
fn asks_for_json() -> bool {
    std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_typed() {
        assert_eq!(word("idea-a"), "idea-a");
        assert_eq!(word("it's b"), r"'it'\''s b'");
    }

    #[test]
    fn errors_are_one_line() {
        assert_eq!(one_line("a\nb\rc"), "a b c");
    }

    #[test]
    fn tables_have_no_trailing_spaces() {
        let mut table = table(&["FORK", "STATE"]);
        table.add_row(["a", "live"]);
        assert_eq!(lines(&table, |_| None), "FORK  STATE\na     live\n");
    }
}
