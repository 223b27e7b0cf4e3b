//! Commands in forks: what they reach and what not, how they end, what of them outlives a run (nothing).
//!
//! Most tests run twice: as root, and as an ordinary user who has no fusermount3, so that the command's own namespace
//! mounts the fork. That user gets a FUSE device of its own to open, since the machine's may be closed to it.

mod ending;
mod escapes;
mod fanout;
mod overhead;
mod places;
mod settings;
mod terminal;
mod tools;

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::cli::BINARY;
use crate::common::env::USER;
use crate::common::run::Done;
use crate::common::{Env, Look, Run, Tree};

/// Who runs `treefork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
}

pub(crate) const BOTH: [Who; 2] = [Who::Root, Who::User];

/// A base with a git repository in it, and somebody who runs commands in forks of it.
pub(crate) struct Site {
    pub(crate) env: Env,
    pub(crate) base: PathBuf,
    pub(crate) who: Who,
}

impl Site {
    pub(crate) fn new(who: Who) -> Self {
        let env = Env::new();
        let base = env.dir("work/base");
        std::fs::create_dir_all(base.join("sub/deep")).expect("writable");
        for (name, text) in [("file", "one\n"), ("sub/inner", "two\n"), (".gitignore", "ignored\n")] {
            std::fs::write(base.join(name), text).expect("writable");
        }
        std::fs::hard_link(base.join("file"), base.join("hard")).expect("same file system");
        symlink("file", base.join("soft")).expect("writable");
        env.git(&base, ["init", "-q"]);
        env.git(&base, ["add", "-A"]);
        env.git(&base, ["commit", "-qm", "first"]);
        let site = Self { env, base, who };
        if who == Who::User {
            site.hand_to_user();
        }
        site
    }

    /// Gives everything to the ordinary user, and builds its world: a FUSE device, and a `PATH` without fusermount3.
    fn hand_to_user(&self) {
        let bin = self.env.dir("bin");
        let path = std::env::var_os("PATH").expect("tests have a PATH");
        for dir in std::env::split_paths(&path) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if !name.as_encoded_bytes().starts_with(b"fusermount") {
                    // The first directory of PATH that has a name counts.
                    let _ = symlink(entry.path(), bin.join(name));
                }
            }
        }
        // Where root's own tools are may be closed to others.
        // By a process of its own: a descriptor that writes it, inherited by what another test starts just then, would
        // make it "text file busy".
        self.env.command("cp").arg(BINARY).arg(self.env.join("treefork")).ok();
        let owner = format!("{USER}:{USER}");
        self.env.command("chown").args(["-R", &owner]).arg(self.env.tree().path()).ok();
        let device = self.env.join("fuse");
        self.env.command("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"]).ok();
    }

    /// The `treefork` that this site uses.
    pub(crate) fn binary(&self) -> PathBuf {
        match self.who {
            Who::Root => BINARY.into(),
            Who::User => self.env.join("treefork"),
        }
    }

    /// Any program, as this site's user, in the base.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.who {
            // Whatever runs the tests may ignore signals (nohup does), and that is inherited.
            Who::Root => {
                let mut command = self.env.command("/usr/bin/env");
                command.arg("--default-signal").arg(program);
                command
            }
            Who::User => {
                let mut command = self.env.command("unshare");
                let id = USER.to_string();
                let script = "mount --bind \"$1\" /dev/fuse && shift && exec setpriv --reuid \"$1\" --regid \"$1\" \
                              --clear-groups --inh-caps=-all -- /usr/bin/env --default-signal \"${@:2}\"";
                command.args(["-m", "bash", "-c", script, "bash"]).arg(self.env.join("fuse")).arg(id).arg(program);
                command.env("PATH", self.env.join("bin"));
                command
            }
        };
        command.current_dir(&self.base);
        command
    }

    /// `treefork ARGS`, in the base.
    pub(crate) fn treefork<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(self.binary());
        command.args(args);
        command
    }

    /// `treefork run OPTIONS -- bash -c SCRIPT`, with the base's path as `$B` and its parent as `$P`.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.treefork(["run"]);
        command.args(options).args(["--", "bash", "-c", script]);
        command.env("B", &self.base).env("P", self.base.parent().expect("it has one"));
        command
    }

    /// Runs a script in a fork that is removed afterwards; the base has to stay as it is.
    #[track_caller]
    pub(crate) fn base_survives(&self, options: &[&str], script: &str) -> Done {
        let before = self.look();
        let done = self.run(options, script).done();
        crate::common::assert_same(&before, &self.look(), &format!("{:?}: {script}\n{}", self.who, done.complaint()));
        done
    }

    /// The base, down to inode numbers and change times.
    pub(crate) fn look(&self) -> Tree {
        Look::default().ino().ctime().at(&self.base)
    }

    /// The ids of the forks that there are.
    pub(crate) fn forks(&self) -> Vec<String> {
        let list = self.treefork(["list", "--json"]).ok();
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).expect("JSON");
        let ids = list.as_array().expect("a list").iter().map(|fork| fork["id"].as_str().expect("an id").to_owned());
        ids.collect()
    }
}

/// Whether a process of this number exists and is no zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Waits for a file to appear and have something in it.
pub(crate) fn await_file(path: &Path) -> String {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return text,
            _ if std::time::Instant::now() > until => panic!("{} does not appear", path.display()),
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
}
