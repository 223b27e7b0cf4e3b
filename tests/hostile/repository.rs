//! What a fork puts into its git directory, where the merge finds it.

use std::path::Path;

use crate::common::{Fork, Run, Treefork};

const BASE: &str = "git init -q; echo one > file; git add .; git commit -q -m one; git pack-refs --all";

/// Nobody writes to any of these pipes: whoever opened one would wait for ever.
#[test]
fn pipes_in_the_place_of_gits_files_hold_nobody_up() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, BASE);
    for name in ["HEAD", "index", "packed-refs", "config", "commondir", "refs/heads/main"] {
        let fork = treefork.create(&base, "fork");
        treefork.env().sh(&fork, &format!("echo {name} > new; rm -f .git/{name}; mkfifo .git/{name}"));
        for args in [&["show", "fork"][..], &["diff", "fork"], &["exec", "fork", "--", "true"], &["merge", "fork"]] {
            let done = treefork.command(args).done();
            assert!(done.status.success() || args[0] == "merge", "{name}, {args:?}: {}", done.complaint());
        }
        // Merged or refused, for a reason.
        treefork.command(["remove", "--force", "fork"]).done();
        treefork
            .env()
            .sh(&base, "git fsck --strict --no-dangling; [ $(git rev-list --count HEAD) = 1 ]; [ -f .git/index ]");
    }
}

#[test]
fn objects_that_are_no_files_are_refused() {
    for made in ["mkfifo", "ln -s /dev/zero"] {
        let fork = Fork::new(BASE);
        fork.sh(&format!(
            "echo more >> file; git commit -q -a -m two; object=.git/objects/$(git rev-parse HEAD | sed 's,^..,&/,'); \
             rm -f $object; {made} $object"
        ));
        let said = fork.merge_refused().complaint();
        assert!(said.contains("something else than a file among the objects"), "{said}");
    }
}

/// However the parent is changed meanwhile: nothing is written through a link.
#[test]
fn links_that_come_and_go_lead_no_merge_outside() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    let outside = treefork.env().dir("outside");
    treefork.env().sh(&base, "mkdir -p d/e; seq 99 > d/e/f; ln -s ../outside link");
    treefork.env().sh(&outside, "mkdir e; echo precious > e/f");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let exchange = |a: &Path, b: &Path| {
        let (at, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(at, a, at, b, flags)
    };
    let mut merged = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // Missing for a moment while a merge has its hand on it.
                let _ = exchange(&base.join("d"), &base.join("link"));
            }
        });
        for n in 0..12 {
            let made = treefork.command(["create", base.to_str().expect("text"), "--label", "fork"]).done();
            if !made.status.success() {
                continue;
            }
            let fork = made.text();
            let work = format!(
                "for dir in d link; do [ -h $dir ] || {{ echo {n} >> $dir/e/f; echo {n} > $dir/e/new{n}; rm -f $dir/e/new{}; }}; done",
                n - 1
            );
            treefork.env().command_in(Path::new(&fork), "bash").args(["-c", &work]).done();
            merged += usize::from(treefork.command(["merge", "fork"]).done().status.success());
            treefork.command(["remove", "--force", "fork"]).done();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    eprintln!("{merged} merges of 12 got through");
    assert_eq!(treefork.env().sh(&outside, "find . | sort; cat e/f"), ".\n./e\n./e/f\nprecious");
}
