//! What goes on in forks: `ps`, `top`.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::output::{self, Context};
use crate::error::Result;
use crate::fork::{self, Record, Store, status, users};
use crate::server::Client;

/// Arguments of `ps`.
#[derive(Args)]
pub(super) struct Ps {
    /// Only of these forks: their ids, labels, or the beginning of either
    #[arg(value_name = "FORK")]
    forks: Vec<String>,
}

/// A process in a fork.
#[derive(Serialize)]
struct Process {
    fork: String,
    label: Option<String>,
    #[serde(flatten)]
    user: fork::User,
}

impl Ps {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let mut processes = Vec::new();
        if let Some(store) = context.existing_store()? {
            for record in self.records(&store)? {
                for user in users(&store.fork(&record.id))? {
                    processes.push(Process { fork: record.id.to_string(), label: label(&record), user });
                }
            }
        }
        context.print(&processes, |processes| {
            let mut table = output::table(&["FORK", "LABEL", "PID", "COMMAND", "BY"]);
            for Process { fork, label, user } in processes {
                let label = label.as_deref().unwrap_or("-");
                table.add_row([fork, label, &user.pid.to_string(), &user.command, user.by]);
            }
            if processes.is_empty() { String::new() } else { output::lines(&table, |_| None) }
        })?;
        Ok(0)
    }

    fn records(&self, store: &Store) -> Result<Vec<Record>> {
        if self.forks.is_empty() {
            return Ok(fork::all(store)?.into_iter().filter_map(|(_, record)| record.ok()).collect());
        }
        self.forks.iter().map(|name| fork::find(store, name)).collect()
    }
}

fn label(record: &Record) -> Option<String> {
    record.label.as_ref().map(ToString::to_string)
}

/// Arguments of `top`.
#[derive(Args)]
pub(super) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// End after so many looks [default: never on a terminal, else 1]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| "not a time up to an hour".into())
}

/// A fork at one look.
#[derive(Serialize)]
struct Busy {
    fork: String,
    label: Option<String>,
    /// What the kernel has asked of it a second since the last look.
    requests_per_second: f64,
    /// And altogether.
    requests: u64,
    upper_bytes: u64,
    processes: usize,
}

impl Top {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let terminal = std::io::stdout().is_terminal() && !context.json;
        let looks = self.count.unwrap_or(if terminal { u64::MAX } else { 1 });
        let Some(store) = context.existing_store()? else { return Ok(0) };
        let mut before = Counts::now(&store)?;
        for _ in 0..looks {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            let now = Counts::now(&store)?;
            let rows = now.since(&before, &store)?;
            before = now;
            if context.json {
                output::print_json_line(&rows)?;
            } else {
                // Home and clear: the table takes the place of the last one.
                output::print(if terminal { b"\x1b[H\x1b[2J" } else { b"" })?;
                output::print(table(&rows).as_bytes())?;
            }
        }
        Ok(0)
    }
}

fn table(rows: &[Busy]) -> String {
    let mut table = output::table(&["FORK", "LABEL", "REQUESTS/S", "REQUESTS", "SIZE", "PROCESSES"]);
    for row in rows {
        table.add_row([
            row.fork.clone(),
            row.label.clone().unwrap_or("-".into()),
            format!("{:.0}", row.requests_per_second),
            row.requests.to_string(),
            indicatif::HumanBytes(row.upper_bytes).to_string(),
            row.processes.to_string(),
        ]);
    }
    output::lines(&table, |_| None)
}

/// How many requests the server has had for each of its mounts.
struct Counts {
    at: Instant,
    requests: HashMap<String, u64>,
}

impl Counts {
    fn now(store: &Store) -> Result<Self> {
        let client = Client::new(store.root());
        let mounts = client.mounts()?.unwrap_or_default();
        // A fork may go in between; then it is not there any more.
        let count = |id: String| client.stats(&id).ok().map(|stats| (id, stats.values().sum()));
        Ok(Self { at: Instant::now(), requests: mounts.into_iter().filter_map(|mount| count(mount.id)).collect() })
    }

    fn since(&self, before: &Self, store: &Store) -> Result<Vec<Busy>> {
        let seconds = (self.at - before.at).as_secs_f64();
        let mut rows = Vec::new();
        for (id, status) in status::all(store)? {
            let Ok(status) = status else { continue };
            let count = |counts: &Self| counts.requests.get(id.as_str()).copied().unwrap_or(0);
            let (old, new) = (count(before), count(self));
            rows.push(Busy {
                fork: id.to_string(),
                label: label(&status.record),
                requests_per_second: new.saturating_sub(old) as f64 / seconds,
                requests: new,
                upper_bytes: status.upper_bytes,
                processes: users(&store.fork(&id))?.len(),
            });
        }
        rows.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
        Ok(rows)
    }
}
