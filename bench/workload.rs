//! What is done in each fork, and what of it is timed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::cli::Plan;
use super::merge;
use super::place::{Place, run};
use super::report::{self, Metric, kib, ms};
use super::server::Server;
use super::subject::{Fork, Subject, has_command};
use super::tree;
use super::{build, churn, fanout};

/// The sizes of the bases that `create` must not tell apart.
pub(crate) const FLAT: [usize; 2] = [10, 20_000];

pub(crate) type Measured = Vec<Metric>;

/// One thing to do in a fork.
pub(crate) struct Workload {
    name: &'static str,
    /// Turns in a small and in a full run.
    rounds: [usize; 2],
    suits: fn(&dyn Subject) -> bool,
    measure: fn(&Place, &dyn Subject) -> Measured,
}

impl Workload {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn rounds(&self, plan: &Plan) -> usize {
        plan.rounds.unwrap_or(self.rounds[usize::from(!plan.smoke)])
    }

    pub(crate) fn suits(&self, subject: &dyn Subject) -> bool {
        (self.suits)(subject)
    }

    pub(crate) fn measure(&self, place: &Place, subject: &dyn Subject) -> Measured {
        (self.measure)(place, subject)
    }
}

/// All workloads that the plan wants.
pub(crate) fn all(plan: &Plan) -> Vec<Workload> {
    let any: fn(&dyn Subject) -> bool = |subject| !is_variant(subject) && !subject.is_ordinary();
    // The plain directory is there already.
    let made: fn(&dyn Subject) -> bool = |subject| subject.name() != "plain" && !is_variant(subject);
    let git: fn(&dyn Subject) -> bool = |subject| subject.name() != "treefork prewarmed" && !subject.is_ordinary();
    let read: fn(&dyn Subject) -> bool = |subject| subject.name() != "treefork exec" && !subject.is_ordinary();
    let whole: fn(&dyn Subject) -> bool = |subject| any_whole(subject);
    let fans: fn(&dyn Subject) -> bool =
        |subject| matches!(subject.name(), "treefork" | "git worktree" | "cp -a" | "cp --reflink");
    let ours: fn(&dyn Subject) -> bool = |subject| subject.name() == "treefork";
    let all = [
        Workload { name: "flat create", rounds: [50, 50], suits: ours, measure: flat_create },
        Workload { name: "create and remove", rounds: [5, 5], suits: made, measure: create_and_remove },
        Workload { name: "git status", rounds: [3, 5], suits: |_| true, measure: git_status },
        Workload { name: "walk", rounds: [3, 5], suits: read, measure: walk },
        Workload { name: "search", rounds: [3, 3], suits: read, measure: search },
        Workload { name: "archive", rounds: [3, 3], suits: read, measure: archive },
        Workload { name: "small files", rounds: [3, 5], suits: any, measure: small_files },
        Workload { name: "remove after work", rounds: [3, 3], suits: made, measure: remove_after_work },
        Workload { name: "large file", rounds: [2, 3], suits: whole, measure: large_file },
        Workload { name: "agents", rounds: [2, 2], suits: git, measure: agents },
        Workload { name: "fan-out", rounds: [1, 3], suits: fans, measure: fan_out },
        Workload { name: "make", rounds: [2, 3], suits: any, measure: build::make },
        Workload { name: "cargo", rounds: [1, 3], suits: any, measure: build::cargo },
        Workload {
            name: "merge",
            rounds: [3, 3],
            suits: |s| matches!(s.name(), "plain" | "treefork"),
            measure: merge::measure,
        },
        Workload { name: "many forks", rounds: [1, 1], suits: ours, measure: many_forks },
    ];
    let there = |workload: &Workload| workload.name != "merge" || has_command("merge");
    all.into_iter().filter(|workload| plan.wants_workload(workload.name) && there(workload)).collect()
}

fn any_whole(subject: &dyn Subject) -> bool {
    subject.is_whole() && !is_variant(subject) && !subject.is_ordinary()
}

/// Whether it is a fork like any other, only used in another way.
fn is_variant(subject: &dyn Subject) -> bool {
    matches!(subject.name(), "treefork exec" | "treefork prewarmed")
}

/// How long `act` takes, with nothing under way before it.
pub(crate) fn timed(place: &Place, act: impl FnOnce()) -> Duration {
    place.settle();
    let start = Instant::now();
    act();
    start.elapsed()
}

/// Makes a fork of `base`, has it used, and removes it.
pub(crate) fn in_fork(
    place: &Place,
    subject: &dyn Subject,
    base: &Path,
    used: impl FnOnce(&Fork) -> Measured,
) -> Measured {
    let fork = subject.create(place, base, "bench");
    subject.prepare(place, &fork);
    let measured = used(&fork);
    subject.remove(place, &fork);
    measured
}

/// Runs a shell command in a fork, with nothing of its output.
pub(crate) fn shell(place: &Place, fork: &Fork, script: &str) {
    place.sh(&fork.path, script);
}

fn sized_base(place: &Place, files: usize) -> PathBuf {
    let base = place.path(format!("bases/of-{files}"));
    if !base.exists() {
        tree::repository(place, &base, files);
    }
    base
}

