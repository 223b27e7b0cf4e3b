#!/usr/bin/env bash
# stress-ng: its file-system class, one stressor after the other, with what it can verify.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fork=$1 length=$3
exclude=$(sed -n 's/^\([a-z-]*\) .*/\1/p' "$here/stress-ng.exclude" | paste -sd,)
seconds=60
[ "$length" = short ] && seconds=10
# All of the class at once for the whole time, as the class is meant.
stress-ng --class filesystem --all 1 --timeout "$seconds" --verify --temp-path "$fork" --exclude "$exclude" \
    --oomable --metrics-brief 2>&1 | tail -n 60
