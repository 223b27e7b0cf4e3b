//! What is shipped is complete: the crate as cargo packs it, and what a Debian package holds.

use std::path::Path;

use super::{read, sources};
use crate::common::cli::BINARY;
use crate::common::{Env, Run};

#[test]
fn the_crate_holds_what_it_takes_to_build_test_and_read_it() {
    let env = Env::new();
    let mut list = env.command_in(sources(), env!("CARGO"));
    let done = list.args(["package", "--list", "--allow-dirty", "--offline"]).ok().text();
    let packed: Vec<&str> = done.lines().collect();
    for name in [
        "src/main.rs",
        "tests/main.rs",
        "bench/main.rs",
        "examples/tour.sh",
        "docs/semantics.md",
        "packaging/treefork.service",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    ] {
        assert!(packed.contains(&name), "{name} is not in the crate");
    }
    assert!(!packed.iter().any(|name| name.starts_with("target/") || name.starts_with(".ci/")), "{packed:?}");
}

#[test]
fn the_debian_package_finds_its_files() {
    let env = Env::new();
    let generated = env.dir("generated");
    let mut generate = env.command_in(sources(), "sh");
    generate.arg("packaging/generate.sh").arg(&generated).env("TREEFORK", BINARY).ok();
    let manifest = read(&sources().join("Cargo.toml"));
    let assets = manifest.split("assets = [").nth(1).expect("the manifest describes a package");
    let first = |line: &str| line.trim().strip_prefix("[\"")?.split('"').next().map(str::to_owned);
    let assets: Vec<String> = assets.lines().filter_map(first).collect();
    assert!(assets.len() > 5, "{assets:?}");
    for asset in assets {
        let path = match asset.strip_prefix("target/packaging/") {
            Some(made) => generated.join(made),
            None if asset == "target/release/treefork" => continue,
            None => sources().join(&asset),
        };
        let found = match path.file_name().and_then(|name| name.to_str()).expect("plain").strip_prefix('*') {
            Some(ending) => has_ending(path.parent().expect("below"), ending),
            // A link that leads to the program once both are installed.
            None => path.symlink_metadata().is_ok(),
        };
        assert!(found, "there is no {}", path.display());
    }
}

fn has_ending(dir: &Path, ending: &str) -> bool {
    let entries = dir.read_dir().unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(ending))
}
