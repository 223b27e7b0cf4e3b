//! `getxattrat(2)` and its like: extended attributes of a name in a directory, without the way through `/proc` that the older
//! calls need. From Linux 6.13 on.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;

use rustix::fs::{AtFlags, CWD, XattrFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use super::call;

/// Their numbers, which are the same on all architectures that treefork is built for.
const SETXATTRAT: libc::c_long = 463;
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;

/// `struct xattr_args`.
#[repr(C, align(8))]
struct Args {
    value: u64,
    size: u32,
    flags: u32,
}

/// Whether the kernel has these calls, and lets us make them.
pub fn has_xattrat() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let asked = get(CWD, c"/", c"user.treefork", &mut []);
        !matches!(asked, Err(Errno::NOSYS | Errno::PERM | Errno::INVAL))
    });
    *HAS
}

/// `lgetxattr` of a name in a directory, where [`has_xattrat`].
pub fn lgetxattrat(
    dir: BorrowedFd<'_>,
    path: impl Arg + Copy,
    name: impl Arg + Copy,
    value: &mut [u8],
) -> Result<usize> {
    call("sys.lgetxattr", || path.into_with_c_str(|path| name.into_with_c_str(|name| get(dir, path, name, value))))
}

/// `lsetxattr` of a name in a directory, where [`has_xattrat`].
pub fn lsetxattrat(
    dir: BorrowedFd<'_>,
    path: impl Arg + Copy,
    name: impl Arg + Copy,
    value: &[u8],
    flags: XattrFlags,
) -> Result<()> {
    let set = |path: &CStr, name: &CStr| {
        let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        let args = Args { value: value.as_ptr() as u64, size, flags: flags.bits() };
        let (at, room) = (AtFlags::SYMLINK_NOFOLLOW.bits(), size_of::<Args>());
        // SAFETY: both names end in a NUL, `args` is as large as is said, and the kernel only reads `size` bytes of `value`.
        let done = unsafe {
            libc::syscall(SETXATTRAT, dir.as_raw_fd(), path.as_ptr(), at, name.as_ptr(), &raw const args, room)
        };
        length(done).map(drop)
    };
    call("sys.lsetxattr", || path.into_with_c_str(|path| name.into_with_c_str(|name| set(path, name))))
}

/// `llistxattr` of a name in a directory, where [`has_xattrat`].
pub fn llistxattrat(dir: BorrowedFd<'_>, path: impl Arg + Copy, list: &mut [u8]) -> Result<usize> {
    call("sys.llistxattr", || {
        path.into_with_c_str(|path| {
            let (flags, at, len) = (AtFlags::SYMLINK_NOFOLLOW.bits(), list.as_mut_ptr(), list.len());
            // SAFETY: `path` ends in a NUL, and the kernel writes at most `len` bytes to `at`, all of them ours.
            let done = unsafe { libc::syscall(LISTXATTRAT, dir.as_raw_fd(), path.as_ptr(), flags, at, len) };
            length(done)
        })
    })
}

fn get(dir: BorrowedFd<'_>, path: &CStr, name: &CStr, value: &mut [u8]) -> Result<usize> {
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let args = Args { value: value.as_mut_ptr() as u64, size, flags: 0 };
    let (flags, room) = (AtFlags::SYMLINK_NOFOLLOW.bits(), size_of::<Args>());
    // SAFETY: both names end in a NUL, `args` is as large as is said, and the kernel writes at most `size` bytes to `value`.
    let done = unsafe {
        libc::syscall(GETXATTRAT, dir.as_raw_fd(), path.as_ptr(), flags, name.as_ptr(), &raw const args, room)
    };
    length(done)
}

/// What a call returned: a length, or -1 and an errno.
fn length(done: libc::c_long) -> Result<usize> {
    usize::try_from(done).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn they_say_what_the_older_calls_say() {
        if !has_xattrat() {
            eprintln!("NOT RUN: the kernel has no getxattrat");
            return;
        }
        let dir = tempfile::tempdir().expect("room");
        let (file, link) = (dir.path().join("f"), dir.path().join("l"));
        std::fs::write(&file, "").expect("room");
        std::os::unix::fs::symlink("f", link).expect("room");
        let open = crate::sys::open_root(dir.path()).expect("there");
        let get = |path, value: &mut [u8]| lgetxattrat(open.as_fd(), path, "user.treefork", value);
        let mut value = [0; 8];
        assert!(matches!(get("f", &mut value), Err(Errno::NODATA | Errno::NOTSUP)));
        assert_eq!(get("absent", &mut value), Err(Errno::NOENT));
        let set = |value: &[u8], flags| lsetxattrat(open.as_fd(), "f", "user.treefork", value, flags);
        if set(b"old", XattrFlags::empty()) == Err(Errno::NOTSUP) {
            eprintln!("NOT RUN: no user attributes here");
            return;
        }
        assert_eq!(set(b"text", XattrFlags::CREATE), Err(Errno::EXIST));
        set(b"text", XattrFlags::REPLACE).expect("it is there");
        let old = rustix::fs::getxattr(&file, "user.treefork", &mut value);
        assert_eq!((old, &value[..4]), (Ok(4), &b"text"[..]));
        assert_eq!((get("f", &mut value), &value[..4]), (Ok(4), &b"text"[..]));
        assert_eq!(get("f", &mut value[..2]), Err(Errno::RANGE));
        assert!(get("l", &mut value).is_err(), "a link is not followed");
        let mut list = [0; 1024];
        let n = llistxattrat(open.as_fd(), "f", &mut list).expect("it is there");
        assert!(list[..n].split(|&byte| byte == 0).any(|name| name == b"user.treefork"));
    }
}
