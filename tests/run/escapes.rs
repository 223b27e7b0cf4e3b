//! Ways to the base that a command may find, by accident or on purpose. After each the base is as it was.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{BOTH, Site, Who};
use crate::common::Run;
use crate::common::assert_same;

/// Each script has to leave the base alone; the second part says what it prints.
fn all(scripts: &[(&str, &str)]) {
    for who in BOTH {
        let site = Site::new(who);
        for (script, prints) in scripts {
            let done = site.base_survives(&[], script);
            assert_eq!(done.text(), *prints, "{who:?}: {script}\n{}", done.complaint());
        }
    }
}

#[test]
fn absolute_paths_lead_into_the_fork() {
    all(&[
        ("cd $B && touch x && ls x", "x"),
        ("echo changed > $B/file; cat file", "changed"),
        ("rm -rf $B/sub; ls $B", "file\nhard\nsoft"),
    ]);
}

/// Case 77.
#[test]
fn git_stays_in_the_fork_however_it_is_led() {
    let commit = "commit -q --allow-empty -m escape";
    let head = "git rev-list --count HEAD";
    for redirect in [
        format!("git -C $B {commit}; {head}"),
        format!("git --git-dir=$B/.git --work-tree=$B {commit}; {head}"),
        format!("git --git-dir $B/.git {commit}; {head}"),
        format!("GIT_DIR=$B/.git git {commit}; {head}"),
        format!("GIT_DIR=$B/.git GIT_WORK_TREE=$B git {commit}; {head}"),
        format!("export GIT_INDEX_FILE=$B/.git/index; git add -A; git {commit}; {head}"),
    ] {
        all(&[(&redirect, "2")]);
    }
}

/// Case 77, with the redirection in the caller's environment.
#[test]
fn git_redirection_of_the_caller_does_not_reach_the_command() {
    for who in BOTH {
        let site = Site::new(who);
        let before = site.look();
        let script = "env | grep -c '^GIT_\\(DIR\\|WORK_TREE\\|INDEX_FILE\\)\\|core.worktree'; \
                      git commit -q --allow-empty -m x; git rev-list --count HEAD";
        let mut command = site.run(&[], script);
        command.env("GIT_DIR", site.base.join(".git")).env("GIT_WORK_TREE", &site.base);
        command.env("GIT_INDEX_FILE", site.base.join(".git/index"));
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "core.worktree").env("GIT_CONFIG_VALUE_0", "/tmp");
        assert_eq!(command.ok().text(), "0\n2");
        assert_same(&before, &site.look(), "the base");
    }
}

/// Case 76: a base whose git directory lies elsewhere. What git does in the fork stays there.
#[test]
fn a_git_directory_elsewhere_is_left_alone() {
    for who in BOTH {
        let site = Site::new(who);
        let work = site.env.join("work");
        let make = "git -C base worktree add -q ../linked -b side && git clone -q --separate-git-dir=apart base separate && \
                    git init -q super && cd super && git submodule --quiet add ../base sub && git commit -qm sub";
        let mut command = site.command("bash");
        command.args(["-ec", make]).current_dir(&work).ok();
        let look = || crate::common::Look::default().ino().ctime().at(&work);
        for base in ["linked", "separate", "super/sub"] {
            let before = look();
            let script = "echo 2 > file; git commit -qam two; git checkout -q -b new; echo 3 > file; git stash -q; \
                          git gc -q; git fsck 2>/dev/null; git rev-list --count HEAD";
            let mut run = site.treefork(["run", "--", "bash", "-ec", script]);
            let done = run.current_dir(work.join(base)).ok();
            assert_eq!(done.text(), "2", "{who:?} {base}");
            assert_same(&before, &look(), &format!("{who:?}: everything beside and above {base}"));
        }
    }
}

#[test]
fn links_to_the_base_lead_into_the_fork() {
    for who in BOTH {
        let site = Site::new(who);
        symlink(&site.base, site.env.join("link")).expect("writable");
        let site = Site { base: site.base, ..site };
        site.base_survives(&[], "echo x > ${P%/work}/link/file; cat file");
        let done = site.base_survives(&[], "ln $B/file /tmp/treefork-hard-$$ 2>/dev/null || echo refused");
        assert_eq!(done.text(), "refused");
        let done = site.base_survives(&[], "ln file new && echo x >> new && cat hard");
        assert_eq!(done.text(), "one\nx");
    }
}

