//! A fan-out harness: several helpers try the same task, each in a fork of its own; the first that succeeds is merged.
//!
//! `fanout BASE N COMMAND...` runs the command N times at once, with `HELPER` set to 0, 1, ... In each fork it stands at
//! the base's own path and cannot reach the base. Serves its mounts itself: no `treefork` program is needed.

use std::process::ExitCode;
use std::sync::mpsc;

use treefork::api::{CancelToken, Command, Environment, EnvironmentForker, EnvironmentMerger, Fork, Forker, Merger};
use treefork::{Error, Kind, Result};

fn main() -> ExitCode {
    treefork::serve_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, n, command @ ..] = args.as_slice() else {
        eprintln!("usage: fanout BASE N COMMAND...");
        return ExitCode::from(2);
    };
    match fan_out(base, n.parse().unwrap_or(1), command) {
        Ok(winner) => {
            println!("helper {winner} is merged");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("fanout: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command `n` times; the number of the first success, whose changes are in the base.
fn fan_out(base: &str, n: usize, command: &[String]) -> Result<usize> {
    let project = Environment::at(base);
    let forker = Forker::builder().force_copy().isolated_runner().build()?;
    let cancel = CancelToken::new();
    let (done, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for helper in 0..n {
            let (forker, project, cancel, done) = (&forker, &project, &cancel, done.clone());
            scope.spawn(move || {
                let result = help(forker, project, helper, command, cancel);
                // Nobody listens any more once one has won; then this fork goes with the message.
                let _ = done.send((helper, result));
            });
        }
        drop(done);
        for (helper, result) in results {
            match result {
                Ok(fork) => match Merger::default().merge(&fork.environment, &project, &cancel) {
                    Ok(_) => {
                        cancel.cancel();
                        return Ok(helper);
                    }
                    Err(e) => eprintln!("helper {helper} cannot be merged: {e}"),
                },
                Err(e) => eprintln!("helper {helper}: {e}"),
            }
        }
        Err(Error::new(Kind::NotFound, "no helper succeeded"))
    })
}

/// One attempt in a fork of its own. The fork of a failure is gone with the return: its cleanup is dropped.
fn help(forker: &Forker, base: &Environment, helper: usize, command: &[String], cancel: &CancelToken) -> Result<Fork> {
    let fork = forker.fork(base, &format!("helper-{helper}"), cancel)?;
    let command = Command { env: vec![("HELPER".into(), helper.to_string().into())], ..Command::new(command) };
    let output = fork.environment.runner()?.run(&command, cancel)?;
    if output.is_success() {
        return Ok(fork);
    }
    Err(Error::new(Kind::NotFound, format!("{:?}: {}", output.end, String::from_utf8_lossy(&output.stderr).trim_end())))
}
