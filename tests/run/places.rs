//! Where commands start, what they find in their environment, and refusals where that is not to be had.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::{BOTH, Site, Who};
use crate::common::Run;

#[test]
fn the_command_starts_where_the_caller_is() {
    for who in BOTH {
        let site = Site::new(who);
        let pwd = |dir: &std::path::Path| {
            site.treefork(["run", "--"]).args(["bash", "-c", "echo $PWD; pwd -P; ls"]).current_dir(dir).ok().text()
        };
        let sub = site.base.join("sub");
        let shown = sub.display();
        assert_eq!(pwd(&sub), format!("{shown}\n{shown}\ndeep\ninner"), "{who:?}");
        // Through a link the caller's own name for the place is kept.
        let link = site.env.join("link");
        symlink(&site.base, &link).expect("writable");
        let mut command = site.treefork(["run", "--", "bash", "-c", "echo $PWD; pwd -P"]);
        let done = command.current_dir(link.join("sub")).env("PWD", link.join("sub")).env("OLDPWD", &site.base).ok();
        assert_eq!(done.text(), format!("{}\n{shown}", link.join("sub").display()), "{who:?}");
    }
}

#[test]
fn a_caller_outside_starts_at_the_base() {
    for who in BOTH {
        let site = Site::new(who);
        let sub = site.base.join("sub");
        let done = site.treefork(["run".as_ref(), sub.as_os_str()]).args(["--", "pwd"]).current_dir("/").ok();
        assert_eq!(done.text(), sub.to_str().expect("text"), "{who:?}");
    }
}

#[test]
fn a_directory_that_the_fork_lacks_is_refused() {
    for who in BOTH {
        let site = Site::new(who);
        site.run(&["--label", "f"], "rm -r sub; ln -s / sub").ok();
        let done = site.treefork(["exec", "f", "--", "pwd"]).current_dir(site.base.join("sub/deep")).fails(125);
        assert!(done.complaint().contains("no counterpart in the fork"), "{who:?}: {}", done.complaint());
        // Nor does a link lead out.
        site.treefork(["exec", "f", "--", "pwd"]).current_dir(site.base.join("sub")).fails(125);
        site.treefork(["exec", "f", "--", "pwd"]).ok();
    }
}

#[test]
fn the_environment_says_which_fork_it_is() {
    for who in BOTH {
        let site = Site::new(who);
        let file = site.env.join("tmp/env");
        fs::write(&file, "A=from file\n#B=no\n").expect("writable");
        let file = file.to_str().expect("text");
        let script = "echo \"$A|$B2|$TREEFORK_LABEL|$TREEFORK_BASE\"; echo ${#TREEFORK_ID}; echo ${OLDPWD-none}";
        let mut command = site.run(&["--label", "name", "--env-file", file], script);
        let done = command.env("OLDPWD", "/somewhere").env("B2", "kept").ok();
        assert_eq!(done.text(), format!("from file|kept|name|{}\n8\nnone", site.base.display()), "{who:?}");
    }
}

#[test]
fn git_can_be_hardened() {
    let site = Site::new(Who::Root);
    let hook = site.base.join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().expect("it has one")).expect("writable");
    fs::write(&hook, "#!/bin/sh\necho hook > hooked\n").expect("writable");
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let identity = "git -c user.name=n -c user.email=e@e commit -q --allow-empty -m x; ls hooked 2>/dev/null";
    assert_eq!(site.run(&[], identity).done().text(), "hooked");
    assert_eq!(site.run(&["--git-hardening"], identity).done().text(), "");
}

#[test]
fn a_base_below_another_mount_is_covered() {
    let site = Site::new(Who::Root);
    let point = site.env.dir("point");
    Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&point).ok();
    let base = point.join("a/base");
    fs::create_dir_all(&base).expect("writable");
    fs::write(base.join("f"), "old\n").expect("writable");
    let mut command = site.treefork(["run", "--", "bash", "-c", "echo new > $PWD/f; cat f"]);
    assert_eq!(command.current_dir(&base).ok().text(), "new");
    assert_eq!(fs::read_to_string(base.join("f")).expect("there"), "old\n");
}

#[test]
fn a_base_that_another_mount_hides_is_refused() {
    let site = Site::new(Who::Root);
    site.treefork(["create", "--label", "f"]).ok();
    Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&site.base).ok();
    let done = site.treefork(["exec", "f", "--", "true"]).current_dir("/").fails(125);
    assert!(done.complaint().contains("where the base was"), "{}", done.complaint());
    Command::new("umount").arg(&site.base).ok();
    site.treefork(["exec", "f", "--", "true"]).current_dir("/").ok();
}

/// Case 71: where no namespace is to be had, a run is refused, never silently unisolated.
#[test]
fn without_namespaces_a_run_is_refused() {
    for who in BOTH {
        let site = Site::new(who);
        if who == Who::User {
            // The fork itself has to exist without namespaces too: plain copies.
            continue;
        }
        let marker = site.env.join("tmp/ran");
        // A namespace of its own with a limit of none below it.
        let script = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces && {} run -- touch {}",
            site.binary().display(),
            marker.display()
        );
        let mut command = site.command("unshare");
        command.args(["--user", "--map-root-user", "--mount", "bash", "-c", &script]);
        let done = command.fails(125);
        assert!(!marker.exists());
        assert!(done.complaint().contains("namespace"), "{}", done.complaint());
        assert!(done.complaint().contains("--isolation cwd"), "{}", done.complaint());
    }
}

