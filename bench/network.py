"""Nodes of a network of their own on this machine: namespaces around a bridge, each behind one link of a limited rate.

The names are ddp-bench-PID-* (tests/support/netns.py); whatever ends bench/run, they are removed (guard.py). Links are limited in both directions by tc's tbf, so the link is the
limit and not the processor that all share, as far as that keeps up: link_rate() says what the links really give. Congestion
control is cubic, Linux' default, whatever the machine has: bbr takes the rate at which a busy worker reads for that of the
link, and sends slower for a while after.
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
        sys.exit(f"bench: {question} needs root, for it makes network namespaces")


@contextlib.contextmanager
def network(nodes, mbit):
    """Namespaces of that many nodes; gives their names. mbit: of each link."""
    with netns.network(guard.network_prefix(), nodes) as net:
        for node, name in enumerate(net.names):
            netns.ip("-n", name, "route", "change", netns.SUBNET, "dev", "eth0", "congctl", "cubic")
            net.limit(node, mbit)
        yield net.names


def sent_bytes(namespace):
    return json.loads(netns.ip("-n", namespace, "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]


def ddp_run(names, port, worker, workers_each=1):
    """The commands that run `worker` (argv) on all nodes, one thread a worker, for paired.run_all()."""
    # With one worker on a node, ddp-run leaves it all cores, which the nodes share here.
    return [(inside(name, harness.DDP_RUN, "--nnodes", str(len(names)), "--node-rank", str(node), "--rdzv-id", "bench",
                    "--rdzv-endpoint", f"{address(0)}:{port}", "--nproc-per-node", str(workers_each), "--no-python", *worker),
             {"OMP_NUM_THREADS": "1"}) for node, name in enumerate(names)]


def link_rate(names, port, seconds=0.5):
    """Bytes a second that plain TCP carries between the first two nodes, both ways at once: the slower direction."""
    program = [sys.executable, str(harness.ROOT / "bench" / "link_rate.py")]
    lines = paired.run_all([(inside(names[0], *program, "listen", address(0), str(port), str(seconds)), {}),
                            (inside(names[1], *program, "connect", address(0), str(port), str(seconds)), {})])
    return min(line["bytes_per_second"] for line in lines)
