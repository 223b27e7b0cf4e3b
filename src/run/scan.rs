//! What can be read from a command line about where it will act: git redirection in its spellings, changes of directory
//! and plain paths that lead into the base. One level of `sh -c '...'` is read like the line itself.
//!
//! It errs towards finding too much. What it cannot know (expansions of the shell, aliases of git) it says in notes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::environment;
use super::guard::Place;

/// What was found in a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// What leads out of the fork.
    pub findings: Vec<Finding>,
    /// What could not be known.
    pub notes: Vec<&'static str>,
}

/// One thing in a command line that leads out of the fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How it leads out.
    pub how: How,
    /// The words that do it, as a person may be shown them.
    pub words: String,
    /// Where they lead.
    #[serde(flatten)]
    pub place: Place,
}

/// How a word leads out of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// An option of git names a repository, a work tree or a directory outside the fork.
    GitOption,
    /// A variable redirects git.
    GitVariable,
    /// The shell changes into the base.
    ChangesDirectory,
    /// A path of the base is named.
    NamesBase,
}

const ALIASES: &str = "aliases of git are not expanded";
const EXPANSIONS: &str = "expansions of the shell are not evaluated";
const NESTED: &str = "a command line inside a command line inside this one was not read";

/// Reads a command line. `place` says where a path leads, from a working directory.
pub(super) fn command(args: &[OsString], cwd: &Path, place: &dyn Fn(&Path, &Path) -> Place) -> Scan {
    let mut reader = Reader { place, cwd: cwd.to_path_buf(), scan: Scan::default(), depth: 0 };
    reader.simple(args);
    reader.scan
}

struct Reader<'a> {
    place: &'a dyn Fn(&Path, &Path) -> Place,
    cwd: PathBuf,
    scan: Scan,
    depth: u32,
}

