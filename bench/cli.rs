//! What to measure, as the arguments say.

use std::path::PathBuf;

const USAGE: &str =
    "usage: cargo bench -- [--smoke] [--files N] [--forks N] [--rounds N] [--dir DIR] [--file-system ext4|xfs|btrfs] [--json FILE] [--markdown FILE] [--chart FILE]
                      [--subjects A,B] [--workloads A,B]";

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Small enough for every commit: two minutes.
    pub(crate) smoke: bool,
    /// Files in the repository that is forked.
    pub(crate) files: usize,
    /// Forks that live at the same time, where there are to be many.
    pub(crate) forks: usize,
    /// Turns of each subject at each workload; `None` for what suits the workload.
    pub(crate) rounds: Option<usize>,
    /// Where the image lies.
    pub(crate) dir: PathBuf,
    /// What the image is made as.
    pub(crate) file_system: String,
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
    pub(crate) chart: Option<PathBuf>,
    subjects: Vec<String>,
    workloads: Vec<String>,
}

impl Plan {
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut plan = Self {
            smoke: false,
            files: 0,
            forks: 0,
            rounds: None,
            dir: std::env::temp_dir(),
            file_system: "ext4".to_owned(),
            json: None,
            markdown: None,
            chart: None,
            subjects: vec![],
            workloads: vec![],
        };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| USAGE.to_owned());
            let list = |text: String| text.split(',').map(str::to_owned).collect();
            match argument.as_str() {
                // cargo says so to every benchmark.
                "--bench" => {}
                "--smoke" => plan.smoke = true,
                "--files" => plan.files = value()?.parse().map_err(|_| USAGE.to_owned())?,
                "--forks" => plan.forks = value()?.parse().map_err(|_| USAGE.to_owned())?,
                "--rounds" => plan.rounds = Some(value()?.parse().map_err(|_| USAGE.to_owned())?),
                "--dir" => plan.dir = value()?.into(),
                "--file-system" => plan.file_system = value()?,
                "--json" => plan.json = Some(value()?.into()),
                "--markdown" => plan.markdown = Some(value()?.into()),
                "--chart" => plan.chart = Some(value()?.into()),
                "--subjects" => plan.subjects = list(value()?),
                "--workloads" => plan.workloads = list(value()?),
                _ => return Err(USAGE.to_owned()),
            }
        }
        if !matches!(plan.file_system.as_str(), "ext4" | "xfs" | "btrfs") {
            return Err(USAGE.to_owned());
        }
        if plan.files == 0 {
            plan.files = if plan.smoke { 2_000 } else { 50_000 };
        }
        if plan.forks == 0 {
            plan.forks = if plan.smoke { 100 } else { 1_000 };
        }
        Ok(plan)
    }

    /// Whether this subject takes part. The plain directory always does.
    pub(crate) fn wants(&self, subject: &str) -> bool {
        subject == "plain" || self.subjects.is_empty() || self.subjects.iter().any(|s| s == subject)
    }

    /// Whether this workload is measured.
    pub(crate) fn wants_workload(&self, workload: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|w| w == workload)
    }
}
