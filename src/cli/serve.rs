//! The server of a store: `serve`.

use std::time::Duration;

use clap::Args;

use super::output::{self, Context};
use crate::error::{Error, Kind, Result};
use crate::fork::{self, trash};
use crate::server::{self, Client, Fuse, LogFile};

/// The environment variable with the seconds after which a server that serves nothing ends; 0: never.
const IDLE: &str = "TREEFORK_SERVER_IDLE";

/// How long to wait for whoever deletes what was removed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `serve`.
#[derive(Args)]
pub(super) struct Serve {
    /// End the running server instead, and all its mounts, and finish deleting what was removed
    #[arg(long)]
    stop: bool,
    /// End after serving nothing for so many seconds; 0: never [default: 60 in the background, else never]
    #[arg(long, env = IDLE, value_name = "SECONDS", value_parser = parse_seconds)]
    idle: Option<Duration>,
    /// How a client starts it: ready is said on standard output, everything else goes to the log
    #[arg(long, hide = true)]
    background: bool,
}

fn parse_seconds(text: &str) -> std::result::Result<Duration, String> {
    text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).ok_or_else(|| "not a number of seconds".into())
}

impl Serve {
    pub(super) fn run(self, context: &Context) -> Result<u8> {
        let store = context.store()?;
        if self.stop {
            if !Client::new(store.root()).shutdown()? {
                output::note("no server runs");
            }
            // Whoever stops it may go on to take the store away, in which another process may still be deleting.
            if let Err(e) = trash::finish(&store, PATIENCE) {
                output::note(&e.to_string());
            }
            return Ok(0);
        }
        if self.background {
            // Started as /proc/self/exe, it would be "exe" in lists of processes. Nothing depends on it.
            let _ = rustix::thread::set_name(c"treefork");
            log_to(LogFile::new(store.root())?);
        } else {
            init_logger(env_logger::Target::Stderr);
        }
        let default = self.background.then(|| server::Options::default().idle).flatten();
        let options = server::Options {
            idle: self.idle.map_or(default, |idle| Some(idle).filter(|i| !i.is_zero())),
            started: self.background,
        };
        let restore = || fork::mounted(&store);
        let ready = || {
            if self.background {
                say_ready();
            } else {
                output::note(&format!("serving {}", store.root().display()));
            }
        };
        let ended = server::run(store.root(), Box::new(Fuse::new()), options, restore, ready);
        if let (true, Err(e)) = (self.background, &ended) {
            // The client that waits shows it.
            let _ = output::print(e.to_string().as_bytes());
        }
        ended.map(|()| 0).map_err(|e| match e.kind() {
            Kind::Locked => {
                Error::new(Kind::Locked, "another server runs for the store").at(store.root()).because(e.to_string())
            }
            _ => e,
        })
    }
}

/// Tells the client that started this server, and lets go of its pipe.
fn say_ready() {
    // A client that was killed meanwhile does not listen any more; the server serves the next one.
    let _ = rustix::io::write(rustix::stdio::stdout(), server::READY);
    match std::fs::File::options().write(true).open("/dev/null") {
        Ok(null) => {
            if let Err(e) = rustix::stdio::dup2_stdout(&null) {
                log::error!("cannot let go of the standard output: {e}");
            }
        }
        Err(e) => log::error!("cannot open /dev/null: {e}"),
    }
}

/// Everything that is logged, and panics, go to the bounded log of the store.
fn log_to(log: LogFile) {
    init_logger(env_logger::Target::Pipe(Box::new(log)));
    std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
}

fn init_logger(target: env_logger::Target) {
    let filter = std::env::var("TREEFORK_LOG").unwrap_or_else(|_| "info".into());
    env_logger::Builder::new().parse_filters(&filter).target(target).init();
}