impl Reader<'_> {
    /// One command: words up to a separator.
    fn simple(&mut self, words: &[OsString]) {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            let name = Path::new(word).file_name().unwrap_or_default();
            match name.as_bytes() {
                _ if assignment(word).is_some() => self.variable(word),
                b"git" => {
                    self.note(ALIASES);
                    at += self.git(&words[at..]);
                }
                b"cd" | b"pushd" => at += self.change_directory(&words[at..]),
                b"sh" | b"bash" | b"dash" | b"zsh" | b"ksh" | b"ash" => at += self.shell(&words[at..]),
                b"env" => at += self.env(&words[at..]),
                _ => self.plain(word),
            }
        }
    }

    /// The options of git before its subcommand, and what else of its words names a repository. How many words it took.
    fn git(&mut self, words: &[OsString]) -> usize {
        const TAKE_A_WORD: [&str; 7] =
            ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env"];
        let mut options = vec![];
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|word| word.as_bytes().starts_with(b"-")) {
            at += 1;
            let (option, mut value) = split_option(word);
            if value.is_none() && TAKE_A_WORD.iter().any(|o| option == *o) {
                value = words.get(at).cloned();
                at += 1;
            }
            options.extend(value.map(|value| (option, value)));
        }
        // Every -C starts where the one before ended, and all of them come before what the other options say.
        let moves: Vec<_> =
            options.iter().filter(|(option, _)| *option == "-C").map(|(_, dir)| dir.as_os_str()).collect();
        let dir = moves.iter().fold(self.cwd.clone(), |dir, to| dir.join(to));
        if !moves.is_empty() {
            self.check(
                How::GitOption,
                &format!("git -C {}", moves.join(OsStr::new(" -C ")).display()),
                dir.as_os_str(),
                &dir,
            );
        }
        for (option, value) in &options {
            let shown = format!("git {} {}", option.display(), value.display());
            match option.as_bytes() {
                b"--git-dir" | b"--work-tree" => self.check(How::GitOption, &shown, value, &dir),
                b"-c" | b"--config-env" => self.setting(&shown, value, &dir),
                _ => {}
            }
        }
        at = at.min(words.len());
        self.subcommand(&words[at..], &dir);
        words.len()
    }

    /// The words of git from the subcommand on.
    fn subcommand(&mut self, words: &[OsString], dir: &Path) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (option, attached) = split_option(word);
            if option != "--separate-git-dir" {
                self.plain(word);
            } else if let Some(value) = attached.or_else(|| words.next().cloned()) {
                let shown = format!("git --separate-git-dir {}", value.display());
                self.check(How::GitOption, &shown, &value, dir);
            }
        }
    }

    /// A setting on the command line of git.
    fn setting(&mut self, shown: &str, setting: &OsStr, dir: &Path) {
        let bytes = setting.as_bytes();
        let Some(equals) = bytes.iter().position(|&b| b == b'=') else { return };
        if bytes[..equals].eq_ignore_ascii_case(b"core.worktree") {
            self.check(How::GitOption, shown, OsStr::from_bytes(&bytes[equals + 1..]), dir);
        }
    }

    /// `env [OPTIONS] [NAME=VALUE...] COMMAND`: only its options are its own.
    fn env(&mut self, words: &[OsString]) -> usize {
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|word| word.as_bytes().starts_with(b"-")) {
            at += 1;
            let (option, attached) = split_option(word);
            if matches!(option.as_bytes(), b"-C" | b"--chdir") {
                at += usize::from(attached.is_none());
                if let Some(value) = attached.or_else(|| words.get(at - 1).cloned()) {
                    self.enter(&value);
                }
            } else if matches!(option.as_bytes(), b"-u" | b"--unset") && attached.is_none() {
                at += 1;
            }
        }
        at.min(words.len())
    }

    fn change_directory(&mut self, words: &[OsString]) -> usize {
        let options = words.iter().take_while(|word| word.as_bytes().starts_with(b"-") && word.len() > 1).count();
        if let Some(dir) = words.get(options) {
            self.enter(dir);
        }
        (options + 1).min(words.len())
    }

    fn enter(&mut self, dir: &OsStr) {
        let place = (self.place)(Path::new(dir), &self.cwd);
        if matches!(place, Place::Base(_)) {
            let words = format!("cd {}", dir.display());
            self.scan.findings.push(Finding { how: How::ChangesDirectory, words, place });
        }
        self.cwd.push(dir);
    }

    /// `sh [OPTIONS] -c LINE`: the line is read as well, once.
    fn shell(&mut self, words: &[OsString]) -> usize {
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|word| word.as_bytes().starts_with(b"-")) {
            at += 1;
            let short = !word.as_bytes().starts_with(b"--");
            if short && word.as_bytes().contains(&b'c') {
                if let Some(line) = words.get(at) {
                    at += 1;
                    self.line(line);
                }
                break;
            }
            if short && word.as_bytes().ends_with(b"o") {
                at += 1;
            }
        }
        at.min(words.len())
    }

    fn line(&mut self, line: &OsStr) {
        if self.depth > 0 {
            return self.note(NESTED);
        }
        self.depth += 1;
        let before = self.cwd.clone();
        let (commands, expands) = split_line(line.as_bytes());
        if expands {
            self.note(EXPANSIONS);
        }
        for command in commands {
            self.simple(&command);
        }
        self.cwd = before;
        self.depth -= 1;
    }

    fn variable(&mut self, word: &OsStr) {
        let Some((name, value)) = assignment(word) else { return };
        if !environment::redirects(name) {
            return self.plain(value);
        }
        let place = (self.place)(Path::new(value), &self.cwd);
        let names_path = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"];
        // What is no path (a namespace, a setting) cannot be judged by where it leads.
        let place = if names_path.iter().any(|n| name == *n) { place } else { Place::Outside };
        if !matches!(place, Place::Inside(_)) {
            let words = word.display().to_string();
            self.scan.findings.push(Finding { how: How::GitVariable, words, place });
        }
    }

    /// Any other word: only an absolute path into the base is of interest, also behind `--option=`.
    fn plain(&mut self, word: &OsStr) {
        let bytes = word.as_bytes();
        let path = match bytes.iter().position(|&b| b == b'=') {
            Some(equals) if bytes.starts_with(b"-") => &bytes[equals + 1..],
            _ => bytes,
        };
        if !path.starts_with(b"/") {
            return;
        }
        let place = (self.place)(Path::new(OsStr::from_bytes(path)), &self.cwd);
        if matches!(place, Place::Base(_)) {
            self.scan.findings.push(Finding { how: How::NamesBase, words: word.display().to_string(), place });
        }
    }

    fn check(&mut self, how: How, shown: &str, path: &OsStr, cwd: &Path) {
        let place = (self.place)(Path::new(path), cwd);
        if !matches!(place, Place::Inside(_)) {
            self.scan.findings.push(Finding { how, words: shown.to_owned(), place });
        }
    }

    fn note(&mut self, note: &'static str) {
        if !self.scan.notes.contains(&note) {
            self.scan.notes.push(note);
        }
    }
}

/// `--name=value`, or the word alone.
fn split_option(word: &OsStr) -> (&OsStr, Option<OsString>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|&b| b == b'=') {
        Some(equals) if bytes.starts_with(b"--") => {
            (OsStr::from_bytes(&bytes[..equals]), Some(OsString::from_vec(bytes[equals + 1..].to_vec())))
        }
        _ => (word, None),
    }
}

/// `NAME=value`.
fn assignment(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let equals = bytes.iter().position(|&b| b == b'=')?;
    let name = &bytes[..equals];
    let fine = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let named = !name.is_empty() && !name[0].is_ascii_digit() && name.iter().all(fine);
    named.then(|| (OsStr::from_bytes(name), OsStr::from_bytes(&bytes[equals + 1..])))
}

