//! Medians, their spread, and what they come to against the plain directory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::chart::{self, Group};
use super::cli::Plan;
use super::workload::FLAT;

/// `create` may not take longer by this factor on the largest tree than on the smallest.
const FLAT_LIMIT: f64 = 1.5;

/// One number that was measured.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    step: String,
    unit: &'static str,
    value: f64,
}

/// A time.
pub(crate) fn ms(step: impl Into<String>, took: Duration) -> Metric {
    Metric { step: step.into(), unit: "ms", value: took.as_secs_f64() * 1e3 }
}

/// An amount of memory or disk.
pub(crate) fn kib(step: impl Into<String>, kib: impl TryInto<u32>) -> Metric {
    let value = kib.try_into().map_or(f64::INFINITY, f64::from);
    Metric { step: step.into(), unit: "KiB", value }
}

/// A number of things.
pub(crate) fn count(step: impl Into<String>, things: f64) -> Metric {
    Metric { step: step.into(), unit: "", value: things }
}

/// The samples of one step of one subject.
#[derive(Clone, Debug)]
struct Samples {
    unit: &'static str,
    values: Vec<f64>,
}

impl Samples {
    fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
    }
}

/// Everything that was measured, in the order in which it came.
pub(crate) struct Report {
    steps: Vec<(String, String)>,
    subjects: Vec<String>,
    /// By workload, step and subject.
    samples: BTreeMap<(String, String, String), Samples>,
    about: Value,
}

impl Report {
    pub(crate) fn new(plan: &Plan) -> Self {
        let said = |program: &str, arguments: &[&str]| {
            let output = std::process::Command::new(program).args(arguments).output();
            output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
        };
        let about = json!({
            "kernel": said("uname", &["-r"]),
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "git": said("git", &["--version"]),
            "files": plan.files,
            "forks": plan.forks,
            "smoke": plan.smoke,
        });
        Self { steps: vec![], subjects: vec![], samples: BTreeMap::new(), about }
    }

    pub(crate) fn add(&mut self, workload: &str, subject: &str, metrics: Vec<Metric>) {
        if !self.subjects.iter().any(|s| s == subject) {
            self.subjects.push(subject.to_owned());
        }
        for Metric { step, unit, value } in metrics {
            let place = (workload.to_owned(), step.clone());
            if !self.steps.contains(&place) {
                self.steps.push(place);
            }
            let key = (workload.to_owned(), step, subject.to_owned());
            self.samples.entry(key).or_insert(Samples { unit, values: vec![] }).values.push(value);
        }
    }

    fn of(&self, step: &(String, String), subject: &str) -> Option<&Samples> {
        self.samples.get(&(step.0.clone(), step.1.clone(), subject.to_owned()))
    }

    /// The median against that of the plain directory.
    fn ratio(&self, step: &(String, String), samples: &Samples) -> Option<f64> {
        let plain = self.of(step, "plain")?.median();
        (plain > 0.0).then(|| samples.median() / plain)
    }

    /// Says on standard error what a workload came to.
    pub(crate) fn print_progress(&self, workload: &str) {
        for step in self.steps.iter().filter(|step| step.0 == workload) {
            let cells =
                self.subjects.iter().filter_map(|s| Some(format!("{s} {}", self.cell(step, self.of(step, s)?))));
            eprintln!("{}: {}", step.1, cells.collect::<Vec<_>>().join(" | "));
        }
    }

    fn cell(&self, step: &(String, String), samples: &Samples) -> String {
        let median = samples.median();
        let digits = if median < 10.0 { 1 } else { 0 };
        let value = format!("{median:.digits$} {}", samples.unit).trim_end().to_owned();
        self.ratio(step, samples).map_or(value.clone(), |ratio| format!("{value} ({ratio:.2}x)"))
    }

    /// Whether making a fork takes as long whatever the size of the tree; true where that was not measured.
    pub(crate) fn flat_create(&self) -> bool {
        let of = |files| {
            let step = ("flat create".to_owned(), format!("create from {files} files"));
            self.of(&step, "treefork").map(Samples::median)
        };
        let (Some(small), Some(large)) = (of(FLAT[0]), of(FLAT[1])) else { return true };
        let ratio = large / small;
        eprintln!("create from {} files against {} files: {ratio:.2}x (limit {FLAT_LIMIT}x)", FLAT[1], FLAT[0]);
        ratio < FLAT_LIMIT
    }

    /// Writes the table to standard output or its file, and JSON and chart to theirs.
    pub(crate) fn write(&self, plan: &Plan) {
        let table = self.markdown();
        match &plan.markdown {
            Some(file) => std::fs::write(file, table).expect("write the table"),
            None => println!("{table}"),
        }
        if let Some(file) = &plan.chart {
            std::fs::write(file, chart::svg(&self.groups())).expect("write the chart");
        }
        if let Some(file) = &plan.json {
            let text = serde_json::to_string_pretty(&self.json()).expect("numbers and words");
            std::fs::write(file, text + "\n").expect("write the JSON");
        }
    }

    /// The steps that say most in one picture.
    fn groups(&self) -> Vec<Group> {
        let shown = [
            "create and read",
            "git status, first",
            "git status, third",
            "remove",
            "first 4 KiB into",
            "4 agents at once",
            "32 agents at once",
        ];
        // A name with a size at its end goes on.
        let shows = |step: &&(String, String)| {
            shown.iter().any(|name| step.1 == *name || name.ends_with("into") && step.1.starts_with(name))
        };
        let steps = self.steps.iter().filter(shows);
        let bars = |step: &(String, String)| {
            let bar = |subject: &String| Some((subject.clone(), self.of(step, subject)?.median()));
            self.subjects.iter().filter_map(bar).collect()
        };
        steps.map(|step| Group { name: step.1.clone(), bars: bars(step) }).collect()
    }

    fn markdown(&self) -> String {
        let mut table = format!("| | {} |\n|---|{}\n", self.subjects.join(" | "), "---:|".repeat(self.subjects.len()));
        for step in &self.steps {
            let cell = |subject: &String| self.of(step, subject).map_or("-".to_owned(), |s| self.cell(step, s));
            let cells: Vec<_> = self.subjects.iter().map(cell).collect();
            writeln!(table, "| {} | {} |", step.1, cells.join(" | ")).expect("a string grows");
        }
        table
    }

    fn json(&self) -> Value {
        let results = self.steps.iter().flat_map(|step| {
            self.subjects.iter().filter_map(move |subject| {
                let samples = self.of(step, subject)?;
                Some(json!({
                    "workload": step.0, "step": step.1, "subject": subject, "unit": samples.unit,
                    "median": samples.median(), "ratio_to_plain": self.ratio(step, samples), "samples": samples.values,
                }))
            })
        });
        json!({ "version": 1, "about": self.about, "results": results.collect::<Vec<_>>() })
    }
}
