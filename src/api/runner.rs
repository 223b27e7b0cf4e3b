//! treefork's own runner: commands that are kept from the base.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::JoinHandle;

use rustix::pipe::{PipeFlags, pipe_with};

use super::{CancelToken, Command, CommandRunner, Output, observe};
use crate::error::{Error, Kind, Result};
use crate::fork::{Forks, Id, Record};
use crate::git::Repo;
use crate::names::RelPath;
use crate::run::{self, Attach, Environment, Job, Root, SharedGit, Target};
use crate::server::Client;
use crate::strategy::{Overlay, Site, Way};

/// Runs commands in a fork that lies at the path of its base, in namespaces of their own: see [`crate::run`].
#[derive(Clone, Debug)]
pub struct Isolated {
    forks: Forks,
    id: Id,
}

impl Isolated {
    /// For the fork with this id.
    pub fn new(forks: Forks, id: Id) -> Self {
        Self { forks, id }
    }
}

impl CommandRunner for Isolated {
    /// # Errors
    /// As [`run::start`]; `Cancelled` where the command was ended by the caller.
    fn run(&self, command: &Command, cancel: &CancelToken) -> Result<Output> {
        cancel.check()?;
        if RelPath::new(&command.cwd).is_none() {
            return Err(
                Error::new(Kind::Usage, "a command starts below the root of its environment, not at").at(&command.cwd)
            );
        }
        let (record, root) = self.forks.ready(self.id.as_str())?;
        let mut target = target(&self.forks, &record)?;
        let mut environment = Environment::default();
        for (name, value) in &command.env {
            environment.set(name, value);
        }
        observe(&mut target, &self.forks, &record, &mut environment);
        let [(stdin, input), (output, stdout), (errors, stderr)] = [pipe()?, pipe()?, pipe()?];
        let job = Job {
            args: command.args.clone(),
            cwd: Some(root.join(&command.cwd)),
            environment,
            stdio: [Some(stdin), Some(stdout), Some(stderr)],
            timeout: command.timeout,
            ..Job::default()
        };
        let running = run::start(target, job)?;
        let handle = running.handle();
        let _cancelling = cancel.on_cancel(move || handle.end());
        let (stdout, stderr) = (slurp(output), slurp(errors));
        let text = command.stdin.clone();
        // A command may end without having read everything, which is its own affair.
        let writer = std::thread::spawn(move || File::from(input).write_all(&text));
        let outcome = running.wait(|_, _| {});
        // Nor is it whether the writer got to its end.
        let _ = writer.join();
        let (stdout, stderr) = (heard(stdout)?, heard(stderr)?);
        cancel.check()?;
        Ok(Output { end: outcome?.end, stdout, stderr })
    }
}

/// A fork as [`run`] wants it: the fork of a record, in a store that no command gets to see.
pub fn target(forks: &Forks, record: &Record) -> Result<Target> {
    let dir = forks.store().fork(&record.id);
    let tree = dir.join("mnt");
    let root = match record.strategy {
        Way::Overlay if record.private_mount => Root::Unmounted(attach(record.site(forks.store().root(), &dir)?)),
        Way::Overlay => Root::Mount(tree),
        Way::Reflink | Way::Copy | Way::Worktree => Root::Directory(tree),
    };
    Ok(Target {
        id: record.id.to_string(),
        label: record.name().to_owned(),
        base: record.base.path.clone(),
        base_ident: Some(record.base.ident),
        start: record.subdir.clone(),
        root,
        hide: vec![forks.store().root().to_path_buf()],
        shared_git: (record.strategy == Way::Worktree).then(|| shared_git(forks, &dir.join("mnt"))).flatten(),
    })
}

/// The repository of a linked work tree; `None` where its `.git` leads to none any more.
fn shared_git(forks: &Forks, tree: &Path) -> Option<SharedGit> {
    let repo = Repo::at(tree).ok().flatten()?;
    let own = repo.git_dir.strip_prefix(&repo.common_dir).ok()?.to_path_buf();
    Some(SharedGit { common: repo.common_dir, own, place: forks.store().root().to_path_buf() })
}

/// What does not work in an isolated command in a fork of this kind, as a sentence for the caller.
pub fn caveat(record: &Record) -> Option<&'static str> {
    // Its repository is the base's, which is the one thing that such a command must not change.
    let what = "in a linked work tree, whose repository is the base's, git can only read in an isolated command";
    (record.strategy == Way::Worktree).then_some(what)
}

/// How a command's namespace gets the fork of this site served that it mounts itself.
fn attach(site: Site) -> Attach {
    let mode = std::fs::metadata(&site.base).map_or(0o40755, |meta| meta.mode());
    Attach {
        mode,
        source: format!("treefork-{}", site.id).into(),
        serve: Box::new(move |device| Client::new(&site.store).attach(&Overlay::spec(&site), device.as_fd())),
    }
}

/// Read end and write end.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::io("cannot make a pipe", e))
}

fn slurp(from: OwnedFd) -> JoinHandle<std::io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        File::from(from).read_to_end(&mut all).map(|_| all)
    })
}

fn heard(reader: JoinHandle<std::io::Result<Vec<u8>>>) -> Result<Vec<u8>> {
    let read = reader.join().map_err(|_| Error::new(Kind::Io, "the reader of a command's output panicked"))?;
    read.map_err(|e| Error::io("cannot read a command's output", e))
}
