//! Work of a fork brought to another tree, because the base has moved on or is gone.

use super::kit::Work;

const BASE: &str = "mkdir d; seq 9 > f; seq 20 > d/x; echo k > k; echo gone > gone";
const WORK: &str = "echo work >> f; sed -i 's/^3$/three/' d/x; chmod 755 k; rm gone; mkdir n; echo n > n/n";

/// A fresh clone of the base as it was, with what the fork did merged into it.
fn rescued(work: &Work, clone: &str, args: &[&str]) -> String {
    let into = work.treefork.env().join(clone);
    let into = into.to_str().expect("text");
    work.merge("w", &[&["--into", into], args].concat());
    work.treefork.env().sh(into.as_ref(), "test ! -e gone; cat f | tail -1; sed -n 3p d/x; stat -c %a k; cat n/n")
}

#[test]
fn work_goes_into_a_fresh_clone() {
    for base in ["rm -rf base", "cd base; echo theirs > f; git rm -qr d; git commit -qam theirs", ":"] {
        let work = Work::repository(BASE);
        work.fork("w", WORK);
        let env = work.treefork.env();
        let above = work.base.parent().expect("below").to_path_buf();
        env.sh(&above, "git clone -q base clone");
        env.sh(&above, base);
        assert_eq!(rescued(&work, "clone", &[]), "work\nthree\n755\nn", "{base}");
        assert_eq!(work.treefork.ok(["list"]).text().matches(" w ").count(), 0, "{base}: the fork is removed");
    }
}

#[test]
fn a_conflict_there_keeps_the_fork() {
    let work = Work::repository(BASE);
    work.fork("w", WORK);
    let env = work.treefork.env();
    let above = work.base.parent().expect("below").to_path_buf();
    env.sh(&above, "git clone -q base clone; rm -rf base; sed -i 's/^3$/drei/' clone/d/x");
    let into = above.join("clone");
    let into = into.to_str().expect("text");
    assert_eq!(work.conflicts("w", &["--into", into]), [("d/x".to_owned(), "both-changed".to_owned())]);
    assert_eq!(rescued(&work, "clone", &["--resolve", "ours", "d/x"]), "work\nthree\n755\nn");
}
