//! The facade, held to the behaviour that hosts are promised.

mod cancel;
mod dirty;
mod forks;
mod hosting;
mod manager;
mod merges;
mod runners;

use std::fs;
use std::path::{Path, PathBuf};

use treefork::api::{Builder, CancelToken, Environment, EnvironmentForker, Fork, Forker, host};

use crate::common::cli::BINARY;
use crate::common::{Env, Look, Tree};

/// A host: a project, a store beside it, and the server of the program under test.
struct Host {
    env: Env,
    base: PathBuf,
}

impl Host {
    /// With a plain directory as its project.
    fn plain() -> Self {
        host::server_program(BINARY);
        let env = Env::new();
        let base = env.dir("project");
        for (name, text) in [("a.txt", "one\n"), ("b.txt", "two\n"), ("d/c.txt", "three\n")] {
            fs::create_dir_all(base.join(name).parent().expect("below")).expect("ours");
            fs::write(base.join(name), text).expect("ours");
        }
        fs::write(base.join("bin.dat"), [0, 1, 2, 255]).expect("ours");
        Self { env, base }
    }

    /// With a git repository as its project.
    fn git() -> Self {
        let host = Self::plain();
        fs::write(host.base.join(".gitignore"), "*.log\n").expect("ours");
        host.env.sh(&host.base, "git init -q; git add -A; git commit -qm one; git status");
        host
    }

    fn forker(&self) -> Builder {
        Forker::builder().temp_base(self.env.dir("forks"))
    }

    fn project(&self) -> Environment {
        Environment::at(&self.base)
    }

    #[track_caller]
    fn fork(&self, forker: Builder) -> Fork {
        let forker = forker.build().expect("a place for the store");
        forker.fork(&self.project(), "a helper", &CancelToken::new()).expect("forked")
    }

    /// Everything about the project.
    fn look(&self) -> Tree {
        Look::default().ctime().ino().at(&self.base)
    }

    /// Everything about the project but its repository.
    fn look_outside_git(&self) -> Tree {
        Look::default().ctime().ino().without(".git").at(&self.base)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.base.join(name), text).expect("ours");
    }
}

/// The root of a fork.
fn root(fork: &Fork) -> &Path {
    fork.environment.root().expect("a fork has one")
}

#[track_caller]
fn read(root: &Path, name: &str) -> Vec<u8> {
    fs::read(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}
