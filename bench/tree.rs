//! The repository that is forked: the same in every run.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use super::place::Place;

/// Files in one directory.
const PER_DIRECTORY: usize = 50;

/// Makes a repository of this many tracked files, a few KiB each, and a hundredth as many ignored ones.
pub(crate) fn repository(place: &Place, path: &Path, files: usize) {
    std::fs::create_dir_all(path).expect("make the base");
    place.git(path, &["init", "-q", "-b", "main"]);
    let mut import = place.command("git");
    import.args(["fast-import", "--quiet"]).current_dir(path).stdin(Stdio::piped());
    let mut child = import.spawn().expect("git is installed");
    child.stdin.take().expect("piped").write_all(stream(files).as_bytes()).expect("fast-import reads");
    assert!(child.wait().expect("our own child").success(), "fast-import");
    place.git(path, &["reset", "-q", "--hard", "main"]);
    std::fs::create_dir(path.join("build")).expect("mkdir");
    for i in 0..files / 100 {
        std::fs::write(path.join(format!("build/o{i}")), [0; 4096]).expect("write");
    }
    // Older than the index, so that git has no reason to read a file again.
    place.sh(path, "git ls-files -z | xargs -0 touch -d '2024-01-01'; git status > /dev/null; sync -f .");
}

/// The path of the `i`-th file.
pub(crate) fn file(i: usize) -> String {
    format!("src/a{}/b{}/f{i}.c", i / (PER_DIRECTORY * PER_DIRECTORY), i / PER_DIRECTORY)
}

fn stream(files: usize) -> String {
    let mut stream = String::new();
    let ignore = "build/\n";
    write!(stream, "blob\nmark :1\ndata {}\n{ignore}\n", ignore.len()).expect("a string grows");
    for i in 0..files {
        let content = format!("int function_{i}(int x) {{ return x + {i}; }}\n").repeat(10 + i % 100);
        write!(stream, "blob\nmark :{}\ndata {}\n{content}\n", i + 2, content.len()).expect("a string grows");
    }
    let who = "Bench <bench@example.org> 1700000000 +0000";
    write!(stream, "commit refs/heads/main\nauthor {who}\ncommitter {who}\ndata 5\nfiles\nM 100644 :1 .gitignore\n")
        .expect("a string grows");
    for i in 0..files {
        writeln!(stream, "M 100644 :{} {}", i + 2, file(i)).expect("a string grows");
    }
    stream
}
