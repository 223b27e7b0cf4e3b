//! What a person sees of a fan-out: who is at work, and the table at the end.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::Serialize;

use super::super::super::output::{self, Colour, Context};
use super::matrix::Variables;
use super::task::Row;
use crate::error::Result;

/// A bar for each fork at work on a terminal, a line for each that is done otherwise.
pub(super) struct Progress {
    bars: Option<MultiProgress>,
    total: ProgressBar,
    running: Mutex<HashMap<usize, ProgressBar>>,
}

impl Progress {
    pub(super) fn new(count: usize) -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        let total = ProgressBar::new(count.try_into().unwrap_or(u64::MAX));
        let style = "{bar:30} {pos}/{len} forks, {elapsed}";
        total.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let total = bars.as_ref().map_or_else(ProgressBar::hidden, |bars| bars.add(total));
        Self { bars, total, running: Mutex::default() }
    }

    pub(super) fn begin(&self, n: usize, label: &str) {
        let Some(bars) = &self.bars else { return };
        let bar = bars.insert_before(&self.total, ProgressBar::new_spinner());
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        self.running.lock().insert(n, bar);
    }

    pub(super) fn end(&self, row: &Row) {
        if let Some(bar) = self.running.lock().remove(&row.n) {
            bar.finish_and_clear();
        }
        self.total.inc(1);
        if self.bars.is_none() {
            output::note(&format!("{}: {} after {}", row.label, row.said, seconds(row.wall)));
        }
    }

    pub(super) fn finish(&self) {
        self.total.finish_and_clear();
    }
}

/// One fork in JSON.
#[derive(Serialize)]
struct Entry<'a> {
    n: usize,
    label: &'a str,
    fork: Option<&'a str>,
    success: bool,
    end: &'static str,
    said: &'a str,
    status: Option<u8>,
    wall_seconds: f64,
    cpu_seconds: f64,
    peak_kib: u64,
    changes: Option<u64>,
    score: Option<f64>,
    fork_is: Option<&'static str>,
    variables: &'a Variables,
    output: &'a str,
}

/// Prints the results; of those that failed also the end of what they wrote.
pub(super) fn results(rows: &[Row], context: &Context) -> Result<()> {
    if context.json {
        let entry = |row| entry(row);
        return output::print_json(&rows.iter().map(entry).collect::<Vec<_>>());
    }
    for row in rows.iter().filter(|row| !row.success && !row.output.is_empty()) {
        output::note(&format!("the last lines of {}:", row.label));
        let lines: Vec<&str> = row.output.lines().collect();
        lines[lines.len().saturating_sub(10)..].iter().for_each(|line| output::note(&format!("| {line}")));
    }
    output::print(table(rows).as_bytes())
}

fn entry(row: &Row) -> Entry<'_> {
    Entry {
        n: row.n + 1,
        label: &row.label,
        fork: row.fork.as_deref(),
        success: row.success,
        end: row.end,
        said: &row.said,
        status: row.status,
        wall_seconds: row.wall.as_secs_f64(),
        cpu_seconds: row.cpu.as_secs_f64(),
        peak_kib: row.peak_kib,
        changes: row.changes,
        score: row.score,
        fork_is: row.fate,
        variables: &row.variables,
        output: &row.output,
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = output::table(&["LABEL", "RESULT", "WALL", "CPU", "PEAK", "CHANGES", "SCORE", "FORK"]);
    for row in rows {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        table.add_row([
            row.label.clone(),
            row.said.replace(['\n', '\r'], " "),
            seconds(row.wall),
            seconds(row.cpu),
            indicatif::HumanBytes(row.peak_kib * 1024).to_string(),
            or_dash(row.changes.map(|n| n.to_string())),
            or_dash(row.score.map(|score| score.to_string())),
            row.fate.unwrap_or("-").to_owned(),
        ]);
    }
    output::lines(&table, |n| (!rows[n].success).then_some(Colour::Red))
}

fn seconds(time: Duration) -> String {
    format!("{:.2}s", time.as_secs_f64())
}
