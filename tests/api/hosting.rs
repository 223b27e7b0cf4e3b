//! Serving mounts in the host's own process, on request.

use std::path::PathBuf;
use std::process::Command;

use treefork::api::host;
use treefork::server::Client;

use crate::common::cli::BINARY;
use crate::common::{Run, Treefork};

/// Names the store for the process that this test starts: serving changes the process it happens in.
const STORE: &str = "TREEFORK_TEST_HOSTED_STORE";
const BASE: &str = "TREEFORK_TEST_HOSTED_BASE";

#[test]
fn a_host_may_serve_in_its_own_process() {
    if let (Some(store), Some(base)) = (std::env::var_os(STORE), std::env::var_os(BASE)) {
        serve(store.into(), base.into());
        return;
    }
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    std::fs::write(base.join("file"), "text\n").expect("ours");
    let program = std::env::current_exe().expect("a running program has a path");
    let mut host = treefork.env().command(program);
    host.args(["--exact", "api::hosting::a_host_may_serve_in_its_own_process"]);
    let done = host.env(STORE, treefork.env().store()).env(BASE, &base).ok();
    assert!(done.text().contains("1 passed"), "{}", done.text());
    // What was written there is there for the next server.
    assert_eq!(treefork.ok(["exec", "x", "--", "cat", "file"]).text(), "changed");
}

/// Whatever touches the fork is another process.
fn serve(store: PathBuf, base: PathBuf) {
    let served = host::serve_in_process(&store).expect("nobody else serves it");
    let pong = Client::new(&store).ping().expect("it answers").expect("it runs");
    assert_eq!(pong.pid, std::process::id());
    let fork = Command::new(BINARY).arg("create").arg(&base).args(["--label", "x"]).ok().text();
    let script = "[ \"$(cat \"$0/file\")\" = text ] && echo changed > \"$0/file\" && cat \"$0/file\"";
    assert_eq!(Command::new("sh").args(["-c", script, &fork]).ok().text(), "changed");
    served.end().expect("it ends well");
    assert!(Client::new(&store).ping().expect("no matter").is_none());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("every process can");
    assert!(!mounts.contains(&fork), "{mounts}");
}
