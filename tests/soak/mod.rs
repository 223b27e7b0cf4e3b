//! Forks under load for a while, with servers that are killed: at the end everything is consistent, and the server has
//! grown in nothing.
//!
//! Short here; for an hour by hand: `TREEFORK_SOAK_MINUTES=60 cargo test --test main soak::mixed`, and
//! `TREEFORK_SOAK_ROUNDS=1000 cargo test --test main soak::rounds`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::fork::within;
use crate::common::{Run, Treefork, mounts};

const BASE: &str = "git init -q; mkdir src names; for n in $(seq 40); do seq $n > src/$n.c; echo $n > names/$n; done
                    printf 'all:\\n\\tcat src/*.c | sha256sum > built\\n' > Makefile; git add -A; git commit -qm start
                    sqlite3 db 'create table t(n integer primary key, x text)'";

/// What one worker does again and again in its fork. Each line may break off when the server dies.
const WORK: [&str; 4] = [
    "echo \"$N\" >> src/$((N % 40 + 1)).c; git add -A; git commit -qm \"$N\"; git status >/dev/null; git gc -q --prune=now",
    "touch src/*.c; make -s; rm built",
    "sqlite3 -cmd '.timeout 9000' db \"begin; insert into t(x) values ('$N'); insert into t(x) select x from t limit 50; commit\"",
    "mv names other; mv other/$((N % 40 + 1)) other/tmp; mv other/tmp other/$((N % 40 + 1)); mv other names",
];

/// What has to hold in a fork whatever broke off: each is made whole again as a person would.
const MEND: &str = "rm -f .git/index.lock .git/HEAD.lock .git/refs/heads/main.lock .git/gc.pid .git/packed-refs.lock
                    if [ -d other ]; then
                        [ -e other/tmp ] && for n in $(seq 40); do [ -e other/$n ] || mv other/tmp other/$n; done
                        mv other names
                    fi";
const CHECK: &str =
    "git fsck --no-dangling 2>&1; sqlite3 db 'pragma integrity_check'; ls names | wc -l; ls src | wc -l";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// How many threads the server keeps for what takes long, at the most.
const POOL: usize = 64;
/// Descriptors that are open just now say nothing.
const FEW: usize = 32;
/// Kilobytes of the stacks and heaps of threads that the pool has more.
const STACKS: u64 = 500;

/// What a process holds.
#[derive(Debug)]
struct Held {
    kilobytes: u64,
    descriptors: usize,
    threads: usize,
}

fn held(pid: i32) -> Held {
    let of = |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).expect("it runs").count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("since Linux 4.5");
    let kilobytes = line.trim().trim_end_matches(" kB").parse().expect("a number");
    Held { kilobytes, descriptors: of("fd"), threads: of("task") }
}

/// What the descriptors of a process lead to, each with how many do.
fn open_files(pid: i32) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
        *counts.entry(target.split(':').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    counts.iter().map(|(target, count)| format!("{count} {target}\n")).collect()
}

fn server(treefork: &Treefork) -> i32 {
    treefork.server().expect("a server runs").as_raw_nonzero().get()
}

/// Memory, descriptors, threads and mounts after many forks are what they were after a few.
#[test]
fn rounds_of_create_use_and_remove() {
    let rounds = number("TREEFORK_SOAK_ROUNDS", 300);
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, BASE);
    // One that stays keeps the server alive.
    treefork.create(&base, "stays");
    let pid = server(&treefork);
    let mut early = None;
    for round in 1..=rounds {
        let fork = treefork.create(&base, "round");
        treefork.env().sh(&fork, "cat src/*.c >/dev/null; echo x >> src/1.c; mkdir n; echo y > n/y; mv names other");
        treefork.ok(["remove", "--force", "round"]);
        if round == rounds / 10 {
            early = Some(held(pid));
        }
    }
    assert_eq!(server(&treefork), pid, "the same server all the time");
    let early = early.expect("ten rounds at least");
    // One that every round leaves behind would be hundreds; the server's pool may have grown meanwhile.
    let mut late = held(pid);
    let settled = within(Duration::from_secs(20), || {
        late = held(pid);
        late.threads <= early.threads + POOL && late.descriptors <= early.descriptors + FEW
    });
    assert!(settled, "descriptors or threads grow: {early:?}, {late:?}\n{}", open_files(pid));
    eprintln!("after {} rounds {early:?}, after {rounds} {late:?}", rounds / 10);
    assert!(late.kilobytes * 10 <= early.kilobytes * 11 + 10 * STACKS, "memory grows: {early:?}, {late:?}");
    assert_eq!(mounts::below(treefork.env().tree().path()).len(), 1, "one mount");
}

/// Workers in forks of one base, until `stop`: how many lines of work each did, and how many broke off.
fn work(treefork: &Treefork, fork: &Path, lines: &[&str], stop: &AtomicBool) -> (u64, u64) {
    let (mut done, mut broken) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let script = lines[usize::try_from(done + broken).expect("small") % lines.len()];
        let number = (done + broken).to_string();
        // In a directory of a mount whose server was killed `git gc` reads on and on, one error after the other.
        let mut command = treefork.env().command("timeout");
        // The working directory may be gone at this moment.
        let script = format!("cd \"$FORK\"; {MEND}\n{script}");
        command.args(["-k", "5", "30", "bash", "-euc", &script]).env("FORK", fork).env("N", number);
        if command.done().status.success() { done += 1 } else { broken += 1 }
    }
    (done, broken)
}

#[test]
fn mixed_load_with_kills_of_the_server() {
    let limit = Duration::from_secs(number("TREEFORK_SOAK_MINUTES", 0) * 60).max(Duration::from_secs(25));
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, BASE);
    let forks: Vec<PathBuf> = (0..3).map(|n| treefork.create(&base, &format!("w{n}"))).collect();
    let stop = AtomicBool::new(false);
    let mut kills = 0;
    let results: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = forks.iter().map(|fork| scope.spawn(|| work(&treefork, fork, &WORK, &stop))).collect();
        let start = Instant::now();
        while start.elapsed() < limit {
            std::thread::sleep(Duration::from_secs(5).min(limit / 4));
            treefork.kill_server();
            kills += 1;
            for n in 0..forks.len() {
                treefork.ok(["path", &format!("w{n}")]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    for fork in &forks {
        let script = format!("{MEND}\n{CHECK}");
        assert_eq!(treefork.env().sh(fork, &script), "ok\n40\n40", "{}", fork.display());
    }
    let (done, broken) = results.iter().fold((0, 0), |(a, b), (done, broken)| (a + done, b + broken));
    eprintln!("{done} pieces of work, {broken} broken off by {kills} kills");
    assert!(done > kills, "{results:?}");
    assert_eq!(mounts::below(treefork.env().tree().path()).len(), forks.len());
}
