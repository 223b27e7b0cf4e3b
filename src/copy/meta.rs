//! Everything of an object but its bytes: owner, permissions, extended attributes with ACLs, times.
//!
//! The order matters and is [`metadata`]'s: owner first, since a change of owner clears set-id bits and capabilities;
//! then attributes, while the object still has the mode it was made with, since a read-only one takes no `user.*`; then
//! the mode, which an ACL has touched; last the times, which everything before has touched. Not brought over: birth and
//! change time, which nobody can set, and the flags of `chattr(1)`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::sys::{At, Stat};

/// What a new object may have inherited from its directory and the original need not have.
const INHERITED: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Gives `to` the owner, the extended attributes, the permissions and the times of `from`, whose attributes are `stat`.
///
/// Attributes for which `skip` says so are neither set nor removed. `to` must be of the same type; a symbolic link has
/// no permissions to set. Fails with `EPERM` where the owner differs and this process may not change it.
pub fn metadata(from: At<'_>, to: At<'_>, stat: &Stat, skip: impl Fn(&OsStr) -> bool) -> Result<(), Errno> {
    let now = to.stat()?;
    let owned = set_owner(to, &now, stat)?;
    let marked = match_xattrs(from, to, skip)?;
    if owned || marked || now.mode != stat.mode {
        permissions(to, stat)?;
    }
    times(to, stat)
}

/// Gives `to` owner and group of `stat`, where they differ.
pub fn owner(to: At<'_>, stat: &Stat) -> Result<(), Errno> {
    set_owner(to, &to.stat()?, stat).map(drop)
}

/// Gives `to`, which is like `now`, owner and group of `stat`; whether it had others.
pub(super) fn set_owner(to: At<'_>, now: &Stat, stat: &Stat) -> Result<bool, Errno> {
    let uid = (now.uid != stat.uid).then_some(stat.uid);
    let gid = (now.gid != stat.gid).then_some(stat.gid);
    let differ = uid.is_some() || gid.is_some();
    if differ {
        to.chown(uid, gid)?;
    }
    Ok(differ)
}

/// Gives `to` the permission bits of `stat`, set-id and sticky bits included. Nothing to do for a symbolic link.
pub fn permissions(to: At<'_>, stat: &Stat) -> Result<(), Errno> {
    if stat.is_symlink() { Ok(()) } else { to.chmod(stat.mode) }
}

/// Gives `to` access and modification time of `stat`, to the nanosecond.
pub fn times(to: At<'_>, stat: &Stat) -> Result<(), Errno> {
    to.utimens(&Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() })
}

/// Gives `to` the extended attributes of `from`, ACLs included, and takes inherited ACLs away that `from` has not.
///
/// Attributes for which `skip` says so are left alone on both sides. An attribute that cannot be set is an error, with
/// one exception: attributes outside `user.*` and the ACLs (`security.*`, `trusted.*`, those of one file system) are
/// left out where this process may not set them (`EPERM`) or the other file system does not know them (`EOPNOTSUPP`).
pub fn xattrs(from: At<'_>, to: At<'_>, skip: impl Fn(&OsStr) -> bool) -> Result<(), Errno> {
    match_xattrs(from, to, skip).map(drop)
}

/// The same; whether anything had to be done.
fn match_xattrs(from: At<'_>, to: At<'_>, skip: impl Fn(&OsStr) -> bool) -> Result<bool, Errno> {
    let names: Vec<OsString> = from.xattrs()?.into_iter().filter(|name| !skip(name)).collect();
    let present: HashSet<OsString> = to.xattrs()?.into_iter().collect();
    let mut done = set_xattrs(from, to, &names)?;
    for name in INHERITED.map(OsStr::new) {
        if present.contains(name) && !names.iter().any(|n| n == name) && !skip(name) {
            to.remove_xattr(name)?;
            done = true;
        }
    }
    Ok(done)
}

/// The same for a `to` that cannot have inherited anything.
pub(super) fn xattrs_of_new(from: At<'_>, to: At<'_>) -> Result<bool, Errno> {
    set_xattrs(from, to, &from.xattrs()?)
}

fn set_xattrs(from: At<'_>, to: At<'_>, names: &[OsString]) -> Result<bool, Errno> {
    for name in names {
        // None: removed since it was listed.
        let Some(value) = from.xattr(name)? else { continue };
        match to.set_xattr(name, &value, XattrFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP) if may_be_left_out(name) => {}
            other => other?,
        }
    }
    Ok(!names.is_empty())
}

/// Takes the ACL away that whatever is made in this directory would inherit.
pub(super) fn bequeath_nothing(dir: At<'_>) -> Result<(), Errno> {
    match dir.remove_xattr(OsStr::new(INHERITED[1])) {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        other => other,
    }
}

