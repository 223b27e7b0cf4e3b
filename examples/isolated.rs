//! Runs a command with one directory standing in for another: `isolated BASE FORK -- COMMAND...`.
//!
//! What `treefork exec` does with a fork, on two plain directories and through the library alone.

use std::path::PathBuf;
use std::process::ExitCode;

use treefork::run::{self, Isolation, Job, Root, Target};

fn main() -> ExitCode {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let Some(dash) = args.iter().position(|arg| arg == "--").filter(|&at| at >= 2) else {
        eprintln!("usage: isolated BASE FORK [cwd] [ro] [nonet] [timeout=SECONDS] -- COMMAND...");
        return ExitCode::from(2);
    };
    let command = args.split_off(dash + 1);
    let flag = |name: &str| args[2..dash].iter().any(|arg| arg == name);
    let timeout = args[2..dash].iter().find_map(|arg| arg.to_str()?.strip_prefix("timeout=")?.parse().ok());
    let root = PathBuf::from(&args[1]);
    let target = Target {
        id: "example".into(),
        label: "example".into(),
        base: PathBuf::from(&args[0]),
        base_ident: None,
        start: PathBuf::new(),
        hide: vec![root.clone()],
        shared_git: None,
        root: Root::Directory(root),
    };
    let job = Job {
        args: command,
        isolation: if flag("cwd") { Isolation::Cwd } else { Isolation::Path },
        read_only_root: flag("ro"),
        no_network: flag("nonet"),
        timeout: timeout.map(std::time::Duration::from_secs),
        ..Job::default()
    };
    match run::start(target, job).and_then(|running| running.wait(|_, _| {})) {
        Ok(outcome) => {
            eprintln!("{outcome:?}");
            ExitCode::from(outcome.end.status())
        }
        Err(error) => {
            eprintln!("isolated: {error}");
            ExitCode::from(125)
        }
    }
}
