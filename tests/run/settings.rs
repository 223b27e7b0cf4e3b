//! `.treefork.toml` and the user's settings: what forks leave out, and the commands that run in them and nowhere else.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{BOTH, Site, Who};
use crate::common::{Run, assert_same};

/// A base with things to leave out, and settings.
fn site(who: Who, settings: &str) -> Site {
    let site = Site::new(who);
    let write = |path: &str, text: &str| {
        let path = site.base.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    write("cache/big", "big\n");
    write("sub/cache/other", "other\n");
    write("disk.iso", "image\n");
    write(".gitignore", "ignored\ncache/\n*.iso\n");
    write(".treefork.toml", settings);
    site.env.git(&site.base, ["add", "-A"]);
    site.env.git(&site.base, ["commit", "-qm", "settings"]);
    if who == Who::User {
        site.env.command("chown").args(["-R", "1000:1000"]).arg(&site.base).ok();
    }
    site
}

fn show(site: &Site, fork: &str) -> serde_json::Value {
    serde_json::from_str(&site.treefork(["show", "--json", fork]).ok().text()).expect("JSON")
}

const EXCLUDE: &str = "exclude = ['cache/', '*.iso', '!keep.iso']\n";

#[test]
fn what_is_excluded_is_not_there() {
    for who in BOTH {
        let site = site(who, EXCLUDE);
        let script = "find . -name .git -prune -o -print | sort; stat cache disk.iso sub/cache 2>&1 | grep -c 'No such file'; \
                      git status --porcelain";
        let expected = ".\n./.gitignore\n./.treefork.toml\n./file\n./hard\n./soft\n./sub\n./sub/deep\n./sub/inner\n3";
        assert_eq!(site.base_survives(&[], script).text(), expected, "{who:?}");
        assert!(site.run(&["--no-config"], "cat cache/big disk.iso").ok().text().contains("big\nimage"));
    }
}

/// The same for each way to make a fork, across a restart of the server, whatever becomes of the file meanwhile.
#[test]
fn it_holds_for_every_strategy_and_for_the_life_of_a_fork() {
    let site = site(Who::Root, EXCLUDE);
    let ways = ["overlay", "copy", "worktree"];
    for way in ways {
        site.treefork(["create", "--label", way, "--strategy", way]).ok();
        assert_eq!(show(&site, way)["exclude"], serde_json::json!(["cache/", "*.iso", "!keep.iso"]));
    }
    fs::remove_file(site.base.join(".treefork.toml")).expect("ours");
    site.treefork(["serve", "--stop"]).ok();
    for way in ways {
        let path = site.treefork(["path", way]).ok().text();
        let there = site.env.sh(path.as_ref(), "ls; ls sub | grep -v deep; find . -name '*.iso' -o -name cache");
        assert_eq!(there, "file\nhard\nsoft\nsub\ninner", "{way}");
    }
}

/// What git tracks and the fork of a linked work tree leaves out is no deletion to it.
#[test]
fn a_linked_work_tree_overlooks_what_it_leaves_out() {
    let site = site(Who::Root, "exclude = ['/sub', 'untracked']\n");
    fs::write(site.base.join("untracked"), "x").expect("writable");
    let path = site.treefork(["create", "--strategy", "worktree", "--dirty"]).ok().text();
    assert_eq!(site.env.sh(path.as_ref(), "git status --porcelain; ls"), "file\nhard\nsoft");
    // Where git has an index of its own, it says so.
    let done = site.treefork(["create", "--strategy", "copy"]).ok();
    assert!(done.complaint().contains("takes what it tracks of that for deleted"), "{}", done.complaint());
}

/// A merge neither takes for deleted what the fork never saw, nor puts anything in its place.
#[test]
fn a_merge_leaves_what_is_excluded_as_it_is() {
    for way in ["overlay", "copy"] {
        let site = site(Who::Root, "exclude = ['/cache/', '/hidden']\n");
        fs::write(site.base.join("hidden"), "theirs\n").expect("writable");
        let path = site.treefork(["create", "--label", "f", "--strategy", way]).ok().text();
        let script = "echo own > hidden; mkdir cache; echo own > cache/own; echo new > file2; mv hidden other; echo again > hidden";
        site.env.sh(path.as_ref(), script);
        let before = site.look();
        let done = site.treefork(["merge", "f"]).fails(1);
        assert!(done.text().starts_with("A file2\n") && done.text().contains("C hidden ("), "{way}: {}", done.text());
        assert_same(&before, &site.look(), "the base");
        site.env.sh(path.as_ref(), "rm hidden");
        assert_eq!(site.treefork(["merge", "f"]).ok().text(), "A file2\nA other", "{way}");
        let base = |path: &str| fs::read_to_string(site.base.join(path)).ok();
        assert_eq!(base("hidden").as_deref(), Some("theirs\n"), "{way}");
        assert_eq!((base("cache/big").as_deref(), base("cache/own")), (Some("big\n"), None), "{way}");
    }
}

/// A drift of something that the fork does not show is none.
#[test]
fn what_is_excluded_may_change() {
    let site = site(Who::Root, EXCLUDE);
    let path = site.treefork(["create", "--label", "f"]).ok().text();
    site.env.sh(path.as_ref(), "ls -lR > /dev/null");
    fs::write(site.base.join("disk.iso"), "changed").expect("writable");
    fs::write(site.base.join("seen"), "new").expect("writable");
    crate::common::eventually("the other change is noticed", || {
        !show(&site, "f")["drift"].as_array().expect("a list").is_empty()
    });
    assert_eq!(show(&site, "f")["drift"], serde_json::json!(["seen"]));
    assert_eq!(site.env.sh(path.as_ref(), "cat seen; ls disk.iso 2>/dev/null || echo none"), "newnone");
}

#[test]
fn a_new_fork_is_set_up_in_itself() {
    for who in BOTH {
        let settings = "post_create = ['echo $TREEFORK_HOOK > made; pwd >> made', \"echo 2 > $TREEFORK_BASE/file\"]\n";
        let site = site(who, settings);
        let before = site.look();
        let text = site.run(&["--label", "f"], "cat made file").ok().text();
        assert_eq!(text, format!("post_create\n{}\n2", site.base.display()), "{who:?}");
        assert_eq!(show(&site, "f")["post_create"].as_array().map(Vec::len), Some(2));
        assert_same(&before, &site.look(), "the base");
        assert!(site.run(&["--no-config"], "ls made").done().code() != 0);
    }
}

#[test]
fn a_set_up_that_fails_leaves_no_fork() {
    for who in BOTH {
        let site = site(who, "post_create = ['echo reason >&2; exit 3', 'touch never']\n");
        let done = site.run(&[], "true").fails(125);
        assert!(
            done.complaint().contains("reason") && done.complaint().contains("exit status 3"),
            "{}",
            done.complaint()
        );
        assert_eq!(site.forks(), [""; 0], "{who:?}");
        let done = site.treefork(["fanout", "-n", "2", "--json", "--", "true"]).fails(1);
        assert!(done.text().contains("exit status 3"), "{}", done.text());
    }
}

#[test]
fn a_check_that_fails_keeps_the_fork_from_being_merged() {
    for who in BOTH {
        let site =
            site(who, "pre_merge = ['test -e ready || { echo not ready; exit 1; }', 'echo checked > checked']\n");
        site.run(&["--label", "f"], "echo new > file").ok();
        let before = site.look();
        let done = site.treefork(["merge", "f"]).fails(1);
        assert!(
            done.complaint().contains("not ready") && done.complaint().contains("exit status 1"),
            "{}",
            done.complaint()
        );
        assert_same(&before, &site.look(), "the base");
        // What a fork says about itself has no say.
        site.treefork([
            "exec",
            "f",
            "--",
            "bash",
            "-c",
            "echo \"pre_merge = ['touch /tmp/escaped']\" > .treefork.toml",
        ])
        .ok();
        site.treefork(["merge", "f"]).fails(1);
        assert_same(&before, &site.look(), "the base");
        let done = site.run(&["--merge"], "echo new > file").fails(125);
        assert!(done.complaint().contains("is kept"), "{}", done.complaint());
        site.treefork(["exec", "f", "--", "touch", "ready"]).ok();
        let done = site.treefork(["merge", "f"]).ok();
        assert!(done.text().contains("its commands run in later forks"), "{}", done.text());
        assert_eq!(fs::read_to_string(site.base.join("checked")).expect("merged"), "checked\n", "{who:?}");
    }
}

#[test]
fn the_check_can_be_left_out() {
    let site = site(Who::Root, "pre_merge = ['false']\n");
    site.run(&["--label", "f"], "echo new > file").ok();
    site.treefork(["merge", "f"]).fails(1);
    site.treefork(["merge", "--no-config", "f"]).ok();
    assert_eq!(fs::read_to_string(site.base.join("file")).expect("there"), "new\n");
}

#[test]
fn what_is_unknown_or_anybodys_is_refused() {
    for who in BOTH {
        let site = site(who, "exclude = ['x']\n[run]\nno_netwrok = true\n");
        let done = site.run(&[], "true").fails(125);
        for part in [".treefork.toml", "line 3", "no_netwrok"] {
            assert!(done.complaint().contains(part), "{who:?}: {part}: {}", done.complaint());
        }
        site.treefork(["create"]).fails(2);
        site.run(&["--no-config"], "true").ok();
        let file = site.base.join(".treefork.toml");
        fs::write(&file, "post_create = ['touch /tmp/never']").expect("writable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("ours");
        assert!(site.run(&[], "true").fails(125).complaint().contains("written by everybody"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
        site.env.command("chown").arg("4321").arg(&file).ok();
        assert!(site.run(&[], "true").fails(125).complaint().contains("belongs to user 4321"));
        assert_eq!(site.forks(), [""; 0], "{who:?}");
    }
}

#[test]
fn what_narrows_a_command_down_holds_where_any_file_says_so() {
    for who in BOTH {
        let site = site(who, "strategy = 'copy'\n[run]\nno_network = false\nkeep = true\nhide = ['/nowhere']\n");
        let config = site.env.dir("config/treefork");
        fs::write(config.join("config.toml"), "strategy = 'overlay'\n[run]\nno_network = true\ntimeout = '1h'\n")
            .expect("writable");
        if who == Who::User {
            site.env.command("chown").args(["-R", "1000"]).arg(site.env.join("config")).ok();
        }
        assert_eq!(site.run(&["--label", "f"], "grep -c : /proc/net/dev").ok().text(), "1", "{who:?}");
        assert_eq!(show(&site, "f")["strategy"], "copy", "kept, though nothing was changed, and made as the base says");
        // What cannot be had is refused, not left out.
        let done = site.run(&["--isolation", "cwd"], "true").fails(125);
        assert!(done.complaint().contains("--no-network"), "{}", done.complaint());
        site.run(&["--isolation", "cwd", "--no-config"], "true").ok();
    }
}
