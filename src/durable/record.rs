//! Versioned records in JSON.
//!
//! A record file is `{"format": KIND, "version": N, "record": {...}}` and a newline. A version newer than this program
//! knows is refused (its fields could mean anything); an older one goes through [`Record::upgrade`].

use std::path::Path;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Sync, write};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::calls::File;

/// Something that is kept on disk as a record.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is, as in `treefork fork`; a file of another kind is refused.
    const KIND: &'static str;
    /// The version that this program writes.
    const VERSION: u32;

    /// Turns the fields of an older version into those of [`VERSION`](Self::VERSION); `None` where that is not possible.
    fn upgrade(version: u32, fields: Value) -> Option<Value> {
        let _ = (version, fields);
        None
    }
}

#[derive(Serialize)]
struct Out<'a, T> {
    format: &'a str,
    version: u32,
    record: &'a T,
}

#[derive(Deserialize)]
struct In {
    format: String,
    version: u32,
    record: Value,
}

/// Writes a record, readable by the owner alone, with the guarantee of [`write_atomic`](super::write_atomic).
pub fn write_record<T: Record>(path: &Path, record: &T) -> Result<()> {
    write_record_as(path, record, Sync::First)
}

/// The same with the guarantee of [`write`](super::write) with this `sync`.
pub fn write_record_as<T: Record>(path: &Path, record: &T, sync: Sync) -> Result<()> {
    write(path, &encode(path, record)?, 0o600, sync)
}

fn encode<T: Record>(path: &Path, record: &T) -> Result<Vec<u8>> {
    let envelope = Out { format: T::KIND, version: T::VERSION, record };
    let mut bytes = serde_json::to_vec_pretty(&envelope)
        .map_err(|e| Error::new(Kind::Io, "cannot encode the record").at(path).because(e))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads a record; `None` where there is no such file.
///
/// # Errors
/// [`Kind::Corrupt`] for what is not a whole record of this kind, or is of a newer version.
pub fn read_record<T: Record>(path: &Path) -> Result<Option<T>> {
    let bytes = match File::read(path) {
        Ok(bytes) => bytes,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e).context("cannot read", path),
    };
    let corrupt = |what: String| Error::new(Kind::Corrupt, what).at(path);
    let unreadable = |e: serde_json::Error| corrupt(format!("not a readable {} record:", T::KIND)).because(e);
    let envelope: In = serde_json::from_slice(&bytes).map_err(unreadable)?;
    if envelope.format != T::KIND {
        return Err(corrupt(format!("a {} record was expected, but this is {:?}:", T::KIND, envelope.format)));
    }
    let fields = match envelope.version {
        v if v == T::VERSION => envelope.record,
        v if v > T::VERSION => {
            let (kind, known) = (T::KIND, T::VERSION);
            let what =
                format!("{kind} record of version {v}, but this treefork knows only up to {known}; use a newer one:");
            return Err(corrupt(what));
        }
        v => T::upgrade(v, envelope.record)
            .ok_or_else(|| corrupt(format!("{} record of version {v}, which is no longer read:", T::KIND)))?,
    };
    serde_json::from_value(fields).map(Some).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Thing {
        id: u64,
    }

    impl Record for Thing {
        const KIND: &'static str = "treefork thing";
        const VERSION: u32 = 2;

        fn upgrade(version: u32, fields: Value) -> Option<Value> {
            (version == 1).then(|| serde_json::json!({ "id": fields["number"] }))
        }
    }

    #[test]
    fn reads_back_upgrades_and_refuses() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("thing.json");
        assert_eq!(read_record::<Thing>(&path).expect("absent is no error"), None);
        write_record(&path, &Thing { id: u64::MAX }).expect("writes");
        assert_eq!(read_record(&path).expect("reads"), Some(Thing { id: u64::MAX }));

        let put = |text: &str| std::fs::write(&path, text).expect("writable");
        put(r#"{"format":"treefork thing","version":1,"record":{"number":7}}"#);
        assert_eq!(read_record(&path).expect("upgrades"), Some(Thing { id: 7 }));
        for bad in [
            r#"{"format":"treefork thing","version":3,"record":{"id":7}}"#,
            r#"{"format":"treefork thing","version":0,"record":{"id":7}}"#,
            r#"{"format":"other","version":2,"record":{"id":7}}"#,
            r#"{"format":"treefork thing","version":2,"record":{"i"#,
            "",
        ] {
            put(bad);
            let e = read_record::<Thing>(&path).expect_err("refused");
            assert_eq!(e.kind(), Kind::Corrupt, "{bad}: {e}");
        }
    }
}
