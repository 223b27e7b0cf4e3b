//! Directories and open files beyond what anybody needs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Run, Treefork, eventually};

fn base(script: &str) -> (Treefork, std::path::PathBuf) {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, script);
    (treefork, base)
}

/// As many entries as `TREEFORK_ENTRIES` says.
#[test]
fn a_huge_directory_is_listed_walked_and_removed() {
    let entries = std::env::var("TREEFORK_ENTRIES").map_or(10_000, |text| text.parse().expect("a number"));
    let (treefork, base) = base(&format!("mkdir d; cd d; seq {entries} | xargs touch"));
    let fork = treefork.create(&base, "fork");
    let count = |dir: &Path, script: &str| treefork.env().sh(dir, script);
    let numbers = count(&fork, "ls -U d | wc -l; find d -type f -size 0 | wc -l");
    assert_eq!(numbers, format!("{entries}\n{entries}"));
    count(&fork, "cd d; seq -f new%.0f 2000 | xargs touch; seq 1000 | xargs rm");
    assert_eq!(count(&fork, "ls -U d | sort -u | wc -l"), (entries + 1000).to_string());
    count(&fork, "rm -r d; mkdir d");
    assert_eq!(count(&fork, "ls -A d; ls -A"), "d");
    treefork.restart("fork");
    assert_eq!(count(&fork, "ls -A d; ls -A"), "d");
    treefork.ok(["remove", "--force", "fork"]);
    assert_eq!(count(&base, "ls -U d | wc -l"), entries.to_string());
}

/// Opens files, in every way, by as many processes as that takes, and works through them all. Prints how many they are,
/// and what the server holds meanwhile.
const OPEN: &str = r#"
import os, resource, sys
server, most = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
each = min(most, hard - 100)
done, go = os.pipe(), os.pipe()
for child in range((most + each - 1) // each):
    if os.fork() == 0:
        os.close(go[1])
        files = [os.open(f"d/{n % 2000}" if n % 100 else f"new{n}", os.O_RDWR | os.O_CREAT) for n in range(each)]
        for n, file in enumerate(files):
            if n % 7 == child % 7:
                os.pwrite(file, b"%d" % (n % 2000), 0)
            os.fsync(file) if n % 997 == 0 else os.fstat(file)
        os.write(done[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    assert os.read(done[0], 1) == b"."
print(each * (child + 1), len(os.listdir(f"/proc/{server}/fd")))
os.close(go[1])
"#;

/// A server with few descriptors: it gets the limit from the command that starts it. And a fork.
fn with_few_descriptors(treefork: &Treefork) -> (PathBuf, String) {
    let create = format!("ulimit -n 1024; exec {} create base --label fork", crate::common::cli::BINARY);
    let fork = treefork.env().command("bash").args(["-c", &create]).ok().text();
    let server = treefork.server().expect("it runs").as_raw_nonzero();
    (PathBuf::from(fork), server.to_string())
}

#[test]
fn a_hundred_thousand_open_files_cost_the_server_no_descriptors() {
    let (treefork, base) = base("mkdir d; for n in $(seq 0 1999); do echo $n > d/$n; done");
    let (fork, server) = with_few_descriptors(&treefork);
    let opened = treefork.env().command_in(&fork, "python3").args(["-c", OPEN, &server, "100000"]).ok().text();
    let numbers: Vec<usize> = opened.split(' ').map(|number| number.parse().expect("a number")).collect();
    assert!(numbers[0] >= 100_000 && numbers[1] < 1000, "open files, descriptors of the server: {opened}");
    assert_eq!(fs::read(base.join("d/1999")).expect("there"), b"1999\n");
    treefork.env().sh(&fork, "cat d/* > /dev/null; echo x > y");
}

/// Files and directories that have no name any more, all in use: `base` of the base, as many new ones, and directories.
const NAMELESS: &str = r#"
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
most = min(1000, (hard - 100) // 3)
files, dirs = [], []
for n in range(most):
    files.append(os.open(f"new{n}", os.O_RDWR | os.O_CREAT))
    os.pwrite(files[-1], b"new", 0)
    os.unlink(f"new{n}")
    files.append(os.open(f"d/{n}", os.O_RDWR))
    os.unlink(f"d/{n}")
    os.pwrite(files[-1], b"%d" % n, 0)
    os.mkdir(f"dir{n}")
    dirs.append(os.open(f"dir{n}", os.O_RDONLY))
    os.rmdir(f"dir{n}")
for n, file in enumerate(files):
    os.pwrite(file, b"more", 5)
    os.fchmod(file, 0o640)
    kept = os.fstat(file)
    assert (kept.st_nlink, kept.st_size, kept.st_mode & 0o777) == (0, 9, 0o640), kept
    want = (b"%d" % (n // 2)).ljust(5, b"\0") if n % 2 else b"new\0\0"
    got = os.pread(file, 100, 0)
    assert got[:2] == want[:2] and got[5:] == b"more", (n, got)
for dir in dirs:
    assert os.fstat(dir).st_nlink == 0 and os.listdir(dir) == []
assert len(set(os.fstat(it).st_ino for it in files + dirs)) == 3 * most
print(3 * most, flush=True)
sys.stdin.read()
"#;

#[test]
fn what_has_no_name_and_is_in_use_stops_nobody() {
    let (treefork, base) = base("mkdir d e; seq -f d/%.0f 0 999 | xargs touch; echo text > file");
    let (fork, server) = with_few_descriptors(&treefork);
    let other = treefork.create(&base, "other");
    let mut child = treefork.env().command_in(&fork, "python3");
    let mut child = child.args(["-c", NAMELESS]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said).expect("it says so");
    let works = "cat file; echo x > new; mv new e; ls e; mkdir g; rmdir g; rm e/new; rm -r e d; ls -A";
    let held = fs::read_dir(format!("/proc/{server}/fd")).expect("it runs").count();
    assert!(said.trim().parse::<usize>().expect("a number") > 900 && held < 1000, "{said} without a name, {held}");
    for dir in [&other, &fork] {
        assert_eq!(treefork.env().sh(dir, works), "text\nnew\nfile");
    }
    treefork.create(&base, "one-more");
    drop(child.stdin.take());
    assert!(child.wait().expect("ours").success());
    let aside = fork.parent().expect("a fork's directory").join("work/tmp");
    eventually("all of it is gone", || fs::read_dir(&aside).expect("there").count() == 1);
    assert_eq!(treefork.server().expect("the same").as_raw_nonzero().to_string(), server);
    assert_eq!(treefork.env().sh(&base, "find d -type f -size 0 | wc -l"), "1000");
}
