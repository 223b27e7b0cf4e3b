//! Several forks of one base, several clients in each, all at once, against the pure reference.
//!
//! Each client works in a directory of its own, so that every answer and the whole tree are known; and with the others of its
//! fork in a shared one, where what has to hold is checked: one of those who make a name at the same time wins, lines
//! that are appended stay whole, and what is renamed is in one place. In between the server is killed, a fork is merged and
//! made anew (the others see nothing of it), and somebody changes the base (all see it).
//!
//! A failure prints the seed and the shortest course that still shows it. `TREEFORK_SEED=N` runs one seed, `TREEFORK_ROUNDS=N`
//! makes a course longer.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::model::{Act, Answer, Tree, carry_out};
use super::rng::Rng;
use crate::common::faults::said;
use crate::common::fork::within;
use crate::common::{Fs, Image, Treefork};

const FORKS: usize = 2;
const CLIENTS: usize = 3;
const ACTS: usize = 40;

/// What happens between two bursts of work.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// The server is killed.
    Restart,
    /// This fork is merged, and made anew.
    Merge(usize),
    /// Somebody writes or removes this file of the base, which no fork changes.
    Drift(usize, bool),
}

/// One burst of work: for each fork and client what it does.
#[derive(Clone, Debug)]
struct Round {
    work: [[Vec<Act>; CLIENTS]; FORKS],
    then: Then,
}

/// The directory of a client.
fn home(fork: usize, client: usize) -> String {
    format!("f{fork}c{client}")
}

fn path(rng: &mut Rng, home: &str) -> String {
    let depth = rng.pick(&[1, 1, 2, 2, 3]);
    let names: Vec<&str> = (0..depth).map(|_| rng.pick(&["a", "b", "c"])).collect();
    format!("{home}/{}", names.join("/"))
}

fn act(rng: &mut Rng, home: &str) -> Act {
    let len = rng.pick(&[0, 1, 500, 4096, 9000, 70_000]);
    let fill = u8::try_from(1 + rng.below(250)).expect("small");
    let path = path(rng, home);
    match rng.below(20) {
        0..4 => Act::Write(path, len, fill),
        4..6 => Act::Append(path, len, fill),
        6 => Act::Cut(path, len),
        7..9 => Act::Read(path),
        9..11 => Act::List(path),
        11..14 => Act::Mkdir(path),
        14 => Act::Rmdir(path),
        15 => Act::Unlink(path),
        16 => Act::Symlink(path),
        _ => Act::Rename(path, self::path(rng, home)),
    }
}

fn course(rng: &mut Rng, rounds: usize) -> Vec<Round> {
    let fork = |rng: &mut Rng| usize::try_from(rng.below(FORKS as u64)).expect("small");
    let mut round = |_| Round {
        work: std::array::from_fn(|f| {
            std::array::from_fn(|c| (0..ACTS).map(|_| act(rng, &home(f, c))).collect::<Vec<Act>>())
        }),
        then: match rng.below(7) {
            0 => Then::Nothing,
            1..3 => Then::Restart,
            3..5 => Then::Merge(fork(rng)),
            _ => Then::Drift(usize::try_from(rng.below(4)).expect("small"), rng.once_in(3)),
        },
    };
    (0..rounds).map(&mut round).collect()
}

/// How an operation is carried out.
type Does = fn(&Path, &Act) -> Answer;

/// What the base and each fork show.
struct World {
    base: Tree,
    forks: [Tree; FORKS],
}

/// The files below the store's image, and their reference.
struct Stage {
    // The server goes before its file system.
    treefork: Treefork,
    base: PathBuf,
    forks: [PathBuf; FORKS],
    world: World,
}

impl Stage {
    fn new(dir: &Path) -> Self {
        let treefork = Treefork::with_store(dir.join("store"));
        let base = dir.join("base");
        let mut tree = Tree::default();
        std::fs::create_dir(&base).expect("room");
        let homes = (0..FORKS).flat_map(|f| (0..CLIENTS).map(move |c| home(f, c)));
        let mut make = vec![Act::Mkdir("drift".into()), Act::Write("drift/0".into(), 10, 1)];
        make.extend((0..FORKS).map(|f| Act::Mkdir(format!("shared{f}"))));
        for home in homes {
            make.push(Act::Mkdir(home.clone()));
            make.extend(["a", "b"].map(|name| Act::Mkdir(format!("{home}/{name}"))));
            make.extend(["a/a", "a/b", "c"].map(|name| Act::Write(format!("{home}/{name}"), 9000, 3)));
        }
        for act in make {
            carry_out(&base, &act).expect("room");
            tree.apply(&act).expect("free");
        }
        let forks = std::array::from_fn(|f| treefork.create(&base, &format!("fork{f}")));
        let world = World { forks: std::array::from_fn(|_| tree.clone()), base: tree };
        Self { treefork, base, forks, world }
    }

