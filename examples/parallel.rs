//! A parallel benchmark: N helpers at once, each in a fork, against the same work in N copies made by `cp -a`.
//!
//! `parallel BASE N COMMAND...` prints the wall time of both, from nothing to the last helper's end.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use treefork::api::{CancelToken, Command, Environment, EnvironmentForker, Forker};
use treefork::{Error, Kind, Result};

fn main() -> ExitCode {
    treefork::serve_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, n, command @ ..] = args.as_slice() else {
        eprintln!("usage: parallel BASE N COMMAND...");
        return ExitCode::from(2);
    };
    let n = n.parse().unwrap_or(2);
    match measure(base, n, command) {
        Ok((forks, copies)) => {
            println!("{n} forks:  {:8.1} ms", forks.as_secs_f64() * 1000.0);
            println!("{n} copies: {:8.1} ms", copies.as_secs_f64() * 1000.0);
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("parallel: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The times of forks and copies.
fn measure(base: &str, n: usize, command: &[String]) -> Result<(Duration, Duration)> {
    // `cp` runs elsewhere, where a relative path would name something else.
    let base = std::fs::canonicalize(base).map_err(|e| Error::io("cannot find the base", e).at(base))?;
    Ok((in_forks(&base, n, command)?, in_copies(&base, n, command)?))
}

fn in_forks(base: &Path, n: usize, command: &[String]) -> Result<Duration> {
    let forker = Forker::builder().force_copy().isolated_runner().build()?;
    let (project, cancel) = (Environment::at(base), CancelToken::new());
    at_once(n, |helper| {
        let fork = forker.fork(&project, &format!("parallel-{helper}"), &cancel)?;
        let output = fork.environment.runner()?.run(&Command::new(command), &cancel)?;
        if output.is_success() { Ok(()) } else { Err(Error::new(Kind::Io, format!("the command: {:?}", output.end))) }
    })
}

fn in_copies(base: &Path, n: usize, command: &[String]) -> Result<Duration> {
    let scratch = std::env::temp_dir().join(format!("parallel-{}", std::process::id()));
    std::fs::create_dir(&scratch).map_err(|e| Error::io("cannot make", e).at(&scratch))?;
    let run = |dir: &Path, words: &[String]| {
        let status = std::process::Command::new(&words[0]).args(&words[1..]).current_dir(dir).status();
        match status.map_err(|e| Error::io("cannot run", e).at(&words[0]))? {
            status if status.success() => Ok(()),
            status => Err(Error::new(Kind::Io, format!("{words:?}: {status}"))),
        }
    };
    let wall = at_once(n, |helper| {
        let copy = scratch.join(helper.to_string());
        let copying = ["cp".into(), "-a".into(), "--".into(), base.display().to_string(), copy.display().to_string()];
        run(Path::new("/"), &copying)?;
        run(&copy, command)
    });
    std::fs::remove_dir_all(&scratch).map_err(|e| Error::io("cannot remove", e).at(&scratch))?;
    wall
}

/// Runs `n` of them at once; the time until all are done.
fn at_once(n: usize, job: impl Fn(usize) -> Result<()> + Sync) -> Result<Duration> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let job = &job;
        let threads: Vec<_> = (0..n).map(|helper| scope.spawn(move || job(helper))).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a panic"))))
    })?;
    Ok(start.elapsed())
}
