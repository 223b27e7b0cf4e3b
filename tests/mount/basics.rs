//! Ordinary programs in an ordinary mount, and how it is taken away.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::process::Signal;

use super::raw::RawMount;
use crate::common::{Env, Look, Run, cli, mounts};

#[test]
fn reads_through_and_catches_every_write() {
    let mut mount = RawMount::new(|base| {
        fs::create_dir(base.join("d")).expect("mkdir");
        fs::write(base.join("d/f"), "one\n").expect("write");
        fs::write(base.join("x"), "x").expect("write");
        std::os::unix::fs::symlink("d/f", base.join("l")).expect("symlink");
    });
    let before = Look::default().ino().ctime().at(mount.base());
    assert_eq!(mount.sh("cat l; readlink l; ls"), "one\nd/f\nd\nl\nx");
    mount.sh("echo two >> d/f; rm x; mv d e; mkdir d; echo new > d/n; ln -s n d/s; ln d/n d/h; chmod 700 d/h; sync");
    assert_eq!(mount.sh("cat e/f; ls d e; stat -c '%a %h' d/n"), "one\ntwo\nd:\nh\nn\ns\n\ne:\nf\n700 2");
    assert_eq!(Look::default().ino().ctime().at(mount.base()), before, "the base was written");
    mount.restart();
    assert_eq!(mount.sh("cat e/f; ls . d; readlink d/s"), "one\ntwo\n.:\nd\ne\nl\n\nd:\nh\nn\ns\nn");
}

#[test]
fn numbers_and_times_are_the_bases() {
    let mount = RawMount::new(|base| {
        fs::create_dir(base.join("d")).expect("mkdir");
        fs::write(base.join("d/f"), "one\n").expect("write");
        let old = filetime::FileTime::from_unix_time(-2, 300);
        filetime::set_file_mtime(base.join("d/f"), old).expect("utimes");
    });
    // Not the root: without a fork's record it shows the upper's times, as the kernel's overlay does.
    let format = "--printf=%n %i %f %s %u %g %.9X %.9Y %.9Z %h\\n";
    let stat = |dir: &std::path::Path| mount.env().command_in(dir, "stat").args([format, "d", "d/f"]).ok().text();
    assert_eq!(stat(&mount.path()), stat(mount.base()));
    let number = fs::metadata(mount.base().join("d/f")).expect("stat").ino();
    mount.sh("echo two >> d/f; touch -d @-3.5 d/f");
    assert_eq!(mount.sh("stat -c '%i %.9Y' d/f; ls -i d"), format!("{number} -3.500000000\n{number} f"));
}

#[test]
fn copies_take_after_the_base_and_not_after_where_they_are_made() {
    let mount = RawMount::new(|base| {
        let around = base.parent().expect("it is in the environment").join("work");
        let script = "chmod 2775 .; setfacl -d -m u:7:rwx,g:8:rwx .; test $(id -u) != 0 || chgrp 8 .";
        Command::new("sh").current_dir(around).args(["-ec", script]).ok();
        fs::create_dir(base.join("d")).expect("mkdir");
        for name in ["d/f", "d/g", "d/h", "i"] {
            fs::write(base.join(name), "one\n").expect("write");
        }
        fs::hard_link(base.join("i"), base.join("j")).expect("link");
    });
    let access = "getfacl -n d d/* i j";
    let before = mount.sh(access);
    mount.sh("echo two >> d/f; mv d/g d/k; mv d/k d/g; echo new > d/h; chmod 600 j; chmod 644 j");
    assert_eq!(mount.sh(access), before);
}

#[test]
fn devices_and_odd_names() {
    let mount = RawMount::new(|_| {});
    mount.sh("mknod null c 1 3; mknod big b 259 70000; mkfifo p; touch $'a\\n\\xff'; touch -- -x '@x' .wh.x");
    assert_eq!(
        mount.sh("stat -c '%F %t %T' null big; stat -c %F p"),
        "character special file 1 3\nblock special file 103 11170\nfifo"
    );
    let long = "x".repeat(256);
    mount.sh(&format!("! touch {long} 2>err; grep -q 'File name too long' err; rm err"));
    assert_eq!(mount.sh("ls -A | wc -l; ls -b | head -n 1"), "8\n-x");
}

#[test]
fn a_signal_ends_the_mount() {
    let mut mount = RawMount::new(|_| {});
    mount.sh("echo kept > f");
    mount.signal(Signal::TERM);
    assert_eq!(mount.ended(), Some(0));
    assert!(mounts::below(&mount.path()).is_empty());
    assert_eq!(fs::read_to_string(mount.upper().join("f")).expect("in the upper"), "kept\n");
}