    /// All clients at once.
    fn work(&mut self, does: Does, round: &Round) {
        let shown: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (f, (root, tree)) in self.forks.iter().zip(&self.world.forks).enumerate() {
                for (c, acts) in round.work[f].iter().enumerate() {
                    let client = move || {
                        let mut own = tree.clone();
                        let mut won = 0;
                        for (n, act) in acts.iter().enumerate() {
                            assert_eq!(does(root, act), own.apply(act), "{act:?}, the {n}th of client {c} in fork {f}");
                            won += contend(&root.join(format!("shared{f}")), c, n);
                        }
                        won
                    };
                    running.push((f, scope.spawn(client)));
                }
            }
            running
                .into_iter()
                .map(|(f, client)| (f, client.join().unwrap_or_else(|e| std::panic::panic_any(said(&*e)))))
                .collect()
        });
        for f in 0..FORKS {
            let won = shown.iter().filter(|(of, _)| *of == f).map(|(_, won)| won).sum();
            agree(&self.forks[f].join(format!("shared{f}")), &round.work[f], won);
            for act in round.work[f].iter().flatten() {
                let _ = self.world.forks[f].apply(act);
            }
        }
    }

    fn then(&mut self, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Restart => self.treefork.restart("fork0"),
            Then::Merge(f) => {
                let label = format!("fork{f}");
                self.treefork.ok(["merge", &label]);
                let own = |path: &str| path.starts_with(&format!("f{f}"));
                let landed = self.world.forks[f].part(own);
                self.world.base.0.retain(|path, _| !own(path));
                self.world.base.0.extend(landed);
                self.forks[f] = self.treefork.create(&self.base, &label);
                self.world.forks[f] = self.world.base.clone();
            }
            Then::Drift(n, remove) => {
                let path = format!("drift/{n}");
                let act = if remove { Act::Unlink(path) } else { Act::Write(path, 100 + n, 7) };
                let answer = carry_out(&self.base, &act);
                let World { base, forks } = &mut self.world;
                forks.iter_mut().for_each(|tree| assert_eq!(tree.apply(&act), answer));
                assert_eq!(base.apply(&act), answer);
            }
        }
    }

    fn compare(&self, when: &str) {
        let all = [("the base", &self.base, &self.world.base)]
            .into_iter()
            .chain(self.forks.iter().zip(&self.world.forks).map(|(root, tree)| ("a fork", root, tree)));
        for (what, root, tree) in all {
            let mut differences = Vec::new();
            // What somebody changes in the base shows after a moment.
            let same = within(Duration::from_secs(20), || {
                let now = catch_unwind(|| Tree::at(root));
                differences = now.map_or_else(|e| vec![said(&*e)], |now| tree.differences(&now));
                differences.is_empty()
            });
            assert!(same, "{what} {} {when}: {}", root.display(), differences.join("; "));
        }
    }
}

/// What every client of a fork does in the shared directory; whether it made the name first.
fn contend(shared: &Path, client: usize, n: usize) -> usize {
    let won = match File::create_new(shared.join(format!("token{n}"))) {
        Ok(_) => 1,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => 0,
        Err(e) => panic!("token{n}: {e}"),
    };
    let mut log = File::options().append(true).create(true).open(shared.join("log")).expect("one of them makes it");
    log.write_all(format!("client {client} line {n}\n").as_bytes()).expect("room");
    // Of those who fight for a name one has it; whoever has it gives it back.
    let (token, mine) = (shared.join("token0"), shared.join(format!("mine{client}")));
    match std::fs::rename(&token, &mine) {
        Ok(()) => std::fs::rename(&mine, &token).expect("nobody else has it"),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{e}"),
    }
    won
}

/// What has to hold in a shared directory after a burst; then it is empty again.
fn agree(shared: &Path, work: &[Vec<Act>; CLIENTS], won: usize) {
    let most = work.iter().map(Vec::len).max().unwrap_or_default();
    if most == 0 {
        return;
    }
    let log = std::fs::read_to_string(shared.join("log")).expect("whole lines");
    let mut lines: Vec<&str> = log.lines().collect();
    let mut wanted: Vec<String> =
        (0..CLIENTS).flat_map(|c| (0..work[c].len()).map(move |n| format!("client {c} line {n}"))).collect();
    lines.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(lines, wanted, "lines that were appended");
    let names: Vec<String> =
        shared.read_dir().expect("there").map(|e| e.expect("there").file_name().into_string().expect("text")).collect();
    assert_eq!(names.len(), most + 1, "one log, and each token once: {names:?}");
    // While the first one was away, another one could be made.
    assert!((most..=most + CLIENTS * most).contains(&won), "{won} of {most} tokens were made");
    for name in names {
        std::fs::remove_file(shared.join(name)).expect("nobody is at it");
    }
}

