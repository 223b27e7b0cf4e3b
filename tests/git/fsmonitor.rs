//! Git in commands in forks asks the fork what changed: its status is right under everything that can happen, and costs
//! next to nothing.
//!
//! The oracle is git without the monitor and without the cache of untracked files, asked in a way that writes no index.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{Look, Repo, Run, Shape, Treefork, assert_same};

/// Enough files for an index to be prepared.
const SHAPE: Shape = Shape { files: 1100, changed: 60, ignored: 10, submodule: false };

/// A function `check` for scripts: fails where git with the monitor says something else than git without.
const CHECK: &str = r#"
check() {
    git status --porcelain=v2 > "$TMP/with" 2>&1
    GIT_OPTIONAL_LOCKS=0 git -c core.fsmonitor=false -c core.untrackedCache=false status --porcelain=v2 > "$TMP/without" 2>&1
    cmp -s "$TMP/with" "$TMP/without" || { echo "after: $*" >&2; diff "$TMP/with" "$TMP/without" | head -20 >&2; exit 1; }
}
"#;

/// A repository and forks of it.
struct Site {
    treefork: Treefork,
    base: PathBuf,
    tmp: PathBuf,
}

impl Site {
    fn new() -> Self {
        let site = Self::empty();
        Repo::new(site.treefork.env(), &site.base, SHAPE);
        site
    }

    fn empty() -> Self {
        let treefork = Treefork::new();
        let (base, tmp) = (treefork.env().join("base"), treefork.env().dir("tmp"));
        Self { treefork, base, tmp }
    }

    /// Makes a fork, and has the index of the base prepared; whether there is one.
    fn prepare(&self, label: &str) -> bool {
        self.treefork.create(&self.base, label);
        let warmed: serde_json::Value =
            serde_json::from_str(&self.treefork.ok(["--json", "prewarm", "--only-git", label]).text()).expect("JSON");
        warmed["prepared"].as_bool().expect("said")
    }

    /// Runs a script in a fork, in the directory of the base.
    #[track_caller]
    fn exec(&self, label: &str, script: &str) -> String {
        let mut command = self.treefork.command(["exec", label, "--", "sh", "-ec", &format!("{CHECK}{script}")]);
        command.current_dir(&self.base).env("TMP", &self.tmp).ok().text()
    }

    fn base(&self, script: &str) {
        self.treefork.env().sh(&self.base, script);
    }

    /// How often the kernel asked for names, attributes and listings of this fork.
    fn looks(&self, label: &str) -> u64 {
        let requests = self.requests(label);
        ["lookup", "getattr", "readdir", "readdirplus"].iter().filter_map(|name| requests.get(*name)).sum()
    }

    /// How often the kernel asked for something of this fork.
    fn requests(&self, label: &str) -> BTreeMap<String, u64> {
        let shown: serde_json::Value =
            serde_json::from_str(&self.treefork.ok(["--json", "show", "--stats", label]).text()).expect("JSON");
        let counters = shown.as_object().expect("counters").iter();
        counters.map(|(name, count)| (name.clone(), count.as_u64().expect("a number"))).collect()
    }
}

