//! How runs end: exit statuses, signals, time limits, vanished forks, and that nothing outlives them.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{BOTH, Site, Who, await_file, runs};
use crate::common::Run;
use crate::common::run::wait;

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().expect("a pid is small")).expect("not 0");
    kill_process(pid, signal).expect("our own child");
}

#[test]
fn the_exit_status_is_the_commands() {
    for who in BOTH {
        let site = Site::new(who);
        site.run(&[], "exit 0").fails(0);
        site.run(&[], "exit 7").fails(7);
        site.run(&[], "exit 255").fails(255);
        site.treefork(["run", "--", "no-such-program"]).fails(127);
        site.treefork(["run", "--", "./file"]).fails(126);
        site.treefork(["run", "/nowhere", "--", "true"]).fails(125);
        assert_eq!(site.forks(), [""; 0], "{who:?}");
    }
}

#[test]
fn a_signal_that_ends_the_command_ends_treefork() {
    for who in BOTH {
        let site = Site::new(who);
        for signal in [Signal::TERM, Signal::INT, Signal::KILL, Signal::ABORT] {
            let done = site.run(&[], &format!("kill -{} $$", signal.as_raw())).done();
            assert_eq!(done.status.signal(), Some(signal.as_raw()), "{who:?}");
        }
        assert_eq!(site.forks(), [""; 0]);
    }
}

#[test]
fn signals_to_treefork_reach_the_command() {
    for who in BOTH {
        let site = Site::new(who);
        for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2] {
            let flag = site.env.join("tmp/ready");
            let _ = fs::remove_file(&flag);
            let number = signal.as_raw();
            let script =
                format!("trap 'echo got; exit 9' {number}; echo > {}; while :; do sleep 0.01; done", flag.display());
            let mut child = site.run(&[], &script).stdout(Stdio::piped()).spawn().expect("starts");
            await_file(&flag);
            send(&child, signal);
            let status = wait(&mut child, &script);
            assert_eq!(status.code(), Some(9), "{who:?} {signal:?}");
        }
    }
}

/// `nohup treefork run`: an ignored signal stays ignored.
#[test]
fn ignored_signals_stay_ignored() {
    let site = Site::new(Who::Root);
    let script = format!("trap '' HUP; {} run -- bash -c 'kill -HUP $$; echo alive'", site.binary().display());
    assert_eq!(site.command("bash").args(["-c", &script]).ok().text(), "alive");
    // What Rust programs ignore themselves is at its default again. Signal 32 is the C library's own affair.
    let mask = site.run(&[], "grep SigIgn /proc/self/status").ok().text();
    let mask = mask.split_whitespace().nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    assert_eq!(mask.map(|mask| mask & 0x7fff_ffff), Some(0));
}

#[test]
fn time_is_limited() {
    for who in BOTH {
        let site = Site::new(who);
        site.run(&["--timeout", "300ms"], "sleep 1000").fails(124);
        // One that does not listen to SIGTERM, and leaves a child behind, ends all the same.
        site.run(&["--timeout", "300ms"], "trap '' TERM; sleep 1000 & while :; do sleep 1; done").fails(124);
        site.run(&["--timeout", "1h"], "true").fails(0);
        assert_eq!(site.forks(), [""; 0]);
    }
}

/// A daemon as one makes them: double fork, own session, closed descriptors.
const DAEMON: &str = "setsid bash -c 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >/dev/null; wait' </dev/null >/dev/null 2>&1 & \
                      (setsid nohup sleep 1000 </dev/null >/dev/null 2>&1 &)";

/// How many processes speak of a store that only this test uses.
pub(super) fn strays(site: &Site) -> usize {
    let mark = format!("TREEFORK_STORE={}", site.env.store().display());
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let sleeps = processes.filter(|entry| {
        let is = |file: &str, what: &str| {
            fs::read(entry.path().join(file)).is_ok_and(|text| String::from_utf8_lossy(&text).contains(what))
        };
        is("environ", &mark) && is("comm", "sleep")
    });
    sleeps.count()
}

#[test]
fn nothing_outlives_the_run() {
    for who in BOTH {
        let site = Site::new(who);
        site.run(&[], &format!("{DAEMON}; exit 3")).fails(3);
        assert_eq!(strays(&site), 0, "{who:?}");
    }
}

