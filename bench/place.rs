//! Where everything happens: an image with a journaled file system with the base and all forks in it, gone afterwards.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cli::Plan;
use super::{server, tree};

/// The binary that was built with this benchmark, with the same profile.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_treefork");

/// Room for the base, as many copies of it as there are agents at once, and a few large files.
const IMAGE_GIB: u64 = 24;
const COPIES: usize = 36;

/// The image and what is in it.
pub(crate) struct Place {
    root: PathBuf,
    file_system: String,
    /// Files in the base.
    pub(crate) files: usize,
    /// Forks where there are to be many.
    pub(crate) forks: usize,
    pub(crate) smoke: bool,
}

impl Place {
    pub(crate) fn new(plan: &Plan) -> Self {
        assert!(rustix::process::geteuid().is_root(), "mounting an image takes root");
        let root = plan.dir.join(format!("treefork-bench-{}", std::process::id()));
        std::fs::create_dir_all(root.join("mnt")).expect("make the directory of the image");
        let file_system = plan.file_system.clone();
        let place = Self { root, file_system, files: plan.files, forks: plan.forks, smoke: plan.smoke };
        place.mount("image", "mnt");
        for dir in ["home", "forks", "bases"] {
            std::fs::create_dir(place.path(dir)).expect("the image is empty");
        }
        let config = "[user]\nname = Bench\nemail = bench@example.org\n[safe]\ndirectory = *\n[gc]\nauto = 0\n[maintenance]\nauto = false\n";
        std::fs::write(place.path("home/.gitconfig"), config).expect("write");
        tree::repository(&place, &place.base(), plan.files);
        place
    }

    /// Makes an image and mounts it, both by their names in the root.
    fn mount(&self, image: &str, point: &str) {
        let (image, point) = (self.root.join(image), self.root.join(point));
        std::fs::create_dir_all(&point).expect("make the mount point");
        File::create(&image).and_then(|file| file.set_len(IMAGE_GIB << 30)).expect("a sparse file");
        let mut mkfs = Command::new(format!("mkfs.{}", self.file_system));
        if self.file_system == "ext4" {
            mkfs.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
            // It has a fixed number of inodes: one for 16 KiB unless told otherwise, and the files here are smaller.
            let files = COPIES * (self.files + self.files / 20);
            mkfs.arg("-N").arg(files.max(1_500_000).to_string());
        } else {
            mkfs.args(["-q", "-f"]);
        }
        run(mkfs.arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point));
    }

    /// The root of another file system, made when it is first asked for.
    pub(crate) fn elsewhere(&self) -> PathBuf {
        if !self.root.join("other-image").exists() {
            self.mount("other-image", "other");
        }
        self.root.join("other")
    }

    /// A path in the image.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join("mnt").join(name)
    }

    /// The repository that is forked.
    pub(crate) fn base(&self) -> PathBuf {
        self.path("bases/main")
    }

    /// treefork's store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// A command with an environment of its own.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("HOME", self.path("home")).env("TREEFORK_STORE", self.store()).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env_remove("GIT_DIR").env("TREEFORK_SERVER_IDLE", "0");
        command.stdin(Stdio::null());
        command
    }

    /// Runs git; it has to succeed.
    pub(crate) fn git(&self, dir: &Path, arguments: &[&str]) {
        run(self.command("git").args(arguments).current_dir(dir).stdout(Stdio::null()));
    }

    /// Runs a script; it has to succeed.
    pub(crate) fn sh(&self, dir: &Path, script: &str) {
        run(self.command("bash").args(["-euo", "pipefail", "-c", script]).current_dir(dir).stdout(Stdio::null()));
    }

    /// Runs `treefork`; it has to succeed. Returns what it printed.
    pub(crate) fn treefork<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let mut command = self.command(BINARY);
        let done = command.args(arguments).stderr(Stdio::inherit()).output().expect("the binary was built");
        assert!(done.status.success(), "{command:?}");
        String::from_utf8(done.stdout).expect("text").trim_end().to_owned()
    }

    /// Waits for what goes on behind the commands' backs, and brings everything written so far to the disk, so that the next
    /// one is measured alone.
    pub(crate) fn settle(&self) {
        server::await_rest(self);
        let root = File::open(self.path("")).expect("the root of the image");
        rustix::fs::syncfs(&root).expect("sync");
        if let Ok(other) = File::open(self.root.join("other")) {
            rustix::fs::syncfs(&other).expect("sync");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.store().exists() {
            // Ends the server, and with it all mounts.
            let _ = self.command(BINARY).args(["serve", "--stop"]).status();
        }
        let mounted = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below =
            |line: &str| line.split(' ').nth(4).map(PathBuf::from).filter(|point| point.starts_with(&self.root));
        for point in mounted.lines().filter_map(below).collect::<Vec<_>>().iter().rev() {
            if !Command::new("umount").arg(point).status().is_ok_and(|status| status.success()) {
                let _ = Command::new("umount").arg("-l").arg(point).status();
            }
        }
        if let Err(e) = std::fs::remove_file(self.root.join("image")) {
            eprintln!("cannot remove the image: {e}");
        }
        let _ = std::fs::remove_file(self.root.join("other-image"));
        for dir in ["mnt", "other", ""] {
            let _ = std::fs::remove_dir(self.root.join(dir));
        }
    }
}

/// Runs a command; it has to succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}
