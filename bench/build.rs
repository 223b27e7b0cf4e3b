//! Builds: many small processes that read much and write a little.

use std::path::{Path, PathBuf};

use super::place::{Place, run};
use super::report::ms;
use super::subject::Subject;
use super::workload::{Measured, in_fork, shell, timed};

pub(crate) fn make(place: &Place, subject: &dyn Subject) -> Measured {
    let base = place.path("bases/c");
    let sources = if place.smoke { 20 } else { 100 };
    if !base.exists() {
        std::fs::create_dir(&base).expect("mkdir");
        for i in 0..sources {
            let code = format!(
                "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f{i}(int x) {{ return printf(\"%d\\n\", x * {i}); }}\n"
            );
            std::fs::write(base.join(format!("f{i}.c")), code).expect("write");
        }
        let main = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n";
        std::fs::write(base.join("Makefile"), main).expect("write");
        commit(place, &base);
    }
    in_fork(place, subject, &base, |fork| {
        let all = timed(place, || shell(place, fork, "make -s -j2"));
        let nothing = timed(place, || shell(place, fork, "make -s -j2"));
        vec![ms("make -j2", all), ms("make, nothing to do", nothing)]
    })
}

/// A workspace of several crates, none of which needs anything from elsewhere.
pub(crate) fn cargo(place: &Place, subject: &dyn Subject) -> Measured {
    let base = place.path("bases/rust");
    if !base.exists() {
        let crates = if place.smoke { 4 } else { 20 };
        for i in 0..crates {
            let dir = base.join(format!("crates/c{i}"));
            std::fs::create_dir_all(dir.join("src")).expect("mkdir");
            let manifest = format!("[package]\nname = \"c{i}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
            std::fs::write(dir.join("Cargo.toml"), manifest).expect("write");
            let function = |n| {
                format!("pub fn f{n}(words: &[String]) -> String {{ words.iter().map(|w| w.repeat({n})).collect() }}\n")
            };
            std::fs::write(dir.join("src/lib.rs"), (0..30).map(function).collect::<String>()).expect("write");
        }
        let workspace = "[workspace]\nmembers = [\"crates/*\"]\nresolver = \"2\"\n";
        std::fs::write(base.join("Cargo.toml"), workspace).expect("write");
        std::fs::write(base.join(".gitignore"), "target\n").expect("write");
        commit(place, &base);
    }
    in_fork(place, subject, &base, |fork| {
        // The tools of this build, by their paths: the home directory, which tells others where to look, is another here.
        let tool = PathBuf::from(env!("CARGO"));
        let build = || {
            let mut cargo = place.command(&tool);
            cargo.args(["build", "--offline", "--quiet", "--jobs", "2"]).current_dir(&fork.path);
            cargo.env("RUSTC", tool.with_file_name("rustc")).env_remove("CARGO_TARGET_DIR");
            run(&mut cargo);
        };
        let all = timed(place, build);
        let nothing = timed(place, build);
        vec![ms("cargo build", all), ms("cargo build, nothing to do", nothing)]
    })
}

fn commit(place: &Place, base: &Path) {
    place.git(base, &["init", "-q", "-b", "main"]);
    place.git(base, &["add", "-A"]);
    place.git(base, &["commit", "-qm", "sources"]);
}