/// Plays a course on a fresh stage; what went wrong, if anything, and in which round.
fn play(dir: &Path, does: Does, course: &[Round]) -> Option<(usize, String)> {
    let place = dir.join("course");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("room");
    let mut at = 0;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut stage = Stage::new(&place);
        for (n, round) in course.iter().enumerate() {
            at = n;
            stage.work(does, round);
            stage.compare(&format!("after the work of round {n}"));
            stage.then(round.then);
            stage.compare(&format!("after {:?} in round {n}", round.then));
        }
    }));
    played.err().map(|panic| (at, said(&*panic)))
}

/// Leaves out rounds, clients and halves of what they do for as long as what is left still fails.
fn shrink(dir: &Path, does: Does, mut course: Vec<Round>, (last, mut what): (usize, String)) -> (Vec<Round>, String) {
    let until = Instant::now() + Duration::from_secs(120);
    course.truncate(last + 1);
    let mut attempt = |course: &mut Vec<Round>, fewer: Vec<Round>| {
        let failed = if Instant::now() < until { play(dir, does, &fewer) } else { None };
        failed
            .inspect(|(_, said)| {
                what.clone_from(said);
                *course = fewer;
            })
            .is_some()
    };
    for n in (0..course.len().saturating_sub(1)).rev() {
        let mut fewer = course.clone();
        fewer.remove(n);
        attempt(&mut course, fewer);
    }
    for n in 0..course.len() {
        for (f, c) in (0..FORKS).flat_map(|f| (0..CLIENTS).map(move |c| (f, c))) {
            let mut chunk = course[n].work[f][c].len();
            while chunk > 0 {
                let mut at = 0;
                while at < course[n].work[f][c].len() {
                    let mut fewer = course.clone();
                    let acts = &mut fewer[n].work[f][c];
                    acts.drain(at..(at + chunk).min(acts.len()));
                    if !attempt(&mut course, fewer) {
                        at += chunk;
                    }
                }
                chunk /= 2;
            }
        }
    }
    (course, what)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn run(fs: Fs, seed: u64) {
    let seed = number("TREEFORK_SEED").unwrap_or(seed);
    let rounds = number("TREEFORK_ROUNDS").map_or(12, |n| usize::try_from(n).expect("small"));
    let image = Image::new(fs, 200);
    let course = course(&mut Rng::new(seed), rounds);
    if let Some(failure) = play(&image.path(), carry_out, &course) {
        let (course, what) = shrink(&image.path(), carry_out, course, failure);
        panic!("{} seed {seed}: {what}\n{course:#?}", fs.name());
    }
}

#[test]
fn clients_of_two_forks_agree_with_the_model_on_ext4() {
    run(Fs::Ext4, 21);
}

#[test]
fn clients_of_two_forks_agree_with_the_model_on_btrfs() {
    run(Fs::Btrfs, 22);
}

/// The reference is right about the kernel: one client after the other on a plain directory.
#[test]
fn the_model_agrees_with_a_plain_directory() {
    let tree = crate::common::TempTree::new();
    let mut model = Tree::default();
    let mut rng = Rng::new(5);
    std::fs::create_dir(tree.join("home")).expect("room");
    model.apply(&Act::Mkdir("home".into())).expect("free");
    for n in 0..5_000 {
        let act = act(&mut rng, "home");
        assert_eq!(model.apply(&act), carry_out(tree.path(), &act), "{n}: {act:?}");
    }
    assert!(Tree::at(tree.path()).part(|path| path.starts_with("home")) == model.part(|path| path.starts_with("home")));
}

#[test]
fn a_flaw_is_found_and_shrinks_to_what_shows_it() {
    /// Directories cannot be renamed.
    fn flawed(root: &Path, act: &Act) -> Answer {
        match act {
            Act::Rename(from, to) if root.join(from).is_dir() && !root.join(to).exists() => Ok(Vec::new()),
            act => carry_out(root, act),
        }
    }
    let image = Image::ext4(200);
    let course = course(&mut Rng::new(3), 2);
    let failure = play(&image.path(), flawed, &course).expect("some directory is renamed");
    let (course, what) = shrink(&image.path(), flawed, course, failure);
    let acts: Vec<&Act> = course.iter().flat_map(|round| round.work.iter().flatten().flatten()).collect();
    assert!(course.len() == 1 && acts.len() <= 3, "{what}: {acts:?}");
}
