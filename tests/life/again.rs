//! Asking again: the same id is the same fork, however often and from how many places it is asked for.

use std::fs;

use treefork::Kind;
use treefork::fork::{Forks, Request, Store};

use super::{assert_nothing_left, json, listed, small_base};
use crate::common::{Run, Treefork};

const ID: &str = "7f3c2b1a-9d4e-4f6a-8b2c-0d1e2f3a4b5c";

#[test]
fn the_same_request_again_answers_with_the_same_fork() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8");
    let create = ["create", base, "--id", ID, "--label", "a", "--agent", "seven"];
    let first = json(&treefork, &create);
    assert_eq!((first["id"].as_str(), first["existed"].as_bool()), (Some(ID), Some(false)));
    fs::write(format!("{}/mine", first["path"].as_str().expect("a path")), "work\n").expect("writable");
    let again = treefork.ok(create);
    assert_eq!(again.text(), first["path"].as_str().expect("a path"));
    assert!(again.complaint().contains("was there already"), "{}", again.complaint());
    // Also where its mount was lost.
    treefork.kill_server();
    let again = json(&treefork, &create);
    assert_eq!(
        (again["existed"].as_bool(), &again["path"], &again["mount"]),
        (Some(true), &first["path"], &"alive".into())
    );
    assert_eq!(fs::read_to_string(format!("{}/mine", again.text_of("path"))).expect("there"), "work\n");
    assert_eq!(listed(&treefork, "forks"), [ID]);
    // Gone, and gone again; then it is made anew.
    assert_eq!(json(&treefork, &["remove", ID])[0]["removed"], true);
    let gone = treefork.ok(["remove", ID, "--json"]);
    assert!(gone.complaint().contains("no fork"), "{}", gone.complaint());
    assert!(gone.text().contains("\"removed\": false"), "{}", gone.text());
    let anew = json(&treefork, &create);
    assert_eq!(anew["existed"], false);
    assert!(!fs::exists(format!("{}/mine", anew.text_of("path"))).expect("readable"));
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

#[test]
fn another_base_or_other_options_are_an_error() {
    let treefork = Treefork::new();
    let (base, other) = (small_base(&treefork, "base"), small_base(&treefork, "other"));
    let (base, other) = (base.to_str().expect("UTF-8"), other.to_str().expect("UTF-8"));
    treefork.ok(["create", base, "--id", ID, "--label", "a"]);
    let different: [(&str, &[&str]); 7] = [
        ("base", &[other, "--label", "a"]),
        ("label", &[base, "--label", "b"]),
        ("label", &[base]),
        ("agent", &[base, "--label", "a", "--agent", "x"]),
        ("strategy", &[base, "--label", "a", "--strategy", "copy"]),
        ("symbolic links", &[base, "--label", "a", "--symlinks", "skip"]),
        ("gc", &[base, "--label", "a", "--keep"]),
    ];
    for (what, args) in different {
        let failed = treefork.fails(1, [&["create", "--json", "--id", ID], args].concat());
        let says = format!("the fork {ID} was made with another ");
        assert!(failed.complaint().contains(&says) && failed.complaint().contains(what), "{}", failed.complaint());
        assert!(failed.text().contains("\"exists\""), "{}", failed.text());
    }
    // One that only looks so is none: the path of the base does not count, the directory does.
    fs::rename(base, format!("{base}.old")).expect("ours");
    small_base(&treefork, "base");
    treefork.fails(1, ["create", base, "--id", ID, "--label", "a"]);
    assert_eq!(listed(&treefork, "forks"), [ID]);
}

#[test]
fn ids_are_checked() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8");
    for bad in ["", "short1", "no-digit-in-it", "../../etc/passwd1", "with space 1", ".hidden-1", "a1\nb234567"] {
        let said = treefork.fails(2, ["create", base, "--id", bad]).complaint();
        assert!(said.contains("no fork id") && said.contains("uuidgen"), "{said}");
    }
    treefork.ok(["create", base, "--label", "label-12"]);
    assert!(treefork.fails(1, ["create", base, "--id", "label-12"]).complaint().contains("is the label of"));
    treefork.ok(["create", base, "--id", "wanted-1"]);
    assert!(treefork.fails(1, ["create", base, "--label", "wanted-1"]).complaint().contains("belongs to the fork"));
    // What waits in the trash keeps its id: it could not come back otherwise.
    let mut owner = treefork.env().command("cat").stdin(std::process::Stdio::piped()).spawn().expect("started");
    let create = ["create", base, "--id", "wanted-2", "--owner", &owner.id().to_string()];
    fs::write(format!("{}/file", treefork.ok(create).text()), "changed\n").expect("writable");
    owner.kill().expect("ours");
    owner.wait().expect("ended");
    treefork.ok(["gc", "--unmerged", "--min-age", "0s"]);
    assert!(treefork.fails(1, ["create", base, "--id", "wanted-2"]).complaint().contains("treefork restore wanted-2"));
    treefork.ok(["restore", "wanted-2"]);
}

