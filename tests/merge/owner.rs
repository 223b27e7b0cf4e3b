//! Root at work for somebody else: what a merge writes into a repository belongs to its owner.

use super::kit::Work;
use crate::common::Run;
use crate::common::env::USER;

#[test]
fn objects_refs_and_index_belong_to_the_owner_of_the_repository() {
    for born in [true, false] {
        let work =
            Work::plain(if born { "git init -q; seq 9 > f; git add f; git commit -qm start" } else { "git init -q" });
        work.in_base(&format!("chown -R {USER}:{USER} ."));
        work.fork("w", "echo more >> f; git add f; git commit -qm work; git branch topic; git tag -a -m t v1");
        work.merge("w", &[]);
        assert_eq!(
            work.in_base("git log -1 --format=%s; git --no-optional-locks status --porcelain; git fsck 2>&1"),
            "work"
        );
        assert_eq!(work.in_base("find .git -uid 0"), "", "born: {born}");
        let commit = "git add -A; git commit -q --allow-empty -m theirs; git gc -q; git fsck";
        let env = work.treefork.env();
        let mut command = env.command_in(&work.base, "setpriv");
        command.args([
            "--reuid",
            &USER.to_string(),
            "--regid",
            &USER.to_string(),
            "--clear-groups",
            "bash",
            "-euc",
            commit,
        ]);
        command.ok();
    }
}
