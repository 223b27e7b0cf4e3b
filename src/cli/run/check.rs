//! `check`: what the guard says about a directory and a command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::output::Context;
use super::target;
use crate::error::Result;
use crate::fork::Forks;
use crate::run::{Finding, Guard, Liveness, Place};

/// Exit statuses beside 0: something leads out of the fork, or into the base instead of the fork.
const OUTSIDE: u8 = 3;
const BASE: u8 = 4;
const GONE: u8 = 120;

/// Arguments of `check`.
#[derive(Args)]
pub(in super::super) struct Check {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
    /// The directory that a command would run in [default: the fork]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// A path to judge
    #[arg(long, value_name = "PATH")]
    path: Vec<PathBuf>,
    /// A command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    fork: String,
    alive: bool,
    /// Why not.
    gone: Option<String>,
    cwd: Judged,
    paths: Vec<Judged>,
    findings: Vec<Finding>,
    notes: Vec<&'static str>,
    /// There was a command to judge.
    #[serde(skip)]
    read_command: bool,
    /// What a host should allow its tools.
    allow: Vec<Shown>,
}

#[derive(Serialize)]
struct Judged {
    #[serde(with = "crate::names::json")]
    path: PathBuf,
    #[serde(flatten)]
    place: Place,
}

#[derive(Serialize)]
struct Shown(#[serde(with = "crate::names::json")] PathBuf);

impl Check {
    pub(in super::super) fn run(self, context: &Context) -> Result<u8> {
        let forks = Forks::open(context.store_of(&self.fork)?)?;
        let record = forks.find(&self.fork)?;
        let guard = Guard::new(target(&forks, &record)?)?;
        let here = std::env::current_dir().unwrap_or_else(|_| Path::new("/").to_path_buf());
        let cwd = self.cwd.map_or_else(|| guard.root().join(&record.subdir), |cwd| here.join(cwd));
        let judge = |path: &Path| -> Result<Judged> {
            let place = guard.place(path, &cwd)?;
            Ok(Judged { path: path.to_path_buf(), place })
        };
        let gone = match guard.liveness() {
            Liveness::Alive => None,
            Liveness::Gone(why) => Some(why),
        };
        let scan = guard.scan(&self.command, &cwd);
        let report = Report {
            fork: record.id.to_string(),
            alive: gone.is_none(),
            gone,
            cwd: judge(&cwd)?,
            paths: self.path.iter().map(|path| judge(path)).collect::<Result<_>>()?,
            findings: scan.findings,
            notes: scan.notes,
            read_command: !self.command.is_empty(),
            allow: guard.allow().into_iter().map(Shown).collect(),
        };
        context.print(&report, text)?;
        Ok(report.status())
    }
}

impl Report {
    /// The worst of what was found: gone, the base, outside, nothing.
    fn status(&self) -> u8 {
        let paths = self.paths.iter().chain([&self.cwd]).map(|judged| &judged.place);
        let places: Vec<&Place> = paths.chain(self.findings.iter().map(|finding| &finding.place)).collect();
        if !self.alive {
            GONE
        } else if places.iter().any(|place| matches!(place, Place::Base(_))) {
            BASE
        } else if places.contains(&&Place::Outside) {
            OUTSIDE
        } else {
            0
        }
    }
}

fn text(report: &Report) -> String {
    let word = |place: &Place| match place {
        Place::Inside(_) => "inside the fork",
        Place::Base(_) => "in the base instead",
        Place::Outside => "outside",
    };
    let mut lines = vec![];
    match &report.gone {
        Some(why) => lines.push(format!("the fork is gone: {why}")),
        None => lines.push("the fork is alive".to_owned()),
    }
    lines.push(format!("working directory: {}: {:?}", word(&report.cwd.place), report.cwd.path));
    lines.extend(report.paths.iter().map(|judged| format!("path: {}: {:?}", word(&judged.place), judged.path)));
    lines.extend(report.findings.iter().map(|finding| format!("command: {}: {}", word(&finding.place), finding.words)));
    if report.read_command && report.findings.is_empty() {
        lines.push("command: nothing in it is seen to leave the fork".to_owned());
    }
    lines.extend(report.notes.iter().map(|note| format!("note: {note}")));
    lines.into_iter().map(|line| line.replace('\n', " ") + "\n").collect()
}
