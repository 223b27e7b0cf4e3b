//! Which paths of a work tree git tracks, and which it is told to ignore.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

use super::command::Git;
use crate::error::{Error, Kind, Result};
use crate::names::RelPath;

impl Git {
    /// Those of `paths` (from the top of the work tree) that are ignored: excluded by a pattern and not tracked.
    ///
    /// Asks git once for all of them. A path below an ignored directory is ignored.
    pub fn ignored<'a>(&self, paths: impl IntoIterator<Item = &'a RelPath>) -> Result<HashSet<RelPath>> {
        let mut input = Vec::new();
        for path in paths.into_iter().filter(|path| !path.is_root()) {
            input.extend_from_slice(path.as_path().as_os_str().as_bytes());
            input.push(0);
        }
        if input.is_empty() {
            return Ok(HashSet::new());
        }
        let mut command = self.command(["check-ignore", "--stdin", "-z"]);
        // The paths are literal anyway, and this command takes no pathspec magic at all.
        command.env_remove("GIT_LITERAL_PATHSPECS");
        let output = self.output_with(&mut command, &input)?;
        // 1: none of them is ignored.
        if !matches!(output.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            return Err(Error::new(Kind::Git, format!("git check-ignore failed ({said}) in")).at(self.top()));
        }
        Ok(split(&output.stdout))
    }

    /// All paths in the index, submodules among them.
    pub fn tracked(&self) -> Result<HashSet<RelPath>> {
        Ok(split(&self.run(["ls-files", "-z", "--cached", "--full-name"])?))
    }
}

/// Paths that end with a zero byte each; one that no work tree could hold is left out.
fn split(list: &[u8]) -> HashSet<RelPath> {
    list.split(|&b| b == 0).filter(|path| !path.is_empty()).filter_map(RelPath::from_bytes).collect()
}
