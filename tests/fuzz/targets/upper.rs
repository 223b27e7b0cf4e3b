//! Uppers made by a hostile hand: opened, walked, read, changed and compared without a panic, without a way out, and to
//! an end.
//!
//! The input is a program: operations that make an upper, then operations on the overlay over it. Beside base and upper
//! lies a directory that nothing may lead to.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags};
use treefork::layer::blocks::Source;
use treefork::layer::hidden::Hidden;
use treefork::layer::marks::{BLOCKS, OPAQUE, ORIGIN, Origin, PREFIX, REDIRECT, WHITEOUT, is_ours};
use treefork::names::RelPath;
use treefork::overlay::{Caller, Config, FdCache, Large, Lookup, Lower, Overlay, ROOT, SetAttr};
use treefork::sys::{At, Stat, Time, open_root};

const SECRET: &[u8] = b"nobody may see this";
/// No walk of so small trees finds more entries than this, unless it goes round.
const MOST: usize = 4_000;

/// The input, read piece by piece; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// Some bytes as they are.
    fn raw(&mut self) -> Vec<u8> {
        (0..self.byte() % 24).map(|_| self.byte()).collect()
    }

    /// A name of the base, of the upper, or of neither.
    fn name(&mut self) -> &'static str {
        self.pick(&["d", "e", "f", "g", "big", "link", "h", "new", ".wh.f", "x\n"])
    }

    fn path(&mut self) -> PathBuf {
        (0..=self.byte() % 3).map(|_| self.name()).collect()
    }
}

/// Base, upper and work of one run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("there is room"));
        for dir in ["base/d/e/h", "base/g", "upper", "work", "outside"] {
            fs::create_dir_all(place.at(dir)).expect("there is room");
        }
        for file in ["base/f", "base/d/f", "base/d/e/f"] {
            fs::write(place.at(file), file).expect("there is room");
        }
        fs::write(place.at("base/big"), vec![7; 20_000]).expect("there is room");
        fs::hard_link(place.at("base/f"), place.at("base/d/g")).expect("there is room");
        symlink("../../outside", place.at("base/link")).expect("there is room");
        fs::write(place.at("outside/f"), SECRET).expect("there is room");
        place
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(path)
    }

    fn overlay(&self) -> rustix::io::Result<Arc<Overlay>> {
        let open = |name: &str| open_root(&self.at(name)).expect("ours");
        Overlay::new(Config {
            lowers: vec![Lower { root: open("base"), marked: false, image: false, watch: false }],
            upper: Some(open("upper")),
            work: Some(open("work")),
            watch: None,
            fds: FdCache::new(16),
            created: Some(Time { sec: i64::MAX, nsec: 0 }),
            made_on: None,
            hidden: Hidden::default(),
            large: Large { from: 16 << 10, background: false },
        })
    }

    /// Everything in a directory that must stay as it is.
    fn picture(&self, name: &str) -> BTreeMap<PathBuf, (u64, u32, u64, i64, i64)> {
        let mut all = BTreeMap::new();
        let mut todo = vec![self.at(name)];
        while let Some(path) = todo.pop() {
            let meta = path.symlink_metadata().expect("it is there");
            if meta.is_dir() {
                todo.extend(fs::read_dir(&path).expect("ours").map(|entry| entry.expect("ours").path()));
            }
            all.insert(path, (meta.ino(), meta.mode(), meta.size(), meta.mtime_nsec(), meta.ctime_nsec()));
        }
        all
    }
}

/// One operation of whoever made the upper. What the file system refuses is not done.
fn make(place: &Place, input: &mut Input<'_>) {
    let operation = input.byte();
    let inside = input.path();
    let path = place.at("upper").join(&inside);
    // Opening what is neither may wait for somebody, or do something.
    let special = path.symlink_metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
    if special || leads_elsewhere(place, &path) {
        return;
    }
    if let Some(parent) = path.parent() {
        let _ = fs::create_dir_all(parent);
    }
    let set = |name: &str, value: &[u8]| {
        let _ = rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty());
    };
    let node = |kind, mode: u32, device| {
        let _ = rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(mode), device);
    };
    match operation % 16 {
        0 => drop(fs::write(&path, input.raw())),
        1 => drop(fs::create_dir_all(&path)),
        2 => node(FileType::CharacterDevice, 0, 0),
        3 => {
            path.parent().into_iter().for_each(|dir| {
                let _ = rustix::fs::lsetxattr(dir, OPAQUE, b"x", XattrFlags::empty());
            });
            drop(fs::write(&path, ""));
            set(WHITEOUT, &input.raw());
        }
        4 => set(OPAQUE, input.pick::<&[u8]>(&[b"y", b"x", b"", b"z"])),
        5 | 6 => set(REDIRECT, &redirect(&inside, input)),
        7 => set(ORIGIN, &origin(place, input)),
        8 => blocks(place, &path, input),
        9 => drop(symlink(input.pick(&["../outside/f", "/dev/zero", ".", "link", "../../../outside"]), &path)),
        10 => node(input.pick(&[FileType::Fifo, FileType::Socket]), 0o644, 0),
        11 => node(FileType::CharacterDevice, 0o666, rustix::fs::makedev(1, input.pick(&[3, 5]))),
        12 => {
            let other = place.at("upper").join(input.path());
            if !leads_elsewhere(place, &other) {
                drop(fs::hard_link(other, &path));
            }
        }
        13 => work(place, &path, input),
        14 => set(&format!("{PREFIX}{}", String::from_utf8_lossy(&input.raw())), b"1"),
        _ => drop(fs::set_permissions(&path, fs::Permissions::from_mode(input.pick(&[0, 0o4755, 0o7777])))),
    }
}

