//! Reading what stands in a git directory, which anybody may have made.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The content of a file; `EINVAL` for what is none, such as a pipe that nobody writes to, or a device that never ends.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
