"""Emulates nodes on this machine: network namespaces around a bridge, each behind one link of a limited rate.

The names are ddp-bench-PID-* (tests/support/netns.py); however bench/run ends, they are removed (guard.py). tc's tbf limits
the links in both directions, so the link is the bottleneck as long as the shared processor keeps up: link_rate() measures what
the links really carry. Congestion control is cubic, Linux' default, whatever the machine uses: bbr would take the rate at which
a busy worker reads for the rate of the link, and send more slowly for a while.
"""
import contextlib
import json
import os
import sys

import guard
import harness
import netns
import paired
from netns import address, inside


def require(question):
    harness.require("ip", "tc")
    if os.geteuid() != 0:
        sys.exit(f"bench: {question} needs root to make network namespaces")


@contextlib.contextmanager
def network(nodes, mbit):
    """Makes namespaces for that many nodes and yields their names. mbit: rate of each link in Mbit/s."""
    with netns.network(guard.network_prefix(), nodes) as net:
        for node, name in enumerate(net.names):
            netns.ip("-n", name, "route", "change", netns.SUBNET, "dev", "eth0", "congctl", "cubic")
            net.limit(node, mbit)
        yield net.names


def sent_bytes(namespace):
    return json.loads(netns.ip("-n", namespace, "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]


def ddp_run(names, port, worker, workers_each=1):
    """The commands for paired.run_all() that run `worker` (argv) on all nodes, with one thread a worker."""
    # ddp-run would let the only worker of a node use all cores, but here the nodes share them.
    return [(inside(name, harness.DDP_RUN, "--nnodes", str(len(names)), "--node-rank", str(node), "--rdzv-id", "bench",
                    "--rdzv-endpoint", f"{address(0)}:{port}", "--nproc-per-node", str(workers_each), "--no-python", *worker),
             {"OMP_NUM_THREADS": "1"}) for node, name in enumerate(names)]


def link_rate(names, port, seconds=0.5):
    """Bytes a second that plain TCP carries between the first two nodes in both directions at once: the slower of the two."""
    program = [sys.executable, str(harness.ROOT / "bench" / "link_rate.py")]
    lines = paired.run_all([(inside(names[0], *program, "listen", address(0), str(port), str(seconds)), {}),
                            (inside(names[1], *program, "connect", address(0), str(port), str(seconds)), {})])
    return min(line["bytes_per_second"] for line in lines)