#[test]
fn the_first_status_looks_at_a_handful_of_files() {
    let site = Site::new();
    let before = Look::default().ino().ctime().at(&site.base);
    assert!(site.prepare("first"));
    site.treefork.create(&site.base, "second");
    assert_eq!(site.exec("second", "git status --porcelain"), "?? notes.txt");
    assert!(site.looks("second") < 80, "{:?}", site.requests("second"));
    // Asked again, git looks at what changed and no more; nothing of that is in the base.
    assert_eq!(site.exec("second", "echo more >> README; git status --porcelain"), " M README\n?? notes.txt");
    assert!(site.looks("second") < 160, "{:?}", site.requests("second"));
    site.exec("second", "check edit");
    assert_same(&before, &Look::default().ino().ctime().at(&site.base), "the base");
    // A fork in which no command ran shows the base's own index.
    let plain = site.treefork.create(&site.base, "third");
    let index = |top: &Path| {
        let meta = std::fs::metadata(top.join(".git/index")).expect("an index");
        (meta.ino(), meta.size(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
    };
    assert_eq!(index(&site.base), index(&plain));
}

/// What people do in a work tree, one line a step.
const STEPS: &str = r#"
echo changed > pkg00/mod000/file00001.txt
echo "file 2" > README
printf 'X' | dd of=pkg00/mod001/file00051.txt bs=1 conv=notrunc status=none
chmod +x pkg00/mod001/file00052.txt
chmod -x pkg00/mod001/file00052.txt
touch pkg00/mod001/file00053.txt
rm pkg00/mod002/file00101.txt
echo new > pkg00/mod002/new
mkdir -p fresh/deep; echo one > fresh/deep/one
rm -r fresh
echo shown > shown
rm shown
mkdir empty
rmdir empty
mv pkg00/mod003/file00150.txt pkg00/mod003/moved.txt
git mv pkg00/mod003/file00151.txt pkg00/mod003/moved.git
mv pkg00/mod004 pkg00/elsewhere
mv pkg00/elsewhere pkg00/mod004
mv pkg00/mod004 aside; mv pkg00/mod005 pkg00/mod004; mv aside pkg00/mod005
mv pkg00/mod004 aside; mv pkg00/mod005 pkg00/mod004; mv aside pkg00/mod005
rm pkg00/mod006/file00300.txt; mkdir pkg00/mod006/file00300.txt; echo in > pkg00/mod006/file00300.txt/in
rm -r pkg00/mod006/file00300.txt; git checkout -q pkg00/mod006/file00300.txt
rm -r pkg00/mod007; echo file > pkg00/mod007
rm pkg00/mod007; git checkout -q pkg00/mod007
ln -sf elsewhere link/file
echo one > hard/a
echo '*.tmp' >> .gitignore; echo x > a.tmp; echo y > pkg00/a.tmp
rm .gitignore
git checkout -q .gitignore
echo nested > pkg00/.gitignore; echo n > pkg00/nested
git add pkg00 README
git stash -q
git stash pop -q --index
git rm -q --cached pkg00/mod008/file00400.txt
git add -N pkg00/a.tmp || true
git commit -q -m work
git reset -q --soft HEAD~1
git reset -q --hard
git clean -qfd
git switch -q other
git switch -q -
git checkout -q -b topic; echo t > topic; git add topic; git commit -q -m topic; git rebase -q other
git merge -q -m merge main || true
git checkout -q main
git mv pkg00/mod009 pkg00/ninth
git commit -q -m ninth
git revert --no-edit HEAD > /dev/null
mkdir inner; git init -q inner; echo i > inner/i
rm -rf inner
python3 -c 'import mmap; f = open("README", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0:1] = b"+"; m.flush()'
truncate -s 3 README
mkdir stays; git status > /dev/null; mv stays went; echo w > went/w
mkdir stays; mv went/w stays; rmdir went
"#;

/// The steps as a script that says after each what git thinks.
fn told(check: &str) -> String {
    let steps = STEPS.lines().filter(|line| !line.is_empty());
    steps.fold(String::new(), |mut script, step| {
        writeln!(script, "{step}\necho '=== {}'\ngit status --porcelain=v2\n{check}", step.replace('\'', "\""))
            .expect("a string takes all");
        script
    })
}

#[test]
fn status_is_the_one_of_a_plain_copy_whatever_is_done() {
    let site = Site::new();
    let copy = site.treefork.env().join("copy");
    site.treefork.env().command("cp").arg("-a").args([&site.base, &copy]).ok();
    assert!(site.prepare("fork"));
    let plain = site.treefork.env().sh(&copy, &told(""));
    let fork = site.exec("fork", &told("check step"));
    for (plain, fork) in plain.split("=== ").zip(fork.split("=== ")) {
        assert_eq!(fork, plain);
    }
    assert_eq!(fork.len(), plain.len());
    // Outside of the command, with no setting at all, git is right, too.
    let path = PathBuf::from(site.treefork.ok(["path", "fork"]).text());
    assert_eq!(
        site.treefork.env().git(&path, ["status", "--porcelain"]),
        site.treefork.env().git(&copy, ["status", "--porcelain"])
    );
}

/// Random steps from a seed: mostly changes of a few names that meet each other, now and then git itself.
fn random_steps(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % end
    };
    let mut script = String::new();
    for step in 0..count {
        let names = [
            "pkg00/mod000/file00001.txt",
            "pkg00/mod000/x",
            "pkg00/mod001",
            "pkg00/mod001/y",
            "u/v/w",
            "u/v",
            "u",
            "README",
            "hard/a",
            "hard/b",
        ];
        let (a, b) = (names[below(names.len())], names[below(names.len())]);
        let action = match below(16) {
            0..=3 => format!("mkdir -p $(dirname {a}); echo {step} > {a}"),
            4 => format!("rm -rf {a}"),
            5 => format!("mkdir -p {a}"),
            6 => format!("mv -T {a} {b}"),
            7 => format!("mkdir -p $(dirname {b}); cp -r {a} {b}"),
            8 => format!("chmod +x {a}"),
            9 => format!("ln -f {a} {b}"),
            10 => format!("git add {a}"),
            11 => "git add -A; git commit -qm step".to_owned(),
            12 => "git stash -qu".to_owned(),
            13 => "git stash pop -q || git reset -q --hard".to_owned(),
            14 => "git checkout -q -- .".to_owned(),
            _ => format!("git reset -q --hard; ln -sfn {b} {a}"),
        };
        writeln!(script, "({action}) > /dev/null 2>&1 || true\ncheck {step}: '{action}'").expect("a string takes all");
    }
    script
}

#[test]
fn random_steps_in_forks_of_a_base_that_others_change() {
    let site = Site::new();
    assert!(site.prepare("fork"));
    for round in 0..3_u64 {
        site.exec("fork", &format!("check begin; {}", random_steps(round, 25)));
        let drift = random_steps(round + 100, 8).replace("\ncheck ", "\n: ");
        site.base(&format!("{drift}\necho {round} > drift{round}; echo {round} >> pkg00/mod010/file00500.txt"));
        if round == 1 {
            site.treefork.kill_server();
        }
    }
    // Forks that begin on what the base has become, with the index that was prepared before and a new one.
    for label in ["late", "later"] {
        site.treefork.create(&site.base, label);
        site.exec(label, &format!("check begin; {}", random_steps(9, 8)));
        site.treefork.ok(["prewarm", "--only-git", label]);
    }
}

#[test]
fn what_others_do_in_the_base_is_in_the_status() {
    let site = Site::new();
    assert!(site.prepare("fork"));
    site.exec("fork", "check begin");
    let steps = [
        "echo editor > README",
        "echo new > new; mkdir dir; echo d > dir/d",
        "mv pkg00/mod001 pkg00/renamed",
        "rm -r dir",
        "git add -A; git commit -qm drift",
        "git switch -q other",
        "mkdir -p a/b/c; echo c > a/b/c/c",
        "echo more > a/b/c/more",
        "chmod 700 pkg00; chmod +x pkg00/mod002/file00101.txt",
        "echo both > hard/b",
    ];
    for step in steps {
        site.base(step);
        site.exec("fork", &format!("check '{step}'"));
        // A new fork of a base that is not what it was when the index was prepared.
        site.treefork.create(&site.base, "new");
        site.exec("new", &format!("check new '{step}'; echo {{}} > own; check own"));
        site.treefork.ok(["remove", "--force", "new"]);
    }
    // While a command runs, and whatever has been asked before.
    let base = site.base.display();
    let (fork, go) = (site.tmp.join("fork"), site.tmp.join("go"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &fork, 0o600.into()).expect("made");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, 0o600.into()).expect("made");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let script = "for n in 1 2 3 4 5; do echo > $TMP/fork; read x < $TMP/go; check $n; done";
            site.exec("fork", script);
        });
        for n in 1..=5 {
            drop(std::fs::read(&fork).expect("a fifo"));
            site.base(&format!(
                "echo {n} > {base}/live{n}; echo {n} > README; mkdir -p live/{n}; echo {n} > live/{n}/f"
            ));
            std::fs::write(&go, "\n").expect("a fifo");
        }
    });
}

