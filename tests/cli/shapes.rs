//! The shapes of `--json`, as `docs/embedding.md` has them: no field may go, and none may change its type.

use std::path::Path;

use serde_json::Value;

use crate::common::{Run, Treefork};

/// A fork of a git base, whose file `a` is changed and whose `b` is in conflict.
fn treefork() -> Treefork {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    env.sh(&base, "git init -q; echo a > a; echo b > b; git add -A; git commit -qm one; git status");
    let path = treefork.create(&base, "x");
    std::fs::write(path.join("a"), "changed\n").expect("writable");
    std::fs::write(path.join("b"), "changed\n").expect("writable");
    std::fs::write(base.join("b"), "otherwise\n").expect("ours");
    treefork
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Checks that an object has these fields: `name:type`, with `?` where it may be null.
#[track_caller]
fn has(value: &Value, fields: &[&str]) {
    for field in fields {
        let (name, kind) = field.split_once(':').expect("name:type");
        let (kind, optional) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
        let found = value.get(name).unwrap_or_else(|| panic!("no {name} in {value:#}"));
        let fits = match kind {
            "string" => found.is_string(),
            "number" => found.is_number(),
            "bool" => found.is_boolean(),
            "array" => found.is_array(),
            "object" => found.is_object(),
            _ => panic!("{field}"),
        };
        assert!(fits || optional && found.is_null(), "{name} is no {kind} in {value:#}");
    }
}

const FORK: &[&str] = &[
    "id:string",
    "label:string?",
    "agent:string?",
    "base:object",
    "subdir:string",
    "base_ref:string?",
    "strategy:string",
    "refusals:array",
    "symlinks:string",
    "owner:object",
    "created_at:object",
    "state:string",
    "keep:bool",
    "advisories:array",
    "path:string",
    "mount:string",
    "owner_alive:bool?",
    "age_seconds:number",
    "base_problem:string?",
    "upper_bytes:number",
    "changes:number?",
    "git_changes:number?",
    "drift:array",
    "unwatched:bool",
    "guarantees:object?",
];

#[test]
fn forks() {
    let treefork = treefork();
    let base = treefork.env().join("base");
    let made = treefork.ok([Path::new("create"), &base, Path::new("--json")]).text();
    has(&json(&made), FORK);
    has(&json(&made), &["existed:bool"]);
    has(&json(&treefork.ok(["show", "x", "--json"]).text()), FORK);
    let list = json(&treefork.ok(["list", "--json"]).text());
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    has(&list[0], FORK);
    has(&json(&treefork.ok(["path", "x", "--json"]).text()), &["id:string", "path:string"]);
    has(
        &json(&treefork.ok(["gc", "--json"]).text())[0],
        &["id:string", "label:string?", "fate:string", "reason:string"],
    );
    let id = json(&made)["id"].as_str().expect("text").to_owned();
    let removed = json(&treefork.ok(["remove", &id, "--json"]).text());
    has(&removed[0], &["fork:string", "removed:bool"]);
    let again = json(&treefork.ok(["remove", &id, "--json"]).text());
    assert_eq!((&removed[0]["removed"], &again[0]["removed"]), (&true.into(), &false.into()));
}

#[test]
fn merges() {
    const PLAN: &[&str] = &["entries:array", "conflicts:array", "left_out:array", "git:array"];
    const ENTRY: &[&str] = &["path:string", "action:string", "kind:string", "mode:array", "size:number"];
    const REPORT: &[&str] = &["fork:string", "label:string?", "parent:string", "merged:bool", "removed:bool"];
    let treefork = treefork();
    let diff = json(&treefork.ok(["diff", "x", "--json"]).text());
    has(&diff, PLAN);
    has(&diff["entries"][0], ENTRY);
    let refused = json(&treefork.fails(1, ["merge", "x", "--json"]).text());
    has(&refused, PLAN);
    has(&refused, REPORT);
    has(&refused["conflicts"][0], &["path:string", "fork:string"]);
    assert_eq!((&refused["merged"], &refused["removed"]), (&false.into(), &false.into()));
    let merged = json(&treefork.ok(["merge", "x", "--resolve", "ours", "b", "--json"]).text());
    has(&merged, REPORT);
    assert_eq!((&merged["merged"], &merged["removed"]), (&true.into(), &true.into()));
}

#[test]
fn commands() {
    const SUMMARY: &[&str] = &[
        "fork:string",
        "label:string?",
        "status:number",
        "end:string",
        "signal:number?",
        "wall_seconds:number",
        "cpu_seconds:number",
        "peak_kib:number",
        "fork_is:string?",
    ];
    let treefork = treefork();
    let done = treefork.fails(3, ["exec", "x", "--json", "--", "sh", "-c", "echo out; exit 3"]).text();
    let (output, summary) = done.split_once('\n').expect("the command's output, then a line");
    assert_eq!(output, "out");
    has(&json(summary), SUMMARY);
    let base = treefork.env().join("base");
    let done = treefork.command(["run", "--json", "--", "true"]).current_dir(base).ok().text();
    has(&json(&done), SUMMARY);
    assert_eq!(json(&done)["fork_is"], "removed");
}

#[test]
fn looking_on() {
    let treefork = treefork();
    let base = treefork.env().join("base");
    let base = base.to_str().expect("plain");
    treefork.ok(["create", base, "--label", "y"]);
    treefork.ok(["exec", "y", "--", "sh", "-c", "echo other > a"]);
    let pairs = json(&treefork.fails(1, ["conflicts", "x", "y", "--json"]).text());
    has(&pairs[0], &["first:string", "second:string", "paths:array"]);
    has(&json(&treefork.ok(["log", "x", "--json"]).text())[0], &["at:object", "what:string", "detail:string"]);
    let finding = &json(&treefork.command(["doctor", "--json"]).done().text())[0];
    has(finding, &["about:string", "level:string", "what:string", "remedy:string?"]);
    let top = json(&treefork.ok(["top", "--interval", "0.02", "--json"]).text());
    let row = ["fork:string", "label:string?", "requests_per_second:number", "requests:number", "upper_bytes:number"];
    has(&top[0], &row);
    has(&top[0], &["processes:number"]);
    let check = json(&treefork.command(["check", "x", "--json", "--", "git", "-C", base, "status"]).done().text());
    has(&check, &["fork:string", "alive:bool", "gone:string?", "cwd:object", "paths:array", "findings:array"]);
    has(&check, &["notes:array", "allow:array"]);
    has(&check["findings"][0], &["how:string", "words:string", "place:string", "below:string?"]);
}

#[test]
fn fanouts() {
    let treefork = treefork();
    let base = treefork.env().join("base");
    let done = treefork.command(["fanout", "-n", "2", "--json", "--", "true"]).current_dir(base).ok().text();
    let row = &json(&done)[1];
    has(
        row,
        &["n:number", "label:string", "fork:string", "success:bool", "end:string", "said:string", "status:number"],
    );
    has(row, &["wall_seconds:number", "cpu_seconds:number", "peak_kib:number", "changes:number?", "score:number?"]);
    has(row, &["fork_is:string", "variables:object", "output:string"]);
}

#[test]
fn errors() {
    let treefork = treefork();
    for (code, kind, args) in [
        (1, "not-found", &["show", "nothing"][..]),
        (2, "usage", &["create", "--label", "a/b"]),
        (1, "exists", &["create", "base", "--label", "x"]),
        (125, "not-found", &["exec", "nothing", "--", "true"]),
    ] {
        let failed = treefork.fails(code, [&["--json"], args].concat());
        let error = &json(&failed.text())["error"];
        has(error, &["kind:string", "message:string", "hint:string?"]);
        assert_eq!(error["kind"], kind, "{error}");
    }
}
