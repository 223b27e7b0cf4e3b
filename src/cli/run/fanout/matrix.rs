//! The rows of variables that forks are made for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde_json::Value;

use crate::error::{Context, Error, Kind, Result};

/// Variables by name.
pub(super) type Variables = BTreeMap<String, String>;

/// At least one row, which may be empty.
pub(super) struct Matrix(Vec<Variables>);

impl Matrix {
    /// Reads a file: an array of objects with texts, numbers and truth values. Without one there is one empty row.
    pub(super) fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self(vec![Variables::new()])) };
        let text = std::fs::read(path).context("cannot read the matrix", path)?;
        let wrong = |what: String| Error::new(Kind::Usage, format!("the matrix {what}:")).at(path);
        let rows: Vec<BTreeMap<String, Value>> =
            serde_json::from_slice(&text).map_err(|e| wrong("is no JSON array of objects".into()).because(e))?;
        let row = |row: BTreeMap<String, Value>| row.into_iter().map(|(name, value)| variable(name, value)).collect();
        let rows: std::result::Result<Vec<Variables>, String> = rows.into_iter().map(row).collect();
        rows.map(Self).map_err(wrong)
    }

    pub(super) fn rows(&self) -> usize {
        self.0.len()
    }

    /// The variables of the n-th fork, where each row is for `each` of them.
    pub(super) fn row(&self, n: usize, each: usize) -> &Variables {
        &self.0[n / each]
    }
}

fn variable(name: String, value: Value) -> std::result::Result<(String, String), String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!("has {name:?}, which cannot be the name of a variable"));
    }
    let value = match value {
        Value::String(text) if !text.contains('\0') => text,
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        other => return Err(format!("has {other} for {name}: neither text, number nor truth value")),
    };
    Ok((name, value))
}

/// Puts the values in for `{name}`; other braces stay as they are.
pub(super) fn fill(arg: &OsStr, variables: &Variables) -> OsString {
    let mut bytes = arg.as_bytes();
    let mut filled = vec![];
    while let Some((&first, rest)) = bytes.split_first() {
        let named = || {
            let end = (first == b'{').then(|| rest.iter().position(|&b| b == b'}'))??;
            Some((variables.get(std::str::from_utf8(&rest[..end]).ok()?)?, &rest[end + 1..]))
        };
        match named() {
            Some((value, after)) => {
                filled.extend_from_slice(value.as_bytes());
                bytes = after;
            }
            None => {
                filled.push(first);
                bytes = rest;
            }
        }
    }
    OsString::from_vec(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_filled_in() {
        let variables = Variables::from([("n".into(), "7".into()), ("x".into(), "{n}".into())]);
        let filled = |arg: &str| fill(OsStr::new(arg), &variables);
        assert_eq!(filled("a{n}b{x}"), "a7b{n}");
        assert_eq!(filled("{m} {} {{n}} {n"), "{m} {} {7} {n");
    }

    #[test]
    fn rows_are_read_and_wrong_ones_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("m.json");
        let load = |text: &str| {
            std::fs::write(&path, text).expect("writable");
            Matrix::load(Some(&path))
        };
        let matrix = load(r#"[{"seed": 1, "fast": true}, {"seed": "two"}]"#).expect("well formed");
        assert_eq!(matrix.rows(), 2);
        assert_eq!(matrix.row(1, 2)["fast"], "true");
        assert_eq!(matrix.row(2, 2)["seed"], "two");
        for wrong in ["{}", "[1]", r#"[{"a": []}]"#, r#"[{"a=b": 1}]"#, "["] {
            assert!(load(wrong).is_err(), "{wrong}");
        }
    }
}