#[test]
fn a_prepared_index_outlives_its_server_and_what_happened_meanwhile() {
    let site = Site::new();
    assert!(site.prepare("fork"));
    site.exec("fork", "echo mine > mine; check mine");
    site.treefork.kill_server();
    site.base("echo meanwhile > README; echo u > pkg00/mod003/untracked; rm pkg00/mod004/file00200.txt");
    site.treefork.create(&site.base, "next");
    assert_eq!(site.exec("next", "git status --porcelain | wc -l"), "4");
    assert!(site.looks("next") < 300, "{:?}", site.requests("next"));
    site.exec("next", "check next");
    site.exec("fork", "check again; rm mine; check removed");
}

#[test]
fn merges_of_siblings_show_in_no_other_fork() {
    let site = Site::new();
    for label in ["reader", "merged", "committed"] {
        assert!(site.prepare(label));
    }
    let before = site.exec("reader", "check begin; git status --porcelain=v2; git log --oneline");
    site.exec("merged", "echo merged > README; echo new > pkg00/new; rm -r pkg00/mod001; mv pkg00/mod002 moved; check");
    site.exec("committed", "echo c > committed; git add committed; git commit -qm committed; check commit");
    for label in ["merged", "committed"] {
        site.treefork.ok(["merge", "--allow-delete", label]);
        let now = site.exec("reader", "check merged; git status --porcelain=v2; git log --oneline");
        assert_eq!(now, before, "after the merge of {label}");
        // What the fork's git knew by heart has not come along.
        let shown = site.treefork.env().git(&site.base, ["status", "--porcelain", "--no-renames"]);
        assert!(shown.contains(" M README"), "{shown}");
        let index = std::fs::read(site.base.join(".git/index")).expect("an index");
        assert!(!index.windows(4).any(|word| word == b"FSMN" || word == b"UNTR"), "in the base's index");
        site.treefork.create(&site.base, &format!("after-{label}"));
        site.exec(&format!("after-{label}"), "check after; echo own > own; check own");
    }
}

