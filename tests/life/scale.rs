//! Many forks at once: what each costs the server, and that one more costs no more than the first.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::{server_pid, small_base};
use crate::common::{Run, Treefork, caches, eventually};

/// Enough to tell what grows with them from what does not.
const MANY: usize = 100;

/// Memory of a process that is no file's, in KiB.
fn anonymous_kib(process: &Path) -> u64 {
    let status = fs::read_to_string(process.join("status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("since Linux 4.5");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn count(process: &Path, what: &str) -> usize {
    fs::read_dir(process.join(what)).expect("it runs").count()
}

fn process(treefork: &Treefork) -> std::path::PathBuf {
    format!("/proc/{}", server_pid(treefork).as_raw_nonzero()).into()
}

/// Makes a fork of this label, and removes it; how many system calls the commands made, in all their processes. How many
/// other processes there are, which is none of theirs, is left out.
fn calls(treefork: &Treefork, base: &Path, label: &str) -> [usize; 2] {
    let log = treefork.env().join("strace");
    let base = base.to_str().expect("plain");
    let calls = |args: &[&str]| {
        let command = treefork.command(args);
        let mut strace = treefork.env().command("strace");
        strace.args(["-f", "-qq", "-o"]).arg(&log).arg(command.get_program()).args(command.get_args());
        strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdout(Stdio::null()).ok();
        let text = fs::read_to_string(&log).expect("traced");
        text.lines().filter(|line| !line.contains("/proc/")).count()
    };
    [calls(&["create", base, "--strategy", "overlay", "--label", label]), calls(&["remove", label])]
}

#[test]
fn one_more_costs_little_and_takes_no_longer() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.ok(["create", base.to_str().expect("plain")]);
    let few = calls(&treefork, &base, "first");
    let server = process(&treefork);
    let before = (anonymous_kib(&server), count(&server, "task"), count(&server, "fd"));
    for n in 0..MANY {
        treefork.create(&base, &format!("fork{n}"));
    }
    let kib = (anonymous_kib(&server) - before.0) / MANY as u64;
    assert!(kib <= 64, "{kib} KiB for each idle fork");
    // Its own, and a few that the server has for all.
    assert!(count(&server, "task") <= before.1 + 3 * MANY + 16, "threads");
    assert!(count(&server, "fd") <= before.2 + 12 * MANY + 16, "descriptors");
    let many = calls(&treefork, &base, "last");
    for (few, many) in few.into_iter().zip(many) {
        // A listing of the store's directory may take a call more.
        assert!(many <= few + few / 10, "{many} calls with {MANY} forks, {few} with one");
    }
}

#[test]
fn what_was_used_is_given_back_when_the_kernel_forgets_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("what_was_used_is_given_back_when_the_kernel_forgets_it: NOT RUN, only root may drop caches");
        return;
    }
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    for dir in 0..20 {
        fs::create_dir(base.join(dir.to_string())).expect("free");
        (0..500).for_each(|n| fs::write(base.join(format!("{dir}/{n}")), "x").expect("room"));
    }
    let mut create = treefork.command(["create", base.to_str().expect("plain"), "--label", "fork"]);
    // How often it looks whether there is something to do.
    let created = create.env("TREEFORK_SERVER_IDLE", "0.2").ok();
    let fork = Path::new(&created.text()).to_path_buf();
    let server = process(&treefork);
    let idle = anonymous_kib(&server);
    let open = count(&server, "fd");
    let walk = || treefork.env().sh(&fork, "find . -printf '%s\\n' | wc -l; cat 1/* | wc -c");
    walk();
    let used = anonymous_kib(&server);
    for _ in 0..8 {
        caches::drop_all();
        walk();
    }
    // Nothing of a walk that was forgotten piles up.
    let again = anonymous_kib(&server);
    assert!(again <= used + used / 2, "{used} KiB after one walk, {again} after nine");
    // What one drops is forgotten a moment later, and the kernel may hold on to a little.
    eventually("descriptors are closed", || {
        caches::drop_all();
        count(&server, "fd") <= open + 32
    });
    eventually("memory is given back", || {
        caches::drop_all();
        anonymous_kib(&server) <= idle + (again - idle) / 2
    });
}
