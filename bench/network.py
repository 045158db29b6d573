"""Nodes of a network of their own on this machine: namespaces around a bridge, each behind one link of a limited rate.

Needs root and the right to make network namespaces. The names are ddp-bench-PID-*; they are removed at the end, also after a
failure. Links are limited in both directions by tc's tbf, so the link is the limit and not the processor that all share, as
far as that keeps up: link_rate() says what the links really give. Congestion control is cubic, Linux' default, whatever the
machine has: bbr takes the rate at which a busy worker reads for that of the link, and sends slower for a while after.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys

import harness
import paired

ADDRESS = "10.77.0.{}"
SUBNET = "10.77.0.0/24"
# What tbf may let through at once: packets are up to 64 KiB (segmentation is offloaded to the end of a veth), and a timer
# that comes 0.25 ms late must not cost bandwidth.
LEAST_BURST = 128 * 1024
BURST_S = 0.25e-3


def require(question):
    harness.require("ip", "tc")
    if os.geteuid() != 0:
        sys.exit(f"bench: {question} needs root, for it makes network namespaces")


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def inside(namespace, *command):
    """The command, to be run in that node."""
    return ["ip", "netns", "exec", namespace, *command]


def address(node):
    return ADDRESS.format(node + 1)


def limit(namespace, device, mbit):
    burst = max(LEAST_BURST, int(mbit * 1e6 / 8 * BURST_S))
    subprocess.run(inside(namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
                          "burst", str(burst), "latency", "100ms"), check=True)


@contextlib.contextmanager
def network(nodes, mbit):
    """Namespaces of that many nodes around a bridge that has one of its own; gives the nodes' names. mbit: of each link."""
    switch = f"ddp-bench-{os.getpid()}-switch"
    names = [f"ddp-bench-{os.getpid()}-{node}" for node in range(nodes)]
    made = []
    # So that what is below runs at the end of a job that is told to end.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for name in [switch, *names]:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for node, name in enumerate(names):
            ip("-n", switch, "link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "set", f"port{node}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(node)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "change", SUBNET, "dev", "eth0", "congctl", "cubic")
            limit(name, "eth0", mbit)
            limit(switch, f"port{node}", mbit)
        yield names
    finally:
        for name in made:
            ip("netns", "del", name, check=False)
        signal.signal(signal.SIGTERM, former)


def sent_bytes(namespace):
    return json.loads(ip("-n", namespace, "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]


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
