//! The upper is the kernel's overlay format: the kernel's own overlay shows from it what the fork shows.

use std::path::Path;

use super::small_base;
use crate::common::{Image, Run, Treefork};

/// Everything there is: types, modes, owners, sizes, times of files, links, content. The kernel's overlay has numbers
/// and times of directories of its own.
fn look(treefork: &Treefork, dir: &Path) -> String {
    let script = r"find . -type d -printf '%p %y %m %U:%G\n' , ! -type d -printf '%p %y %m %U:%G %s %T@ %l\n' | sort
        find . -type f -exec sha256sum {} + | sort -k2; getfattr -hR -d -m user -- . 2>/dev/null || :";
    treefork.env().sh(dir, script)
}

#[test]
fn the_kernel_reads_an_upper() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.env().sh(
        &base,
        "mkdir -p gone/inner swap keep/a; touch gone/inner/x swap/old keep/a/f; ln -s file link; setfattr -n user.x -v 1 file",
    );
    // On a file system of its own: the kernel wants the work directory beside the upper.
    let image = Image::ext4(32);
    let store = image.path().join("store");
    let store_text = store.to_str().expect("UTF-8");
    let fork = treefork.ok(["--store", store_text, "create", base.to_str().expect("UTF-8"), "--label", "a"]).text();
    let fork = Path::new(&fork);
    treefork.env().sh(
        fork,
        r"echo changed > file; rm sub/deep; rm -r gone; rm -r swap; mkdir swap; echo new > swap/new
          mkdir -p fresh/dir; echo x > fresh/dir/x; ln -s nowhere fresh/link; mkfifo fresh/fifo; chmod 750 keep
          rm link; mkdir link; chmod 600 keep/a/f; mv keep/a/f keep/f; printf 'a\nb' > $'fresh/new\nline'; sync -f .",
    );
    let ours = look(&treefork, fork);
    let dir = fork.parent().expect("in the fork's directory").to_path_buf();
    treefork.ok(["--store", store_text, "serve", "--stop"]);
    let (work, merged) = (image.path().join("kernel-work"), image.path().join("merged"));
    std::fs::create_dir(&work).expect("made");
    std::fs::create_dir(&merged).expect("made");
    let options = format!(
        "userxattr,lowerdir={},upperdir={},workdir={}",
        base.display(),
        dir.join("upper").display(),
        work.display()
    );
    treefork.env().command("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(&merged).ok();
    let theirs = look(&treefork, &merged);
    treefork.env().command("umount").arg(&merged).ok();
    assert_eq!(theirs, ours);
    treefork.ok(["--store", store_text, "remove", "a"]);
    treefork.ok(["--store", store_text, "serve", "--stop"]);
}