#[test]
fn it_can_be_switched_off_and_is_off_where_there_is_no_mount() {
    let site = Site::new();
    site.treefork.create(&site.base, "fork");
    let said = |args: &[&str]| {
        let mut command = site.treefork.command(args);
        command.args(["--", "sh", "-c", "env | grep -c ^GIT_CONFIG_[CKV] || true"]).current_dir(&site.base).ok().text()
    };
    assert_eq!(said(&["exec", "fork"]), "7");
    assert_eq!(said(&["exec", "--no-fsmonitor", "fork"]), "0");
    assert_eq!(said(&["run", "--no-fsmonitor"]), "0");
    assert_eq!(said(&["run", "--strategy", "copy"]), "0");
    // Git elsewhere gets an answer that makes it look at everything.
    let elsewhere = site.treefork.env().dir("elsewhere");
    site.treefork.env().sh(&elsewhere, "git init -q; echo a > a; git add a; git commit -qm a");
    let script =
        format!("cd {}; git status --porcelain; echo b > a; git status --porcelain; rm a; check", elsewhere.display());
    assert_eq!(site.exec("fork", &script), " M a");
}

#[test]
fn repositories_of_every_shape() {
    let many = "for d in $(seq 40); do mkdir d$d; for f in $(seq 40); do echo $d.$f > d$d/$f; done; done; \
                find . -path ./.git -prune -o -print0 | xargs -0 touch -hd 2020-01-01; git add -A; git commit -qm many";
    let shapes = [
        ("sha256", true, format!("git init -q --object-format=sha256; {many}")),
        ("version 4", true, format!("git init -q; git config index.version 4; {many}")),
        ("no checksum", true, format!("git init -q; git config index.skipHash true; {many}")),
        ("split index", false, format!("git init -q; {many}; git update-index --split-index")),
        ("sparse checkout", true, format!("git init -q; {many}; git sparse-checkout set d1 d2")),
        ("sparse index", false, format!("git init -q; {many}; git sparse-checkout set --sparse-index d1 d2")),
        ("all untracked", true, format!("git init -q; git config status.showUntrackedFiles all; {many}")),
        ("a hook of its own", true, format!("git init -q; git config core.fsmonitor 'touch ran; false'; {many}")),
        ("few files", false, "git init -q; echo a > a; git add a; git commit -qm a".to_owned()),
        ("no commit", false, "git init -q".to_owned()),
        ("nothing", false, "echo a > a".to_owned()),
    ];
    for (what, is_prepared, script) in shapes {
        let site = Site::empty();
        std::fs::create_dir(&site.base).expect("ours");
        site.base(&script);
        let before = Look::default().ino().ctime().at(&site.base);
        assert_eq!(site.prepare("fork"), is_prepared, "{what}");
        site.treefork.create(&site.base, "again");
        let edits = [
            "mkdir -p d1; echo x > d1/1; rm -f d1/2",
            "echo y > d1/new; git add d1",
            "mv d1 e1",
            "git checkout -q . || true",
        ];
        let steps = edits.iter().fold("check begin".to_owned(), |all, edit| format!("{all}; {edit}; check \"{edit}\""));
        for (label, steps) in [("fork", &*steps), ("again", "check begin")] {
            site.exec(label, if what == "nothing" { "git status || true" } else { steps });
        }
        assert_same(&before, &Look::default().ino().ctime().at(&site.base), what);
    }
}

