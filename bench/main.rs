//! Forks measured against every other way to get one: `cargo bench`, or `cargo bench -- --smoke`.
//!
//! Every subject does every workload on one image with a journaled file system (a loop mount, so it takes root), taking turns within
//! each round, since machines are noisy and get slower and faster over minutes. What counts is the median, and its ratio
//! to the plain directory in the same run. The report is JSON and a table in markdown; losses stand beside wins.

mod build;
mod chart;
mod churn;
mod cli;
mod fanout;
mod merge;
mod place;
mod report;
mod server;
mod subject;
mod tree;
mod workload;

use std::process::ExitCode;

use cli::Plan;
use place::Place;
use report::Report;

fn main() -> ExitCode {
    let plan = match Plan::from_arguments(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    let place = Place::new(&plan);
    let mut report = Report::new(&plan);
    for workload in workload::all(&plan) {
        let subjects: Vec<_> = subject::all(&place).into_iter().filter(|s| plan.wants(s.name())).collect();
        for round in 0..workload.rounds(&plan) {
            for turn in 0..subjects.len() {
                // Another one begins each time: who goes first finds other caches than who goes last.
                let subject = &subjects[(turn + round) % subjects.len()];
                if workload.suits(subject.as_ref()) {
                    let metrics = workload.measure(&place, subject.as_ref());
                    report.add(workload.name(), subject.name(), metrics);
                    // The next finds as much room as this one.
                    place.settle();
                }
            }
        }
        report.print_progress(workload.name());
    }
    drop(place);
    report.write(&plan);
    if report.flat_create() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
