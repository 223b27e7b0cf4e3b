//! Which fork the caller stands in.

use std::path::{Path, PathBuf};

use super::output;
use crate::error::{Context, Error, Kind, Result};
use crate::fork::{self, Id, Record, Store};

/// Where the caller is.
pub(super) enum Inside {
    /// In the files of a fork.
    Fork(Store, Box<Record>),
    /// In a command of `run`, `exec` or `shell`, from where the store cannot be seen.
    Command {
        /// The fork's id.
        id: String,
    },
}

/// Finds out where the caller stands, by its working directory, else by what a command in a fork is told.
///
/// # Errors
/// `Usage` where it is no fork.
pub(super) fn find() -> Result<Inside> {
    let cwd = std::env::current_dir().context("cannot tell the working directory", ".")?;
    if let Some((root, id)) = place(&cwd)
        && let Some(store) = Store::open_existing(&root)?
        && let Some(record) = Record::read(&store.fork(&id))?
    {
        return Ok(Inside::Fork(store, Box::new(record)));
    }
    match std::env::var("TREEFORK_ID") {
        Ok(id) => Ok(Inside::Command { id }),
        Err(_) => {
            let what = "no fork was named, and the working directory is not in one";
            Err(Error::new(Kind::Usage, what).remedy("`treefork list` shows the forks"))
        }
    }
}

/// The fork of this name, or without a name the one that the caller stands in.
///
/// # Errors
/// As for [`find`]; also `Usage` in a command of `run`, `exec` or `shell`.
pub(super) fn named_or_here(context: &output::Context, name: Option<&str>) -> Result<(Store, Record)> {
    if let Some(name) = name {
        let store = context.store_of(name)?;
        let record = fork::find(&store, name)?;
        return Ok((store, record));
    }
    match find()? {
        Inside::Fork(store, record) => Ok((store, *record)),
        Inside::Command { id } => {
            let what = format!("nothing more is known of the fork {id} here");
            Err(Error::new(Kind::Usage, what).remedy(output::OUTSIDE))
        }
    }
}

/// The store and the fork that a path leads into by its looks: `STORE/forks/ID/mnt/...`.
fn place(path: &Path) -> Option<(PathBuf, Id)> {
    path.ancestors().find_map(|dir| {
        let fork = dir.parent().filter(|_| dir.file_name().is_some_and(|name| name == "mnt"))?;
        let id = fork.file_name()?.to_str()?.parse().ok()?;
        let forks = fork.parent().filter(|forks| forks.file_name().is_some_and(|name| name == "forks"))?;
        Some((forks.parent()?.to_path_buf(), id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_told_by_their_path() {
        let place = |path: &str| place(Path::new(path)).map(|(store, id)| format!("{} {id}", store.display()));
        assert_eq!(place("/s/forks/ab345678/mnt"), Some("/s ab345678".into()));
        assert_eq!(place("/s/forks/ab345678/mnt/src/mnt"), Some("/s ab345678".into()));
        for other in ["/", "/s/forks/ab345678", "/s/forks/ab345678/upper", "/s/other/ab345678/mnt", "/forks/x/mnt"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
