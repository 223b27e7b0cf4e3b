//! A directory for one test that is gone afterwards with everything in it, also when the test fails.
//!
//! Dropping it ends the processes that speak of it (by pid), cuts FUSE connections below it, takes the mounts away
//! and removes the files. What a killed test run left is swept by the next one in the same PID namespace.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::mounts;

/// What the names begin with that are made in this PID namespace: elsewhere a process number says nothing, and a test
/// run in a container may share the temporary directory with this one.
pub(crate) fn prefix() -> String {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("every process is in one").ino();
    format!("treefork-test-{namespace:x}-")
}

/// A temporary directory with everything in it.
#[derive(Debug)]
pub(crate) struct TempTree {
    path: PathBuf,
}

impl TempTree {
    /// Makes one below `$TREEFORK_TEST_DIR`, or the system's temporary directory.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        let root = root();
        SWEEP.call_once(|| sweep(&root));
        let path = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!("{}{}-{count}", prefix(), std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => break path,
                // Of a run that was killed: numbers of namespaces and processes come again, and ours is no proof of life.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => panic!("cannot make {}: {e}", path.display()),
            }
        };
        // An ordinary user has to get to what a test shows it.
        chmod(&path, 0o755);
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A path below.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(Path::new(name.as_ref()))
    }

    /// Makes a directory below, with its parents.
    pub(crate) fn dir(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        path
    }
}

impl Drop for TempTree {
    fn drop(&mut self) {
        if std::env::var_os("TREEFORK_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
            return;
        }
        match clean(&self.path) {
            // A second panic would end the whole run.
            Err(why) if !std::thread::panicking() => panic!("{why}"),
            Err(why) => eprintln!("{why}"),
            Ok(()) => {}
        }
    }
}

/// Where temporary trees live.
pub(crate) fn root() -> PathBuf {
    let root = std::env::var_os("TREEFORK_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    std::fs::canonicalize(&root).unwrap_or_else(|e| panic!("no temporary directory {}: {e}", root.display()))
}

/// Ends, unmounts and removes all of `dir`, or says why not. What is being killed, or started, or done in the background
/// may still add to it for a moment.
fn clean(dir: &Path) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match try_clean(dir) {
            Err(_) if Instant::now() < until => std::thread::yield_now(),
            done => return done,
        }
    }
}

fn try_clean(dir: &Path) -> Result<(), String> {
    for pid in mounts::processes_of(dir) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    mounts::detach_below(dir);
    let left = mounts::below(dir);
    if !left.is_empty() {
        // Removing files now would remove them in whatever is still mounted.
        return Err(format!("cannot unmount {left:?}"));
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("cannot remove {}: {e}", dir.display())),
        _ => Ok(()),
    }
}

/// Cleans up after test runs that were killed.
pub(crate) fn sweep(root: &Path) {
    let prefix = prefix();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|n| n.strip_prefix(&prefix)).and_then(|n| n.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            && let Err(why) = clean(&entry.path())
        {
            eprintln!("{why}");
        }
    }
}

/// Sets permission bits.
pub(crate) fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .unwrap_or_else(|e| panic!("chmod {}: {e}", path.display()));
}
