#!/bin/sh
# The main job, start to end: forks a repository, works in the forks, compares, merges, removes.
#
#   sh examples/tour.sh          on a small repository that it makes (and removes again)
#   sh examples/tour.sh DIR      on a checkout of yours; nothing is merged into it
#
# Builds treefork first; TREEFORK=/path/to/treefork uses one that is built.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${TREEFORK:-}" ]; then
    cargo build --release --manifest-path "$here/Cargo.toml"
    TREEFORK=${CARGO_TARGET_DIR:-$here/target}/release/treefork
fi

scratch=$(mktemp -d)
export TREEFORK_STORE="$scratch/store"
cleanup() {
    cd /
    "$TREEFORK" serve --stop >/dev/null 2>&1 || true
    # Another process that was just started to delete a fork may still look into the store.
    for _ in 1 2 3 4 5 6 7 8 9; do
        rm -rf "$scratch" 2>/dev/null && return
        sleep 0.2
    done
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

show() {
    printf '\n$ %s\n' "$*"
}
treefork() {
    show treefork "$@"
    "$TREEFORK" "$@"
}

if [ $# -gt 0 ]; then
    cd "$1"
else
    mkdir "$scratch/project"
    cd "$scratch/project"
    git init -q -b main .
    git config user.name Tour
    git config user.email tour@example.org
    printf 'A project.\n' > README
    printf 'build/\n' > .gitignore
    mkdir build src
    echo 'int main(void) { return 0; }' > src/main.c
    echo 'expensive output' > build/output
    git add . && git commit -q -m 'Begin'
fi

treefork create --label idea-a
treefork create --label idea-b
treefork exec idea-a -- sh -c 'pwd; ls -A; echo "Better than before." > TOUR; git add TOUR; git status --short'
treefork exec idea-b -- sh -c 'echo "Quite different." > TOUR; git status --short'
treefork list
treefork diff idea-a

if [ $# -gt 0 ]; then
    show "git status --short    # of the checkout, where nothing has changed"
    git --no-optional-locks status --short
else
    treefork exec idea-a -- git commit -q -m 'Take the tour'
    treefork merge idea-a
    show git log --oneline
    git --no-pager log --oneline
    show "treefork merge idea-b    # both made the same file: refused, whole"
    if "$TREEFORK" merge idea-b; then
        echo 'this should have been a conflict' >&2
        exit 1
    fi
    cat TOUR
fi
treefork remove idea-b
treefork list