#[test]
fn nothing_outlives_a_treefork_that_is_killed() {
    for who in BOTH {
        let site = Site::new(who);
        let flag = site.env.join("tmp/ready");
        let script = format!("{DAEMON}; echo > {}; sleep 1000", flag.display());
        // exec: the process that is killed is treefork itself.
        let mut child = site.run(&["--keep"], &script).spawn().expect("starts");
        await_file(&flag);
        assert!(strays(&site) > 0, "the test has something to look for");
        send(&child, Signal::KILL);
        child.wait().expect("our own child");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while strays(&site) > 0 {
            assert!(std::time::Instant::now() < until, "{who:?}: {} processes are left", strays(&site));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn nothing_outlives_the_weaker_isolation_either() {
    let site = Site::new(Who::Root);
    site.run(&["--isolation", "cwd"], &format!("{DAEMON}; exit 3")).fails(3);
    assert_eq!(strays(&site), 0);
    site.run(&["--isolation", "cwd", "--timeout", "300ms"], &format!("{DAEMON}; sleep 1000")).fails(124);
    assert_eq!(strays(&site), 0);
}

/// Case 67: what happens to one caller is nothing to the others.
#[test]
fn one_interrupted_run_leaves_the_others_alone() {
    for who in BOTH {
        let site = Site::new(who);
        let start = |name: &str| {
            let flag = site.env.join(format!("tmp/{name}"));
            let script = format!("echo > {}; read line; echo $line > file; cat file", flag.display());
            let mut command = site.run(&[], &script);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
            await_file(&flag);
            child
        };
        let (mut first, mut second) = (start("first"), start("second"));
        send(&first, Signal::INT);
        assert_eq!(wait(&mut first, "the interrupted run").signal(), Some(Signal::INT.as_raw()));
        use std::io::Write;
        second.stdin.take().expect("piped").write_all(b"went on\n").expect("it reads");
        let done = second.wait_with_output().expect("our own child");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "went on\n", "{who:?}");
    }
}

/// Case 68, and the watchdog: a fork that is removed ends what runs in it.
#[test]
fn a_fork_that_is_removed_ends_its_commands() {
    let site = Site::new(Who::Root);
    site.treefork(["create", "--label", "gone"]).ok();
    let flag = site.env.join("tmp/ready");
    let script = format!("echo $$ > {}; while :; do sleep 0.05; done", flag.display());
    let before = site.look();
    let mut child =
        site.treefork(["exec", "gone", "--", "bash", "-c", &script]).stderr(Stdio::null()).spawn().expect("starts");
    await_file(&flag);
    site.treefork(["remove", "--force", "gone"]).ok();
    assert_eq!(wait(&mut child, "exec in a removed fork").code(), Some(120));
    crate::common::assert_same(&before, &site.look(), "the base");
    site.treefork(["exec", "gone", "--", "true"]).fails(125);
}

/// Case 68: git in a removed fork finds no other repository.
#[test]
fn git_in_a_removed_fork_fails() {
    let site = Site::new(Who::Root);
    site.treefork(["create", "--label", "gone"]).ok();
    let (flag, go, said) = (site.env.join("tmp/ready"), site.env.join("tmp/go"), site.env.join("tmp/said"));
    let script = format!(
        "cd sub; echo > {}; while [ ! -e {} ]; do sleep 0.01; done; trap '' TERM; git checkout -b x; echo $? > {}",
        flag.display(),
        go.display(),
        said.display()
    );
    let before = site.look();
    // Without a namespace, so that no watchdog ends it first: the weaker mode.
    let mut command = site.command("bash");
    let path = site.treefork(["path", "gone"]).ok().text();
    let mut child = command.args(["-c", &script]).current_dir(path).stderr(Stdio::null()).spawn().expect("starts");
    await_file(&flag);
    site.treefork(["remove", "--force", "gone"]).ok();
    fs::write(&go, "x").expect("writable");
    assert_ne!(await_file(&said).trim(), "0");
    child.wait().expect("our own child");
    crate::common::assert_same(&before, &site.look(), "the base");
}

#[test]
fn a_killed_server_ends_its_commands() {
    for who in BOTH {
        let site = Site::new(who);
        let flag = site.env.join("tmp/ready");
        let script = format!("echo > {}; while :; do sleep 0.05; done", flag.display());
        let mut child = site.run(&["--keep"], &script).stderr(Stdio::null()).spawn().expect("starts");
        await_file(&flag);
        for pid in servers(&site) {
            kill_process(Pid::from_raw(pid).expect("not 0"), Signal::KILL).expect("there");
        }
        assert_eq!(wait(&mut child, "run over a killed server").code(), Some(120), "{who:?}");
    }
}

fn servers(site: &Site) -> Vec<i32> {
    let store = site.env.store();
    let mut pids = vec![];
    for entry in fs::read_dir("/proc").expect("procfs").flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|&b| b == 0).collect();
        if words.contains(&b"serve".as_slice()) && words.contains(&store.as_os_str().as_encoded_bytes()) {
            pids.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    assert!(!pids.is_empty(), "a server runs");
    pids
}

#[test]
fn what_becomes_of_the_fork() {
    for who in BOTH {
        let site = Site::new(who);
        let mut forks = 0;
        let mut check = |options: &[&str], script: &str, kept: bool| {
            let status = if script.ends_with("exit 1") { 1 } else { 0 };
            site.run(options, script).fails(status);
            forks += usize::from(kept);
            assert_eq!(site.forks().len(), forks, "{who:?} {options:?} {script}");
        };
        check(&[], "true", false);
        check(&[], "touch new", true);
        check(&[], "touch new; exit 1", false);
        check(&["--keep-on-error"], "touch new; exit 1", true);
        check(&["--keep"], "true", true);
        check(&["--keep"], "exit 1", true);
        // Git writes down what it saw, which is nothing to keep; what is staged is.
        check(&[], "git status; git update-index --force-untracked-cache; git status", false);
        check(&[], "git rm -q --cached file", true);
    }
}

#[test]
fn json_sums_up_in_one_line() {
    let site = Site::new(Who::Root);
    let done = site.run(&["--json", "--label", "j"], "echo out; exit 5").fails(5);
    let text = done.text();
    let (out, summary) = text.split_once('\n').expect("two lines");
    assert_eq!(out, "out");
    let summary: serde_json::Value = serde_json::from_str(summary).expect("one line of JSON");
    assert_eq!(summary["status"], 5);
    assert_eq!(summary["end"], "exited");
    assert_eq!(summary["label"], "j");
    assert_eq!(summary["fork_is"], "removed");
    assert!(summary["peak_kib"].as_u64().expect("a number") > 0);
}

/// Stopped with SIGSTOP from inside, as `suspend` in a shell does it: the caller's shell has to notice.
#[test]
fn a_stopped_command_stops_treefork() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    for who in BOTH {
        let site = Site::new(who);
        let child = site.run(&[], "kill -STOP $$; exit 4").spawn().expect("starts");
        let pid = Pid::from_raw(child.id().try_into().expect("small")).expect("not 0");
        let stopped = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("our own child").expect("waited");
        assert_eq!(stopped.stopping_signal(), Some(Signal::STOP.as_raw()));
        kill_process(pid, Signal::CONT).expect("our own child");
        let mut child = child;
        assert_eq!(wait(&mut child, "a run that goes on").code(), Some(4), "{who:?}");
        assert!(!runs(child.id()));
    }
}

#[test]
fn success_can_be_merged_at_once() {
    for who in BOTH {
        let site = Site::new(who);
        let script = "echo merged > file; echo new > new; git add -A; git commit -qm second";
        site.run(&["--merge"], script).ok();
        assert_eq!(fs::read_to_string(site.base.join("file")).expect("there"), "merged\n", "{who:?}");
        assert_eq!(fs::read_to_string(site.base.join("hard")).expect("there"), "merged\n", "one file still");
        assert_eq!(site.env.git(&site.base, ["log", "--format=%s"]), "second\nfirst");
        assert_eq!(site.env.git(&site.base, ["status", "--porcelain"]), "");
        assert_eq!(site.forks(), [""; 0], "{who:?}");
        // A failure merges nothing, and neither does a run without changes.
        let before = site.look();
        site.run(&["--merge"], "echo no > file; exit 1").fails(1);
        site.run(&["--merge"], "true").ok();
        crate::common::assert_same(&before, &site.look(), "the base");
        assert_eq!(site.forks(), [""; 0], "{who:?}");
    }
}

#[test]
fn a_refused_merge_keeps_the_fork() {
    for who in BOTH {
        let site = Site::new(who);
        let (flag, go) = (site.env.join("tmp/ready"), site.env.join("tmp/go"));
        let script = format!(
            "echo fork > sub/inner; echo > {}; while [ ! -e {} ]; do sleep 0.01; done",
            flag.display(),
            go.display()
        );
        let mut command = site.run(&["--merge", "--label", "clash"], &script);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        await_file(&flag);
        fs::write(site.base.join("sub/inner"), "base, at the same place\n").expect("writable");
        let before = site.look();
        fs::write(&go, "go").expect("writable");
        let done = child.wait_with_output().expect("our own child");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(125), "{who:?}: {said}");
        assert!(said.contains("conflict: sub/inner") && said.contains("clash is kept"), "{said}");
        crate::common::assert_same(&before, &site.look(), "the base");
        assert_eq!(site.treefork(["exec", "clash", "--", "cat", "sub/inner"]).ok().text(), "fork");
    }
}

/// Nothing waits for a disk on behalf of a fork that may be gone in a moment; once it stays it is like any other.
#[test]
fn a_fork_of_a_run_is_temporary_until_it_is_kept() {
    for who in BOTH {
        let site = Site::new(who);
        let (flag, go) = (site.env.join("tmp/ready"), site.env.join("tmp/go"));
        let script = format!(
            "echo new > file; echo x > {}; while [ ! -e {} ]; do sleep 0.01; done",
            flag.display(),
            go.display()
        );
        let mut child = site.run(&["--label", "f"], &script).spawn().expect("starts");
        await_file(&flag);
        let temporary = || -> serde_json::Value {
            let shown = site.treefork(["show", "--json", "f"]).ok().text();
            serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")["temporary"].clone()
        };
        assert_eq!(temporary(), true, "{who:?}");
        fs::write(&go, "go").expect("writable");
        assert_eq!(wait(&mut child, "a run that changes something").code(), Some(0));
        assert_eq!(temporary(), serde_json::Value::Null, "{who:?}");
        // One that goes leaves nothing to delete later.
        site.run(&[], "true").ok();
        let trash = fs::read_dir(site.env.store().join("trash")).expect("listable").count();
        assert_eq!(trash, 0, "{who:?}");
    }
}
