//! Modification times: one that the fork changed lands, and is never a conflict.

use super::kit::Work;

const BASE: &str = "mkdir d; echo f > f; echo g > d/g; echo h > h; ln -s f l; ln h i; \
                    find . -exec touch -h -d '2001-01-01 00:00:00' {} +";
const TOUCH: &str = "touch -h -d '2002-02-02 02:02:02.123456789' f d/g l h d";

fn times(work: &Work) -> String {
    work.in_base("stat -c '%n %.9Y' f d/g l h i | sort")
}

#[test]
fn a_touch_lands() {
    for strategy in ["overlay", "copy"] {
        let work = Work::plain(BASE);
        let base = work.base.to_str().expect("text").to_owned();
        let fork = work.treefork.ok(["create", &base, "--label", "w", "--strategy", strategy]).text();
        work.treefork.env().sh(fork.as_ref(), TOUCH);
        let wanted = "f 1012615322.123456789";
        let listed = work.treefork.ok(["diff", "w", "--name-status"]).text();
        let dry = work.treefork.ok(["merge", "w", "--dry-run"]).text();
        assert_eq!(listed, "t d/g\nt f\nt h\nt i\nt l", "{strategy}");
        assert_eq!(dry, listed, "{strategy}");
        let shown = work.treefork.ok(["diff", "w"]).text();
        assert!(shown.contains("old time @978307200.000000000\nnew time @1012615322.123456789"), "{strategy}: {shown}");
        work.merge("w", &[]);
        let now = times(&work);
        assert!(now.contains(wanted) && now.matches("1012615322.123456789").count() == 5, "{strategy}: {now}");
        assert_eq!(work.in_base("cat f d/g h; readlink l; stat -c %h h"), "f\ng\nh\nf\n2", "{strategy}");
    }
}

#[test]
fn a_touch_is_never_a_conflict() {
    for theirs in ["touch -d '2003-03-03 03:03:03' f", "echo theirs > f; touch -d '2003-03-03 03:03:03' f"] {
        let work = Work::plain(BASE);
        work.fork("w", "touch -d '2002-02-02 02:02:02' f");
        work.in_base(theirs);
        let before = work.in_base("cat f");
        work.merge("w", &[]);
        assert_eq!(work.in_base("stat -c %Y f; cat f"), format!("1046660583\n{before}"), "{theirs}");
    }
}

#[test]
fn times_that_entries_changed_do_not_count() {
    let work = Work::plain(BASE);
    work.fork("w", "echo new > d/new; rm d/new; chmod 600 f; chmod 644 f");
    assert_eq!(work.treefork.ok(["diff", "w", "--name-status"]).text(), "");
    work.fork("same", "cat f > /dev/null; echo x >> f; echo f > f; touch -d '2001-01-01 00:00:00' f");
    assert_eq!(work.treefork.ok(["diff", "same", "--name-status"]).text(), "");
}
