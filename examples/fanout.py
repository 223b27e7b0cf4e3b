#!/usr/bin/env python3
"""Several helpers try the same task, each in a fork; the first that succeeds is merged.

usage: fanout.py BASE N COMMAND...   (the program is $TREEFORK, else treefork in the search path)
"""
import json, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor, as_completed

PROGRAM = os.environ.get("TREEFORK", "treefork")


def treefork(*args):
    done = subprocess.run([PROGRAM, "--json", *args], stdout=subprocess.PIPE, text=True)
    answer = json.loads(done.stdout.splitlines()[-1] if args[0] == "exec" else done.stdout)
    return done.returncode, answer


def attempt(base, command):
    status, fork = treefork("create", base)
    if status != 0:
        raise SystemExit(fork["error"]["message"])
    status, _ = treefork("exec", fork["id"], "--", *command)
    return fork["id"], status


if len(sys.argv) < 4 or not sys.argv[2].isdigit():
    print(__doc__, file=sys.stderr)
    sys.exit(2)
base, n, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
winner = None
with ThreadPoolExecutor(n) as pool:
    for attempted in as_completed(pool.submit(attempt, base, command) for _ in range(n)):
        fork, status = attempted.result()
        if winner is None and status == 0 and treefork("merge", fork)[0] == 0:
            winner = fork
        treefork("remove", fork)  # also where the merge has removed it
print(f"merged {winner}" if winner else "no helper succeeded")
sys.exit(0 if winner else 1)
