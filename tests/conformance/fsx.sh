#!/usr/bin/env bash
# fsx (cargo install fsx): random operations on one file, each read back: on a new file and on one of the base. Before that,
# copy_file_range with a file of the base that nobody has touched at either end, which fsx does not do.
set -euo pipefail
fork=$1 base=$2 length=$3
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
python3 - "$fork" "$base" <<'END'
import os, sys
fork, base = sys.argv[1:]
untouched = open(f'{base}/file', 'rb').read()
flags = os.O_RDWR | os.O_CREAT
for at, to, size in ((0, 0, 1 << 20), (4097, 123, 300_001), (1 << 19, 1 << 20, 1 << 19)):
    for name in ('copy', 'target'):
        before = open(f'{fork}/{name}', 'rb').read() if os.path.exists(f'{fork}/{name}') else b''
        source, target, done = os.open(f'{fork}/file', os.O_RDONLY), os.open(f'{fork}/{name}', flags), 0
        while done < size:
            done += os.copy_file_range(source, target, size - done, at + done, to + done)
        wanted = before.ljust(to, b'\0')[:to] + untouched[at:at + size] + before[to + size:]
        assert open(f'{fork}/{name}', 'rb').read() == wanted, (name, at, to, size)
        os.close(source), os.close(target)
assert open(f'{base}/target', 'rb').read() == untouched[::-1]
END
echo 'fsx: copy_file_range out of and into untouched files of the base'
fsx -q -f "$config" -S 1 -N "$operations" "$fork/new"
fsx -q -f "$config" -S 2 -N "$operations" "$fork/file"
echo "fsx: $operations operations on a new file and on one of the base"
