//! A database that two processes write at once.

use std::process::Stdio;

use crate::common::Fork;
use crate::common::run::wait;

#[test]
fn sqlite_in_wal_mode_under_two_writers() {
    let fork = Fork::new(
        "sqlite3 db 'pragma journal_mode = wal; create table t (who text, n integer); create index i on t (n); insert into t values (\"base\", 0);' > /dev/null",
    );
    let write = r#"
import sqlite3, sys
db = sqlite3.connect('db', timeout=120, isolation_level=None)
for n in range(300):
    db.execute('begin immediate')
    db.execute('insert into t values (?, ?)', (sys.argv[1], n))
    last = db.execute('select count(*) from t where who = ?', (sys.argv[1],)).fetchone()[0]
    assert last == n + 1, (last, n)
    db.execute('commit')
    if n % 100 == 50: db.execute('pragma wal_checkpoint(passive)')
"#;
    let mut writers: Vec<_> = ["one", "two"]
        .iter()
        .map(|name| {
            let mut command = fork.env().command_in(&fork.path, "/usr/bin/python3");
            command.args(["-c", write, name]).stdin(Stdio::null()).spawn().expect("python starts")
        })
        .collect();
    for writer in &mut writers {
        assert!(wait(writer, "a writer").success());
    }
    let check = "sqlite3 db 'pragma integrity_check; select who, count(*), sum(n) from t group by who order by who;'";
    let expected = "ok\nbase|1|0\none|300|44850\ntwo|300|44850";
    assert_eq!(fork.sh(check), expected);
    fork.restart();
    assert_eq!(fork.sh(check), expected);
    assert_eq!(fork.sh("sqlite3 db 'pragma wal_checkpoint(truncate); vacuum; pragma integrity_check;'"), "0|0|0\nok");
}
