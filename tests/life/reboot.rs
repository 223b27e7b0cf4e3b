//! A reboot: no process is left, no mount, another boot id, process numbers given anew, and another device number for
//! the disk. A PID and mount namespace that is killed whole is as near to one as a test gets.

use std::path::{Path, PathBuf};

use crate::common::{Run, Treefork};

/// A disk with a base and a store, and what a machine has mounted it by.
struct Machine {
    treefork: Treefork,
    image: PathBuf,
    boots: u32,
}

impl Machine {
    fn new() -> Self {
        let treefork = Treefork::new();
        let env = treefork.env();
        let image = env.join("disk");
        env.sh(env.tree().path(), "truncate -s 64M disk; mkfs.ext4 -q -F disk; mkdir disk.d");
        Self { treefork, image, boots: 0 }
    }

    /// Where the disk is mounted.
    fn disk(&self) -> PathBuf {
        self.image.with_extension("d")
    }

    /// Boots, runs a script in which `t` is the command, and cuts the power of all that runs then (the disk is synced).
    /// The disk's device number is in `$dev`; it is none of `not`.
    #[track_caller]
    fn boot(&mut self, not: &str, script: &str) -> String {
        self.boots += 1;
        let env = self.treefork.env();
        let id = env.join("boot_id");
        std::fs::write(&id, format!("00000000-0000-0000-0000-{:012}\n", self.boots)).expect("ours");
        // A loop device goes with its last user; one that is attached first takes the number that another boot had.
        let setup = r#"
            mount --bind "$ID" /proc/sys/kernel/random/boot_id
            device=$(losetup --find --show "$IMAGE")
            if [ "$(stat -c %Hr:%Lr "$device")" = "$NOT" ]; then
                other=$(losetup --find --show "$IMAGE"); losetup -d "$device"; device=$other
            fi
            mount "$device" "$DISK"; losetup -d "$device"
            dev=$(stat -c %Hr:%Lr "$device")
            t() { "$BIN" --store "$DISK/store" "$@"; }
            cd "$DISK""#;
        let mut command = env.command("unshare");
        command.args(["-pmf", "--mount-proc", "--kill-child", "bash", "-euo", "pipefail", "-c"]);
        command.arg(format!("{setup}\n{script}\nsync -f \"$DISK\""));
        command.env("ID", &id).env("IMAGE", &self.image).env("DISK", self.disk()).env("NOT", not);
        command.env("BIN", crate::common::cli::BINARY).ok().text()
    }
}

/// Everything about a tree that a program could hold on to: names, numbers, sizes, modes, times, contents.
const LOOK: &str = r#"look() { (cd "$1"; find . -path ./.git -prune -o -printf '%p %i %y %m %s %n %T@ %l\n' | sort; cat f copied link-a); }"#;

#[test]
fn forks_preserved_layers_and_a_merge_survive() {
    let mut machine = Machine::new();
    let first = machine.boot(
        "-",
        &format!(
            r#"{LOOK}
            mkdir -p base/d/deep; cd base; git init -q; seq 9 > f; echo one > copied; echo l > link-a; ln link-a link-b
            ln -s f sym; seq 99 > d/x; echo gone > gone; git add -A; git commit -qm one; cd ..
            for label in old clean merged cut; do t create base --label $label > $label.path; done
            cd "$(cat ../disk.d/old.path)"; echo two >> copied; chmod 700 d; echo both >> link-b; rm gone; mv d/deep deeper
            ln -sfn copied sym; cd "$DISK"
            # A merge into the base, of which the others see nothing.
            (cd "$(cat merged.path)"; echo merged > f; rm d/x; mv copied renamed; git add -A; git commit -qm merged)
            t merge merged
            (cd "$(cat cut.path)"; echo cut > new; echo cut > d/new; git add -A; git commit -qm cut)
            look "$(cat old.path)" > old.look; look "$(cat clean.path)" > clean.look
            TREEFORK_FAULT=merge.step:kill@2 t merge cut || [ $? = 137 ]
            echo $dev"#
        ),
    );
    let dev = first.lines().last().expect("the device").to_owned();
    let second = machine.boot(
        &dev,
        &format!(
            r#"{LOOK}
            [ "$dev" != "$NOT" ]
            t list | tee list >&2
            grep -q 'clean.* gone' list
            [ "$(t path old)" = "$(cat old.path)" ]
            look "$(cat old.path)" | diff old.look - >&2
            look "$(cat clean.path)" | diff clean.look - >&2
            GIT_OPTIONAL_LOCKS=0 git -C "$(cat clean.path)" status --porcelain
            # The merge that was cut off is there whole or not at all.
            git -C base fsck --strict >&2
            if [ -e base/new ]; then [ -e base/d/new ]; else [ ! -e base/d/new ]; t merge cut >&2; fi
            [ "$(cat base/new base/d/new)" = "cut
cut" ]
            look "$(cat old.path)" | diff old.look - >&2
            # And they go on: a copy-up, a merge of their own, and gc knows that nobody is there any more.
            echo three >> "$(cat old.path)/copied"; look "$(cat old.path)" > old.look
            t create base --label after > /dev/null; (cd "$(t path after)"; echo after > f); t merge after >&2
            look "$(cat clean.path)" | diff clean.look - >&2
            look "$(cat old.path)" | diff old.look - >&2
            echo $dev"#
        ),
    );
    let dev = second.lines().last().expect("the device").to_owned();
    assert_eq!(second, dev, "git status of a fork is clean");
    machine.boot(
        &dev,
        &format!(
            r#"{LOOK}
            [ "$dev" != "$NOT" ]
            t show old > /dev/null; t path old > /dev/null
            look "$(cat clean.path)" | diff clean.look - >&2
            look "$(cat old.path)" | diff old.look - >&2
            t gc --min-age 0s | tee gc >&2; grep -q 'clean.*removed' gc; grep -q 'old.*kept.*never merged' gc
            t remove old
            [ -z "$(ls store/forks store/pending | grep -v : | tr -d '\n')" ]
            [ -z "$(find store/bases -path '*preserved/*' -name tree)" ]"#
        ),
    );
    assert!(Path::new(&machine.image).exists());
}
