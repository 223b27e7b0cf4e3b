//! Programs are built in a fork as on the plain directory.

use crate::common::{Fork, Run, same_as_plain};

#[test]
fn a_c_project_builds_with_make() {
    let base = r##"
        for n in 1 2 3 4 5 6 7 8; do echo "#include \"common.h\"
int f$n(void) { return $n * FACTOR; }" > f$n.c; done
        echo '#define FACTOR 2' > common.h
        for n in 1 2 3 4 5 6 7 8; do echo "int f$n(void);" >> common.h; done
        printf '#include <stdio.h>\n#include "common.h"\nint main(void) { printf("%%d\\n", f1() + f8()); return 0; }\n' > main.c
        printf 'OBJ = $(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(OBJ)\n\tgcc -o $@ $^\n%%.o: %%.c common.h\n\tgcc -c -o $@ $<\nclean:\n\trm -f *.o prog\n' > Makefile
        make -s; ./prog; touch -d '-1 hour' *"##;
    let work = "make -q; make -s; ./prog; sed -i 's/FACTOR 2/FACTOR 3/' common.h; make -s -j2; ./prog; make -q
        make -s clean; ls; make -s -j2; ./prog; touch f1.c; make -n | wc -l";
    same_as_plain(base, work);
}

#[test]
fn a_cargo_workspace_builds_offline() {
    let base = r#"
        mkdir -p lib/src app/src
        printf '[workspace]\nmembers = ["lib", "app"]\nresolver = "2"\n' > Cargo.toml
        printf '[package]\nname = "lib"\nversion = "0.1.0"\nedition = "2021"\n' > lib/Cargo.toml
        printf 'pub fn answer() -> u32 { 42 }\n#[test]\nfn right() { assert_eq!(answer(), 42); }\n' > lib/src/lib.rs
        printf '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nlib = { path = "../lib" }\n' > app/Cargo.toml
        printf 'fn main() { println!("{}", lib::answer()); }\n' > app/src/main.rs
        cargo build -q --offline"#;
    let fork = Fork::new(base);
    assert_eq!(fork.sh("cargo run -q --offline"), "42");
    fork.sh("sed -i 's/42/43/g' lib/src/lib.rs; cargo test -q --offline");
    assert_eq!(fork.sh("cargo run -q --offline"), "43");
    let fresh = fork.env().command_in(&fork.path, "cargo").args(["build", "--offline", "-v"]).ok().complaint();
    assert!(fresh.contains("Fresh") && !fresh.contains("Compiling"), "{fresh}");
    assert_eq!(fork.env().sh(&fork.base, "target/debug/app"), "42");
}
