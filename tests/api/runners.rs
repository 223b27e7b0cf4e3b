//! Commands in forks, by treefork's runner and by the host's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use treefork::api::{CancelToken, Command, CommandRunner, Output};
use treefork::run::End;
use treefork::{Kind, Result};

use super::{Host, read, root};

#[test]
fn a_fork_without_a_shell_says_so() {
    let host = Host::plain();
    for forker in [host.forker(), host.forker().runner(|_| Ok(None))] {
        let fork = host.fork(forker);
        assert_eq!(fork.environment.runner().err().expect("there is none").kind(), Kind::NoShell);
    }
}

#[test]
fn the_host_makes_a_runner_once_for_each_fork() {
    struct Bound(PathBuf);
    impl CommandRunner for Bound {
        fn run(&self, _: &Command, _: &CancelToken) -> Result<Output> {
            Ok(Output { end: End::Exited(0), stdout: self.0.as_os_str().as_encoded_bytes().to_vec(), stderr: vec![] })
        }
    }
    let host = Host::plain();
    let made = Arc::new(Mutex::new(Vec::new()));
    let seen = made.clone();
    let forker = host.forker().runner(move |root: &Path| {
        seen.lock().expect("not poisoned").push(root.to_path_buf());
        Ok(Some(Arc::new(Bound(root.to_path_buf())) as Arc<dyn CommandRunner>))
    });
    let forks = [host.fork(forker.clone()), host.fork(forker)];
    for fork in &forks {
        for _ in 0..2 {
            let runner = fork.environment.runner().expect("bound");
            let output = runner.run(&Command::default(), &CancelToken::new()).expect("run");
            assert_eq!(output.stdout, root(fork).as_os_str().as_encoded_bytes());
        }
    }
    let roots: Vec<_> = forks.iter().map(|fork| root(fork).to_path_buf()).collect();
    assert_eq!(*made.lock().expect("not poisoned"), roots);
}

#[test]
fn commands_cannot_reach_the_base() {
    let host = Host::git();
    let before = host.look();
    let fork = host.fork(host.forker().force_copy().isolated_runner());
    let run = |command: &Command| fork.environment.runner().expect("ours").run(command, &CancelToken::new());
    let script = format!("cat; pwd; echo x > {}/a.txt; echo $MINE >&2; exit 3", host.base.display());
    let command = Command {
        stdin: b"heard ".to_vec(),
        env: vec![("MINE".into(), "yes".into())],
        cwd: "d".into(),
        ..Command::new(["sh", "-c", &script])
    };
    let output = run(&command).expect("run");
    assert!(matches!(output.end, End::Exited(3)) && !output.is_success());
    let place = format!("heard {}\n", host.base.join("d").display());
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.stderr.as_slice()), (&*place, &b"yes\n"[..]));
    assert_eq!(read(root(&fork), "a.txt"), b"x\n");
    crate::common::assert_same(&before, &host.look(), "the base");

    let late = Command { timeout: Some(Duration::from_millis(100)), ..Command::new(["sleep", "1000"]) };
    assert!(matches!(run(&late).expect("run").end, End::TimedOut));
    let astray = Command { cwd: "../..".into(), ..Command::new(["true"]) };
    assert_eq!(run(&astray).expect_err("outside").kind(), Kind::Usage);
    assert!(matches!(run(&Command::new(["no-such-program"])).expect("run").end, End::NotExecuted(_)));
}

#[test]
fn git_in_an_isolated_command_in_a_linked_work_tree_can_only_read() {
    let host = Host::git();
    let fork = host.fork(host.forker().isolated_runner());
    assert!(fork.advisory.contains("git can only read"), "{}", fork.advisory);
    let run = |args: &[&str]| {
        fork.environment.runner().expect("ours").run(&Command::new(args.iter().copied()), &CancelToken::new())
    };
    assert_eq!(run(&["cat", "a.txt"]).expect("run").stdout, b"one\n");
    assert!(run(&["git", "status"]).expect("run").is_success());
    assert!(!run(&["git", "commit", "--allow-empty", "-m", "x"]).expect("run").is_success());
}

#[test]
fn a_cancelled_command_ends() {
    let host = Host::plain();
    let fork = host.fork(host.forker().isolated_runner());
    let runner = fork.environment.runner().expect("ours");
    let (cancel, ready) = (CancelToken::new(), root(&fork).join("ready"));
    let command = Command::new(["sh", "-c", "touch ready; sleep 1000"]);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| runner.run(&command, &cancel));
        while !ready.exists() {
            assert!(!running.is_finished(), "the command ended by itself");
            std::thread::yield_now();
        }
        cancel.cancel();
        let error = running.join().expect("no panic").expect_err("cancelled");
        assert_eq!(error.kind(), Kind::Cancelled);
    });
    let error = runner.run(&Command::new(["true"]), &cancel).expect_err("for good");
    assert_eq!(error.kind(), Kind::Cancelled);
}
