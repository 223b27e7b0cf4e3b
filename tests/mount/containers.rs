//! As the `mount_program` of a container tool: images are built layer on layer, and show what the layers say.
//!
//! With buildah and its own store, from nothing: no registry is asked. Where there is no buildah this says so.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Env, Run, cli};

struct Containers {
    env: Env,
    storage: PathBuf,
}

impl Containers {
    /// `None` where they cannot be tried here.
    fn new(test: &str) -> Option<Self> {
        let env = Env::new();
        let version = env.command("sh").args(["-c", "command -v buildah"]).done();
        if version.code() != 0 || !rustix::process::geteuid().is_root() {
            eprintln!("{test}: NOT RUN, it takes buildah (apt install buildah) and root");
            return None;
        }
        let helper = env.join("mount.fuse.treefork");
        symlink(cli::BINARY, &helper).expect("the directory is new");
        let (graph, run) = (env.dir("graph"), env.dir("run"));
        let text = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = {graph:?}\nrunroot = {run:?}\n\
             [storage.options.overlay]\nmount_program = {helper:?}\n"
        );
        let storage = env.join("storage.conf");
        fs::write(&storage, text).expect("ours");
        fs::write(env.join("policy.json"), r#"{"default": [{"type": "insecureAcceptAnything"}]}"#).expect("ours");
        Some(Self { env, storage })
    }

    fn buildah(&self, args: &[&str]) -> Command {
        let mut command = self.env.command("buildah");
        command.env("CONTAINERS_STORAGE_CONF", &self.storage).env("BUILDAH_ISOLATION", "chroot").args(args);
        command
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        self.buildah(args).ok().text()
    }

    /// Does something to the files of a new container of an image, and makes another image of that.
    #[track_caller]
    fn layer(&self, from: &str, to: &str, script: &str) {
        let container = self.ok(&["from", "--pull-never", from]);
        let root = self.ok(&["mount", &container]);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("every process can");
        assert!(mounts.lines().any(|m| m.contains(&root) && m.contains("fuse.treefork")), "{root}: {mounts}");
        self.env.sh(Path::new(&root), script);
        self.ok(&["umount", &container]);
        let policy = self.env.join("policy.json");
        let policy = ["commit", "-q", "--signature-policy", policy.to_str().expect("plain")];
        self.ok(&[&policy[..], &["--rm", &container, to]].concat());
    }

    /// What a script says in a container of an image.
    #[track_caller]
    fn look(&self, image: &str, script: &str) -> String {
        let container = self.ok(&["from", "--pull-never", image]);
        let root = self.ok(&["mount", &container]);
        let said = self.env.sh(Path::new(&root), script);
        self.ok(&["rm", &container]);
        said
    }
}

#[test]
fn images_are_built_layer_on_layer() {
    let Some(containers) = Containers::new("images_are_built_layer_on_layer") else { return };
    containers.layer(
        "scratch",
        "localhost/one",
        "mkdir -p data/sub gone emptied; echo one > data/keep; echo x > data/gone; echo s > data/sub/s; \
         echo g > gone/g; echo e > emptied/e; echo f > became-dir; ln -s keep data/link",
    );
    containers.layer(
        "localhost/one",
        "localhost/two",
        "rm data/gone; mv data moved; rm -r gone; rm -r emptied; mkdir emptied; echo n > emptied/new; \
         rm became-dir; mkdir became-dir; echo i > became-dir/inside; echo 2 >> moved/keep",
    );
    let list = "find . -mindepth 1 | sort | tr '\\n' ' '; cat moved/keep moved/link | tr '\\n' ' '";
    let wanted = "./became-dir ./became-dir/inside ./emptied ./emptied/new ./moved ./moved/keep ./moved/link \
                  ./moved/sub ./moved/sub/s one 2 one 2 ";
    assert_eq!(containers.look("localhost/two", list).trim_end(), wanted.trim_end());
    // Once more, on top of what was hidden.
    containers.layer("localhost/two", "localhost/three", "mkdir gone; echo back > gone/back; rm -r moved/sub");
    assert_eq!(
        containers.look("localhost/three", "find gone moved | sort | tr '\\n' ' '"),
        "gone gone/back moved moved/keep moved/link "
    );
    assert_eq!(containers.look("localhost/one", "cat data/keep data/gone"), "one\nx");
}

#[test]
fn commands_run_in_containers() {
    let Some(containers) = Containers::new("commands_run_in_containers") else { return };
    let busybox = Path::new("/bin/busybox");
    let is_static = || containers.env.command("sh").args(["-c", "! ldd /bin/busybox"]).done().code() == 0;
    if !busybox.exists() || !is_static() {
        eprintln!("commands_run_in_containers: NOT RUN, it takes a static busybox (apt install busybox-static)");
        return;
    }
    containers.layer("scratch", "localhost/box", "mkdir bin; cp /bin/busybox bin/; ln -s busybox bin/sh; echo 1 > f");
    let container = containers.ok(&["from", "--pull-never", "localhost/box"]);
    // What it says is read from files: buildah has been seen to lose the output of a command that is over at once.
    containers.ok(&["run", &container, "--", "sh", "-c", "busybox mv f g && echo 2 >> g && busybox ls / > out"]);
    let root = containers.ok(&["mount", &container]);
    let read = |name: &str| fs::read_to_string(Path::new(&root).join(name)).expect("written");
    assert_eq!(read("g"), "1\n2\n");
    assert!(read("out").lines().any(|name| name == "g") && !read("out").lines().any(|name| name == "f"));
    containers.ok(&["rm", &container]);
}
