#!/usr/bin/env python3
"""A name with two addresses, of which the first swallows packets: the second is tried in time.

    two_addresses.py BIN

Needs root: network and files are a namespace's own.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.argv[1]).resolve()
SKIPPED = 77
LIMIT_S = 240
SWALLOWS, ANSWERS = "10.9.0.2", "127.0.0.1"
NETWORK = """
set -eu
ip link set lo up
ip link add swallows type dummy
ip addr add 10.9.0.1/24 dev swallows
ip link set swallows up
for file in hosts gai.conf; do
  [ -e /etc/$file ] || exit 77
  mount --bind "$1/$file" /etc/$file
done
shift
exec "$@"
"""


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode != 0:
        print("needs root and namespaces")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        # In this order, whatever the distance.
        Path(folder, "gai.conf").write_text("sortv4 no\n")
        Path(folder, "hosts").write_text(f"{ANSWERS} localhost\n{SWALLOWS} node1\n{ANSWERS} node1\n")
        host = [BIN / "ddp-run", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "localhost:29400", "sh", "-c", "echo rank $RANK"]
        guest = [BIN / "ddp-run", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node1:29400", "--join-timeout", "60",
                 "sh", "-c", "echo rank $RANK"]
        words = " ".join(f"'{word}'" for word in host) + " & exec " + " ".join(f"'{word}'" for word in guest)
        done = subprocess.run(["unshare", "--net", "--mount", "--kill-child", "--pid", "--fork", "sh", "-c", NETWORK, "sh", folder, "sh", "-c", words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
        if done.returncode == SKIPPED:
            print("no /etc/gai.conf here")
            return SKIPPED
        assert done.returncode == 0 and "rank 0" in done.stdout and "rank 1" in done.stdout, done.stdout
    return 0


sys.exit(main())
