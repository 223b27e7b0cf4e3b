//! What others change in the base shows in the mount, through the kernel's caches.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::raw::{RawMount, soon};
use crate::common::{Env, Image, Run, cli};

/// Shows what the kernel has cached of everything here.
const LOOK: &str = "ls; cat * 2> /dev/null || true; ! cat absent 2> /dev/null; stat -c '%n %s' *";

#[test]
fn contents_names_and_absences_follow_the_base() {
    let mount = RawMount::new(|base| {
        fs::create_dir(base.join("d")).expect("mkdir");
        fs::write(base.join("f"), "old\n").expect("write");
        fs::write(base.join("gone"), "here\n").expect("write");
        fs::write(base.join("replaced"), "first\n").expect("write");
    });
    let base = mount.base();
    let shows = |what: &str, wanted: &str| soon(what, || mount.sh(LOOK).contains(wanted));
    mount.sh(LOOK);
    mount.sh(LOOK);

    fs::write(base.join("f"), "longer than before\n").expect("write");
    shows("a changed file", "longer than before\n");
    shows("its size", "f 19");
    fs::write(base.join("f"), "s\n").expect("write");
    shows("a shorter file", "f 2");
    fs::remove_file(base.join("gone")).expect("unlink");
    soon("a removed file", || !mount.sh(LOOK).contains("gone"));
    fs::write(base.join("next"), "second\n").expect("write");
    fs::rename(base.join("next"), base.join("replaced")).expect("rename");
    shows("a replaced file", "second\n");
    soon("the name it came from", || !mount.sh(LOOK).contains("next"));
    fs::write(base.join("absent"), "no more\n").expect("write");
    soon("a name that was asked for in vain", || mount.sh("cat absent 2> /dev/null || true") == "no more");
    fs::rename(base.join("d"), base.join("e")).expect("rename");
    soon("a renamed directory", || mount.sh("ls").contains('e') && mount.sh("! ls d 2> /dev/null; ls -d e") == "e");
}

#[test]
fn what_a_listing_brought_along_follows_the_base() {
    let mount = RawMount::new(|base| {
        fs::create_dir(base.join("d")).expect("mkdir");
        for name in ["d/f", "d/gone", "d/replaced"] {
            fs::write(base.join(name), "old\n").expect("write");
        }
        fs::hard_link(base.join("d/f"), base.join("other")).expect("link");
    });
    // Nothing but the listing: no name was asked for.
    assert_eq!(mount.sh("ls d"), "f\ngone\nreplaced");
    let base = mount.base().join("d");
    fs::write(mount.base().join("other"), "longer than before\n").expect("write");
    fs::remove_file(base.join("gone")).expect("unlink");
    fs::write(base.join("next"), "second\n").expect("write");
    fs::rename(base.join("next"), base.join("replaced")).expect("rename");
    soon("sizes and names", || mount.sh("cd d && stat -c '%n %s' *") == "f 19\nreplaced 7");
    assert_eq!(mount.sh("cat d/*"), "longer than before\nsecond");
}

#[test]
fn what_the_mount_changed_stays_whatever_the_base_does() {
    let mount = RawMount::new(|base| {
        fs::write(base.join("f"), "old\n").expect("write");
        fs::write(base.join("g"), "old\n").expect("write");
    });
    mount.sh("echo mine > f; rm g; cat f");
    fs::write(mount.base().join("f"), "theirs\n").expect("write");
    fs::write(mount.base().join("g"), "theirs\n").expect("write");
    fs::write(mount.base().join("h"), "theirs\n").expect("write");
    soon("the last of the changes", || mount.sh("ls").contains('h'));
    assert_eq!(mount.sh("cat f; ls"), "mine\nf\nh");
}

#[test]
fn a_storm_of_changes_ends_in_the_right_state() {
    let mount = RawMount::new(|base| {
        for i in 0..200 {
            fs::write(base.join(format!("f{i}")), format!("{i}\n")).expect("write");
        }
    });
    mount.sh("cat f*; ls -l > /dev/null");
    for round in 0..5 {
        for i in 0..200 {
            let path = mount.base().join(format!("f{i}"));
            match (i + round) % 4 {
                0 => fs::write(&path, format!("{i} in round {round}\n")).expect("write"),
                1 => drop(fs::remove_file(&path)),
                2 => {
                    fs::write(mount.base().join("new"), format!("{round}\n")).expect("write");
                    fs::rename(mount.base().join("new"), &path).expect("rename");
                }
                _ => {}
            }
        }
    }
    let state = |dir| mount.env().command_in(dir, "sh").args(["-c", "ls -i; md5sum *"]).ok().text();
    let (base, path) = (mount.base().to_path_buf(), mount.path());
    soon("the state of the base", || state(&base) == state(&path));
}

