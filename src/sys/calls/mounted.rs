//! Mounts by number (`listmount(2)`, `statmount(2)`; since Linux 6.8): what is said of one costs the same however many
//! there are, while `/proc/self/mountinfo` is written anew, whole, for each who reads it.

use rustix::io::{Errno, Result};

use super::call;

/// The numbers of the two calls, on all machines but one (alpha) the same; the C library has no functions for them.
const STATMOUNT: libc::c_long = 457;
const LISTMOUNT: libc::c_long = 458;

/// `struct mnt_id_req` of `linux/mount.h`, in its first version.
#[repr(C)]
struct Query {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl Query {
    fn new(mount: u64, param: u64) -> Self {
        Self { size: 24, spare: 0, mount, param }
    }
}

/// The numbers of the mounts of this namespace that are above `after`, in their order, as many as there is room for.
pub fn listmount(after: u64, into: &mut [u64]) -> Result<usize> {
    /// All that there are.
    const ROOT: u64 = u64::MAX;
    let query = Query::new(ROOT, after);
    call("sys.listmount", || {
        // SAFETY: the query is as large as it says, and the kernel writes at most as many numbers as there is room for.
        checked(unsafe { libc::syscall(LISTMOUNT, &raw const query, into.as_mut_ptr(), into.len(), 0) })
    })
}

/// What `mask` asks of a mount, as `struct statmount` with its strings behind it.
pub fn statmount(mount: u64, mask: u64, into: &mut [u8]) -> Result<()> {
    let query = Query::new(mount, mask);
    call("sys.statmount", || {
        // SAFETY: the query is as large as it says, and the kernel writes at most as many bytes as there is room for.
        checked(unsafe { libc::syscall(STATMOUNT, &raw const query, into.as_mut_ptr(), into.len(), 0) })
    })?;
    Ok(())
}

fn checked(result: libc::c_long) -> Result<usize> {
    // The number is set by the call that just failed, on this thread.
    usize::try_from(result).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