#[test]
fn umount_ends_the_server() {
    let mut mount = RawMount::new(|_| {});
    Command::new("umount").arg(mount.path()).ok();
    assert_eq!(mount.ended(), Some(0));
}

#[test]
fn in_the_background_it_returns_once_mounted() {
    let env = Env::new();
    for dir in ["a,b", "c:d", "upper", "work", "mnt"] {
        env.dir(dir);
    }
    fs::write(env.join("a,b/f"), "top").expect("write");
    fs::write(env.join("c:d/f"), "bottom").expect("write");
    fs::write(env.join("c:d/g"), "bottom").expect("write");
    let options = r"rw,lowerdir=a\,b:c\:d,upperdir=upper,workdir=work,noexec";
    env.command(cli::BINARY).args(["mount", "-o", options, "my source", "mnt"]).ok();
    let mount = mounts::below(&env.join("mnt")).pop().expect("mounted");
    assert_eq!((mount.fstype.as_str(), mount.source.as_str()), ("fuse.treefork", r"my\040source"));
    assert_eq!(env.sh(&env.join("mnt"), "cat f g"), "topbottom");
    env.command(cli::BINARY).args(["mount", "-o", "remount,ro", "mnt"]).ok();
    env.sh(&env.join("mnt"), "! touch x 2> /dev/null");
    Command::new("umount").arg(env.join("mnt")).ok();
}

#[test]
fn wrong_use_is_refused_and_nothing_is_mounted() {
    let env = Env::new();
    for dir in ["base", "base/inside", "upper", "work", "mnt"] {
        env.dir(dir);
    }
    let refused = |code, options: &str, point: &str| {
        let complaint = env.command(cli::BINARY).args(["mount", "-o", options, point]).fails(code).complaint();
        assert!(mounts::below(env.tree().path()).is_empty());
        complaint
    };
    assert!(refused(2, "lowerdir=base,squash_to_root", "mnt").contains("squash_to_root"));
    assert!(refused(2, "upperdir=upper,workdir=work", "mnt").contains("lowerdir="));
    assert!(refused(2, "lowerdir=base,upperdir=upper", "mnt").contains("workdir="));
    assert!(refused(1, "lowerdir=base:absent", "mnt").contains("absent"));
    assert!(refused(1, "lowerdir=base", "absent").contains("absent"));
    assert!(refused(2, "lowerdir=base", "base/inside").contains("inside"));
}

#[test]
fn without_an_upper_it_is_read_only_and_may_cover_its_own_layer() {
    let env = Env::new();
    let base = env.dir("base");
    fs::write(base.join("f"), "1").expect("write");
    env.command(cli::BINARY).args(["mount", "-o", "lowerdir=base", "base"]).ok();
    assert_eq!(env.sh(&base, "cat f; ! touch x 2> /dev/null"), "1");
    Command::new("umount").arg(&base).ok();
}

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    let env = Env::new();
    env.sh(env.tree().path(), "mkdir base upper work mnt; echo 1 > base/f; chown 1000:1000 upper work mnt");
    // Where /dev/fuse is root's alone not even the helper opens it for a user: show one that is everybody's.
    let open = "mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        user='setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --'";
    let script = r"$user $BINARY mount -o 'lowerdir=base,upperdir=upper,workdir=work,fsname=a\,b' mnt
        grep $PWD/mnt /proc/mounts | cut -d' ' -f1,3,4
        $user bash -euc 'cat mnt/f; echo 2 > mnt/g; stat -c %u mnt/g; cat upper/g'
        ls mnt 2> /dev/null || echo not even root
        $user fusermount3 -u mnt
        $user $BINARY mount -f -o lowerdir=base mnt &
        until grep -q $PWD/mnt /proc/mounts; do :; done
        $user cat mnt/f
        kill $!
        wait $!
        ! grep $PWD/mnt /proc/mounts";
    let script = format!("{open}\n{script}");
    let mut unshare = env.command("unshare");
    unshare.args(["-m", "--propagation", "private", "bash", "-euo", "pipefail", "-c", &script]);
    let done = unshare.env("BINARY", cli::BINARY).ok();
    let options = "rw,nosuid,nodev,relatime,user_id=1000,group_id=1000,default_permissions";
    assert_eq!(done.text(), format!("a,b fuse.treefork {options}\n1\n1000\n2\nnot even root\n1"));
}
