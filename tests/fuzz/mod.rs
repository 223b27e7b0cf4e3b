//! The [`targets`] of `fuzz/`, run as tests: over the kept seeds, and over inputs derived from them.
//!
//! `seeds/TARGET` has small inputs that get far, and every one that once broke something. What is derived depends on
//! nothing but a number, which a failure prints with the input; `TREEFORK_FUZZ_SEED` gives another one, and
//! `TREEFORK_FUZZ_INPUTS` how many are tried.

mod targets;

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Treefork;
use crate::semantics::rng::Rng;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seeds of a target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory of ours").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of ours")).collect()
}

/// Says which input it was when a target fails.
struct Trying<'a> {
    target: &'a str,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("treefork-fuzz-{}", self.target));
            let kept = fs::write(&path, self.input).map_or_else(|e| e.to_string(), |()| path.display().to_string());
            eprintln!(
                "{} failed at seed {}; the input: {kept}\n{:?}",
                self.target,
                self.seed,
                self.input.escape_ascii().to_string()
            );
        }
    }
}

/// Runs a target over its seeds and over `inputs` more.
fn try_all(target: &str, inputs: u64, run: impl Fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for input in &seeds {
        let _trying = Trying { target, seed: 0, input };
        run(input);
    }
    let first = number("TREEFORK_FUZZ_SEED", 1);
    for seed in first..first + number("TREEFORK_FUZZ_INPUTS", inputs) {
        let input = derive(&seeds, &mut Rng::new(seed));
        let _trying = Trying { target, seed, input: &input };
        run(&input);
    }
}

/// Numbers at which something overflows.
const NUMBERS: [&str; 9] =
    ["0", "1", "-1", "4294967295", "4294967296", "9223372036854775807", "18446744073709551615", "1e400", "4097"];
/// Bytes at which something ends, begins or leads out.
const BYTES: &[u8] = b"\0\n\"\\/.-0{}[],: \xff\x7f\x80";

/// An input made from the seeds.
fn derive(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let some = |rng: &mut Rng| &seeds[rng.below(seeds.len() as u64) as usize];
    let mut input = some(rng).clone();
    for _ in 0..=rng.below(6) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        let end = (at + rng.below(16) as usize).min(input.len());
        match rng.below(9) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => input.insert(at, rng.next() as u8),
            3 => input.insert(at, rng.pick(BYTES)),
            4 if at < input.len() => input[at] = rng.next() as u8,
            5 if at < input.len() => input[at] ^= 1 << rng.below(8),
            6 => {
                let again = input[at..end].to_vec();
                drop(input.splice(at..at, again));
            }
            7 => {
                let other = some(rng);
                let from = rng.below(other.len() as u64 + 1) as usize;
                input.truncate(at);
                input.extend(&other[from..]);
            }
            _ => other_number(&mut input, at, rng.pick(&NUMBERS)),
        }
    }
    input.truncate(16 << 10);
    input
}

/// Puts a number in the place of the next one.
fn other_number(input: &mut Vec<u8>, from: usize, number: &str) {
    let Some(start) = (from..input.len()).find(|&at| input[at].is_ascii_digit()) else { return };
    let end = (start..input.len()).find(|&at| !input[at].is_ascii_digit()).unwrap_or(input.len());
    drop(input.splice(start..end, number.bytes()));
}

#[test]
fn records_of_forks() {
    try_all("record", 1500, targets::records::record);
}

#[test]
fn logs_and_lines() {
    try_all("log", 800, targets::records::log);
    try_all("ledger", 1500, targets::records::ledger);
    try_all("lines", 800, targets::records::lines);
}

#[test]
fn settings_of_bases() {
    try_all("settings", 2000, targets::records::settings);
}

#[test]
fn journals_of_merges() {
    try_all("journal", 400, targets::records::journal);
}

#[test]
fn marks_of_uppers() {
    try_all("mark", 2500, targets::marks::mark);
}

#[test]
fn merges_of_text() {
    try_all("text", 3000, targets::text::texts);
    try_all("edits", 3000, targets::text::edits);
}

#[test]
fn git_directories() {
    try_all("parts", 600, targets::repository::parts);
    try_all("config", 20, targets::repository::config);
}

#[test]
fn uppers_made_by_a_hostile_hand() {
    try_all("upper", 600, targets::upper::program);
}

#[test]
fn answers_of_servers() {
    try_all("answer", 400, targets::protocol::answer);
}

/// After all of it the server is the same, and goes on serving the fork.
#[test]
fn requests_to_a_server() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    fs::write(base.join("file"), "text").expect("ours");
    let fork = treefork.create(&base, "fork");
    let server = treefork.server();
    try_all("request", 800, |data| targets::protocol::request(treefork.store(), data));
    assert!(server.is_some() && treefork.server() == server, "another server");
    assert_eq!(fs::read(fork.join("file")).expect("still served"), b"text");
    treefork.ok(["remove", "fork"]);
}