#[test]
fn the_weaker_isolation_refuses_what_it_can_see() {
    let site = Site::new(Who::Root);
    let before = site.look();
    let base = site.base.to_str().expect("text");
    let run = |command: &[&str]| {
        let mut all = site.treefork(["run", "--isolation", "cwd", "--"]);
        all.args(command);
        all
    };
    for command in [
        &["git", "-C", base, "commit", "--allow-empty", "-m", "x"][..],
        &["sh", "-c", &format!("cd {base} && touch x")],
        &["touch", &format!("{base}/x")],
    ] {
        let done = run(command).fails(125);
        assert!(done.complaint().contains("outside the fork"), "{}", done.complaint());
    }
    let done = run(&["bash", "-c", "echo $PWD; touch here"]).ok();
    assert!(done.text().starts_with(site.env.store().to_str().expect("text")), "{}", done.text());
    crate::common::assert_same(&before, &site.look(), "the base");
    // What needs a namespace is refused rather than left out.
    site.treefork(["run", "--isolation", "cwd", "--no-network", "--", "true"]).fails(125);
}

/// An ordinary user without fusermount3 gets an overlay all the same, and not copies.
#[test]
fn the_commands_own_namespace_mounts_the_fork() {
    let site = Site::new(Who::User);
    site.run(&["--label", "f"], "grep -c \"$B fuse.treefork\" /proc/mounts > count; echo two >> file").ok();
    let list = site.treefork(["list", "--json"]).ok().text();
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list[0]["strategy"], "overlay");
    assert_eq!(site.treefork(["exec", "f", "--", "cat", "count", "file"]).ok().text(), "1\none\ntwo");
}

/// One command after the other, as quickly as they come: the mount of each has to be over before the next one's.
#[test]
fn commands_in_a_fork_that_only_they_mount_follow_each_other() {
    let site = Site::new(Who::User);
    site.run(&["--label", "f"], "echo 0 > n").ok();
    for n in 1..=20 {
        let script = "n=$(cat n); echo $((n + 1)) > n; cat n";
        assert_eq!(site.treefork(["exec", "f", "--", "bash", "-c", script]).ok().text(), n.to_string());
    }
}

/// A linked work tree shares the base's repository: an isolated command reads it and changes nothing of it.
#[test]
fn git_in_a_linked_work_tree_reads_and_does_not_write() {
    for who in BOTH {
        let site = Site::new(who);
        let hook = site.base.join(".git/hooks/post-checkout");
        fs::create_dir_all(hook.parent().expect("it has one")).expect("writable");
        fs::write(&hook, "#!/bin/sh\necho hook > hooked\n").expect("writable");
        fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
        site.treefork(["create", "--strategy", "worktree", "--label", "w"]).ok();
        let exec = |script: &str| site.treefork(["exec", "w", "--", "bash", "-c", script]).done();
        let before = site.look();
        let done = exec(
            "git log --format=%s; git rev-parse --show-toplevel; echo two > file; git status --porcelain; git diff --stat | tail -1",
        );
        let expected =
            format!("first\n{}\n M file\n 1 file changed, 1 insertion(+), 1 deletion(-)", site.base.display());
        assert_eq!(done.text(), expected, "{who:?}: {}", done.complaint());
        for write in [
            "git commit -qam x",
            "git add file",
            "git tag t",
            "git config a.b c",
            "git checkout -q -b new",
            "G=$(git rev-parse --git-common-dir) && echo x > $G/HEAD",
            "G=$(git rev-parse --git-common-dir) && mount -o remount,bind,rw $G && echo x > $G/HEAD",
            "umount .git",
            "rm .git",
        ] {
            let done = exec(&format!("{{ {write}; }} 2>&1 && echo through; true"));
            assert!(!done.text().ends_with("through"), "{who:?}: {write}: {}", done.text());
        }
        assert_eq!(
            exec("ls $TREEFORK_STORE; git -c core.hooksPath=.git/hooks log --oneline | wc -l; ls hooked 2>/dev/null")
                .text(),
            "dot-git\ngit\n1"
        );
        crate::common::assert_same(&before, &site.look(), "the base");
        // Outside of isolation it is what linked work trees are: one repository.
        let done = site.treefork(["exec", "--isolation", "cwd", "w", "--", "git", "tag", "t"]).ok();
        assert_eq!(done.text(), "");
        assert_eq!(site.env.git(&site.base, ["-c", "safe.directory=*", "tag"]), "t");
    }
}

/// Where the repository lies elsewhere it has its own place, and is not written there either.
#[test]
fn a_shared_repository_elsewhere_is_not_written() {
    for who in BOTH {
        let site = Site::new(who);
        site.command("git").args(["worktree", "add", "-q", "../linked", "-b", "side"]).ok();
        let linked = site.env.join("work/linked");
        site.treefork(["create", "--strategy", "worktree", "--label", "w"]).current_dir(&linked).ok();
        let before = site.look();
        let script = "git log --format=%s; git commit -q --allow-empty -m x 2>/dev/null || echo refused; \
                      echo x > $B/.git/HEAD || echo refused; echo x > $B/free && echo through";
        let mut exec = site.treefork(["exec", "w", "--", "bash", "-c", script]);
        let done = exec.env("B", &site.base).current_dir(&linked).ok();
        assert_eq!(done.text(), "first\nrefused\nrefused\nthrough", "{who:?}: {}", done.complaint());
        fs::remove_file(site.base.join("free")).expect("ours");
        let rest = |tree: &crate::common::Tree| tree.paths().count();
        assert_eq!(rest(&before), rest(&site.look()), "{who:?}");
    }
}