fn flat_create(place: &Place, subject: &dyn Subject) -> Measured {
    let step = |files| {
        let base = sized_base(place, files);
        let mut fork = None;
        let took = timed(place, || {
            let made = subject.create(place, &base, "bench");
            std::fs::read(made.path.join(tree::file(0))).expect("the first read");
            fork = Some(made);
        });
        subject.remove(place, &fork.expect("made"));
        ms(format!("create from {files} files"), took)
    };
    FLAT.map(step).into()
}

fn create_and_remove(place: &Place, subject: &dyn Subject) -> Measured {
    let mut fork = None;
    let create = timed(place, || {
        let made = subject.create(place, &place.base(), "bench");
        std::fs::read(made.path.join(tree::file(0))).expect("the first read");
        fork = Some(made);
    });
    let fork = fork.expect("made");
    let remove = timed(place, || subject.remove(place, &fork));
    vec![ms("create and read", create), ms("remove", remove)]
}

/// The same command three times: fresh, again, warm.
fn thrice(place: &Place, name: &str, run: impl Fn()) -> Measured {
    ["first", "second", "third"].map(|time| ms(format!("{name}, {time}"), timed(place, &run))).into()
}

fn git_status(place: &Place, subject: &dyn Subject) -> Measured {
    in_fork(place, subject, &place.base(), |fork| thrice(place, "git status", || subject.git(place, fork, &["status"])))
}

fn walk(place: &Place, subject: &dyn Subject) -> Measured {
    in_fork(place, subject, &place.base(), |fork| {
        thrice(place, "find", || shell(place, fork, "find . -printf '%s %T@\\n' | wc -l"))
    })
}

fn search(place: &Place, subject: &dyn Subject) -> Measured {
    in_fork(place, subject, &place.base(), |fork| {
        thrice(place, "grep -r", || shell(place, fork, "! grep -rq 'nowhere to be found' src"))
    })
}

fn archive(place: &Place, subject: &dyn Subject) -> Measured {
    in_fork(place, subject, &place.base(), |fork| thrice(place, "tar", || shell(place, fork, "tar cf - src | cat")))
}

fn small_files(place: &Place, subject: &dyn Subject) -> Measured {
    let (root, files) = (place.base(), place.files);
    // 10,000, 5,000 and 1,000 in a repository of 50,000 files.
    let [many, some, few] = [files / 5, files / 10, files / 50];
    in_fork(place, subject, &root, |fork| {
        let root = &fork.path;
        // As in work: what is changed was seen before.
        subject.git(place, fork, &["status"]);
        vec![
            ms(format!("create {many} files"), timed(place, || churn::create(root, many))),
            ms(format!("rewrite {some} files"), timed(place, || churn::rewrite(root, files, some))),
            ms(format!("rename {few} files"), timed(place, || churn::rename(root, files, few))),
            ms(format!("delete {some} files"), timed(place, || churn::delete(root, files, some))),
        ]
    })
}

fn remove_after_work(place: &Place, subject: &dyn Subject) -> Measured {
    let fork = subject.create(place, &place.base(), "bench");
    let files = if place.smoke { 1_000 } else { 10_000 };
    churn::create(&fork.path, files);
    vec![ms(format!("remove with {files} new files"), timed(place, || subject.remove(place, &fork)))]
}

fn large_file(place: &Place, subject: &dyn Subject) -> Measured {
    let base = place.path("bases/large");
    let mib = if place.smoke { 64 } else { 1024 };
    if !base.exists() {
        std::fs::create_dir(&base).expect("mkdir");
        run(Command::new("dd")
            .args(["if=/dev/urandom", "bs=1M", "status=none", &format!("count={mib}")])
            .arg(format!("of={}", base.join("big").display())));
    }
    in_fork(place, subject, &base, |fork| {
        let big = fork.path.join("big");
        forget_pages(&base.join("big"));
        forget_pages(&big);
        let read = |time| ms(format!("read {mib} MiB, {time}"), timed(place, || shell(place, fork, "cat big | cat")));
        let mut measured = vec![read("first"), read("again")];
        place.settle();
        let before = free_kib(place);
        measured.push(ms(format!("first 4 KiB into {mib} MiB"), timed(place, || churn::poke(&big))));
        if subject.is_treefork() {
            let rest = timed(place, || drop(place.treefork(["diff", "bench"])));
            measured.push(ms("until all of it is copied", rest));
        }
        place.settle();
        measured.push(kib("disk for that in the end", before.saturating_sub(free_kib(place))));
        let write = format!("dd if=/dev/zero of=new bs=1M count={mib} status=none");
        measured.push(ms(format!("write {mib} MiB"), timed(place, || shell(place, fork, &write))));
        measured
    })
}

/// Lets the kernel forget the content of a file, so that it has to come from the disk.
fn forget_pages(file: &Path) {
    let file = std::fs::File::open(file).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advise");
}

fn free_kib(place: &Place) -> u64 {
    let stat = rustix::fs::statvfs(place.path("")).expect("statvfs");
    stat.f_bfree * stat.f_frsize / 1024
}