fn may_be_left_out(name: &OsStr) -> bool {
    !name.as_bytes().starts_with(b"user.") && !INHERITED.iter().any(|acl| name == *acl)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use super::*;
    use crate::sys::open_root;

    /// Copies the metadata of `a` in this directory to `b`.
    fn give(dir: &Path) {
        let dir = open_root(dir).unwrap();
        let (from, to) = (At::new(&dir, "a"), At::new(&dir, "b"));
        metadata(from, to, &from.stat().unwrap(), |name| name == "user.skipped").unwrap();
    }

    fn root_or_say(test: &str) -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("{test}: NOT RUN, needs root to change owners");
        }
        root
    }

    #[test]
    fn mode_attributes_and_times_of_a_read_only_file() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "").unwrap();
        fs::write(&b, "").unwrap();
        let fd = open_root(dir.path()).unwrap();
        At::new(&fd, "a").set_xattr(OsStr::new("user.kept"), b"1", XattrFlags::empty()).unwrap();
        At::new(&fd, "a").set_xattr(OsStr::new("user.skipped"), b"1", XattrFlags::empty()).unwrap();
        let time = filetime::FileTime::from_unix_time(-5, 123_456_789);
        filetime::set_file_times(&a, time, time).unwrap();
        fs::set_permissions(&a, fs::Permissions::from_mode(0o4444)).unwrap();
        give(dir.path());
        let stat = fs::metadata(&b).unwrap();
        assert_eq!(stat.mode() & 0o7777, 0o4444);
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (-5, 123_456_789));
        assert_eq!((stat.atime(), stat.atime_nsec()), (-5, 123_456_789));
        assert_eq!(At::new(&fd, "b").xattr(OsStr::new("user.kept")).unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(At::new(&fd, "b").xattr(OsStr::new("user.skipped")).unwrap(), None);
    }

    #[test]
    fn owner_set_id_and_capability() {
        if !root_or_say("owner_set_id_and_capability") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "").unwrap();
        fs::write(&b, "").unwrap();
        std::os::unix::fs::chown(&a, Some(1000), Some(1001)).unwrap();
        fs::set_permissions(&a, fs::Permissions::from_mode(0o6755)).unwrap();
        let fd = open_root(dir.path()).unwrap();
        // struct vfs_cap_data, revision 2: cap_net_raw effective and permitted.
        let caps = [&[1, 0, 0, 2, 0, 32, 0, 0][..], &[0; 12]].concat();
        let name = OsStr::new("security.capability");
        At::new(&fd, "a").set_xattr(name, &caps, XattrFlags::empty()).unwrap();
        give(dir.path());
        let stat = fs::metadata(&b).unwrap();
        assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (1000, 1001, 0o6755));
        assert_eq!(At::new(&fd, "b").xattr(name).unwrap(), Some(caps));
    }

    #[test]
    fn inherited_acl_goes_and_own_acl_comes() {
        // user::rwx, user:1000:rwx, group::r-x, mask::rwx, other::r-x, as posix_acl_xattr(5) packs it.
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 7, u32::MAX),
            entry(2, 7, 1000),
            entry(4, 5, u32::MAX),
            entry(16, 7, u32::MAX),
            entry(32, 5, u32::MAX),
        ]
        .concat();
        let dir = tempfile::tempdir().unwrap();
        let fd = open_root(dir.path()).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let here = At::new(&fd, ".");
        let (access, default) = (OsStr::new(INHERITED[0]), OsStr::new(INHERITED[1]));
        here.set_xattr(default, &acl, XattrFlags::empty()).unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        assert!(At::new(&fd, "b").xattr(access).unwrap().is_some());
        give(dir.path());
        assert_eq!(At::new(&fd, "b").xattr(access).unwrap(), None);
        assert_eq!(At::new(&fd, "b").xattr(default).unwrap(), None);
        assert_eq!(fs::metadata(dir.path().join("b")).unwrap().mode() & 0o777, 0o755);
        At::new(&fd, "a").set_xattr(access, &acl, XattrFlags::empty()).unwrap();
        give(dir.path());
        assert_eq!(At::new(&fd, "b").xattr(access).unwrap(), Some(acl));
        assert_eq!(fs::metadata(dir.path().join("b")).unwrap().mode() & 0o777, 0o775);
    }

    #[test]
    fn links_and_fifos() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_root(dir.path()).unwrap();
        symlink("nowhere", dir.path().join("a")).unwrap();
        symlink("nowhere", dir.path().join("b")).unwrap();
        let time = filetime::FileTime::from_unix_time(7, 9);
        filetime::set_symlink_file_times(dir.path().join("a"), time, time).unwrap();
        give(dir.path());
        assert_eq!(fs::symlink_metadata(dir.path().join("b")).unwrap().mtime_nsec(), 9);
        for name in ["a", "b"] {
            fs::remove_file(dir.path().join(name)).unwrap();
            At::new(&fd, name).mknod(libc::S_IFIFO | 0o600, 0).unwrap();
        }
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o622)).unwrap();
        give(dir.path());
        assert_eq!(fs::metadata(dir.path().join("b")).unwrap().mode() & 0o777, 0o622);
    }
}
