//! Where limits come from, and where they are refused since nothing would keep them.

use std::fs;

use treefork::api::{CancelToken, Environment, EnvironmentForker, Forker, host};

use super::*;

#[test]
fn what_keeps_no_limit_refuses_it() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    let base = base.to_str().expect("plain");
    for strategy in ["reflink", "copy", "worktree"] {
        for limit in [["--max-size", "1G"], ["--max-files", "9"]] {
            let refused = treefork.fails(2, [&["create", base, "--strategy", strategy], &limit[..]].concat());
            let said = refused.complaint();
            assert!(said.contains("kept by overlays only") && said.contains("--strategy overlay"), "{said}");
        }
    }
    // Nor does `auto` fall back to one of them where there is no FUSE.
    let hidden = "mknod fake c 240 200; mount --bind fake /dev/fuse && exec \"$@\"";
    let program = crate::common::cli::BINARY;
    let create = |args: &[&str]| {
        let mut command = treefork.env().command("unshare");
        command.env("TREEFORK_STORE", treefork.store()).args(["-m", "sh", "-c", hidden, "sh", program, "create", base]);
        command.args(args).current_dir(treefork.env().dir("devices")).done()
    };
    let refused = create(&["--max-size", "1G"]);
    assert!(!refused.status.success() && refused.complaint().contains("/dev/fuse"), "{}", refused.complaint());
    assert!(create(&[]).status.success(), "without a limit there is another way");
    for wrong in [["--max-size", "0"], ["--max-size", "many"], ["--max-files", "0"], ["--max-size", "10GB"]] {
        treefork.fails(2, [&["create", base], &wrong[..]].concat());
    }
}

#[test]
fn settings_limit_all_forks_and_options_come_first() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    fs::write(base.join(".treefork.toml"), "max_size = \"2M\"\nmax_files = 50\n").expect("ours");
    let base = base.to_str().expect("plain");
    let limits = |args: &[&str]| {
        let made = treefork.ok([&["create", base, "--json"], args].concat()).text();
        let made: Value = serde_json::from_str(&made).expect("JSON");
        (made["max_size"].as_u64(), made["max_files"].as_u64(), made["used_files"].as_u64())
    };
    assert_eq!(limits(&[]), (Some(2 * MIB), Some(50), Some(0)));
    assert_eq!(limits(&["--max-size", "1G"]), (Some(1 << 30), Some(50), Some(0)));
    assert_eq!(limits(&["--no-config"]), (None, None, None));
    let refused = treefork.fails(2, ["create", base, "--strategy", "copy"]).complaint();
    assert!(refused.contains("--no-config"), "{refused}");
    treefork.ok(["create", base, "--strategy", "copy", "--no-config"]);
    // The same request again has to have the same limits.
    let id = "0b5fa0a6-2d5f-4c45-8e51-6e5f2c9e3a01";
    treefork.ok(["create", base, "--id", id]);
    treefork.ok(["create", base, "--id", id]);
    let other = treefork.fails(1, ["create", base, "--id", id, "--max-files", "7"]).complaint();
    assert!(other.contains("limit of size or files"), "{other}");
}

#[test]
fn commands_in_forks_have_limits_too() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    fs::write(base.join("file"), "base\n").expect("ours");
    let base = base.to_str().expect("plain");
    let fill = "head -c 3000000 /dev/zero > full";
    for command in [&["run", base][..], &["fanout", "-n", "2", base]] {
        let limited = [command, &["--max-size", "1M", "--", "sh", "-c", fill]].concat();
        let done = treefork.command(limited).done();
        assert_eq!(done.code(), 1, "{}", done.complaint());
        treefork.ok([command, &["--max-size", "8M", "--", "sh", "-c", fill]].concat());
    }
    let done = treefork.command(["run", base, "--max-size", "1M", "--", "sh", "-c", fill]).done();
    assert!(done.complaint().contains("quota exceeded"), "{}", done.complaint());
}

#[test]
fn forks_of_a_host_have_limits() {
    host::server_program(crate::common::cli::BINARY);
    let env = Env::new();
    let base = env.dir("base");
    env.sh(&base, "git init -q; echo a > a; git add -A; git commit -qm one");
    let at = Environment::at(&base);
    let cancel = CancelToken::new();
    let builder = || Forker::builder().store(env.store()).max_size(MIB).max_files(10);
    let refused = builder().build().expect("a store").fork(&at, "reader", &cancel).expect_err("a work tree keeps none");
    assert!(refused.to_string().contains("overlays only"), "{refused}");
    let fork = builder().force_copy().build().expect("a store").fork(&at, "writer", &cancel).expect("made");
    let root = fork.environment.root().expect("a directory").to_path_buf();
    super::refused(write(&root.join("full"), 2 * MIB));
    fs::remove_file(root.join("full")).expect("ours");
    write(&root.join("fits"), 100 * KIB).expect("it fits");
    drop(fork);
}

#[test]
fn a_raw_mount_has_limits() {
    let env = Env::new();
    let [lower, upper, work, point] = ["lower", "upper", "work", "point"].map(|name| env.dir(name));
    let layers = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let mount = |options: &str| {
        let mut command = env.command(crate::common::cli::BINARY);
        command.args(["mount", "-o", options]).arg(&point).done()
    };
    let refused = mount(&format!("lowerdir={},max_size=1M", lower.display()));
    assert!(refused.complaint().contains("limit an upperdir="), "{}", refused.complaint());
    let done = mount(&format!("{layers},max_size=1M,max_files=2"));
    assert!(done.status.success(), "{}", done.complaint());
    let all = Unmount(point.clone());
    super::refused(write(&point.join("full"), 2 * MIB));
    write(&point.join("fits"), 100 * KIB).expect("it fits");
    super::refused(fs::create_dir(point.join("third")));
    drop(all);
}

/// Ends a mount.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        crate::common::mounts::detach_below(&self.0);
    }
}

#[test]
fn an_ordinary_users_forks_have_limits() {
    let treefork = Treefork::new();
    // Whiteouts count as little where they are files, and what is in a directory that nobody may enter is counted.
    let script = r#"
        mkdir -p base/dir; for n in 1 2 3 4 5 6; do echo $n > base/dir/$n; done
        fork=$("$BIN" create base --label a --max-files 4 --max-size 1M)
        used() { "$BIN" show a --json | sed -n 's/.*"used_files": \([0-9]*\).*/\1/p'; }
        rm "$fork"/dir/[1-5]
        mkdir "$fork/closed"; echo x > "$fork/closed/x"
        [ "$(used)" = 3 ]
        touch "$fork/last"
        ! touch "$fork/more" 2> complaint
        grep -q 'quota exceeded' complaint
        ! head -c 2000000 /dev/zero > "$fork/last"
        server=$(sed 's/.*"pid":\([0-9]*\).*/\1/' store/server.lock)
        kill -9 "$server"
        while kill -0 "$server" 2>/dev/null; do :; done
        chmod 0 store/forks/*/upper/closed
        [ "$(used)" = 4 ]
        [ "$(stat -c %a store/forks/*/upper/closed)" = 0 ]
        chmod 700 store/forks/*/upper/closed
        "$BIN" path a
        [ "$(used)" = 4 ]
        ! touch "$fork/more"
        rm "$fork/last"
        touch "$fork/more"
        "$BIN" remove a
        "$BIN" serve --stop"#;
    crate::life::user::as_user(&treefork, 0o666, script).ok();
}