fn agents(place: &Place, subject: &dyn Subject) -> Measured {
    let counts: &[usize] = if place.smoke { &[4] } else { &[2, 8, 32] };
    let mut measured = Vec::new();
    for &count in counts {
        let forks: Vec<Fork> = (0..count)
            .map(|agent| {
                let fork = subject.create(place, &place.base(), &format!("agent{agent}"));
                subject.prepare(place, &fork);
                fork
            })
            .collect();
        let work = |agent: usize, fork: &Fork| {
            subject.git(place, fork, &["status"]);
            churn::edit(&fork.path, place.files, 50, agent);
            subject.git(place, fork, &["commit", "-qam", "work"]);
        };
        let took = timed(place, || {
            std::thread::scope(|scope| {
                for (agent, fork) in forks.iter().enumerate() {
                    scope.spawn(move || work(agent, fork));
                }
            });
        });
        measured.push(ms(format!("{count} agents at once"), took));
        forks.iter().for_each(|fork| subject.remove(place, fork));
    }
    measured
}

/// From a repository to so many forks of it with a commit in each. What comes of it is checked, and so is that the base
/// has nothing of it.
fn fan_out(place: &Place, subject: &dyn Subject) -> Measured {
    let (files, count, jobs) = if place.smoke { (2_000, 4, 2) } else { (20_000, 32, 8) };
    let base = sized_base(place, files);
    let look = || {
        let head = std::fs::read(base.join(".git/refs/heads/main")).expect("a branch");
        let edited = std::fs::read(base.join(tree::file(0))).expect("a file");
        (head, edited)
    };
    let before = look();
    let name = format!("fan-out of {count}, {jobs} at once");
    let took = if subject.is_treefork() {
        let mut names = vec![];
        let took = timed(place, || names = fanout::ours(place, &base, files, count, jobs));
        for (n, fork) in (1..).zip(&names) {
            fanout::check(place, Path::new(&place.treefork(["path", fork])), files, n);
        }
        place.treefork(std::iter::once("remove").chain(names.iter().map(String::as_str)));
        took
    } else {
        let mut forks = vec![];
        let took = timed(place, || forks = fanout::theirs(place, subject, &base, (files, count, jobs)));
        for (n, fork) in (1..).zip(&forks) {
            fanout::check(place, &fork.path, files, n);
        }
        forks.iter().for_each(|fork| subject.remove(place, fork));
        took
    };
    assert!(before == look(), "the base has something of it");
    vec![ms(name, took)]
}

/// What live forks cost the server that serves them, and whether making and removing one takes longer when there are
/// many; then what many of them do at once, and what is left of that when they are idle again.
fn many_forks(place: &Place, subject: &dyn Subject) -> Measured {
    let count = place.forks;
    let first = subject.create(place, &place.base(), "many");
    let before = Server::of(place);
    let tenth = (count / 10).max(1);
    let create = |i: usize| subject.create(place, &place.base(), &format!("many{i}"));
    let some = |numbers: std::ops::Range<usize>| -> Vec<Fork> { numbers.map(create).collect() };
    let (early, mut forks) = each(|| some(0..tenth));
    forks.extend(some(tenth..count - tenth));
    let (late, last) = each(|| some(count - tenth..count));
    forks.extend(last);
    let idle = Server::of(place);
    let per = |now: u64, then: u64| now.saturating_sub(then) as f64 / count as f64;
    let busy = forks.len().min(64);
    let at_once = timed(place, || {
        std::thread::scope(|scope| {
            for (agent, fork) in forks[..busy].iter().enumerate() {
                scope.spawn(move || {
                    shell(place, fork, "find . -printf '%s\\n' | wc -l");
                    churn::edit(&fork.path, place.files, 50, agent);
                });
            }
        });
    });
    let used = Server::of(place);
    // The kernel forgets what nobody uses, and says so to the server, which gives the room back at its next rest.
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
    if !place.smoke {
        std::thread::sleep(Duration::from_secs(65));
    }
    let rested = Server::of(place);
    let removal = forks[count - tenth..].iter().map(|fork| timed(place, || subject.remove(place, fork))).sum();
    forks[..count - tenth].iter().chain([&first]).for_each(|fork| subject.remove(place, fork));
    let one = |whole: Duration| whole / u32::try_from(tenth).expect("small");
    vec![
        kib("server memory for an idle fork", idle.kib.saturating_sub(before.kib) / count as u64),
        report::count("threads for an idle fork", per(idle.threads, before.threads)),
        report::count("descriptors for an idle fork", per(idle.descriptors, before.descriptors)),
        ms("create, the first tenth", one(early)),
        ms("create, the last tenth", one(late)),
        ms("remove, with all others there", one(removal)),
        ms(format!("{busy} forks walked and edited at once"), at_once),
        kib("server memory after that", used.kib),
    ]
    .into_iter()
    .chain((!place.smoke).then(|| kib("server memory once that is forgotten", rested.kib)))
    .collect()
}

/// How long it takes, and what came of it.
fn each<T>(act: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let made = act();
    (start.elapsed(), made)
}
