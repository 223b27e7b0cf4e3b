//! Many at once: together they never go past the limit by more than the file system's own blocks.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;

/// What directories and maps of files may take beyond a limit.
const SLACK: u64 = 256 * KIB;

#[test]
fn writers_at_once_stay_within_the_limit() {
    const LIMIT: u64 = 8 * MIB;
    let script = "for i in $(seq 40); do head -c 400000 /dev/zero > base$i; done; head -c 400000 /dev/zero > shared";
    let site = Limited::new(&["--max-size", "8M"], script);
    let write_until_full = |n: usize| {
        let file = File::create_new(site.join(format!("new{n}"))).expect("an empty file");
        let mut end = 0;
        while file.write_all_at(&[1; 40_000], end).is_ok() {
            end += 40_000;
        }
    };
    let change = |n: usize| {
        let file = File::options().append(true).open(site.join(format!("base{n}"))).expect("there");
        // Refused as a whole, or done.
        let _ = (&file).write_all(b"x");
    };
    let overwrite = || {
        let Ok(file) = File::options().write(true).open(site.join("shared")) else { return };
        let _ = (0..200).try_for_each(|n: u64| file.write_all_at(&[2; 2000], n * 2000));
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || write_until_full(n));
        }
        for part in 0..4 {
            scope.spawn(move || (part * 10 + 1..part * 10 + 11).for_each(change));
        }
        scope.spawn(overwrite);
        for _ in 0..200 {
            let (bytes, _) = site.taken();
            assert!(bytes <= LIMIT + SLACK, "{bytes}");
        }
    });
    site.agrees();
    let (bytes, _) = site.used();
    assert!((LIMIT - 80_000..=LIMIT + SLACK).contains(&bytes), "{bytes} of {LIMIT}");
}

#[test]
fn makers_at_once_make_exactly_as_many_as_they_may() {
    let site = Limited::new(&["--max-files", "500"], "true");
    let made: usize = std::thread::scope(|scope| {
        let maker = |who: usize| {
            let one = |n: &usize| File::create_new(site.join(format!("{who}-{n}"))).is_ok();
            (0..1000).take_while(one).count()
        };
        let makers: Vec<_> = (0..6).map(|who| scope.spawn(move || maker(who))).collect();
        makers.into_iter().map(|maker| maker.join().expect("no panic")).sum()
    });
    assert_eq!(made, 500);
    assert_eq!(site.used().1, 500);
    // Who removes makes room for who makes, at the same time.
    std::thread::scope(|scope| {
        for who in 0..4 {
            let site = &site;
            scope.spawn(move || {
                for n in 0..40 {
                    fs::remove_file(site.join(format!("{who}-{n}"))).ok();
                    let _ = File::create_new(site.join(format!("again-{who}-{n}")));
                }
            });
        }
    });
    site.agrees();
    assert!(site.used().1 <= 500);
}

#[test]
fn a_growing_file_is_not_charged_with_what_xfs_sets_aside_for_it() {
    let site = Limited::on(Image::xfs(300), &["--max-size", "24M"], "true");
    let file = File::create_new(site.join("file")).expect("room");
    for n in 0..22 {
        file.write_all_at(&vec![1; MIB as usize], n * MIB).expect("it fits");
    }
    assert!(site.used().0.abs_diff(22 * MIB) <= MIB, "{:?}", site.used());
    refused(write(&site.join("more"), 3 * MIB));
}