/// The commands of a shell line, each as its words, quotes removed; and whether something in it would be expanded.
fn split_line(line: &[u8]) -> (Vec<Vec<OsString>>, bool) {
    let (mut commands, mut words, mut expands) = (vec![], vec![], false);
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        expands |= matches!(byte, b'$' | b'`') && quote != Some(b'\'');
        match (quote, byte) {
            (Some(q), _) if byte == q => quote = None,
            (Some(b'\''), _) => word.get_or_insert_default().push(byte),
            (_, b'\\') => word.get_or_insert_default().extend(bytes.next()),
            (Some(_), _) => word.get_or_insert_default().push(byte),
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (None, b' ' | b'\t' | b'<' | b'>') => words.extend(word.take().map(OsString::from_vec)),
            (None, b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'`') => {
                words.extend(word.take().map(OsString::from_vec));
                commands.push(std::mem::take(&mut words));
            }
            (None, _) => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word.map(OsString::from_vec));
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    (commands, expands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::RelPath;

    /// `/f` is the fork, `/b` the base.
    fn place(path: &Path, cwd: &Path) -> Place {
        let path = cwd.join(path);
        let below = |root: &str| RelPath::new(path.strip_prefix(root).ok()?);
        match (below("/f"), below("/b")) {
            (Some(below), _) => Place::Inside(below),
            (_, Some(below)) => Place::Base(below),
            _ => Place::Outside,
        }
    }

    fn scan(words: &[&str]) -> Scan {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        command(&args, Path::new("/f"), &place)
    }

    fn hows(words: &[&str]) -> Vec<How> {
        scan(words).findings.iter().map(|f| f.how).collect()
    }

    #[test]
    fn every_spelling_of_a_redirection_is_found() {
        let lines: [&[&str]; 16] = [
            &["git", "--git-dir", "/b/.git", "commit"],
            &["git", "--git-dir=/b/.git", "commit"],
            &["git", "-C", "/b", "commit"],
            &["git", "-C", "/", "-C", "b", "status"],
            &["git", "--work-tree", "/b", "status"],
            &["git", "--work-tree=/b", "status"],
            &["git", "-c", "core.worktree=/b", "status"],
            &["git", "init", "--separate-git-dir", "/b/g"],
            &["/usr/bin/git", "-C", "/elsewhere", "log"],
            &["timeout", "5", "git", "-C", "/b", "log"],
            &["GIT_DIR=/b/.git", "git", "commit"],
            &["env", "-u", "X", "GIT_DIR=/b/.git", "git", "commit"],
            &["env", "GIT_WORK_TREE=/b", "git", "commit"],
            &["sh", "-c", "GIT_DIR=/b/.git git commit"],
            &["bash", "-ec", "true && git -C '/b' commit"],
            &["sh", "-c", "(cd sub; git --git-dir=\"/b/.git\" gc)"],
        ];
        for line in lines {
            assert_eq!(scan(line).findings.len(), 1, "{line:?}");
            assert!(matches!(hows(line)[0], How::GitOption | How::GitVariable), "{line:?}");
        }
    }

    #[test]
    fn what_stays_inside_is_no_finding() {
        let lines: [&[&str]; 8] = [
            &["git", "-C", "sub", "commit", "-m", "git -C /b"],
            &["git", "--git-dir=.git", "log"],
            &["git", "--git-dir", "/f/.git", "log"],
            &["env", "GIT_DIR=.git", "git", "log"],
            &["ls", "/tmp"],
            &["sh", "-c", "cd /tmp && ls"],
            &["make", "-C", "sub"],
            &["git"],
        ];
        for line in lines {
            assert_eq!(hows(line), [], "{line:?}");
        }
    }

    #[test]
    fn paths_of_the_base_and_changes_into_it_are_found() {
        assert_eq!(hows(&["sh", "-c", "cd /b && touch x"]), [How::ChangesDirectory]);
        assert_eq!(hows(&["touch", "/b/x"]), [How::NamesBase]);
        assert_eq!(hows(&["cc", "--sysroot=/b"]), [How::NamesBase]);
        assert_eq!(hows(&["sh", "-c", "echo x >/b/f"]), [How::NamesBase]);
        assert_eq!(hows(&["env", "-C", "/b", "touch", "x"]), [How::ChangesDirectory]);
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        assert_eq!(scan(&["git", "st"]).notes, [ALIASES]);
        assert_eq!(scan(&["sh", "-c", "cd $B"]).notes, [EXPANSIONS]);
        assert_eq!(scan(&["sh", "-c", "sh -c 'cd /b'"]).notes, [NESTED]);
        assert_eq!(scan(&["sh", "-c", "echo '$B'"]).notes, [""; 0]);
    }
}
