//! The base is changed by somebody else while forks read it: never torn, never stale for long, never silent.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Fork, Look, Repo, Run, Shape, Treefork, assert_same, eventually};

/// Files that only ever hold one letter, however long they are.
const FILES: usize = 40;

/// Reads a file in one go and checks that it is of one version. `None`: it is not there, or was replaced between
/// opening and the first read (docs/semantics.md; the kernel turns `ESTALE` into `EIO` where it read ahead).
fn read_whole(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE | libc::EIO)) => return None,
        Err(e) => panic!("{}: {e}", path.display()),
    }
    assert!(bytes.windows(2).all(|w| w[0] == w[1]), "{}: torn: {:?}", path.display(), runs(&bytes));
    Some(bytes)
}

/// What a torn file consists of, for the message: each letter with how many of it follow each other.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// The same through a mapping of a file that is replaced but never cut short (that is SIGBUS anywhere).
fn map_whole(path: &Path) {
    let Ok(mut file) = File::open(path) else { return };
    let mut first = [0];
    if file.read_exact(&mut first).is_err() {
        return;
    }
    let len =
        usize::try_from(file.metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display())).len()).expect("small");
    // SAFETY: the kernel picks the address; the mapping is only read, and unmapped below.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap {}", path.display());
    // SAFETY: the mapping is this long, and nobody shortens the file; bytes that change meanwhile do so whole.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
    assert!(bytes.iter().all(|&byte| byte == first[0]), "{}: torn in a mapping: {:?}", path.display(), runs(bytes));
    // SAFETY: the range is the mapping, and `bytes` is not used any more.
    unsafe { libc::munmap(start, len) };
}

/// Changes the base in all ways that others have.
fn change(base: &Path, round: usize) {
    let letter = b'a' + u8::try_from(round % 26).expect("small");
    for n in 0..FILES {
        let path = base.join(format!("replaced/f{n}"));
        let temporary = base.join("replaced/.new");
        fs::write(&temporary, vec![letter; 1000 + (n * 4099 + round * 977) % 60_000]).expect("the base is ours");
        fs::rename(&temporary, &path).expect("the base is ours");
        let path = base.join(format!("in-place/f{n}"));
        let mut file = OpenOptions::new().append(true).open(&path).expect("the base is ours");
        let len = file.metadata().expect("open").len();
        if len > 100_000 {
            file.set_len(3).expect("the base is ours");
        } else {
            file.write_all(&vec![b'x'; 5000 + n]).expect("the base is ours");
        }
    }
    let (come, gone) = (base.join(format!("names/n{round}")), base.join(format!("names/n{}", round.wrapping_sub(5))));
    fs::write(come, "name").expect("the base is ours");
    let _ = fs::remove_file(gone);
}

#[test]
fn eight_readers_see_no_torn_version_while_the_base_changes() {
    let fork = Fork::new(&format!(
        "mkdir replaced in-place names; for n in $(seq 0 {}); do printf a > replaced/f$n; printf xxx > in-place/f$n; done",
        FILES - 1
    ));
    fork.let_base_change();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let root = &fork.path;
    let reader = |seed: usize| {
        while !stop.load(Ordering::Relaxed) {
            for n in (0..FILES).map(|n| (n * 7 + seed * 5) % FILES) {
                let replaced = root.join(format!("replaced/f{n}"));
                read_whole(&replaced);
                map_whole(&replaced);
                let _ = replaced.metadata();
                read_whole(&root.join(format!("in-place/f{n}")));
                reads.fetch_add(1, Ordering::Relaxed);
            }
            let names: Vec<_> =
                root.join("names").read_dir().expect("it is there").map(|e| e.expect("listed").file_name()).collect();
            let distinct: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "a name twice");
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|seed| scope.spawn(move || reader(seed))).collect();
        for round in 0..60 {
            // Whatever happens, the readers get to read between two rounds.
            let seen = reads.load(Ordering::Relaxed);
            change(&fork.base, round);
            eventually("readers go on", || {
                reads.load(Ordering::Relaxed) > seen || readers.iter().any(|r| r.is_finished())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The last state is seen, by name, by attributes and by content.
    for dir in ["replaced", "in-place", "names"] {
        let listed = |root: &Path| {
            let mut names: Vec<_> =
                root.join(dir).read_dir().expect("there").map(|e| e.expect("listed").file_name()).collect();
            names.sort();
            names
        };
        eventually("the same names", || listed(&fork.base) == listed(root));
        for name in listed(&fork.base) {
            let path = Path::new(dir).join(name);
            let wanted = fs::read(fork.base.join(&path)).expect("the base is ours");
            eventually("the last content", || fs::read(root.join(&path)).is_ok_and(|got| got == wanted));
            assert_eq!(root.join(&path).metadata().expect("there").len(), wanted.len() as u64);
        }
    }
    assert_same(&Look::default().at(&fork.base), &Look::default().at(root), "the fork shows the last state");
    let shown = fork.treefork.ok(["show", "fork"]).text();
    for path in ["replaced/f0", "replaced/f39", "in-place/f0", "in-place/f39"] {
        assert!(shown.contains(path), "{path} is not named:\n{shown}");
    }
}

#[test]
fn a_branch_that_changes_a_thousand_files_is_checked_out_in_the_base() {
    let treefork = Treefork::new();
    let base = treefork.env().join("repo");
    let shape = Shape { files: 4000, changed: 1000, ignored: 0, submodule: false };
    Repo::new(treefork.env(), &base, shape);
    let fork = Fork::of(treefork, base);
    fork.let_base_change();
    let look = Look::default().without(".git");
    assert_same(&look.at(&fork.base), &look.at(&fork.path), "at first");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // Whichever version a file is of, it is whole: its last line is complete.
                        for n in (0..shape.files).step_by(4) {
                            let Ok(text) = fs::read(fork.path.join(Repo::file(n))) else { continue };
                            assert!(text.is_empty() || text.ends_with(b"\n"), "{n}: {} bytes", text.len());
                        }
                    }
                })
            })
            .collect();
        for branch in ["other", "main", "other"] {
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
            fork.env().git(&fork.base, ["checkout", "-q", branch]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let wanted = look.at(&fork.base);
    eventually("the last branch is seen", || wanted == look.at(&fork.path));
    assert_eq!(fork.env().command_in(&fork.base, "git").args(["status", "--porcelain"]).ok().text(), "?? notes.txt");
    let shown = fork.treefork.ok(["show", "fork", "--json"]).text();
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let named: Vec<&str> = shown["drift"].as_array().expect("a list").iter().filter_map(|path| path.as_str()).collect();
    let missing: Vec<_> =
        (0..1000).map(|n| Repo::file(n * 4)).filter(|path| !named.contains(&&*path.to_string_lossy())).collect();
    assert!(
        missing.is_empty(),
        "{} drifted paths are not named: {:?}",
        missing.len(),
        &missing[..missing.len().min(5)]
    );
}