#[test]
fn the_cover_cannot_be_taken_away() {
    for who in BOTH {
        let site = Site::new(who);
        for attempt in [
            "umount $B",
            "umount -l $B",
            "umount /proc",
            "mount --bind $P /mnt && cat /mnt/base/covered",
            "unshare -Urm umount $B",
            "unshare -Urm bash -c 'umount -l $B; umount /proc; mount --bind $P /mnt; echo x > /mnt/base/file; false'",
            "unshare -Urm mount --move $B /mnt",
            "mount -o remount,bind,ro / && false",
            "nsenter -t 1 -m true",
            "nsenter -t 1 -U true",
            "nsenter --mount=/proc/1/ns/mnt true",
            "mkdir -p m && mount -t overlay -o lowerdir=$P:/usr none m && cat m/base/file",
            "unshare -Urm bash -c 'mkdir -p m && mount -t overlay -o lowerdir=$P:/usr none m && cat m/base/file'",
            "unshare -Urm bash -c 'mount -t tmpfs t /mnt && mkdir /mnt/old && cd /mnt && pivot_root . old && umount -l old$B'",
            "chroot /proc/1/root true",
            "cat /proc/1/root$B/file",
            "cat /proc/1/cwd/file",
            "readlink /proc/1/fd/*",
            "cat /proc/1/environ",
        ] {
            let done = site.base_survives(&[], &format!("{attempt} 2>/dev/null && echo through; true"));
            assert_eq!(done.text(), "", "{who:?}: {attempt}");
        }
        // What an owner of a namespace may do with locked mounts: copy all of them, covers included.
        let copied = "unshare -Urm bash -c 'mount --rbind $P /mnt && echo x > /mnt/base/file && cat $B/file'";
        assert_eq!(site.base_survives(&[], copied).text(), "x", "{who:?}");
    }
}

#[test]
fn no_process_outside_is_visible() {
    for who in BOTH {
        let site = Site::new(who);
        let done =
            site.base_survives(&[], "ls -d /proc/[0-9]* | wc -l; for p in /proc/[0-9]*; do readlink $p/cwd; done");
        let text = done.text();
        let count: u32 = text.lines().next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(count <= 6, "{who:?}: {text}");
        assert!(text.lines().skip(1).all(|cwd| cwd == site.base.to_str().expect("text")), "{who:?}: {text}");
    }
}

