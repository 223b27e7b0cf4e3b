//! Forks from async code: the facade blocks, so it is called where blocking is allowed.
//!
//! `tokio BASE N COMMAND...` runs the command in N forks as tasks of one runtime, and prints what each wrote.

use std::process::ExitCode;

use tokio::task::{JoinSet, spawn_blocking};
use treefork::Result;
use treefork::api::{CancelToken, Command, Environment, EnvironmentForker, Forker};

/// Cancels what runs in a blocking thread when the task that waits for it is dropped.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// One helper as a future. Dropping it ends the command, and takes the fork away.
async fn help(forker: Forker, base: Environment, label: String, command: Command) -> Result<Vec<u8>> {
    let guard = CancelOnDrop(CancelToken::new());
    let cancel = guard.0.clone();
    let work = move || {
        let fork = forker.fork(&base, &label, &cancel)?;
        Ok(fork.environment.runner()?.run(&command, &cancel)?.stdout)
    };
    spawn_blocking(work).await.expect("the work does not panic")
}

async fn all(forker: Forker, base: Environment, n: usize, command: Command) -> Result<()> {
    let mut tasks = JoinSet::new();
    for helper in 0..n {
        tasks.spawn(help(forker.clone(), base.clone(), format!("task-{helper}"), command.clone()));
    }
    while let Some(output) = tasks.join_next().await {
        print!("{}", String::from_utf8_lossy(&output.expect("no task panics")?));
    }
    Ok(())
}

fn main() -> ExitCode {
    // Before the runtime has threads: where this process is started to be the server, it is only that.
    treefork::serve_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, n, command @ ..] = args.as_slice() else {
        eprintln!("usage: tokio BASE N COMMAND...");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O needs nothing");
    let forker = Forker::builder().force_copy().isolated_runner().build();
    let work =
        |forker| runtime.block_on(all(forker, Environment::at(base), n.parse().unwrap_or(1), Command::new(command)));
    match forker.and_then(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tokio: {e}");
            ExitCode::FAILURE
        }
    }
}
