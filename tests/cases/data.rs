//! Copy-up and data.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::process::Stdio;

use crate::common::{Fork, Image, Treefork, eventually, same_as_plain};

/// Overwrites `f` in a way and to a length.
const OVERWRITE: &str = r#"
cat > ../overwrite.py <<'END'
import mmap, os, sys
way, length = sys.argv[1], int(sys.argv[2])
data = bytes((n * 7 + 3) % 251 for n in range(length))
if way == 'trunc':
    fd = os.open('f', os.O_WRONLY | os.O_TRUNC); os.write(fd, data)
elif way == 'ftruncate':
    fd = os.open('f', os.O_RDWR); os.ftruncate(fd, length); os.pwrite(fd, data, 0)
elif way == 'mmap':
    fd = os.open('f', os.O_RDWR); os.ftruncate(fd, length)
    m = mmap.mmap(fd, length); m[:] = data; m.flush(); m.close()
os.close(fd)
END
"#;

#[test]
fn case_15_overwriting_gives_the_same_bytes() {
    for way in ["trunc", "ftruncate", "mmap"] {
        for length in [1, 4096, 9_999, 10_000, 10_001, 50_000] {
            let script = format!("{OVERWRITE} /usr/bin/python3 ../overwrite.py {way} {length}; stat -c %s f; cksum f");
            same_as_plain("head -c 10000 /dev/zero | tr '\\0' x > f", &script);
        }
    }
}

#[test]
fn case_15_a_database_is_vacuumed() {
    let base = "sqlite3 db 'create table t (n integer, s text);
        with recursive c(n) as (select 1 union all select n + 1 from c where n < 5000) insert into t select n, hex(zeroblob(50)) from c;'";
    let script = "sqlite3 db 'delete from t where n % 3 = 0; vacuum; pragma integrity_check; select count(*), sum(n) from t;'; cksum db";
    same_as_plain(base, script);
}

#[test]
fn case_16_reading_leaves_the_upper_empty() {
    let fork = Fork::new("mkdir -p a/b; for n in $(seq 50); do echo text $n > a/b/$n; done; ln -s a/b l");
    assert_eq!(fork.sh("grep -r text . | wc -l; find . -type f -exec cat {} + | wc -l; ls -laR > /dev/null"), "50\n50");
    drop(File::open(fork.join("a/b/7")).expect("it is there"));
    assert_eq!(fork.changed(), Vec::<std::path::PathBuf>::new());
    let stat = |name: &str| {
        let meta = fork.join(name).metadata().expect("it is there");
        (meta.len(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.ino())
    };
    let before = stat("a/b/7");
    let file = OpenOptions::new().read(true).write(true).open(fork.join("a/b/7")).expect("it is there");
    let mut text = String::new();
    (&file).read_to_string(&mut text).expect("it is text");
    drop(file);
    assert_eq!((text.as_str(), stat("a/b/7")), ("text 7\n", before));
}

#[test]
fn case_18_one_byte_of_a_huge_sparse_file_takes_kilobytes() {
    let fork = Fork::new("truncate -s 10G f; printf data | dd of=f bs=1 seek=5G conv=notrunc status=none");
    let file = OpenOptions::new().read(true).write(true).open(fork.join("f")).expect("it is there");
    file.write_all_at(b"x", 7 << 30).expect("there is room");
    file.sync_all().expect("a disk");
    let mut data = [0; 5];
    file.read_exact_at(&mut data, 5 << 30).expect("it is long enough");
    assert_eq!(&data, b"data\0");
    assert_eq!(file.metadata().expect("open").len(), 10 << 30);
    let used: u64 = fork.env().sh(&fork.upper(), "du -sk . | cut -f 1").parse().expect("a number");
    assert!(used < 1024, "{used} KiB");
}

#[test]
fn case_19_holes_are_never_where_data_is() {
    let base = "truncate -s 1M f; for at in 0 300000 700000; do printf data | dd of=f bs=1 seek=$at conv=notrunc status=none; done";
    let fork = Fork::new(base);
    let map = |path: &std::path::Path| {
        let file = File::open(path).expect("it is there");
        let (mut at, mut extents) = (0, Vec::new());
        while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).expect("there is always one at the end");
            extents.push((data, at));
        }
        extents
    };
    let covered = |extents: &[(u64, u64)], at: u64| extents.iter().any(|(from, to)| (*from..*to).contains(&at));
    let before = map(&fork.base.join("f"));
    assert_eq!(map(&fork.join("f")), before, "untouched: the map of the base");
    let file = OpenOptions::new().write(true).open(fork.join("f")).expect("it is there");
    file.write_all_at(b"more", 500_000).expect("there is room");
    let after = map(&fork.join("f"));
    for at in [0, 300_000, 500_000, 700_000] {
        assert!(covered(&after, at), "{at} is data: {after:?}");
    }
}