/// Whether there is a link on the way. Whoever makes the upper has no business outside either.
fn leads_elsewhere(place: &Place, path: &Path) -> bool {
    path.ancestors().take_while(|path| *path != place.0.path()).any(Path::is_symlink)
}

fn redirect(inside: &Path, input: &mut Input<'_>) -> Vec<u8> {
    let own = [b"/", inside.as_os_str().as_bytes()].concat();
    let known: [&[u8]; 14] = [
        b"/d",
        b"/d/e",
        b"/g",
        b"/f",
        b"/link",
        b"/",
        b"/../outside",
        b"/d/../../outside",
        b"outside",
        b"",
        b"//d",
        b"/none",
        b"/d/e/h",
        &own,
    ];
    let at = usize::from(input.byte());
    known.get(at % 16).map_or_else(|| [b"/", &input.raw()[..]].concat(), |known| known.to_vec())
}

fn origin(place: &Place, input: &mut Input<'_>) -> Vec<u8> {
    let path = place.at("base").join(input.path());
    let root = open_root(place.0.path()).expect("ours");
    match At::new(&root, path.as_os_str()).stat() {
        Ok(stat) => {
            let ctime = (input.byte().is_multiple_of(2)).then_some(stat.ctime);
            Origin { ident: stat.ident(), dev: stat.dev, indexed: input.byte().is_multiple_of(2), ctime }.encode()
        }
        Err(_) => input.raw(),
    }
}

/// A large file that claims to be still on its way.
fn blocks(place: &Place, path: &Path, input: &mut Input<'_>) {
    let root = open_root(&place.at("base")).expect("ours");
    let Ok(stat) = At::new(&root, "big").stat() else { return };
    let lower = RelPath::new(&input.path()).unwrap_or_default();
    let mut source = Source::new(
        if input.byte().is_multiple_of(2) { RelPath::from_bytes(b"big").unwrap_or_default() } else { lower },
        &stat,
    );
    let numbers = [source.size, 0, 1, 4096, 4097, 1 << 40, u64::MAX];
    if input.byte().is_multiple_of(2) {
        source.block = input.pick(&numbers);
        source.size = input.pick(&numbers);
    }
    let _ = fs::File::create(path).and_then(|file| file.set_len(input.pick(&[20_000, 0, 5_000])));
    let text = serde_json::to_vec(&source).expect("plain");
    let _ = rustix::fs::lsetxattr(path, BLOCKS, &text, XattrFlags::empty());
    let _ = fs::create_dir(place.at("work/blocks"));
    if let Ok(stat) = At::new(&root, path.as_os_str()).stat() {
        let name = format!("{}-{}.{}", stat.ino, stat.btime.sec, stat.btime.nsec);
        let _ = fs::write(place.at("work/blocks").join(name), input.raw());
    }
}

/// Something in the work area that names an object of the upper, or nothing.
fn work(place: &Place, path: &Path, input: &mut Input<'_>) {
    let area = place.at("work").join(input.pick(&["index", "origin", "blocks", "drift", "ours", "ledger", "stage"]));
    let root = open_root(place.0.path()).expect("ours");
    let name = match At::new(&root, path.as_os_str()).stat() {
        Ok(Stat { ino, btime: Time { sec, nsec }, .. }) => OsString::from(format!("{ino}-{sec}.{nsec}")),
        // A name, not a path.
        Err(_) => OsString::from_vec(input.raw().into_iter().filter(|&byte| byte != b'/').chain(*b"x").collect()),
    };
    let text = OsString::from_vec(input.raw());
    if leads_elsewhere(place, &area.join(&name)) {
        return;
    }
    match input.byte() % 4 {
        0 => drop(fs::write(&area, text.as_bytes())),
        1 => drop(fs::create_dir_all(&area).and_then(|()| symlink(text, area.join(name)))),
        2 => drop(fs::create_dir_all(&area).and_then(|()| symlink("../../outside/f", area.join(name)))),
        _ => drop(fs::create_dir_all(&area).and_then(|()| fs::write(area.join(name), text.as_bytes()))),
    }
}