#[test]
fn sixteen_at_once_get_one_fork() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8");
    for strategy in ["auto", "copy"] {
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let mut command = treefork.command(["create", base, "--id", ID, "--strategy", strategy, "--json"]);
                std::thread::spawn(move || command.ok().text())
            })
            .collect();
        let answers: Vec<serde_json::Value> = callers
            .into_iter()
            .map(|caller| serde_json::from_str(&caller.join().expect("it succeeds")).expect("JSON"))
            .collect();
        assert_eq!(answers.iter().filter(|answer| answer["existed"] == false).count(), 1, "one made it");
        assert!(answers.iter().all(|answer| answer["path"] == answers[0]["path"] && answer["state"] == "live"));
        assert_eq!(listed(&treefork, "forks"), [ID]);
        treefork.ok(["remove", ID]);
    }
    assert_nothing_left(&treefork);
}

#[test]
fn what_sets_a_fork_up_runs_once_however_many_ask() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    fs::write(base.join(".treefork.toml"), "post_create = [\"sleep 0.2; echo x >> made\"]\n").expect("ours");
    let base = base.to_str().expect("UTF-8");
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let mut command = treefork.command(["create", base, "--id", ID]);
            std::thread::spawn(move || command.ok().text())
        })
        .collect();
    for caller in callers {
        let path = caller.join().expect("it succeeds");
        // Whoever is answered finds it set up.
        assert_eq!(fs::read_to_string(format!("{path}/made")).expect("set up"), "x\n");
    }
    // Where that fails nobody is answered, and nothing is left.
    treefork.ok(["remove", ID]);
    fs::write(format!("{base}/.treefork.toml"), "post_create = [\"exit 3\"]\n").expect("ours");
    treefork.fails(1, ["create", base, "--id", ID]);
    assert_eq!(listed(&treefork, "forks"), Vec::<String>::new());
}

#[test]
fn what_a_killed_command_left_is_no_answer() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let create = ["create", base.to_str().expect("UTF-8"), "--id", ID];
    for point in ["fork.claimed", "fork.recorded", "fork.made", "fork.live"] {
        treefork.command(create).env("TREEFORK_FAULT", format!("{point}:kill@1")).done();
        let answer = json(&treefork, &create);
        assert_eq!(answer["state"], "live", "{point}");
        // What was complete is found; what was not is made anew.
        assert_eq!(answer["existed"], point == "fork.live", "{point}");
        // A removal is decided by the move into the trash, and by nothing before.
        for killed in ["fork.removing", "fork.destroyed", "fork.trashed"] {
            treefork.command(["remove", ID]).env("TREEFORK_FAULT", format!("{killed}:kill@1")).done();
            assert_eq!(json(&treefork, &create)["existed"], killed != "fork.trashed", "{point} {killed}");
        }
        treefork.ok(["remove", ID]);
    }
    assert_nothing_left(&treefork);
}

#[test]
fn the_library_answers_the_same_way_and_takes_over_from_the_dead() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let mut process = treefork.env().command("cat").stdin(std::process::Stdio::piped()).spawn().expect("started");
    let pid = process.id().to_string();
    treefork.ok(["create", base.to_str().expect("UTF-8"), "--id", ID, "--owner", &pid]);
    treefork::api::host::server_program(crate::common::cli::BINARY);
    let forks = Forks::open(Store::open(treefork.store()).expect("there")).expect("in order");
    let request = Request { id: Some(ID.parse().expect("an id")), ..Request::new(&base).expect("ours") };
    let owner = || forks.create(&request).map(|created| (created.existed, created.record.owner.pid));
    assert_eq!(owner().expect("found"), (true, process.id()), "its owner lives");
    process.kill().expect("ours");
    process.wait().expect("ended");
    assert_eq!(owner().expect("found"), (true, std::process::id()), "its owner is gone");
    assert_eq!(json(&treefork, &["show", ID])["owner"]["pid"], std::process::id());
    let other = Request { label: Some("b".parse().expect("a label")), ..request.clone() };
    assert_eq!(forks.create(&other).expect_err("another label").kind(), Kind::Exists);
}

/// Text of a field.
trait TextOf {
    fn text_of(&self, name: &str) -> &str;
}

impl TextOf for serde_json::Value {
    fn text_of(&self, name: &str) -> &str {
        self[name].as_str().unwrap_or_else(|| panic!("{name} is no text in {self}"))
    }
}
