//! As `mount(8)` calls it. Its helper has to lie in `/sbin`, so this happens in a mount namespace where a copy of it does.

use std::os::unix::fs::symlink;

use crate::common::{Env, Run, cli};

/// Runs a script in a namespace in which `/usr/sbin` has the helper; `/sbin` is the same directory or leads there.
fn in_namespace(env: &Env, script: &str) -> String {
    let extra = env.dir("sbin");
    symlink(cli::BINARY, extra.join("mount.fuse.treefork")).expect("the new directory is empty");
    for dir in ["base", "upper", "work", "mnt"] {
        env.dir(dir);
    }
    let cover = "mount -t overlay -o lowerdir=$PWD/sbin:/usr/sbin overlay /usr/sbin";
    let script = format!("{cover}\n{script}");
    let mut unshare = env.command("unshare");
    unshare.args(["-m", "--propagation", "private", "bash", "-euo", "pipefail", "-c", &script]).ok().text()
}

#[test]
fn mount_dash_t_finds_the_helper_and_shows_the_source() {
    let env = Env::new();
    let script = "
        echo one > base/f
        options=lowerdir=$PWD/base,upperdir=$PWD/upper,workdir=$PWD/work
        mount -t fuse.treefork -o rw,dev,suid,$options the-source $PWD/mnt
        grep $PWD/mnt /proc/mounts | cut -d' ' -f1,3,4 | cut -d, -f1,2
        cat mnt/f
        mknod mnt/null c 1 3
        echo gone > mnt/null
        mount -o remount,ro $PWD/mnt
        touch mnt/x 2> /dev/null && echo 'still writable'
        umount $PWD/mnt
        ls mnt";
    // The words dev and suid show as the absence of nodev and nosuid.
    assert_eq!(in_namespace(&env, script), "the-source fuse.treefork rw,relatime\none");
}

#[test]
fn an_entry_in_fstab_is_enough() {
    let env = Env::new();
    let script = "
        echo one > base/f
        echo \"tree $PWD/mnt fuse.treefork noauto,nofail,x-mark,lowerdir=$PWD/base 0 0\" > fstab
        mount --bind fstab /etc/fstab
        mount $PWD/mnt
        cat mnt/f
        umount $PWD/mnt";
    assert_eq!(in_namespace(&env, script), "one");
}

#[test]
fn container_tools_call_it_with_one_place() {
    let env = Env::new();
    let script = "
        echo one > base/f
        /usr/sbin/mount.fuse.treefork -o lowerdir=base,upperdir=upper,workdir=work,volatile mnt
        cat mnt/f
        umount mnt
        /usr/sbin/mount.fuse.treefork -o context=x mnt 2>&1 || echo $?";
    let said = in_namespace(&env, script);
    assert!(said.starts_with("one\n") && said.contains("context=x") && said.ends_with("\n2"), "{said}");
}