#[test]
fn below_the_top_in_a_linked_work_tree_and_with_a_submodule() {
    let site = Site::empty();
    Repo::new(site.treefork.env(), &site.base, Shape { submodule: true, ..SHAPE });
    site.base("git worktree add -q ../linked HEAD");
    let below = site.base.join("pkg00/mod001");
    let run = |dir: &Path, script: &str| {
        let mut command = site.treefork.command(["run", "--", "sh", "-ec", &format!("{CHECK}{script}")]);
        command.current_dir(dir).env("TMP", &site.tmp).ok().text()
    };
    assert!(site.prepare("warm"));
    run(&below, "check begin; echo x > file00051.txt; check edit; echo n > new; check new; rm new; check removed");
    run(
        &site.base.with_file_name("linked"),
        "check begin; echo x > README; check edit; git commit -qam x; check commit",
    );
    let vendor = "check begin; echo x > vendor/lib/lib0.c; check edit; cd vendor/lib; check inside; git commit -qam x; cd ../..; check commit";
    run(&site.base, vendor);
}

#[test]
fn a_prewarmed_fork_is_walked_through_and_goes_when_it_is_told_to() {
    let site = Site::new();
    let path = site.treefork.create(&site.base, "fork");
    let warmed: serde_json::Value =
        serde_json::from_str(&site.treefork.ok(["--json", "prewarm", "fork"]).text()).expect("JSON");
    assert!(warmed["entries"].as_u64().expect("a number") > 1100, "{warmed}");
    let before = site.looks("fork");
    assert_eq!(site.treefork.env().git(&path, ["status", "--porcelain"]), "?? notes.txt");
    assert!(site.looks("fork") - before < 60, "{:?}", site.requests("fork"));
    // It runs in the background, and is no reason to keep a fork.
    site.treefork.ok([
        OsStr::new("create"),
        OsStr::new("--prewarm"),
        OsStr::new("--label"),
        OsStr::new("second"),
        site.base.as_os_str(),
    ]);
    site.treefork.ok(["remove", "second"]);
}
