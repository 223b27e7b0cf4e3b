//! Which configuration of a repository makes git run a program, and what to set it to so that it does not.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Set for every command, whatever the repository says.
pub(super) const FIXED: [(&str, &str); 26] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.sshCommand", "false"),
    ("core.gitProxy", ""),
    // Would be run to list what alternates have; `true` lists nothing.
    ("core.alternateRefsCommand", "true"),
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("sequence.editor", "false"),
    ("credential.helper", ""),
    ("gpg.program", "false"),
    ("gpg.ssh.program", "false"),
    ("gpg.x509.program", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("push.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("merge.verifySignatures", "false"),
    // A command in a submodule would run with the submodule's configuration, which nobody has looked at.
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("status.submoduleSummary", "false"),
    // Work in the background would outlive us.
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    // We name the repository, and harden against it: that somebody else owns it is no reason to refuse.
    ("safe.directory", "*"),
];

/// What a variable of the repository's configuration calls for: drivers have names that only the repository knows.
///
/// A filter with an empty command is no filter; a merge driver that fails is a conflict. External diff commands and
/// textconv are switched off on the command line instead, where an empty command would still be run.
pub(super) fn overrides(key: &[u8]) -> Option<(OsString, &'static str)> {
    let section = key.iter().position(|&b| b == b'.')?;
    let variable = key.iter().rposition(|&b| b == b'.').filter(|&at| at > section)?;
    let value = match (&key[..section], &key[variable + 1..]) {
        (b"filter", b"clean" | b"smudge" | b"process") => "",
        (b"filter", b"required") => "false",
        (b"merge", b"driver") => "false",
        _ => return None,
    };
    Some((OsString::from_vec(key.to_vec()), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_by_their_variables() {
        let value = |key: &str| overrides(key.as_bytes()).map(|(_, value)| value);
        assert_eq!(value("filter.lfs.process"), Some(""));
        assert_eq!(value("filter.with.dots.clean"), Some(""));
        assert_eq!(value("filter.lfs.required"), Some("false"));
        assert_eq!(value("merge.ours.driver"), Some("false"));
        for harmless in ["filter.clean", "core.bare", "merge.tool", "remote.a.url", ""] {
            assert_eq!(value(harmless), None, "{harmless}");
        }
    }
}
