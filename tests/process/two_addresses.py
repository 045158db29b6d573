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
SWALLOWS, ANSWERS = "10.9.0.2", "10.9.0.3"
# The node that hosts is in a network of its own, at the other end of a cable. At SWALLOWS nobody answers, and nothing says so.
NETWORK = f"""
set -eu
for file in hosts gai.conf; do
  [ -e /etc/$file ] || exit {SKIPPED}
  mount --bind "$1/$file" /etc/$file
done
unshare --net sh -c 'until ip link show there >/dev/null 2>&1; do sleep 0.02; done
  ip link set lo up; ip addr add {ANSWERS}/24 dev there; ip link set there up; exec "$@"' sh "$2" {{HOST}} &
# The other end of the cable goes where $! is now, so $! must have left for its own network.
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add here type veth peer name there netns $!
ip link set lo up
ip addr add 10.9.0.1/24 dev here
ip link set here up
ip neigh add {SWALLOWS} lladdr 02:00:00:00:00:02 dev here nud permanent
"$2" {{GUEST}}
"""
HOST = f"--nnodes 2 --node-rank 0 --rdzv-endpoint {ANSWERS}:29400 sh -c 'echo rank $RANK'"
GUEST = "--nnodes 2 --node-rank 1 --rdzv-endpoint node1:29400 sh -c 'echo rank $RANK'"


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode != 0:
        print("needs root and namespaces")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        # In this order, whatever the distance.
        Path(folder, "gai.conf").write_text("sortv4 no\n")
        Path(folder, "hosts").write_text(f"127.0.0.1 localhost\n{SWALLOWS} node1\n{ANSWERS} node1\n")
        script = NETWORK.replace("{HOST}", HOST).replace("{GUEST}", GUEST)
        done = subprocess.run(["timeout", "--signal=KILL", str(LIMIT_S), "unshare", "--net", "--mount", "--kill-child", "--pid", "--fork",
                               "--mount-proc", "sh", "-c", script, "sh", folder, BIN / "ddp-run"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == SKIPPED:
            print("no /etc/gai.conf here")
            return SKIPPED
        assert done.returncode == 0 and "rank 1" in done.stdout, done.stdout
    return 0


sys.exit(main())
