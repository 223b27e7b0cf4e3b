//! Mounts below a directory: finding them, cutting FUSE connections that hang, and taking them away.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) fstype: String,
    pub(crate) source: String,
    /// Minor device number; for FUSE also the name of the connection in fusectl.
    pub(crate) minor: u32,
}

impl Mount {
    pub(crate) fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }

    /// Ends the connection: whoever hangs in this mount gets an error and can be killed.
    pub(crate) fn abort(&self) {
        if self.is_fuse() {
            // Fails where fusectl is not mounted or the connection is gone already; both are fine.
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.minor), "1");
        }
    }
}

/// All mounts at or below `dir`, in the order of mounting.
pub(crate) fn below(dir: &Path) -> Vec<Mount> {
    let table = std::fs::read("/proc/self/mountinfo").expect("every process can read its mounts");
    table.split(|&b| b == b'\n').filter_map(parse).filter(|m| m.point.starts_with(dir)).collect()
}

/// Aborts what is FUSE below `dir`.
pub(crate) fn abort_below(dir: &Path) {
    below(dir).iter().for_each(Mount::abort);
}

/// Takes away every mount at or below `dir`, the last one first; wedged or busy ones lazily.
pub(crate) fn detach_below(dir: &Path) {
    for mount in below(dir).iter().rev() {
        mount.abort();
        if rustix::mount::unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&mount.point).status();
        }
    }
}

fn parse(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = words.iter().position(|w| *w == b"-")?;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let minor = text(words.get(2)?).split(':').nth(1)?.parse().ok()?;
    Some(Mount {
        point: PathBuf::from(unescape(words.get(4)?)),
        fstype: text(words.get(dash + 1)?),
        source: text(words.get(dash + 2)?),
        minor,
    })
}

/// Blanks, newlines and backslashes stand in the table as three octal digits.
fn unescape(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match (byte, octal) {
            (b'\\', Some(value)) => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// The processes whose command line, environment or working directory speaks of `dir`: those that a test left behind.
pub(crate) fn processes_of(dir: &Path) -> Vec<i32> {
    let me = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if pid.to_string() == me {
            continue;
        }
        let speaks = |file: &str| std::fs::read(entry.path().join(file)).is_ok_and(|text| mentions(&text, dir));
        let sits = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        if sits || speaks("cmdline") || speaks("environ") {
            found.push(pid);
        }
    }
    found
}

/// Whether `text` names the directory (and not one whose name goes on with more digits).
pub(crate) fn mentions(text: &[u8], dir: &Path) -> bool {
    let needle = dir.as_os_str().as_bytes();
    let ends = |at: usize| text.get(at + needle.len()).is_none_or(|next| !next.is_ascii_digit());
    text.windows(needle.len()).enumerate().any(|(at, window)| window == needle && ends(at))
}
