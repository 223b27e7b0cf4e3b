//! Having a fork ready for fast work: caches filled, the index of its base prepared.

use std::path::Path;
use std::process::Stdio;

use clap::Args;
use serde::Serialize;

use super::output::{self, Context};
use crate::error::{Error, Kind, Result};
use crate::fork::{Forks, Record, Store, prewarm};
use crate::server::{Client, this_program};
use crate::strategy::Way;

/// A base with fewer tracked files is walked through in no time by whoever needs it.
const LARGE: u32 = 10_000;

/// Arguments of `prewarm`.
#[derive(Args)]
pub(super) struct Prewarm {
    /// The fork: its id, its label, or the beginning of either
    fork: String,
    /// Only prepare the index of the base, for git in `run` and `exec`
    #[arg(long)]
    only_git: bool,
}

#[derive(Serialize)]
struct Warmed {
    /// Entries that were looked at.
    entries: usize,
    /// A prepared index is there for the fork.
    prepared: bool,
}

impl Prewarm {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let forks = Forks::open(context.store_of(&self.fork)?)?;
        let (record, _) = forks.ready(&self.fork)?;
        if record.strategy != Way::Overlay || record.private_mount {
            let what = format!("the fork {} is not mounted by the server: there is nothing to warm", record.name());
            return Err(Error::new(Kind::Usage, what));
        }
        // Whoever works in the fork comes first.
        let _ = rustix::process::nice(5);
        let store = forks.store();
        let entries = if self.only_git { 0 } else { prewarm::walk(&store.fork(&record.id))? };
        let kept = store.base(&record.base.key());
        let prepared = Client::new(store.root()).observe(record.id.as_str(), &kept, true)?;
        if context.json {
            output::print_json(&Warmed { entries, prepared })?;
        }
        Ok(0)
    }
}

/// Starts `prewarm` for a fork in the background.
pub(super) fn in_background(store: &Store, record: &Record) {
    let started = (|| {
        let mut command = this_program();
        command.arg("--store").arg(store.root()).arg("prewarm").arg(record.id.as_str()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        crate::sys::detach(&mut command).spawn()?.wait()
    })();
    if let Err(e) = started {
        output::note(&format!("the fork is not being prewarmed: {e}"));
    }
}

/// Whether it pays to prewarm a fork without having been asked to: many tracked files, and cores that have nothing to
/// do.
pub(super) fn pays(record: &Record) -> bool {
    record.strategy == Way::Overlay && !record.private_mount && is_large(&record.base.path) && is_idle()
}

/// The number of entries stands in the index: `DIRC`, version, count.
fn is_large(base: &Path) -> bool {
    let mut head = [0; 12];
    let read = std::fs::File::open(base.join(".git/index"))
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    read.is_ok() && head.starts_with(b"DIRC") && u32::from_be_bytes([head[8], head[9], head[10], head[11]]) >= LARGE
}

/// Whether half of the cores had nothing to do in the last minute.
fn is_idle() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Option<f64> = load.split(' ').next().and_then(|load| load.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    load.is_some_and(|load| load <= cores as f64 / 2.0)
}
