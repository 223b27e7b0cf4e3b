//! Keeping house: `gc`, `restore`, `doctor`.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;

use super::output::{self, Colour, Context};
use crate::error::Result;
use crate::fork::doctor::{self, Finding, Level};
use crate::fork::gc::{Decision, Fate, Policy};
use crate::fork::{Forks, Store, status};

/// Arguments of `gc`.
#[derive(Args)]
pub(super) struct Gc {
    /// Keep forks younger than this
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
    min_age: Duration,
    /// Only say what would be done
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Move forks with unmerged changes to the trash, too; `restore` brings them back
    #[arg(long)]
    unmerged: bool,
    /// Delete what has been in the trash for longer than this
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = humantime::parse_duration)]
    trash_age: Duration,
}

impl Gc {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let decisions = match context.existing_store()? {
            None => vec![],
            Some(store) => {
                let Self { min_age, dry_run, unmerged, trash_age } = self;
                Forks::open(store)?.gc(&Policy { min_age, unmerged, trash_age, dry_run })?
            }
        };
        context.print(&decisions, |decisions| table(decisions))?;
        Ok(u8::from(decisions.iter().any(|decision| decision.fate == Fate::Failed)))
    }
}

fn table(decisions: &[Decision]) -> String {
    if decisions.is_empty() {
        return String::new();
    }
    let mut table = output::table(&["ID", "LABEL", "FATE", "WHY"]);
    for decision in decisions {
        let label = decision.label.as_deref().unwrap_or("-");
        table.add_row([decision.id.as_str(), label, decision.fate.as_str(), &decision.reason]);
    }
    output::lines(&table, |row| match decisions[row].fate {
        Fate::Kept | Fate::Waiting => None,
        Fate::Removed | Fate::Trashed | Fate::Deleted => Some(Colour::Yellow),
        Fate::Failed => Some(Colour::Red),
    })
}

/// Arguments of `restore`.
#[derive(Args)]
pub(super) struct Restore {
    /// The fork in the trash: its id, its label, or the beginning of either
    fork: String,
}

impl Restore {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let forks = Forks::open(context.store_of(&self.fork)?)?;
        let record = forks.restore(&self.fork)?;
        let path = record.path(&forks.store().fork(&record.id));
        if context.json {
            output::print_json(&status::of(forks.store(), record)?)?;
        } else {
            output::print(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
        }
        Ok(0)
    }
}

/// Arguments of `doctor`.
#[derive(Args)]
pub(super) struct Doctor {}

impl Doctor {
    /// The exit status is 1 where something does not work.
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let place = context.place()?;
        let findings = doctor::examine(&place, Store::open_existing(&place));
        context.print(&findings, |findings| findings_text(findings))?;
        Ok(u8::from(findings.iter().any(|finding| finding.level == Level::Bad)))
    }
}

fn findings_text(findings: &[Finding]) -> String {
    let mut table = output::table(&["", "ABOUT", "FOUND"]);
    let mut levels = Vec::new();
    for finding in findings {
        table.add_row([finding.level.as_str(), finding.about, &finding.what]);
        levels.push(finding.level);
        if let Some(remedy) = &finding.remedy {
            table.add_row(["", "", &format!("-> {remedy}")]);
            levels.push(finding.level);
        }
    }
    output::lines(&table, |row| match levels[row] {
        Level::Good => None,
        Level::Weak => Some(Colour::Yellow),
        Level::Bad => Some(Colour::Red),
    })
}