/// A node that a walk found, with the directory and name by which it did.
struct Found {
    parent: u64,
    name: OsString,
    node: u64,
    dir: bool,
}

/// Whatever came of it: only what happens besides counts.
fn fine<T>(_: T) {}

/// Looks at everything there is.
fn walk(overlay: &Overlay) -> Vec<Found> {
    let mut found = Vec::new();
    let mut todo = vec![(ROOT, 0)];
    while let Some((dir, depth)) = todo.pop() {
        let mut names = Vec::new();
        let listed = overlay.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_os_string());
            assert!(names.len() < MOST, "the listing of one directory does not end");
            false
        });
        fine(listed);
        for name in names.iter().filter(|name| *name != "." && *name != "..") {
            let Ok(Lookup::Found(entry)) = overlay.lookup(dir, name) else { continue };
            look(overlay, entry.node);
            let is_dir = entry.attr.is_dir();
            found.push(Found { parent: dir, name: name.clone(), node: entry.node, dir: is_dir });
            assert!(found.len() < MOST, "the walk goes round");
            if is_dir && depth < 12 {
                todo.push((entry.node, depth + 1));
            }
        }
    }
    found
}

/// Asks for everything that can be asked of a node.
fn look(overlay: &Overlay, node: u64) {
    fine(overlay.getattr(node));
    fine(overlay.readlink(node));
    if let Ok(names) = overlay.listxattr(node) {
        assert!(names.iter().all(|name| !is_ours(name)), "{names:?}");
    }
    assert!(overlay.getxattr(node, OsStr::new(REDIRECT)).is_err());
    let mut buffer = [0; 32 << 10];
    if let Ok(n) = overlay.read(node, 0, &mut buffer) {
        assert!(!buffer[..n].windows(SECRET.len()).any(|window| window == SECRET), "a way out");
    }
}

/// One operation of somebody in the fork. What is refused is fine.
fn act(overlay: &Overlay, found: &[Found], input: &mut Input<'_>) {
    let me = Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let some = |input: &mut Input<'_>| found.get(usize::from(input.byte()) % found.len().max(1));
    let operation = input.byte();
    let (Some(at), Some(other)) = (some(input), some(input)) else { return };
    let into = if other.dir { other.node } else { other.parent };
    let name = OsStr::new(input.name());
    match operation % 10 {
        0 => fine(overlay.rename(at.parent, &at.name, into, name, RenameFlags::empty())),
        1 => fine(overlay.rename(at.parent, &at.name, other.parent, &other.name, RenameFlags::EXCHANGE)),
        2 => fine(overlay.unlink(at.parent, &at.name)),
        3 => fine(overlay.rmdir(at.parent, &at.name)),
        4 => fine(overlay.mkdir(me, into, name, 0o755, 0)),
        5 => fine(overlay.mknod(me, into, name, 0o100_644, 0, 0)),
        6 => fine(overlay.write(at.node, u64::from(input.byte()) << 7, b"written", true)),
        7 => fine(overlay.link(at.node, into, name)),
        8 => fine(overlay.setattr(
            me,
            at.node,
            &SetAttr { size: Some(u64::from(input.byte()) << 8), ..SetAttr::default() },
        )),
        _ => fine(overlay.setattr(me, at.node, &SetAttr { mode: Some(0o640), ..SetAttr::default() })),
    }
}

/// Makes an upper, works in the fork that it gives, and works out what a merge would do.
pub(crate) fn program(data: &[u8]) {
    let place = Place::new();
    let mut input = Input(data);
    for _ in 0..input.byte() % 24 {
        make(&place, &mut input);
    }
    let before = ["base", "outside"].map(|name| place.picture(name));
    if let Ok(overlay) = place.overlay() {
        fine(overlay.resume());
        let found = walk(&overlay);
        for _ in 0..24.min(input.0.len()) {
            act(&overlay, &found, &mut input);
        }
        walk(&overlay);
        fine(overlay.sync_all());
    }
    let base = place.at("base");
    let created = Time::now();
    if let Ok(source) = treefork::merge::Source::open(place.0.path(), "id", "name", place.at("mnt"), base, created) {
        drop(treefork::merge::plan(&source, &treefork::merge::Options::default()));
    }
    assert_eq!(["base", "outside"].map(|name| place.picture(name)), before, "written outside of the upper");
    assert_eq!(fs::read(place.at("outside/f")).expect("there"), SECRET);
}

/// The list of paths that drifted.
pub(super) fn drift(data: &[u8]) {
    thread_local!(static PLACE: Place = Place::new());
    PLACE.with(|place| {
        fs::write(place.at("work/drift"), data).expect("there is room");
        let overlay = place.overlay().expect("lines that cannot be read are left out");
        let inside = |path: &RelPath| path.as_path().components().all(|c| matches!(c, std::path::Component::Normal(_)));
        assert!(overlay.drift().iter().all(inside));
    });
}