/// Whoever makes a file makes it empty, and fills it in a moment: what a lookup saw in between must not stay.
#[test]
fn a_file_that_is_seen_while_it_is_made() {
    const NAMES: usize = 1500;
    let mount = RawMount::new(|base| fs::create_dir(base.join("d")).expect("mkdir"));
    let (base, seen) = (mount.base().join("d"), mount.path().join("d"));
    fs::read_dir(&seen).expect("listed, and so watched");
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..NAMES {
                    let path = seen.join(format!("f{n}"));
                    while next.load(Ordering::Acquire) < n {
                        std::hint::spin_loop();
                    }
                    while fs::symlink_metadata(&path).is_err() {}
                }
            });
        }
        for n in 0..NAMES {
            next.store(n, Ordering::Release);
            fs::write(base.join(format!("f{n}")), "no longer empty\n").expect("write");
        }
    });
    let late = || (0..NAMES).find(|n| fs::symlink_metadata(seen.join(format!("f{n}"))).map_or(0, |it| it.len()) != 16);
    soon("the size of every file", || late().is_none());
}

/// A file may have other names in directories that nobody looked into, and outside of the base.
#[test]
fn a_file_that_is_changed_through_another_name() {
    let mount = RawMount::new(|base| {
        fs::create_dir(base.join("unseen")).expect("mkdir");
        for name in ["a", "b"] {
            fs::write(base.join(name), "old\n").expect("write");
        }
        fs::hard_link(base.join("a"), base.join("unseen/a")).expect("link");
        fs::hard_link(base.join("b"), base.with_file_name("outside")).expect("link");
    });
    let others = [("a", mount.base().join("unseen/a")), ("b", mount.base().with_file_name("outside"))];
    for (name, other) in others {
        let shown = || mount.sh(&format!("cat {name}; stat -c %s,%h {name}"));
        assert_eq!((shown(), shown()), ("old\n4,2".into(), "old\n4,2".into()));
        fs::write(other, "through the other\n").expect("write");
        soon("the change", || shown() == "through the other\n18,2");
    }
}

/// A directory shows when something in it comes or goes, although nobody looked into it.
#[test]
fn a_directory_that_nobody_looked_into() {
    let mount = RawMount::new(|base| fs::create_dir(base.join("d")).expect("mkdir"));
    let shown = |root: &Path| mount.env().command_in(root, "stat").args(["-c", "%h %y", "d"]).ok().text();
    let before = shown(&mount.path());
    assert_eq!(before, shown(mount.base()));
    fs::create_dir(mount.base().join("d/new")).expect("mkdir");
    assert_ne!(before, shown(mount.base()));
    soon("its new attributes", || shown(&mount.path()) == shown(mount.base()));
}

