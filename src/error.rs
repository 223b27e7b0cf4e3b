//! The one error type of the library: what kind, which action failed, on which path, and why.
//!
//! The kind decides the exit status towards the shell (one exhaustive table, [`Kind::exit_status`]). Code below the
//! server that answers the kernel ([`crate::overlay`], [`crate::layer`]) speaks in plain errnos instead, since an errno
//! is the whole vocabulary of a FUSE reply; it becomes an [`Error`] where a person gets to read it.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A result whose error is an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as far as a caller may want to tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that makes no sense: a bad label, a base that is a file, an unknown option.
    Usage,
    /// The named fork, base or path does not exist.
    NotFound,
    /// The label, id or path is taken.
    Exists,
    /// A prefix or label fits more than one fork.
    Ambiguous,
    /// The fork is in use by running processes.
    InUse,
    /// Somebody else holds the lock that this needs.
    Locked,
    /// The merge found conflicts; nothing was written.
    Conflict,
    /// The fork vanished underneath: its mount is gone.
    Vanished,
    /// Another mount or directory is where the base was.
    Covered,
    /// The working directory, or a file that a command is to read, has no counterpart in the fork.
    Astray,
    /// The environment was given nothing that runs commands.
    NoShell,
    /// This machine cannot do it: no FUSE, no namespaces, no reflink.
    Unavailable,
    /// A record on disk cannot be read, or is of a newer format.
    Corrupt,
    /// A command that settings name failed.
    Hook,
    /// A git repository is in a state that this cannot work with.
    Git,
    /// The time limit ran out.
    TimedOut,
    /// The caller cancelled.
    Cancelled,
    /// A system call failed.
    Io,
}

impl Kind {
    /// The word for this kind in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Usage => "usage",
            Kind::NotFound => "not-found",
            Kind::Exists => "exists",
            Kind::Ambiguous => "ambiguous",
            Kind::InUse => "in-use",
            Kind::Locked => "locked",
            Kind::Conflict => "conflict",
            Kind::Vanished => "vanished",
            Kind::Covered => "covered",
            Kind::Astray => "astray",
            Kind::NoShell => "no-shell",
            Kind::Unavailable => "unavailable",
            Kind::Corrupt => "corrupt",
            Kind::Hook => "hook",
            Kind::Git => "git",
            Kind::TimedOut => "timed-out",
            Kind::Cancelled => "cancelled",
            Kind::Io => "io",
        }
    }

    /// The kind for a word that [`as_str`](Self::as_str) gave.
    pub fn parse(word: &str) -> Option<Self> {
        use Kind::*;
        const ALL: [Kind; 18] = [
            Usage,
            NotFound,
            Exists,
            Ambiguous,
            InUse,
            Locked,
            Conflict,
            Vanished,
            Covered,
            Astray,
            NoShell,
            Unavailable,
            Corrupt,
            Hook,
            Git,
            TimedOut,
            Cancelled,
            Io,
        ];
        ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The exit status of the command line for this kind: 2 for wrong use, 1 for failure, and the numbers that `run`
    /// reserves (120 the fork vanished, 124 time limit).
    pub fn exit_status(self) -> u8 {
        match self {
            Kind::Usage | Kind::Ambiguous => 2,
            Kind::Vanished => 120,
            Kind::TimedOut => 124,
            Kind::NotFound
            | Kind::Exists
            | Kind::InUse
            | Kind::Locked
            | Kind::Conflict
            | Kind::Covered
            | Kind::Astray
            | Kind::NoShell
            | Kind::Unavailable
            | Kind::Corrupt
            | Kind::Hook
            | Kind::Git
            | Kind::Cancelled
            | Kind::Io => 1,
        }
    }
}

/// A failure: kind, action, path and cause.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    action: Cow<'static, str>,
    path: Option<PathBuf>,
    remedy: Option<Cow<'static, str>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind; `action` says what could not be done, or what is wrong, as the start of a sentence.
    pub fn new(kind: Kind, action: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, action: action.into(), path: None, remedy: None, source: None }
    }

    /// A failed system call: `action` as in "cannot open the base". `ECANCELED` is ours: the caller cancelled.
    pub fn io(action: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = if source.raw_os_error() == Some(libc::ECANCELED) { Kind::Cancelled } else { Kind::Io };
        Self::new(kind, action).because(source)
    }

    /// The same error, about this path.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_path_buf());
        self
    }

    /// The same error, with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error, with what the caller can do about it: an imperative sentence without a full stop.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// What the caller can do about it; not part of the message.
    pub fn hint(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The path it is about.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The errno of the system call behind it, if there was one.
    pub fn errno(&self) -> Option<i32> {
        let source = self.source.as_deref()?;
        source.downcast_ref::<io::Error>()?.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.action)?;
        if let Some(path) = &self.path {
            // Quoted and escaped: a path may hold newlines, and an error stays one line.
            write!(f, " {path:?}")?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static))
    }
}

/// Turns a failed call into an [`Error`] that names the action and the path.
pub trait Context<T> {
    /// Names what could not be done, and on which path.
    fn context(self, action: impl Into<Cow<'static, str>>, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, action: impl Into<Cow<'static, str>>, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|e| Error::io(action, e).at(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_whatever_the_path() {
        let e = Error::io("cannot open", io::Error::from_raw_os_error(2)).at("a\nb");
        assert_eq!(e.to_string(), "cannot open \"a\\nb\": No such file or directory (os error 2)");
        assert_eq!(e.errno(), Some(2));
        assert_eq!(e.kind().exit_status(), 1);
    }
}
