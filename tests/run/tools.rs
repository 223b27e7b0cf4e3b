//! Tools that write absolute paths into what they make, made in the base and used in a fork: nothing is built again, and
//! nothing of it leads back to the base.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Site, Who};
use crate::common::run::Done;
use crate::common::{Run, assert_same};

/// Runs a script in a fork; the base stays as it is.
#[track_caller]
fn works(site: &Site, script: &str) -> Done {
    let before = site.look();
    let done = site.run(&[], script).ok();
    assert_same(&before, &site.look(), script);
    done
}

#[test]
fn a_python_environment_with_absolute_shebangs() {
    let site = Site::new(Who::Root);
    site.env.sh(&site.base, "python3 -m venv --without-pip venv");
    // What pip writes for a console script.
    let tool = site.base.join("venv/bin/tool");
    let text = format!("#!{}/venv/bin/python\nimport sys; print(sys.prefix)\n", site.base.display());
    fs::write(&tool, text).expect("writable");
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let script = "venv/bin/tool; source venv/bin/activate; python -c 'import sys; open(sys.prefix + \"/mark\", \"w\")'; \
                  ls $B/venv/mark; readlink -f venv/mark";
    let venv = site.base.join("venv");
    let mark = venv.join("mark");
    assert_eq!(works(&site, script).text(), format!("{}\n{1}\n{1}", venv.display(), mark.display()));
}

#[test]
fn a_cargo_target_directory_is_fresh() {
    let site = Site::new(Who::Root);
    let write = |path: &str, text: &str| {
        let path = site.base.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    write("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\nresolver = \"2\"\n");
    write(
        "a/Cargo.toml",
        "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nb = { path = \"../b\" }\n",
    );
    write("a/src/main.rs", "fn main() { println!(\"{} {}\", b::two(), file!()); }\n");
    write("b/Cargo.toml", "[package]\nname = \"b\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n");
    write("b/build.rs", "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }\n");
    write("b/src/lib.rs", "pub fn two() -> u32 { 2 }\n");
    site.env.sh(&site.base, "cargo build --offline -q");
    let done = works(&site, "cargo build --offline -v");
    let said = done.complaint();
    let units = |word: &str| said.lines().filter(|line| line.trim_start().starts_with(word)).count();
    assert_eq!((units("Fresh"), units("Compiling"), units("Dirty")), (2, 0, 0), "{said}");
    // A change in the fork is built there.
    let script = "echo 'pub fn two() -> u32 { 3 }' > b/src/lib.rs; cargo build --offline -q; $B/target/debug/a";
    assert_eq!(works(&site, script).text(), "3 a/src/main.rs");
}

#[test]
fn a_cmake_build_tree() {
    let site = Site::new(Who::Root);
    if site.command("cmake").arg("--version").output().is_err() {
        eprintln!("LEFT OUT: cmake is not installed; a_make_build_tree_with_absolute_paths stands in for it");
        return;
    }
    fs::write(site.base.join("main.c"), "#include <stdio.h>\nint main(void) { puts(__FILE__); return 0; }\n")
        .expect("writable");
    fs::write(
        site.base.join("CMakeLists.txt"),
        "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nadd_executable(p main.c)\n",
    )
    .expect("writable");
    site.env.sh(&site.base, "cmake -S . -B build > /dev/null && cmake --build build > /dev/null");
    let said = works(&site, "cmake --build build; build/p").text();
    assert!(!said.contains("Building"), "{said}");
    assert!(said.ends_with(site.base.join("main.c").to_str().expect("text")), "{said}");
    let said = works(&site, "touch main.c; cmake --build build; ls -l --time-style=+%s build/p | wc -l").text();
    assert!(said.contains("Building"), "{said}");
}

#[test]
fn a_make_build_tree_with_absolute_paths() {
    let site = Site::new(Who::Root);
    let here = site.base.display();
    let makefile = format!("{here}/out/p: {here}/main.c\n\tmkdir -p {here}/out\n\tcc -o {here}/out/p {here}/main.c\n");
    fs::write(site.base.join("Makefile"), makefile).expect("writable");
    fs::write(site.base.join("main.c"), "int main(void) { return 7; }\n").expect("writable");
    site.env.sh(&site.base, "make -s");
    assert!(works(&site, "make").text().contains("up to date"));
    let script = "sed -i s/7/8/ main.c; make -s; out/p || echo $?";
    assert_eq!(works(&site, script).text(), "8");
}

#[test]
fn node_modules_with_absolute_links() {
    let site = Site::new(Who::Root);
    let package = site.base.join("packages/dep");
    fs::create_dir_all(&package).expect("writable");
    fs::create_dir(site.base.join("node_modules")).expect("writable");
    fs::write(package.join("package.json"), "{\"name\": \"dep\", \"main\": \"index.js\"}").expect("writable");
    fs::write(package.join("index.js"), "module.exports = 'one'\n").expect("writable");
    symlink(&package, site.base.join("node_modules/dep")).expect("writable");
    let program = "const fs = require('fs'); fs.writeFileSync(require.resolve('dep'), \"module.exports = 'two'\"); \
                   console.log(require('dep'), fs.realpathSync('node_modules/dep'))";
    fs::write(site.base.join("main.js"), program).expect("writable");
    let said = works(&site, "node main.js; cat packages/dep/index.js").text();
    assert_eq!(said, format!("two {}\nmodule.exports = 'two'", package.display()));
    assert!(Path::new(&package).join("index.js").exists());
}
