//! Changing many small files, from this process: what is measured is the file system, not the start of programs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::tree;

/// Makes this many new files of 1 KiB, a hundred to a directory.
pub(crate) fn create(root: &Path, count: usize) {
    for i in 0..count {
        let dir = root.join(format!("new/d{}", i / 100));
        if i % 100 == 0 {
            fs::create_dir_all(&dir).expect("mkdir");
        }
        fs::write(dir.join(format!("f{i}")), [b'n'; 1024]).expect("write");
    }
}

/// Gives this many tracked files new content, as an editor does that truncates.
pub(crate) fn rewrite(root: &Path, files: usize, count: usize) {
    spread(files, count, 0, |path| fs::write(root.join(path), [b'r'; 2048]).expect("write"));
}

/// Renames this many tracked files in their directories.
pub(crate) fn rename(root: &Path, files: usize, count: usize) {
    spread(files, count, 1, |path| {
        fs::rename(root.join(&path), root.join(format!("{path}.renamed"))).expect("rename");
    });
}

/// Deletes this many tracked files.
pub(crate) fn delete(root: &Path, files: usize, count: usize) {
    spread(files, count, 2, |path| fs::remove_file(root.join(path)).expect("unlink"));
}

/// Writes into the middle of a file and waits for nothing.
pub(crate) fn poke(file: &Path) {
    let file = fs::File::options().write(true).open(file).expect("open");
    file.write_all_at(&[b'x'; 4096], 4096 * 100).expect("write");
}

/// Edits this many files, another choice for each seed, by appending a line.
pub(crate) fn edit(root: &Path, files: usize, count: usize, seed: usize) {
    use std::io::Write;
    for i in 0..count {
        let path = root.join(tree::file((seed * 31 + i * (files / count)) % files));
        let mut file = fs::File::options().append(true).open(path).expect("open");
        writeln!(file, "// edit {i} of agent {seed}").expect("write");
    }
}

/// Calls `act` with `count` of the `files` tracked files; different ones for phases 0, 1 and 2.
fn spread(files: usize, count: usize, phase: usize, act: impl Fn(String)) {
    // Every ninth file and its neighbours: three phases never meet, and no directory is left out.
    let step = (files / count).max(4);
    for i in 0..count.min(files / step) {
        act(tree::file(i * step + phase));
    }
}
