//! Settings from files: what forks of one base are to be like, and what one user wants of all forks.
//!
//! | file | for | written by |
//! |---|---|---|
//! | `.treefork.toml` in the root of the base | forks of that base | whoever keeps the project |
//! | `$XDG_CONFIG_HOME/treefork/config.toml`, else `~/.config/treefork/config.toml` | all forks of a user | the user |
//!
//! Both have the same keys. Options on the command line win; then comes the base's file, then the user's. Lists add up,
//! the user's first; what narrows a command down holds where either file asks for it. A file can name commands, so that
//! only one whose owner may have them run anyway is believed ([`file`]). It is the base's file that counts, as it is when a
//! fork is made: what is written in a fork has no say.

mod file;
mod size;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use size::size;

use crate::error::Result;
use crate::strategy::{Limits, Symlinks, Way};

/// The name of a base's file.
pub const FILE: &str = ".treefork.toml";

/// How a fork is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first way that works.
    Auto,
    /// This way, or none.
    Way(Way),
}

/// What the files of a base and of a user say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Patterns of paths that forks do not show.
    pub exclude: Vec<String>,
    /// Shell commands that run in a new fork.
    pub post_create: Vec<String>,
    /// Shell commands that run in a fork before it is merged, and keep it from being merged where they fail.
    pub pre_merge: Vec<String>,
    /// How forks are made.
    pub strategy: Option<Wanted>,
    /// What becomes of symbolic links.
    pub symlinks: Option<Symlinks>,
    /// What a fork may take on the disk.
    pub limits: Limits,
    /// For commands in forks.
    pub run: Run,
}

/// Settings for commands in forks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Keep the fork, whatever happens.
    pub keep: bool,
    /// Keep the fork of a command that failed.
    pub keep_on_error: bool,
    /// The command can only read what lies outside of the fork.
    pub ro_root: bool,
    /// With `ro_root`: what stays writable.
    pub rw: Vec<PathBuf>,
    /// What the command gets to see as empty.
    pub hide: Vec<PathBuf>,
    /// No network.
    pub no_network: bool,
    /// Git runs nothing that a repository names.
    pub git_hardening: bool,
    /// Git looks at every file, instead of asking the fork what changed.
    pub no_fsmonitor: bool,
    /// How long a command may take.
    pub timeout: Option<Duration>,
}

impl Settings {
    /// What is set for forks of the base with this root.
    ///
    /// # Errors
    /// `Usage` for a file that is not to be trusted, is no TOML, or asks for something unknown: with the name of the file,
    /// the line and the key.
    pub fn load(base: &Path) -> Result<Self> {
        let user = user_file().map_or_else(|| Ok(None), |path| file::read(&path, file::Place::User))?;
        let own = file::read(&base.join(FILE), file::Place::Base)?;
        Ok(user.unwrap_or_default().under(own.unwrap_or_default()))
    }

    /// These settings with others that come before them.
    fn under(self, first: Self) -> Self {
        let both = |mut mine: Vec<String>, first: Vec<String>| {
            mine.extend(first);
            mine
        };
        Self {
            exclude: both(self.exclude, first.exclude),
            post_create: both(self.post_create, first.post_create),
            pre_merge: both(self.pre_merge, first.pre_merge),
            strategy: first.strategy.or(self.strategy),
            symlinks: first.symlinks.or(self.symlinks),
            limits: Limits {
                max_size: smaller(self.limits.max_size, first.limits.max_size),
                max_files: smaller(self.limits.max_files, first.limits.max_files),
            },
            run: self.run.under(first.run),
        }
    }
}

impl Run {
    fn under(self, first: Self) -> Self {
        // What stays writable belongs to the wish for all else to be read-only, and comes from where that comes from.
        let rw = if first.ro_root { first.rw } else { self.rw };
        Self {
            keep: self.keep || first.keep,
            keep_on_error: self.keep_on_error || first.keep_on_error,
            ro_root: self.ro_root || first.ro_root,
            rw,
            hide: self.hide.into_iter().chain(first.hide).collect(),
            no_network: self.no_network || first.no_network,
            git_hardening: self.git_hardening || first.git_hardening,
            no_fsmonitor: self.no_fsmonitor || first.no_fsmonitor,
            timeout: smaller(self.timeout, first.timeout),
        }
    }
}

/// What narrows more, of what may not be set.
fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    [a, b].into_iter().flatten().min()
}

/// Where a user's file is; `None` for a user without a home.
fn user_file() -> Option<PathBuf> {
    let dir = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = dir("XDG_CONFIG_HOME").or_else(|| Some(dir("HOME")?.join(".config")))?;
    Some(config.join("treefork/config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bases_file_comes_before_the_users() {
        let list = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let user = Settings {
            exclude: list(&["*.iso"]),
            strategy: Some(Wanted::Auto),
            run: Run {
                ro_root: true,
                rw: vec!["/home".into()],
                no_network: true,
                timeout: Some(Duration::from_secs(60)),
                ..Run::default()
            },
            ..Settings::default()
        };
        let base = Settings {
            exclude: list(&["target/"]),
            strategy: Some(Wanted::Way(Way::Copy)),
            run: Run { rw: vec!["/".into()], timeout: Some(Duration::from_secs(600)), ..Run::default() },
            ..Settings::default()
        };
        let both = user.under(base);
        assert_eq!(both.exclude, ["*.iso", "target/"]);
        assert_eq!(both.strategy, Some(Wanted::Way(Way::Copy)));
        assert!(both.run.ro_root && both.run.no_network && !both.run.keep);
        assert_eq!(both.run.rw, [Path::new("/home")], "a base takes nothing away from what its user asked for");
        assert_eq!(both.run.timeout, Some(Duration::from_secs(60)));
    }
}
