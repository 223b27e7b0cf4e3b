#!/usr/bin/env bash
# fio: jobs that verify what they wrote, by every way to write, on new files and on a copied-up one.
set -euo pipefail
fork=$1 length=$3
size=64M
[ "$length" = short ] && size=8M
options=(--verify=crc32c --verify_fatal=1 --do_verify=1 --size="$size" --bs=4k-64k --directory="$fork" --minimal
    --verify_backlog=256 --verify_state_save=0 --randrepeat=1)
for engine in psync mmap libaio; do
    for pattern in write randwrite randrw; do
        fio --name="$engine-$pattern" --ioengine="$engine" --rw="$pattern" "${options[@]}" >/dev/null
        echo "fio: $engine $pattern verified"
    done
done
fio --name=direct --ioengine=psync --direct=1 --rw=randwrite "${options[@]}" --bs=4k >/dev/null
echo 'fio: direct verified'
fio --name=many --ioengine=psync --rw=randwrite --numjobs=4 --fsync=32 "${options[@]}" >/dev/null
echo 'fio: four writers with fsync verified'
fio --name=base --ioengine=psync --rw=randwrite "${options[@]}" --filename=file --size=1M >/dev/null
echo 'fio: a file of the base verified'
