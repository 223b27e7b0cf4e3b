#!/usr/bin/env bash
# fsx (cargo install fsx): random operations on one file, each read back. Once on a file of the base, once on a new one.
set -euo pipefail
fork=$1 length=$3
operations=100000
[ "$length" = short ] && operations=5000
config=$(mktemp)
trap 'rm -f "$config"' EXIT
cat >"$config" <<'END'
flen = 1048576
[opsize]
max = 65536
[weights]
truncate = 1.0
invalidate = 1.0
fsync = 0.05
fdatasync = 0.05
punch_hole = 2.0
copy_file_range = 2.0
sendfile = 1.0
posix_fadvise = 1.0
posix_fallocate = 0.5
END
fsx -q -f "$config" -S 1 -N "$operations" "$fork/new"
fsx -q -f "$config" -S 2 -N "$operations" "$fork/file"
echo "fsx: $operations operations on a new file and on one of the base"
