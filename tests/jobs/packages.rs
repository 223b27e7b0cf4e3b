//! Package managers: trees that are unpacked, renamed, linked and thrown away.

use crate::common::{Fork, Run, same_as_plain};

#[test]
fn npm_installs_a_local_package() {
    let base = r#"
        mkdir -p ../pkg/lib; echo '{"name": "pkg", "version": "1.0.0", "bin": {"pkg": "cli.js"}}' > ../pkg/package.json
        echo 'module.exports = 42' > ../pkg/index.js; printf '#!/usr/bin/env node\nconsole.log(require("./index.js"))\n' > ../pkg/cli.js
        for n in $(seq 200); do echo "module.exports = $n" > ../pkg/lib/m$n.js; done
        npm pack --silent ../pkg > /dev/null; echo '{"name": "app", "version": "1.0.0"}' > package.json"#;
    let fork = Fork::new(base);
    let install = "npm install --offline --no-audit --no-fund --silent ./pkg-1.0.0.tgz; node -e 'console.log(require(\"pkg\"))'; npx --offline pkg";
    assert_eq!(fork.sh(install), "42\n42");
    let plain = fork.env().join("plain");
    fork.env().command("cp").arg("-a").args([&fork.base, &plain]).ok();
    fork.env().sh(&plain, install);
    let list = "find . -name .package-lock.json -prune -o -printf '%P %y %m %l %n\\n' | sort; find . -type f -name '*.js*' ! -name .package-lock.json -exec cksum {} + | sort";
    assert_eq!(fork.env().sh(&plain, list), fork.sh(list));
    assert_eq!(fork.sh("npm uninstall --offline --no-audit --no-fund --silent pkg; ls node_modules | wc -l"), "0");
}

#[test]
fn a_storm_of_renames() {
    let base = "for n in $(seq 60); do mkdir -p node_modules/p$n/lib; echo $n > node_modules/p$n/lib/index.js; ln -s p$n/lib/index.js node_modules/l$n; done";
    let storm = r#"cd node_modules
        for n in $(seq 60); do mv p$n .p$n-old; mkdir -p .tmp/p$n/lib; echo new $n > .tmp/p$n/lib/index.js; mv .tmp/p$n p$n; done
        for n in $(seq 1 2 60); do rm -rf .p$n-old; done
        for n in $(seq 2 2 60); do rm -rf p$n; mv .p$n-old p$n; done
        for n in $(seq 59); do mv p$((n + 1)) swap; mv p$n p$((n + 1)); mv swap p$n; done
        rmdir .tmp; cd ..; mv node_modules other; mv other node_modules
        find . | sort; cat node_modules/l*"#;
    same_as_plain(base, storm);
}
