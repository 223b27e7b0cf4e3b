//! Scripts by which shells complete the commands and, where a fork is to be named, the forks there are.
//!
//! `clap_complete` makes the scripts from the definitions of the commands. It knows nothing of forks: the names of those
//! come from `treefork list --names`, by a few lines that are put in for each shell.

use clap::Args;
use clap_complete::Shell;

use super::{manual, output};
use crate::error::Result;

/// Arguments of `completions`.
#[derive(Args)]
pub(super) struct Completions {
    /// The shell that is to complete
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut manual::command(), "treefork", &mut script);
        let script = String::from_utf8(script).expect("the definitions of the commands are UTF-8");
        let script = match self.shell {
            Shell::Bash => script + &bash(),
            Shell::Zsh => zsh(&script),
            Shell::Fish => script + &fish(),
            _ => script,
        };
        output::print(script.as_bytes())?;
        Ok(0)
    }
}

/// The commands that want the name of a fork, under all their names. One for the trash names none that `list` has.
fn naming_forks() -> Vec<String> {
    let takes_fork = |command: &&clap::Command| {
        let mut arguments = command.get_positionals();
        command.get_name() != "restore" && arguments.any(|a| matches!(a.get_id().as_str(), "fork" | "forks"))
    };
    let names = |command: &clap::Command| {
        let aliases: Vec<_> = command.get_visible_aliases().map(str::to_owned).collect();
        std::iter::once(command.get_name().to_owned()).chain(aliases)
    };
    let mut main = manual::command();
    // The arguments of the commands come only with that.
    main.build();
    main.get_subcommands().filter(takes_fork).flat_map(names).collect()
}

/// Around the function of the script stands one that adds the names.
fn bash() -> String {
    let commands = naming_forks().join("|");
    format!(
        r#"
_treefork_and_names() {{
    _treefork "$@"
    local cur="${{COMP_WORDS[COMP_CWORD]}}" word name wanted=
    [[ $cur == -* ]] && return 0
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in
            --) return 0 ;;
            {commands}) wanted=yes ;;
        esac
    done
    [[ $wanted ]] || return 0
    while IFS= read -r name; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
    done < <(treefork list --names 2>/dev/null)
    return 0
}}

complete -F _treefork_and_names -o bashdefault -o default treefork
"#
    )
}

/// The arguments that are forks get a function of their own to be completed by.
fn zsh(script: &str) -> String {
    let line = |line: &str| {
        let argument = line.trim_start_matches(['\'', '*', ':']);
        match argument.starts_with("fork -- ") || argument.starts_with("forks -- ") {
            true => line.replace(":_default'", ":_treefork_names'") + "\n",
            false => line.to_owned() + "\n",
        }
    };
    let (first, rest) = script.split_once('\n').expect("the first line says for what it is");
    let names = "_treefork_names() {\n    local -a names\n    \
                 names=(\"${(@f)$(treefork list --names 2>/dev/null)}\")\n    compadd -a names\n}\n";
    format!("{first}\n\n{names}{}", rest.lines().map(line).collect::<String>())
}

fn fish() -> String {
    let line = |command: String| {
        let seen = format!("__fish_treefork_using_subcommand {command}");
        format!("complete -c treefork -n \"{seen}\" -f -a \"(treefork list --names 2>/dev/null)\" -d Fork\n")
    };
    naming_forks().into_iter().map(line).collect()
}
