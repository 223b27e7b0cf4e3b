//! Files that treefork reads back: records, journals, ledgers, logs, settings.

use std::fs;
use std::path::{Component, Path};

use serde_json::{Value, json};
use treefork::config::Settings;
use treefork::fork::{self, Record};
use treefork::layer::hidden::Hide;
use treefork::layer::ledger::{self, BaseState, Ledger};
use treefork::layer::manifest::{FILE, Manifest};
use treefork::layer::{ours, preserved};
use treefork::names::RelPath;
use treefork::sys::{Ident, Stat, Time, open_root};

use super::{put, scratch};

/// A fork's record: what can be read is written and read back the same, and everything that is asked of it has an answer.
pub(crate) fn record(data: &[u8]) {
    let dir = scratch();
    put(&dir.join(fork::RECORD), data);
    let Ok(record) = Record::read(&dir) else { return };
    let record = record.expect("the file is there");
    record.write(&dir).expect("there is room");
    assert_eq!(Record::read(&dir).expect("just written").as_ref(), Some(&record));
    let (_, _, _) = (record.age(), record.time_in_state(), record.site(&dir, &dir));
    assert!(!record.name().is_empty());
    assert!(stays_below(&record.path(&dir), &dir), "{:?}", record.path(&dir));
}

/// A fork's log.
pub(crate) fn log(data: &[u8]) {
    let dir = scratch();
    put(&dir.join("log"), data);
    let _ = fs::remove_file(dir.join("log.1"));
    let before = fork::journal::events(&dir).expect("lines that cannot be read are left out").len();
    fork::journal::note(&dir, "run", "more");
    // A last line without an end becomes one with the new one, and nothing else is lost.
    let after = fork::journal::events(&dir).expect("the same").len();
    assert!((before.saturating_sub(1)..=before + 1).contains(&after), "{before} lines, then {after}");
}

/// The ledger of a fork: what it says stays, and what is noted next can be read, whatever the file ends in.
pub(crate) fn ledger(data: &[u8]) {
    let dir = scratch();
    let work = open_root(&dir).expect("ours");
    put(&dir.join(ledger::FILE), data);
    let mut before = ledger::read(&work).expect("lines that cannot be read are skipped");
    assert!(before.keys().all(|path| stays_below(path.as_path(), Path::new(""))));
    let path = RelPath::from_bytes(b"noted/now").expect("plain");
    let time = Time { sec: 1, nsec: 2 };
    let state = BaseState {
        ident: Ident { ino: 3, btime: time },
        mode: 0o644,
        size: 4,
        mtime: time,
        ctime: time,
        content: None,
    };
    Ledger::open(&work).and_then(|ledger| ledger.note(&path, state)).expect("there is room");
    before.entry(path).or_insert(state);
    assert_eq!(ledger::read(&work), Ok(before));
}

/// Lines in the work area: spans of our own merges, attributes of preserved objects, the manifest of a copy, drift.
pub(crate) fn lines(data: &[u8]) {
    let dir = scratch();
    let work = open_root(&dir).expect("ours");
    for name in ["ours", FILE, "overrides"] {
        put(&dir.join(name), data);
    }
    let spans = ours::read(&work).expect("lines that cannot be read are left out");
    let span = ours::Span { from: Time { sec: 1, nsec: 0 }, to: Time { sec: 2, nsec: 0 } };
    ours::note(&work, span).expect("there is room");
    assert_eq!(ours::read(&work).expect("still").last(), Some(&span), "after {} others", spans.len());
    drop::<Result<std::collections::HashMap<Ident, Stat>, _>>(preserved::read_overrides(&work));
    if let Ok(manifest) = Manifest::read(&dir) {
        assert!(manifest.entries.keys().all(|path| stays_below(path.as_path(), Path::new(""))));
        manifest.write(&dir).expect("there is room");
        assert_eq!(Manifest::read(&dir).expect("just written"), manifest);
    }
    super::upper::drift(data);
}

/// The settings of a base: only what means something is accepted.
pub(crate) fn settings(data: &[u8]) {
    let base = scratch().join("base");
    fs::create_dir_all(&base).expect("there is room");
    put(&base.join(treefork::config::FILE), data);
    let Ok(settings) = Settings::load(&base) else { return };
    assert!(settings.run.rw.iter().chain(&settings.run.hide).all(|path| path.is_absolute()));
    Hide { exclude: settings.exclude, ..Hide::default() }
        .of(&base)
        .expect("patterns were looked at when they were read");
}

/// The journal of a merge: recovery reads it, and touches nothing that is not its own, however little sense it makes.
///
/// Where it says that parent, stage and upper are is replaced, and so are git's refs: the store is trusted with these,
/// and this is no machine to try out what happens otherwise.
pub(crate) fn journal(data: &[u8]) {
    let dir = tempfile::tempdir().expect("there is room");
    let at = |name: &str| dir.path().join(name);
    for name in ["bases/key", "parent/d", "stage", "upper/d", "work", "outside", "layer"] {
        fs::create_dir_all(at(name)).expect("there is room");
    }
    for name in ["parent/f", "parent/d/f", "upper/f", "upper/d/g", "stage/0", "stage/1", "outside/f"] {
        put(&at(name), name.as_bytes());
    }
    let text = contained(data, dir.path());
    put(&at("bases/key/journal.json"), text.as_deref().unwrap_or(data));
    drop(treefork::merge::recover(&at("bases"), &|_| Ok(())));
    assert_eq!(fs::read(at("outside/f")).expect("nobody's business"), b"outside/f");
    assert_eq!(fs::read_dir(at("outside")).expect("nobody's business").count(), 1);
}

/// The journal with all its places in one directory; `None` for what is no JSON object and cannot name any.
fn contained(data: &[u8], dir: &Path) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(data).ok()?;
    let record = match value.get_mut("record") {
        Some(record) => record,
        None => &mut value,
    };
    let fields = record.as_object_mut()?;
    for name in ["parent", "stage", "upper", "layer"] {
        fields.insert(name.into(), json!(dir.join(name)));
    }
    let root = Stat::of(std::os::fd::AsFd::as_fd(&open_root(&dir.join("parent")).ok()?)).ok()?;
    fields.insert("root".into(), json!(root.ident()));
    fields.insert("index_lock".into(), json!(false));
    if let Some(Value::Array(ops)) = fields.get_mut("ops") {
        ops.retain(|op| op.get("ref").is_none() && op.get("head").is_none());
    }
    serde_json::to_vec(&value).ok()
}

/// Whether a path is `dir` or below it, by its words alone.
fn stays_below(path: &Path, dir: &Path) -> bool {
    path.strip_prefix(dir).is_ok_and(|rest| rest.components().all(|c| matches!(c, Component::Normal(_))))
}
