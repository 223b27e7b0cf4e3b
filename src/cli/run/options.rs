//! The options that all commands in forks share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config;
use crate::error::{Error, Kind, Result};
use crate::run::{Isolation, Job};

#[derive(Args, Clone)]
pub(super) struct Options {
    /// How the command is kept from the base
    #[arg(long, value_enum, default_value_t = Wanted::Path)]
    isolation: Wanted,
    /// Let the command only read what lies outside the fork, /tmp and /dev
    #[arg(long)]
    ro_root: bool,
    /// With --ro-root: a path that stays writable
    #[arg(long, value_name = "PATH", requires = "ro_root")]
    rw: Vec<PathBuf>,
    /// Show the command an empty place here
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// No network but a loopback of its own
    #[arg(long)]
    no_network: bool,
    /// End the command after this time: 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Set the variables in this file, a line each NAME=value
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Let git look at every file, instead of asking the fork what changed
    #[arg(long)]
    no_fsmonitor: bool,
    /// Let git run no hook, pager, monitor or helper that a repository names
    #[arg(long)]
    git_hardening: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// The fork is at the base's path, and the base has no name
    Path,
    /// The command only starts in the fork: weaker, for machines without namespaces
    Cwd,
}

impl Options {
    /// Whether commands get a namespace of their own.
    pub(super) fn isolates(&self) -> bool {
        self.isolation == Wanted::Path
    }

    /// A job with these options, and with what is set in files.
    pub(super) fn job(&self, args: Vec<OsString>, settings: &config::Run) -> Result<Job> {
        let read_only_root = self.ro_root || settings.ro_root;
        let no_network = self.no_network || settings.no_network;
        let hide = [self.hide.clone(), there(&settings.hide)].concat();
        if self.isolation == Wanted::Cwd {
            let needs_spaces =
                [(read_only_root, "--ro-root"), (!hide.is_empty(), "--hide"), (no_network, "--no-network")];
            if let Some((_, option)) = needs_spaces.into_iter().find(|(given, _)| *given) {
                let what = format!("{option}, given or set in a file, does nothing with --isolation cwd");
                return Err(Error::new(Kind::Usage, what));
            }
        }
        if let Some(path) = self.hide.iter().chain(&self.rw).find(|path| !path.exists()) {
            return Err(Error::new(Kind::Usage, "there is nothing at").at(path));
        }
        let mut environment = super::environment(self.env_file.as_deref())?;
        if self.no_fsmonitor || settings.no_fsmonitor {
            environment.no_fsmonitor();
        }
        if self.git_hardening || settings.git_hardening {
            environment.harden_git();
        }
        Ok(Job {
            args,
            cwd: None,
            environment,
            isolation: match self.isolation {
                Wanted::Path => Isolation::Path,
                Wanted::Cwd => Isolation::Cwd,
            },
            read_only_root,
            writable: if self.ro_root { self.rw.clone() } else { there(&settings.rw) },
            hide,
            no_network,
            stdio: [None, None, None],
            timeout: self.timeout.or(settings.timeout),
        })
    }
}

/// Those of the paths that exist: files of settings are written for many machines.
fn there(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter(|path| path.exists()).cloned().collect()
}

/// A time with a unit; a bare number counts seconds, as `timeout(1)` does.
fn time(text: &str) -> std::result::Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>()
        && let Ok(time) = Duration::try_from_secs_f64(seconds)
    {
        return Ok(time);
    }
    humantime::parse_duration(text).map_err(|e| format!("{e}; write 90s, 5m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_and_without_unit() {
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("-1").is_err() && time("soon").is_err());
    }
}
