//! The forks of a store: `list`, `path`.

use std::os::unix::ffi::OsStrExt;

use clap::Args;
use serde::Serialize;

use super::output::{self, Colour, Context};
use crate::error::Result;
use crate::fork::{self, Record, State};

/// Arguments of `list`.
#[derive(Args)]
pub(super) struct List {}

impl List {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let forks = match context.existing_store()? {
            Some(store) => fork::all(&store)?,
            None => vec![],
        };
        let (mut records, mut broken) = (vec![], 0);
        for (id, record) in forks {
            match record {
                Ok(record) => records.push(record),
                Err(e) => {
                    broken += 1;
                    output::note(&format!("the fork {id} cannot be read: {e}"));
                }
            }
        }
        context.print(&records, |records| list(records))?;
        Ok(u8::from(broken > 0))
    }
}

fn list(records: &[Record]) -> String {
    if records.is_empty() {
        return String::new();
    }
    let mut table = output::table(&["ID", "LABEL", "STRATEGY", "STATE", "BASE"]);
    for record in records {
        let label = record.label.as_ref().map_or("-", |label| label.as_str());
        let base = record.base.path.display().to_string();
        table.add_row([record.id.as_str(), label, record.strategy.as_str(), record.state.as_str(), &base]);
    }
    output::lines(&table, |row| match records[row].state {
        State::Live => None,
        State::Removing | State::Trashed => Some(Colour::Red),
        State::Creating | State::Merging | State::Restoring => Some(Colour::Yellow),
    })
}

/// Arguments of `path`.
#[derive(Args)]
pub(super) struct Path {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
}

#[derive(Serialize)]
struct Place {
    id: String,
    #[serde(with = "crate::names::json")]
    path: std::path::PathBuf,
}

impl Path {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let store = context.store_of(&self.fork)?;
        let record = fork::find(&store, &self.fork)?;
        let path = record.path(&store.fork(&record.id));
        if context.json {
            output::print_json(&Place { id: record.id.to_string(), path })?;
        } else {
            output::print(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
        }
        Ok(0)
    }
}
