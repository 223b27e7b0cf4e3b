//! What isolation costs, beside `bwrap`, which does the same kind of work and makes no fork. Not asserted: times are for
//! reading, and only when somebody asks: `cargo test --release --test main -- --ignored overhead --nocapture`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Site, Who};
use crate::common::Run;

const ROUNDS: usize = 50;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement, not a test"]
fn overhead_of_a_run() {
    let site = Site::new(Who::Root);
    site.treefork(["create", "--label", "f"]).ok();
    type Subject<'a> = (&'static str, Box<dyn Fn() -> Command + 'a>);
    let commands: [Subject<'_>; 4] = [
        ("directly", Box::new(|| site.command("true"))),
        (
            "bwrap",
            Box::new(|| {
                let mut command = site.command("bwrap");
                command.args([
                    "--bind",
                    "/",
                    "/",
                    "--dev-bind",
                    "/dev",
                    "/dev",
                    "--unshare-pid",
                    "--proc",
                    "/proc",
                    "true",
                ]);
                command
            }),
        ),
        ("exec", Box::new(|| site.treefork(["exec", "f", "--", "true"]))),
        ("run", Box::new(|| site.treefork(["run", "--", "true"]))),
    ];
    let mut times = vec![vec![]; commands.len()];
    for _ in 0..ROUNDS {
        // One after the other in each round, so that a busy moment hits all alike.
        for (times, (name, command)) in times.iter_mut().zip(&commands) {
            let mut command = command();
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let begin = Instant::now();
            match command.status() {
                Ok(status) => assert!(status.success(), "{name}"),
                Err(e) => eprintln!("LEFT OUT: {name}: {e}"),
            }
            times.push(begin.elapsed());
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(median).collect();
    for ((name, _), time) in commands.iter().zip(&medians) {
        let over = time.saturating_sub(medians[0]);
        let ratio = time.as_secs_f64() / medians[1].as_secs_f64();
        println!("{name:9} {time:?}, {over:?} over running directly, {ratio:.2} times bwrap");
    }
}
