//! A file system in a sparse file, mounted for one test: ext4, XFS, btrfs; a small tmpfs; or the kernel's overlayfs.
//!
//! The loop device is told to go away with its last user as soon as the file system is mounted, so a test that is
//! killed leaves a mount behind (which the next run sweeps) but never a device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::fork::eventually;
use super::{Run, TempTree};

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fs {
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
    /// The kernel's overlayfs, on ext4: where containers live.
    Overlay,
}

impl Fs {
    /// Those on a disk.
    pub(crate) const DISKS: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            Self::Overlay => "overlay",
        }
    }
}

/// A mounted file system. Detached and gone when dropped.
#[derive(Debug)]
pub(crate) struct Image {
    tree: TempTree,
    /// What an overlay lies on; goes after it.
    #[expect(dead_code, reason = "held until the overlay is gone")]
    disk: Option<Box<Image>>,
}

impl Image {
    /// Makes and mounts one of about `mib` MiB; XFS and btrfs are never smaller than they can be.
    pub(crate) fn new(fs: Fs, mib: u64) -> Self {
        assert!(rustix::process::geteuid().is_root(), "mounting an image takes root");
        let tree = TempTree::new();
        let mnt = tree.dir("mnt");
        if fs == Fs::Tmpfs {
            let size = format!("size={mib}m");
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&mnt).ok();
            return Self { tree, disk: None };
        }
        if fs == Fs::Overlay {
            return Self::overlay(tree, mib);
        }
        let (least, options): (u64, &[&str]) = match fs {
            Fs::Xfs => (300, &["-q"]),
            Fs::Btrfs => (128, &["-q"]),
            _ => (1, &["-q", "-F", "-E", "lazy_itable_init=1,nodiscard"]),
        };
        let file = tree.join("image");
        let image = File::create_new(&file).expect("the new directory is empty");
        image.set_len(mib.max(least) << 20).expect("a sparse file takes no room");
        Command::new(format!("mkfs.{}", fs.name())).args(options).arg(&file).ok();
        let image = Self { tree, disk: None };
        image.mount(&file);
        super::temp::chmod(&image.path(), 0o755);
        image
    }

    fn mount(&self, file: &Path) {
        let device = Command::new("losetup").args(["--find", "--show"]).arg(file).ok().text();
        let mut mount = Command::new("mount");
        if is_xfs(file) {
            // A copy has the number of its original, which other mount namespaces may still have mounted.
            mount.args(["-o", "nouuid"]);
        }
        let mounted = mount.arg(&device).arg(self.path()).done();
        // With a user this takes effect when the last one is gone; without, at once.
        Command::new("losetup").args(["-d", &device]).ok();
        assert!(mounted.status.success(), "mount {device}: {}", mounted.complaint());
    }

    /// Copies what is on its disk at this moment, as a power cut would leave it.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        let copy = self.tree.join(name);
        Command::new("cp").arg("--sparse=always").arg(self.tree.join("image")).arg(&copy).ok();
        copy
    }

    /// Mounts a copy in its place; `release` makes those end who still use it.
    pub(crate) fn swap(&self, copy: &Path, release: impl Fn()) {
        eventually("unmounted", || {
            release();
            Command::new("umount").arg(self.path()).done().status.success()
        });
        self.mount(copy);
    }

    fn overlay(tree: TempTree, mib: u64) -> Self {
        let (disk, mnt) = (Self::ext4(mib), tree.join("mnt"));
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| disk.dir(name));
        let layers = [("lowerdir", lower), ("upperdir", upper), ("workdir", work)];
        let options: Vec<String> = layers.iter().map(|(name, dir)| format!("{name}={}", dir.display())).collect();
        Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options.join(",")]).arg(&mnt).ok();
        Self { tree, disk: Some(Box::new(disk)) }
    }

    pub(crate) fn ext4(mib: u64) -> Self {
        Self::new(Fs::Ext4, mib)
    }

    pub(crate) fn xfs(mib: u64) -> Self {
        Self::new(Fs::Xfs, mib)
    }

    pub(crate) fn btrfs(mib: u64) -> Self {
        Self::new(Fs::Btrfs, mib)
    }

    /// The root of the file system.
    pub(crate) fn path(&self) -> PathBuf {
        self.tree.join("mnt")
    }

    /// A new directory in it.
    pub(crate) fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        path
    }
}

fn is_xfs(image: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(image).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == *b"XFSB"
}