#[test]
fn case_20_only_the_field_that_was_asked_for_changes() {
    let fork = same_as_plain(
        "echo text > f; ln -s f l; touch -d @5.000000007 f; touch -hd @6.000000008 l",
        "/usr/bin/python3 -c 'import os
fd = os.open(\"f\", os.O_RDWR)
os.ftruncate(fd, 2)
os.utime(fd, ns=(11, 12))
print(os.fstat(fd).st_mtime_ns, os.fstat(fd).st_size)
os.utime(\"l\", ns=(13, 14), follow_symlinks=False)
print(os.lstat(\"l\").st_mtime_ns, os.stat(\"l\").st_mtime_ns)'
        touch -a -d @77 f; stat -c '%X %y' f; touch -m -d @78 f; stat -c '%X %y' f; touch -h -d @79 l; stat -c %Y l f",
    );
    assert_eq!(fork.sh("readlink l"), "f");
}

#[test]
fn case_21_two_appenders_lose_no_line() {
    let fork = Fork::new("echo base > f");
    let append = "for n in $(seq 10000); do echo line $0 $n; done >> f";
    let mut writers: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let mut command = fork.env().command_in(&fork.path, "bash");
            command.args(["-c", append, name]).stdin(Stdio::null()).spawn().expect("bash starts")
        })
        .collect();
    for writer in &mut writers {
        assert!(crate::common::run::wait(writer, "an appender").success());
    }
    assert_eq!(
        fork.sh("wc -l < f; grep -cx 'line a [0-9]*' f; grep -cx 'line b [0-9]*' f; sort -u f | wc -l"),
        "20001\n10000\n10000\n20001"
    );
}

#[test]
fn case_23_an_old_descriptor_sees_what_is_written_later() {
    let fork = Fork::new("head -c 100000 /dev/zero > f");
    let old = File::open(fork.join("f")).expect("it is there");
    let mut first = [0; 10];
    old.read_exact_at(&mut first, 50_000).expect("long enough");
    fork.sh("printf changed | dd of=f bs=1 seek=50000 conv=notrunc status=none; echo end >> f");
    let mut now = [0; 7];
    old.read_exact_at(&mut now, 50_000).expect("long enough");
    assert_eq!(&now, b"changed");
    let (by_fd, by_path) = (old.metadata().expect("open"), fork.join("f").metadata().expect("there"));
    assert_eq!((by_fd.ino(), by_fd.len()), (by_path.ino(), by_path.len()));
    assert_eq!(by_fd.len(), 100_004);
}

#[test]
fn case_24_a_mapping_and_reads_agree() {
    let script = "/usr/bin/python3 -c '
import mmap, os
early = os.open(\"f\", os.O_RDONLY)
seen = mmap.mmap(early, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
print(seen[:4])
fd = os.open(\"f\", os.O_RDWR)
m = mmap.mmap(fd, 0)
m[100:105] = b\"hello\"
print(os.pread(fd, 5, 100), os.pread(early, 5, 100), seen[100:105])
m.flush()
print(os.pread(fd, 5, 100), seen[100:105])
os.pwrite(fd, b\"again\", 200)
print(m[200:205], seen[200:205])'";
    same_as_plain("head -c 10000 /dev/zero | tr '\\0' x > f", script);
}

#[test]
fn case_28_a_full_upper_leaves_no_half_file() {
    let image = Image::ext4(16);
    let treefork = Treefork::with_store(image.path().join("store"));
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, "head -c 30M /dev/urandom > big; echo small > small");
    let sum = treefork.env().sh(&base, "cksum < big");
    let fork = Fork::of(treefork, base);
    let mut file = OpenOptions::new().write(true).open(fork.join("big")).expect("opening copies nothing");
    let full = file.seek(SeekFrom::Start(10)).and_then(|_| file.write_all(b"x")).and_then(|()| file.sync_all());
    drop(file);
    if full.is_ok() {
        // Nothing but the changed blocks was copied, and those fit.
        eprintln!("block-granular copy-up: the change fits");
        return;
    }
    assert_eq!(full.map_err(|e| e.raw_os_error()), Err(Some(libc::ENOSPC)));
    assert_eq!(fork.sh("cksum < big"), sum, "still the original");
    assert_eq!(fork.changed(), Vec::<std::path::PathBuf>::new());
    fork.sh("echo there is room > small; cat small");
    fork.restart();
    assert_eq!(fork.sh("cksum < big"), sum, "after a restart");
}

#[test]
fn case_41_a_file_replaced_in_the_base_is_old_or_new() {
    let fork = Fork::new("head -c 200000 /dev/zero | tr '\\0' a > f");
    fork.let_base_change();
    assert_eq!(fork.sh("head -c 3 f; wc -c < f"), "aaa200000");
    let open = File::open(fork.join("f")).expect("it is there");
    for (letter, size) in [("b", 300_000), ("c", 100_000)] {
        fork.env().sh(&fork.base, &format!("head -c {size} /dev/zero | tr '\\0' {letter} > new; mv new f"));
        let whole = |mut file: File| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        };
        eventually("the new file is seen", || {
            let bytes = whole(File::open(fork.join("f")).expect("there is always one")).expect("readable");
            assert!(bytes.windows(2).all(|w| w[0] == w[1]), "two versions in one read");
            bytes.len() == size && bytes.first() == letter.as_bytes().first()
        });
        assert_eq!(fork.join("f").metadata().expect("there").len(), size as u64);
    }
    // The descriptor goes on with a version that is whole.
    let mut bytes = vec![0; 300_000];
    let n = open.read_at(&mut bytes, 0).expect("it was read before, so it is kept");
    assert!(bytes[..n].windows(2).all(|w| w[0] == w[1]), "two versions in one read");
}

#[test]
fn case_27_special_files_never_block_the_server() {
    let base = "mkfifo p; mknod c c 1 3; mknod b b 7 200; /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'";
    let fork = Fork::new(base);
    let reader = fork.env().command_in(&fork.path, "cat").arg("p").stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let reader = reader.expect("cat starts");
    // The fifo is blocked, the fork is not.
    assert_eq!(fork.sh("ls; chmod 600 p; mv p q; echo through > q"), "b\nc\np\ns");
    let output = reader.wait_with_output().expect("cat ends once it was written to");
    assert_eq!(output.stdout, b"through\n");
    assert_eq!(fork.sh("chmod 640 c s b; mv s t; stat -c '%F %a' q c b t").lines().count(), 4);
    let kind = |name: &str| fork.join(name).symlink_metadata().expect("there").file_type();
    assert!(kind("q").is_fifo() && kind("c").is_char_device() && kind("b").is_block_device() && kind("t").is_socket());
    fork.restart();
    assert!(kind("q").is_fifo() && kind("t").is_socket());
}
