//! A reviewer that only reads: it gets the uncommitted state of a checkout, and cannot change it.
//!
//! `reviewer BASE [COMMAND...]` makes a linked work tree with the uncommitted changes, runs the command there with the
//! host's own runner (by default `git diff --stat HEAD`), and takes the work tree away.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use treefork::api::{CancelToken, Command, CommandRunner, Environment, EnvironmentForker, Forker, Output};
use treefork::run::End;
use treefork::{Error, Result};

/// Runs commands with the work tree as their directory, and keeps git from what the repository names.
struct Plain(PathBuf);

impl CommandRunner for Plain {
    fn run(&self, command: &Command, cancel: &CancelToken) -> Result<Output> {
        cancel.check()?;
        let mut process = std::process::Command::new(&command.args[0]);
        process.args(&command.args[1..]).current_dir(self.0.join(&command.cwd)).stdin(Stdio::null());
        process.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_PAGER", "cat");
        let output = process.output().map_err(|e| Error::io("cannot run", e).at(&command.args[0]))?;
        let end = output.status.code().map_or(End::Signaled(0), |code| End::Exited(code.try_into().unwrap_or(255)));
        Ok(Output { end, stdout: output.stdout, stderr: output.stderr })
    }
}

fn main() -> ExitCode {
    treefork::serve_if_asked();
    let mut args = std::env::args_os().skip(1);
    let Some(base) = args.next() else {
        eprintln!("usage: reviewer BASE [COMMAND...]");
        return ExitCode::from(2);
    };
    let mut command: Vec<_> = args.collect();
    if command.is_empty() {
        command = ["git", "diff", "--stat", "HEAD"].map(Into::into).to_vec();
    }
    match review(Path::new(&base), &Command::new(command)) {
        Ok(report) => {
            print!("{}", String::from_utf8_lossy(&report));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("reviewer: {e}");
            ExitCode::FAILURE
        }
    }
}

fn review(base: &Path, command: &Command) -> Result<Vec<u8>> {
    let runner = |root: &Path| Ok(Some(Arc::new(Plain(root.to_path_buf())) as Arc<dyn CommandRunner>));
    let forker = Forker::builder().dirty_overlay().runner(runner).build()?;
    let cancel = CancelToken::new();
    let fork = forker.fork(&Environment::at(base), "reviewer", &cancel)?;
    if !fork.advisory.is_empty() {
        eprintln!("reviewer: {}", fork.advisory);
    }
    Ok(fork.environment.runner()?.run(command, &cancel)?.stdout)
}