#[test]
fn descriptors_of_the_caller_are_no_way_out() {
    for who in BOTH {
        let site = Site::new(who);
        let before = site.look();
        let dir = fs::File::open(&site.base).expect("a directory");
        let file = fs::File::open(site.base.join("file")).expect("a file");
        let (dir_fd, file_fd) = (dir.as_raw_fd(), file.as_raw_fd());
        let script = "for n in 40 41; do [ -e /proc/self/fd/$n ] && echo leaked $n; done; \
                      cat <&0; echo x > /proc/self/fd/0; cat file; [ -p /proc/self/fd/42 ] && echo pipe";
        let mut command = site.run(&[], script);
        let (read, _write) = rustix::pipe::pipe().expect("a pipe");
        let pipe = read.as_raw_fd();
        // SAFETY: dup2 may be called between fork and exec, with numbers that are open then.
        unsafe {
            command.pre_exec(move || {
                for (from, to) in [(dir_fd, 40), (file_fd, 41), (pipe, 42), (file_fd, 0)] {
                    if libc::dup2(from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let done = command.output().expect("runs");
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        // Standard input is the fork's own file, read and then written through /proc.
        assert_eq!(text, "one\nx\npipe\n", "{who:?}: {}", String::from_utf8_lossy(&done.stderr));
        assert_same(&before, &site.look(), "the base");
    }
}

#[test]
fn other_names_of_the_base_lead_into_the_fork() {
    let site = Site::new(Who::Root);
    let (whole, part, above) = (site.env.dir("whole"), site.env.dir("part"), site.env.dir("above"));
    let bind = |from: &std::path::Path, to: &std::path::Path| {
        Command::new("mount").arg("--bind").args([from, to]).ok();
    };
    bind(&site.base, &whole);
    bind(&site.base.join("sub"), &part);
    bind(site.base.parent().expect("it has one"), &above);
    let script = "T=${P%/work}; echo 1 > $T/whole/file; echo 2 > $T/part/inner; echo 3 > $T/above/base/new; \
                  cat file sub/inner new";
    assert_eq!(site.base_survives(&[], script).text(), "1\n2\n3");
}

#[test]
fn store_and_other_forks_are_hidden() {
    for who in BOTH {
        let site = Site::new(who);
        if who == Who::Root {
            site.treefork(["create", "--label", "other"]).ok();
        }
        let done =
            site.base_survives(&[], "ls -A $TREEFORK_STORE | wc -l; touch $TREEFORK_STORE/x 2>/dev/null || echo ro");
        assert_eq!(done.text(), "0\nro", "{who:?}");
    }
}

#[test]
fn a_second_treefork_inside_cannot_reach_out() {
    for who in BOTH {
        let site = Site::new(who);
        let script = format!(
            "{0} list; {0} run -- touch inner; {0} --store ${{P%/work}}/tmp/second run -- bash -c 'echo x > $B/file'; true",
            site.binary().display()
        );
        site.base_survives(&[], &script);
    }
}

/// Real root keeps its number, so what the kernel gives to user 0 alone is taken out of reach.
#[test]
fn root_reaches_neither_disks_nor_the_kernels_settings() {
    let site = Site::new(Who::Root);
    for attempt in [
        "echo '|/bin/false' > /proc/sys/kernel/core_pattern",
        "mknod $P/disk b 254 0",
        "for d in /dev/[svnx]d[a-z] /dev/vd[a-z] /dev/loop[0-9]; do [ -b $d ] && exit 0; done; false",
        "mount -t ext4 /dev/vda /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "[ ! -e /sys/kernel/uevent_helper ] || echo /bin/false > /sys/kernel/uevent_helper && [ -e /sys/kernel/uevent_helper ]",
        "mount -o remount,rw /sys",
        "echo 1 > $(ls -d /sys/fs/fuse/connections/*/abort | head -n 1)",
    ] {
        let done = site.base_survives(&[], &format!("{{ {attempt}; }} 2>/dev/null && echo through; true"));
        assert_eq!(done.text(), "", "{attempt}");
    }
}

/// What real root can still do in a run, as it could without one.
#[test]
fn root_keeps_what_builds_need() {
    let site = Site::new(Who::Root);
    let script = "chown 12:34 file && stat -c %u:%g file && mkdir m && mount -t tmpfs none m && touch m/x && \
                  mount --bind sub m && ls m && setpriv --reuid 1000 --clear-groups id -u";
    assert_eq!(site.base_survives(&[], script).text(), "12:34\ndeep\ninner\n1000");
}

#[test]
fn the_rest_of_the_machine_can_be_read_only_or_hidden() {
    for who in BOTH {
        let site = Site::new(who);
        let (open, secret) = (site.env.dir("open"), site.env.dir("secret"));
        fs::write(secret.join("key"), "k").expect("writable");
        if who == Who::User {
            site.env.command("chown").args(["1000"]).args([&open, &secret]).ok();
        }
        let (open, secret) = (open.to_str().expect("text"), secret.to_str().expect("text"));
        let script = "T=${P%/work}; touch $T/work/x 2>/dev/null || echo ro; touch $T/open/x && echo rw; touch new && echo fork; \
                      touch /dev/null && echo dev; ls $T/secret | wc -l";
        let options = ["--ro-root", "--rw", open, "--hide", secret];
        // The tests' own directory may lie in /tmp, which stays writable.
        let said = site.base_survives(&options, script).text();
        let in_tmp = site.base.starts_with("/tmp");
        assert_eq!(said, if in_tmp { "rw\nfork\ndev\n0" } else { "ro\nrw\nfork\ndev\n0" }, "{who:?}");
        let done = site.base_survives(&["--ro-root"], "touch /usr/x /root/x 2>/dev/null || echo ro");
        assert_eq!(done.text(), "ro", "{who:?}");
    }
}

#[test]
fn the_network_can_be_taken_away() {
    for who in BOTH {
        let site = Site::new(who);
        let script = "ls /sys/class/net >/dev/null; grep -c : /proc/net/dev; \
                      perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(LocalAddr => \"127.0.0.1\", Listen => 1); \
                      print \"loopback\\n\" if IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $l->sockport)'";
        assert_eq!(site.base_survives(&["--no-network"], script).text(), "1\nloopback", "{who:?}");
    }
}
