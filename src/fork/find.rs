//! Finding a fork by what a person types: its id, its label, or the beginning of either.

use super::{Record, Store, labels, record};
use crate::error::{Error, Kind, Result};

/// A record, or what is wrong with it; the directory's id either way.
pub type Listed = (super::Id, Result<Record>);

/// All forks of a store, oldest first; those with an unreadable record last, each with what is wrong.
///
/// A directory without a record, or with nothing but an empty one, is no fork (yet): it is left out.
pub fn all(store: &Store) -> Result<Vec<Listed>> {
    let mut forks = Vec::new();
    for id in store.ids()? {
        match Record::read(&store.fork(&id)) {
            Ok(None) => {}
            Err(_) if record::is_lost(&store.fork(&id)) => {}
            Ok(Some(record)) if record.id != id => {
                let what = format!("holds the record of another fork, {}:", record.id);
                forks.push((id.clone(), Err(Error::new(Kind::Corrupt, what).at(store.fork(&id)))));
            }
            other => forks.push((id, other.map(|record| record.expect("the absent ones are left out above")))),
        }
    }
    forks.sort_by_key(|(id, record)| match record {
        Ok(record) => (0, record.created_at, id.clone()),
        Err(_) => (1, Default::default(), id.clone()),
    });
    Ok(forks)
}

/// The one fork that `name` means.
///
/// A whole id or label goes before a beginning. `NotFound` where nothing fits, naming what there is; `Ambiguous` where
/// more than one does, naming them.
pub fn find(store: &Store, name: &str) -> Result<Record> {
    if let Some(record) = by_id(store, name) {
        return Ok(record);
    }
    if let Some(record) = labels::lookup(store, name) {
        return Ok(record);
    }
    let forks = all(store)?;
    if let Some((_, Err(_))) = forks.iter().find(|(id, record)| id.as_str() == name && record.is_err()) {
        let (_, broken) = forks.into_iter().find(|(id, _)| id.as_str() == name).expect("just found");
        return broken;
    }
    pick(forks.into_iter().filter_map(|(_, record)| record.ok()).collect(), name)
}

/// The fork of exactly this id, without a look at all the others.
fn by_id(store: &Store, name: &str) -> Option<Record> {
    let id = name.parse::<super::Id>().ok()?;
    // Whatever is wrong with it, the long way says so.
    Record::read(&store.fork(&id)).ok().flatten().filter(|record| record.id == id)
}

/// The one of these that `name` means.
pub(super) fn pick(forks: Vec<Record>, name: &str) -> Result<Record> {
    let labelled =
        |record: &Record, fits: &dyn Fn(&str) -> bool| record.label.as_ref().is_some_and(|l| fits(l.as_str()));
    let whole = |record: &Record| record.id.as_str() == name || labelled(record, &|label| label == name);
    if let Some(at) = forks.iter().position(whole) {
        return Ok(forks.into_iter().nth(at).expect("just found"));
    }
    let begins =
        |record: &&Record| record.id.as_str().starts_with(name) || labelled(record, &|label| label.starts_with(name));
    let fitting: Vec<&Record> = if name.is_empty() { vec![] } else { forks.iter().filter(begins).collect() };
    match fitting[..] {
        [one] => Ok(one.clone()),
        [] => {
            let there = match forks.len() {
                0 => "there are none".into(),
                1 => format!("there is {}", names(&forks)),
                _ => format!("there are {}", names(&forks)),
            };
            Err(Error::new(Kind::NotFound, format!("no fork is called {name:?}; {there}")))
        }
        [..] => {
            let fitting: Vec<Record> = fitting.into_iter().cloned().collect();
            Err(Error::new(Kind::Ambiguous, format!("{name:?} may mean {}", names(&fitting))))
        }
    }
}

/// The first few names, in a row.
fn names(forks: &[Record]) -> String {
    const SHOWN: usize = 8;
    let mut row: Vec<String> = forks.iter().take(SHOWN).map(display_name).collect();
    if forks.len() > SHOWN {
        row.push(format!("{} more", forks.len() - SHOWN));
    }
    row.join(", ")
}

fn display_name(record: &Record) -> String {
    match &record.label {
        Some(label) => format!("{label} ({})", record.id),
        None => record.id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::record::tests::sample;

    fn labelled(label: &str) -> Record {
        Record { label: Some(label.parse().expect("valid")), ..sample() }
    }

    #[test]
    fn whole_names_before_beginnings() {
        let forks = vec![labelled("idea"), labelled("idea-b"), labelled("other")];
        let found = |name: &str| pick(forks.clone(), name).map(|record| record.name().to_owned());
        assert_eq!(found("idea").expect("whole"), "idea");
        assert_eq!(found("oth").expect("one begins so"), "other");
        assert_eq!(found(forks[1].id.as_str()).expect("by id"), "idea-b");
        let ambiguous = found("ide").expect_err("two begin so");
        assert_eq!(ambiguous.kind(), Kind::Ambiguous);
        assert!(ambiguous.to_string().contains("idea-b"), "{ambiguous}");
        let unknown = found("zzz").expect_err("none");
        assert_eq!(unknown.kind(), Kind::NotFound);
        assert!(unknown.to_string().contains("other"), "{unknown}");
        assert_eq!(found("").expect_err("everything begins so").kind(), Kind::NotFound);
    }
}