/// The kernel fills up the last page of a file with zeros, and whole pages where the file is shorter than it believes: they
/// are no content, however somebody else extends and cuts the file under those who read it.
#[test]
fn nobody_reads_zeros_that_never_were_in_a_file() {
    const FILES: usize = 40;
    const FOR: Duration = Duration::from_secs(4);
    let mount = RawMount::new(|base| {
        for n in 0..FILES {
            fs::write(base.join(format!("f{n}")), "xxx").expect("write");
        }
    });
    let path = mount.path();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = |seed: usize| {
        let mut bytes = Vec::new();
        for n in (0..).map(|turn| (seed * 5 + turn * 7) % FILES) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            bytes.clear();
            File::open(path.join(format!("f{n}"))).and_then(|mut f| f.read_to_end(&mut bytes)).expect("it is there");
            let zero = bytes.iter().position(|&byte| byte != b'x');
            assert_eq!(zero, None, "f{n}: not of the file, of {} bytes", bytes.len());
            reads.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|seed| scope.spawn(move || read(seed))).collect();
        let start = Instant::now();
        while start.elapsed() < FOR && !readers.iter().any(|reader| reader.is_finished()) {
            for n in 0..FILES {
                let file = OpenOptions::new().append(true).open(mount.base().join(format!("f{n}")));
                let mut file = file.expect("the base is ours");
                if file.metadata().expect("open").len() > 100_000 {
                    file.set_len(3).expect("the base is ours");
                } else {
                    file.write_all(&vec![b'x'; 5000 + n]).expect("the base is ours");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_ne!(reads.into_inner(), 0, "nobody got to read");
    for name in (0..FILES).map(|n| format!("f{n}")) {
        let content = |root: &Path| fs::read(root.join(&name)).expect("it is there");
        soon("the last content", || content(mount.base()) == content(&path));
    }
}

/// File systems give the number of a file that is gone to the next one at once. Whoever has the old one open never gets at
/// the new one by it.
#[test]
fn a_file_that_got_the_number_of_one_that_is_still_open() {
    let image = Image::ext4(32);
    let base = image.dir("base");
    for name in ["old", "read"] {
        fs::write(base.join(name), "of the old one").expect("write");
    }
    let numbers = ["old", "read"].map(|name| base.join(name).metadata().expect("there").ino());
    let mount = RawMount::on(Env::new(), base, |_| {});
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(mount.path().join(name)).expect("open");
    let (old, read) = (open("old"), open("read"));
    assert_eq!(fs::read(mount.path().join("read")).expect("there"), b"of the old one");

    fs::remove_file(mount.base().join("old")).expect("unlink");
    let new = (0..1000).map(|n| format!("new{n}")).find(|name| {
        fs::write(mount.base().join(name), "of the new one, which is longer").expect("write");
        mount.base().join(name).metadata().expect("there").ino() == numbers[0]
    });
    let new = mount.path().join(new.expect("the number is given again"));
    // The server has this one open, so it keeps its number.
    fs::remove_file(mount.base().join("read")).expect("unlink");
    assert_eq!(read.metadata().expect("open").ino(), numbers[1]);

    let shown = new.metadata().expect("looked up");
    assert_eq!((shown.ino(), shown.len()), (numbers[0], 31), "it is what it is in the base");
    let mut bytes = [0; 64];
    let got = old.read_at(&mut bytes, 0).map(|n| bytes[..n].to_vec());
    assert!(
        got.as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::StaleNetworkFileHandle || e.raw_os_error() == Some(libc::EIO)),
        "{got:?}"
    );
    for (file, what) in [(&old, "old"), (&read, "read")] {
        // The old content may be gone for good; what is written to it must not be found elsewhere.
        let _ = file.write_all_at(b"WRITTEN", 0);
        assert_eq!(fs::read(&new).expect("there"), b"of the new one, which is longer", "written to {what}");
    }
    assert_eq!(fs::read(&new).expect("there"), b"of the new one, which is longer");
    let again = [new.metadata().expect("there"), new.symlink_metadata().expect("there")];
    assert_eq!(again.map(|it| it.ino()), [numbers[0]; 2]);
}

/// What is mounted in the base goes by numbers that mean something else there.
#[test]
fn a_file_on_a_mount_in_the_base() {
    let env = Env::new();
    let base = env.dir("base");
    env.command("mount").args(["-t", "tmpfs", "none"]).arg(env.dir("base/m")).ok();
    fs::write(base.join("m/f"), "first").expect("write");
    let mount = RawMount::on(env, base, |_| {});
    let shown = || mount.sh("cat m/f; stat -c ' %s' m/f");
    assert_eq!((shown(), shown()), ("first 5".into(), "first 5".into()));
    for (content, wanted) in [("other", "other 5"), ("longer than before", "longer than before 18"), ("s", "s 1")] {
        fs::write(mount.base().join("m/f"), content).expect("write");
        soon("the change", || shown() == wanted);
    }
}

/// A user may have used up all watches that there are, or all instances of inotify. Then what was read is believed for
/// moments only.
#[test]
fn without_watches_changes_show_in_a_moment() {
    // Limits of a user namespace, which nobody else is in.
    const SCRIPT: &str = r#"
        echo 0 > /proc/sys/user/$1
        "$0" mount -f -o lowerdir=base,upperdir=upper,workdir=work mnt 2> said &
        until mountpoint -q mnt; do kill -0 $! || exit 1; done
        shows() { until test "$(cat mnt/d/f 2> /dev/null)" = "$1"; do :; done; cat mnt/d/f; echo; }
        shows first
        printf other > base/d/f; shows other
        printf 'longer than before' > base/d/f; shows 'longer than before'
        printf short > base/d/f; shows short
        printf new > base/d/next; mv base/d/next base/d/f; shows new
        ls mnt/d mnt; ! test -e mnt/d/more || exit 1
        echo > base/d/more; until test -e mnt/d/more; do :; done
        rm base/d/f; until ! test -e mnt/d/f; do :; done
        until test "$(ls mnt/d)" = more; do :; done
        mkdir base/e; until test "$(ls mnt)" = "d
e"; do :; done
        umount mnt
        wait
        cat said
    "#;
    for (limit, words) in [("max_inotify_watches", "max_user_watches"), ("max_inotify_instances", "noticed late")] {
        let env = Env::new();
        for dir in ["base/d", "upper", "work", "mnt"] {
            env.dir(dir);
        }
        fs::write(env.join("base/d/f"), "first").expect("write");
        let said = env.command("unshare").args(["-Urm", "sh", "-c", SCRIPT, cli::BINARY, limit]).ok().text();
        let (shown, said) = said.split_at(said.find("treefork:").unwrap_or_else(|| panic!("no word of it: {said}")));
        assert_eq!(shown, "first\nother\nlonger than before\nshort\nnew\nmnt:\nd\n\nmnt/d:\nf\n");
        assert!(said.contains(words), "what is the matter: {said}");
    }
}
