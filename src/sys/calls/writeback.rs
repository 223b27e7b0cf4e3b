//! Bringing what was written on its way to the disk, without waiting until it is there (`sync_file_range(2)`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};

use super::call;

/// Has everything that was written to a file written to the disk from now on. Promises nothing by itself; where the file
/// system orders content before names (ext4), names that change from here on do not get ahead of it.
pub fn begin_writeback(file: impl AsFd) -> Result<()> {
    let fd = file.as_fd().as_raw_fd();
    call("sys.sync_file_range", || {
        // SAFETY: only numbers, and the descriptor is open for as long as it is borrowed.
        let done = unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        // The number is set by the call that just failed, on this thread.
        if done == 0 {
            Ok(())
        } else {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        }
    })
}
