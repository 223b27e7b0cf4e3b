//! A disk that one fork fills for all.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::common::{Image, Look, Treefork, assert_same, eventually};

/// Takes all the room there is; how it ended.
fn fill_with_content(fork: &Path) -> Option<i32> {
    let mut file = fs::File::create(fork.join("filler")).expect("room for a name");
    let mut size = 1 << 20;
    let mut last = None;
    while size > 0 {
        match file.write_all(&vec![b'x'; size]).and_then(|()| file.sync_data()) {
            Ok(()) => {}
            Err(e) => {
                last = e.raw_os_error();
                size /= 2;
            }
        }
    }
    last
}

/// Takes all the numbers of files there are, and what room is left then; how it ended.
fn fill_with_files(fork: &Path) -> Option<i32> {
    let made = (0..).map(|n| fs::File::create_new(fork.join(format!("filler{n}"))));
    let ended = made.filter_map(Result::err).next().and_then(|e| e.raw_os_error());
    fs::rename(fork.join("filler0"), fork.join("filler")).expect("needs nothing new");
    fill_with_content(fork);
    ended
}

/// One fork takes something up for all with `fill`.
fn full(fill: impl Fn(&Path) -> Option<i32>) {
    let image = Image::ext4(48);
    let treefork = Treefork::with_store(image.path().join("store"));
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, "mkdir d; seq 20000 > d/numbers; echo text > text; echo other > d/other");
    let before = Look::default().ino().ctime().at(&base);
    let [greedy, other] = ["greedy", "other"].map(|label| treefork.create(&base, label));
    treefork.env().sh(&other, "echo mine > d/mine; cat d/numbers | cksum");
    assert_eq!(fill(&greedy), Some(libc::ENOSPC));
    // Those who read notice nothing; those who write are told.
    let plain = treefork.env().sh(&base, "cat d/numbers text | cksum");
    for fork in [&greedy, &other] {
        assert_eq!(treefork.env().sh(fork, "cat d/numbers text | cksum"), plain);
    }
    assert_eq!(treefork.env().sh(&other, "cat d/mine; ls d"), "mine\nmine\nnumbers\nother");
    let numbers = fs::OpenOptions::new().append(true).open(other.join("d/numbers"));
    let appended = numbers.and_then(|mut file| file.write_all(b"more").and_then(|()| file.sync_all()));
    assert_eq!(appended.expect_err("a copy has no room").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(treefork.env().sh(&other, "cat d/numbers text | cksum"), plain, "still the base's");
    treefork.ok(["list"]);
    // The way out of it needs no room.
    treefork.ok(["remove", "--force", "greedy"]);
    treefork.ok(["gc"]);
    // By whoever began with it.
    eventually("the trash is empty", || fs::read_dir(treefork.store().join("trash")).expect("there").count() == 0);
    // The file system gives free what was deleted when it likes.
    let probe = other.join("probe");
    eventually("there is room again", || {
        fs::File::create(&probe)
            .and_then(|mut file| file.write_all(&[b'x'; 1 << 20]).and_then(|()| file.sync_all()))
            .is_ok()
    });
    fs::remove_file(&probe).expect("it is there");
    treefork.env().sh(&other, "echo more >> d/numbers; sync -f .; tail -n 1 d/numbers | grep -x more");
    treefork.restart("other");
    assert_eq!(treefork.env().sh(&other, "cat d/mine; tail -n 1 d/numbers"), "mine\nmore");
    treefork.create(&base, "another");
    assert_same(&before, &Look::default().ino().ctime().at(&base), "the base");
}

#[test]
fn a_disk_that_is_full_stops_writers_and_nobody_else() {
    full(fill_with_content);
}

#[test]
fn a_disk_without_a_number_for_one_more_file_does_the_same() {
    full(fill_with_files);
}
