//! Names and types.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::common::{Fork, Look, assert_same, same_as_plain};

const ODD: &str =
    "mkdir $'d\\xff'; echo 1 > $'d\\xff/\\xff\\xfe'; echo 2 > $'sp ace\\n'; ln -s $'t\\xfe\\xff' link; echo 3 > plain";

#[test]
fn case_49_names_are_bytes() {
    let fork = Fork::new(ODD);
    let odd = fork.path.join(OsStr::from_bytes(b"d\xff/\xff\xfe"));
    assert_eq!(fs::read(&odd).expect("it is there"), b"1\n");
    assert_eq!(fs::read_link(fork.join("link")).expect("it is there").as_os_str().as_bytes(), b"t\xfe\xff");
    fs::write(&odd, "changed").expect("it can be written");
    fs::write(fork.path.join(OsStr::from_bytes(b"new\x80")), "new").expect("it can be made");
    fs::rename(fork.path.join(OsStr::from_bytes(b"d\xff")), fork.path.join(OsStr::from_bytes(b"e\xff")))
        .expect("moved");
    symlink(OsStr::from_bytes(b"\xc0\x80"), fork.join("link2")).expect("it can be made");
    let before = Look::default().at(&fork.path);
    fork.restart();
    assert_same(&before, &Look::default().at(&fork.path), "after a restart");
    assert_eq!(fs::read(fork.path.join(OsStr::from_bytes(b"e\xff/\xff\xfe"))).expect("it is there"), b"changed");
}

#[test]
fn case_50_no_name_is_reserved() {
    let base = "for n in ' ' -x .wh.x @x .wh..wh..opq .treefork upper work; do echo base > \"./$n\"; done";
    let work = "rm ./-x .wh.x; echo new > .wh.y; echo new > '.wh. '; mkdir d; : > d/.wh..wh..opq; : > d/.wh.z; : > d/z
        echo changed > @x; rm .treefork; ls -A . d; cat .wh.y";
    same_as_plain(base, work);
}

#[test]
fn case_52_symbolic_links_stay_what_they_are() {
    let base =
        "echo x > f; ln -s f good; ln -s nowhere dangling; ln -s . self; mkdir d; ln -s ../f d/up; touch -hd @9 good";
    let work = "readlink good dangling self d/up; chown -h 7:8 dangling; touch -hd @77.000000005 d/up; stat -c '%n %u:%g %Y %F' dangling d/up
        mv dangling moved; ln good hardlink; rm self; ln -s other self; test -L hardlink; cat good d/up; ls -A";
    same_as_plain(base, work);
}

#[test]
fn case_54_unix_sockets_work() {
    let script = "cat > ../try_socket.py <<'END'
import os, socket, threading
s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(1)
os.link('s', 't')
def serve():
    c, _ = s.accept(); c.sendall(b'hello'); c.close()
t = threading.Thread(target=serve); t.start()
c = socket.socket(socket.AF_UNIX); c.connect('t'); print(c.recv(5).decode()); t.join()
END
/usr/bin/python3 ../try_socket.py; stat -c '%F %h' s t";
    same_as_plain("touch f", script);
}

#[test]
fn case_53_an_absolute_link_into_the_base_never_leads_a_write_there() {
    let fork =
        Fork::new("mkdir d; echo base > d/f; ln -s \"$PWD/d/f\" abs; ln -s \"$PWD/d\" absdir; ln -s \"$PWD\" top");
    // Whether it lands in the fork or is refused, it is not in the base: dropping the fork checks that.
    let _ = fs::write(fork.join("abs"), "through\n");
    let _ = fs::write(fork.join("absdir/new"), "through\n");
    let _ = fs::write(fork.join("top/d/g"), "through\n");
    assert_eq!(fork.env().sh(&fork.base, "cat d/f; ls d"), "base\nf");
}
