//! What the definitions of the commands are good for besides parsing: examples in `--help`, man pages.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches};

use super::{Cli, output};
use crate::error::{Context, Error, Kind, Result};

/// Examples of each command: what they do, and the line.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "create",
        &[
            ("Fork this checkout, and go there", "cd \"$(treefork create --label idea-a)\""),
            (
                "For a helper that only reads: HEAD with the uncommitted changes",
                "treefork create --strategy worktree --dirty",
            ),
            (
                "A fork that stays when this shell is gone, whatever gc thinks",
                "treefork create ~/project --label long --keep",
            ),
        ],
    ),
    (
        "list",
        &[
            ("As a table, and for programs", "treefork list"),
            ("", "treefork list --json"),
            ("The names alone, such as for a menu", "treefork list --names"),
        ],
    ),
    (
        "show",
        &[
            ("A fork by the beginning of its label", "treefork show idea"),
            ("The fork that one stands in", "treefork show"),
        ],
    ),
    ("path", &[("Go to a fork", "cd \"$(treefork path idea-a)\"")]),
    ("log", &[("What happened to a fork", "treefork log idea-a")]),
    (
        "run",
        &[
            ("Try something; the fork is kept if anything changed", "treefork run -- make test"),
            ("Merge it when it succeeds", "treefork run --merge -- ./codemod.sh"),
            ("Without network, and nothing else writable", "treefork run --no-network --ro-root -- npm test"),
        ],
    ),
    (
        "exec",
        &[
            ("A command in a fork, which lies at the path of its base", "treefork exec idea-a -- git commit -am Done"),
            ("At most five minutes", "treefork exec --timeout 5m idea-a -- make test"),
        ],
    ),
    (
        "fanout",
        &[("Eight tries at once; keep the first that succeeds", "treefork fanout -n 8 --merge first -- ./try.sh")],
    ),
    ("shell", &[("A shell in a fork; the prompt says in which", "treefork shell idea-a")]),
    ("check", &[("Would this command leave the fork?", "treefork check idea-a -- git -C /home/me/project commit")]),
    (
        "diff",
        &[("What a fork changed", "treefork diff idea-a"), ("Only the paths", "treefork diff --name-status idea-a")],
    ),
    (
        "merge",
        &[
            ("Bring the work back, and remove the fork", "treefork merge idea-a"),
            ("See first what would happen", "treefork merge --dry-run idea-a"),
            ("One part of it", "treefork merge --only src/parser idea-a"),
            ("Take the fork's side of one conflict", "treefork merge --resolve ours Cargo.lock idea-a"),
        ],
    ),
    ("conflicts", &[("Which of these get in each other's way?", "treefork conflicts idea-a idea-b")]),
    ("remove", &[("Throw forks away", "treefork remove idea-a idea-b")]),
    (
        "gc",
        &[
            ("See what would go, and why the rest stays", "treefork gc --dry-run"),
            ("Forks of dead processes, older than an hour", "treefork gc --min-age 1h"),
        ],
    ),
    ("restore", &[("Get a fork back that gc took", "treefork restore idea-a")]),
    ("doctor", &[("What works here, and what would help", "treefork doctor")]),
    ("ps", &[("Who works in which fork", "treefork ps")]),
    ("top", &[("Watch the forks", "treefork top"), ("One look, for programs", "treefork top --count 1 --json")]),
    (
        "serve",
        &[
            ("In the foreground, as a service", "treefork serve"),
            ("End it, and all its mounts", "treefork serve --stop"),
        ],
    ),
    (
        "mount",
        &[("An overlay of given directories", "treefork mount -o lowerdir=/base,upperdir=/up,workdir=/work /mnt")],
    ),
];

/// The tree of commands, with examples.
pub(super) fn command() -> clap::Command {
    let main = "Examples:\n  treefork create --label idea-a\n  treefork exec idea-a -- make test\n  \
                treefork diff idea-a\n  treefork merge idea-a\n\nEach command has more: treefork help COMMAND\n\
                Completions and man pages: treefork completions SHELL, treefork man";
    EXAMPLES.iter().fold(Cli::command().after_help(main), |command, (name, examples)| {
        command.mut_subcommand(name, |command| command.after_help(text(examples)))
    })
}

fn text(examples: &[(&str, &str)]) -> String {
    let example = |(what, line): &(&str, &str)| {
        if what.is_empty() { format!("  {line}\n") } else { format!("  # {what}\n  {line}\n") }
    };
    let all: String = examples.iter().map(example).collect();
    format!("Examples:\n{}", all.trim_end())
}

/// The arguments of this process, understood.
pub(super) fn parse() -> std::result::Result<Cli, clap::Error> {
    // Only who asks for help gets to see the examples.
    let asks = |argument: OsString| ["-h", "--help", "help"].iter().any(|word| argument == *word);
    let may_show_help = std::env::args_os().len() < 2 || std::env::args_os().any(asks);
    let mut command = if may_show_help { command() } else { Cli::command() };
    Cli::from_arg_matches(&command.try_get_matches_from_mut(std::env::args_os())?).map_err(|e| e.format(&mut command))
}

/// Arguments of `man`.
#[derive(Args)]
pub(super) struct Man {
    /// Write a page for each command into this directory instead of printing the main one
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> Result<u8> {
        match self.dir {
            Some(dir) => clap_mangen::generate_to(command(), &dir).context("cannot write man pages into", dir)?,
            None => {
                let mut page = Vec::new();
                let rendered = clap_mangen::Man::new(command()).render(&mut page);
                rendered.map_err(|e| Error::new(Kind::Io, "cannot write the man page").because(e))?;
                output::print(&page)?;
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_arguments_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_and_they_can_be_understood() {
        let visible = Cli::command();
        let visible = visible.get_subcommands().filter(|command| !command.is_hide_set());
        for name in visible.map(|command| command.get_name().to_owned()) {
            assert!(EXAMPLES.iter().any(|(with, _)| *with == name), "{name} has no examples");
        }
        for (name, examples) in EXAMPLES {
            for (_, line) in *examples {
                let line = line.strip_prefix("cd \"$(").map_or(*line, |rest| rest.trim_end_matches(")\""));
                let words: Vec<&str> = line.split(' ').collect();
                let parsed = command().try_get_matches_from(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
                assert_eq!(parsed.subcommand_name(), Some(*name), "{line}");
            }
        }
    }
}
