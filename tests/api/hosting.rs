//! Which program serves the mounts: the host's own, another one, or the host's own process on request.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use treefork::api::{CancelToken, Environment, EnvironmentForker, Forker, host};
use treefork::server::Client;

use crate::common::cli::BINARY;
use crate::common::{Env, Run, Treefork};

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

/// The file that the server of a store runs.
fn server_program(treefork: &Treefork) -> PathBuf {
    let pid = treefork.server().expect("a server runs").as_raw_nonzero();
    fs::read_link(format!("/proc/{pid}/exe")).expect("the server is ours")
}

#[test]
fn one_program_is_enough_for_a_host() {
    // The host of the example has the hook in its `main`. Alone in its directory and with no treefork in the path, it
    // starts itself.
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    fs::write(base.join("file"), "text\n").expect("ours");
    let built = PathBuf::from(BINARY).with_file_name("examples").join("fanout");
    env.sh(&base, &format!("mkdir ../alone; cp '{}' ../alone/harness", built.display()));
    let program = env.join("alone/harness");
    let mut host = env.command(&program);
    host.env("PATH", "/usr/bin:/bin").arg(&base).args(["2", "sh", "-c", "grep -q text file && echo $HELPER > by"]);
    let done = host.ok();
    assert!(done.text().ends_with("is merged"), "{}", done.text());
    assert_eq!(server_program(&treefork), program);
}

#[test]
fn the_command_line_may_have_any_name() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    fs::write(base.join("file"), "text\n").expect("ours");
    env.sh(&base, &format!("mkdir ../bin; cp '{BINARY}' ../bin/tf"));
    let program = env.join("bin/tf");
    let tf = |args: &[&str]| env.command(&program).env("PATH", "/usr/bin:/bin").args(args).ok().text();
    let fork = tf(&["create", base.to_str().expect("plain"), "--label", "x"]);
    assert_eq!(fs::read(format!("{fork}/file")).expect("served"), b"text\n");
    assert_eq!(server_program(&treefork), program);
    // People find it under the name that they know.
    let pid = treefork.server().expect("it runs").as_raw_nonzero();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).expect("ours"), "treefork\n");
    // Also when its file has gone meanwhile, as with an upgrade.
    treefork.kill_server();
    fs::remove_file(&program).expect("ours");
    assert_eq!(treefork.ok(["exec", "x", "--", "cat", "file"]).text(), "text");
    treefork.ok(["remove", "x"]);
}

#[test]
fn a_host_without_a_server_is_told_what_to_do() {
    if let Some(base) = std::env::var_os(BASE) {
        let forker = Forker::builder().force_copy().build().expect("a place");
        let error = forker.fork(&Environment::at(base), "x", &CancelToken::new()).expect_err("no server");
        assert!(error.to_string().contains("/nonexistent/treefork"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("serve_if_asked")), "{:?}", error.hint());
        return;
    }
    let env = Env::new();
    let mut host = env.command(std::env::current_exe().expect("a running program has a path"));
    host.args(["--exact", "api::hosting::a_host_without_a_server_is_told_what_to_do"]);
    let done = host.env("TREEFORK_BIN", "/nonexistent/treefork").env(BASE, env.dir("base")).ok();
    assert!(done.text().contains("1 passed"), "{}", done.text());
    assert_eq!(fs::read_dir(env.store().join("forks")).expect("made").count(), 0);
}
