//! What the allocator does with large blocks, and with free ones.

/// Blocks from this size on are mapped of their own, and given back when freed.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 * 1024;

/// Makes the allocator map large blocks of their own, for good. To be called before the first FUSE session.
///
/// The FUSE library reads requests into zeroed buffers of 16 MiB, one a thread. Mapped, such a buffer costs the few
/// pages that requests really touch. From the heap, which is where glibc comes to take it from once a block of that
/// size was freed, it is cleared by hand and costs 16 MiB: a thousand mounts took 6.8 GB. Setting the threshold also
/// switches off that it moves. Other C libraries map large blocks by themselves.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "there is no safe wrapper")]
    // SAFETY: mallopt takes two integers and changes settings of the allocator under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives the free memory of the allocator back to the system: glibc by itself keeps what lies below a block in use.
///
/// Takes milliseconds where there is much; for moments in which nobody waits.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "there is no safe wrapper")]
    // SAFETY: malloc_trim releases pages that hold no allocated block, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
