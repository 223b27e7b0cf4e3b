//! The command line: the only code of the crate that prints or exits.
//!
//! One file a command group, each with a `clap` struct for its arguments and a `run` that returns the exit status. To
//! add a command: write such a file, and name it in [`Command`] and in [`Command::run`]. What commands share (where the
//! store is, text or JSON, tables, hints) is in [`output`].

mod completions;
mod create;
mod diff;
mod forks;
mod fsmonitor;
mod inside;
mod keep;
mod manual;
mod merge;
mod mount;
mod output;
mod prewarm;
mod run;
mod serve;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::server;
use output::Context;

/// Near-free, isolated forks of a directory tree, and a safe way back.
#[derive(Parser)]
#[command(name = "treefork", version, arg_required_else_help = true)]
struct Cli {
    /// The directory that keeps the forks [default: $XDG_STATE_HOME/treefork, else ~/.local/state/treefork]
    #[arg(long, global = true, env = "TREEFORK_STORE", value_name = "DIR")]
    store: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Read neither the base's .treefork.toml nor the user's settings, and run none of their commands
    #[arg(long, global = true)]
    no_config: bool,
    #[command(subcommand)]
    command: Command,
}

// The arguments of one command are built when it is the one: building all takes a tenth of what making a fork does.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    /// Make a fork, and print its path
    Create(create::Create),
    /// List the forks
    #[command(visible_alias = "ls")]
    List(forks::List),
    /// Show all about a fork
    Show(forks::Show),
    /// Print the path of a fork, mounted again where its mount was lost
    Path(forks::Path),
    /// Show what happened to a fork
    Log(forks::Log),
    /// Run a command in a new fork that cannot reach the base
    Run(run::Run),
    /// Run a command in a fork that exists
    Exec(run::Exec),
    /// Run a command in many forks, and compare or merge what comes of it
    Fanout(run::Fanout),
    /// Open a shell in a fork
    Shell(run::Shell),
    /// Judge whether a path or a command line leads out of a fork
    Check(run::Check),
    /// Show what a fork changed
    Diff(diff::Diff),
    /// Bring what a fork changed into its base, whole or not at all
    Merge(merge::Merge),
    /// Show which forks change the same paths
    Conflicts(merge::Conflicts),
    /// Remove forks
    #[command(visible_alias = "rm")]
    Remove(create::Remove),
    /// Reap forks that nobody will come back to, and clean up
    Gc(keep::Gc),
    /// Bring a fork back from the trash
    Restore(keep::Restore),
    /// Say what this machine and the store can do, and what stands in the way
    Doctor(keep::Doctor),
    /// Show which processes are in which fork
    Ps(watch::Ps),
    /// Watch what goes on in the forks
    Top(watch::Top),
    /// Serve the mounts of the store in the foreground; other commands start this by themselves
    Serve(serve::Serve),
    /// Print a script by which a shell completes the commands
    #[command(hide = true)]
    Completions(completions::Completions),
    /// Print the man page, or write one for each command
    #[command(hide = true)]
    Man(manual::Man),
    /// Delete what was removed
    #[command(hide = true)]
    EmptyTrash(create::EmptyTrash),
    /// Fill the kernel's caches of a fork, and have the index of its base prepared for git
    #[command(hide = true)]
    Prewarm(prewarm::Prewarm),
    /// Mount an overlay of given directories, without a store
    Mount(mount::Mount),
}

impl Command {
    /// Whether others start it to get their own work done. The server most of all must not start anything that needs it.
    fn is_service(&self) -> bool {
        matches!(self, Command::Serve(_) | Command::EmptyTrash(_) | Command::Prewarm(_) | Command::Mount(_))
    }

    fn run(self, context: &Context) -> Result<u8> {
        match self {
            Command::Create(command) => command.run(context),
            Command::List(command) => command.run(context),
            Command::Show(command) => command.run(context),
            Command::Path(command) => command.run(context),
            Command::Log(command) => command.run(context),
            Command::Run(command) => command.run(context),
            Command::Exec(command) => command.run(context),
            Command::Fanout(command) => command.run(context),
            Command::Shell(command) => command.run(context),
            Command::Check(command) => command.run(context),
            Command::Diff(command) => command.run(context),
            Command::Merge(command) => command.run(context),
            Command::Conflicts(command) => command.run(context),
            Command::Remove(command) => command.run(context),
            Command::Gc(command) => command.run(context),
            Command::Restore(command) => command.run(context),
            Command::Doctor(command) => command.run(context),
            Command::Ps(command) => command.run(context),
            Command::Top(command) => command.run(context),
            Command::Serve(command) => command.run(context),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::EmptyTrash(command) => command.run(context),
            Command::Prewarm(command) => command.run(context),
            Command::Mount(command) => command.run(),
        }
    }
}

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    if let Some(status) = fsmonitor::as_hook().or_else(mount::as_helper) {
        return status;
    }
    // Whatever this program is called, and wherever it lies.
    server::set_program(server::Program::This);
    ExitCode::from(status())
}

/// Runs the command that the arguments of the process name; its exit status.
fn status() -> u8 {
    let cli = match manual::parse() {
        Ok(cli) => cli,
        Err(e) => return output::refuse_arguments(&e),
    };
    let context = Context::new(cli.store, cli.json, cli.no_config);
    if !cli.command.is_service() || matches!(cli.command, Command::Mount(_)) {
        output::show_warnings();
    }
    let ready = match context.existing_store() {
        // A merge that was broken off is dealt with first, whatever comes next.
        Ok(Some(store)) if !cli.command.is_service() => merge::recover(&store),
        // The command itself says what is wrong with the store, if it needs one.
        _ => Ok(()),
    };
    ready.and_then(|()| cli.command.run(&context)).unwrap_or_else(|e| output::report(&e, context.json))
}

/// For the first line of a host's `main`: where this program was started to be the server, it is that and does not
/// return; else the library starts it as the server from now on, where it needs one.
pub fn serve_if_asked() {
    if std::env::var_os(server::AS_SERVER).is_some() {
        std::process::exit(i32::from(status()));
    }
    server::set_program(server::Program::This);
}
