"""What do two levels (memory inside a node, links between nodes) save on slow links, and do they use the links fully?

Each node is a network namespace with one link of RATE to a common bridge, limited in both directions by tc's tbf, so that
the link is the limit and not the processor that all of them share. "flat" is the same world with every rank a node of its
own. Bytes are counted at the nodes' interfaces. Needs root and the right to make network namespaces.
"""
import contextlib
import json
import os
import statistics
import subprocess
import sys

import harness
import paired
from paired import MIB, QUICK

RATE_MBIT = 200
BYTES = (4 if QUICK else 16) * MIB
RANKS_EACH = 2
WORLDS = [2] if QUICK else [2, 4]
WARMUPS = 3  # Of bench-collectives; they are on the wire too.
REPEATS = 1 if QUICK else 3


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def limit(namespace, device):
    subprocess.run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                    f"{RATE_MBIT}mbit", "burst", "128kb", "latency", "100ms"], check=True)


@contextlib.contextmanager
def network(nodes):
    """Namespaces of that many nodes around a bridge that has one of its own; gives the nodes' names."""
    switch = f"ddp-bench-{os.getpid()}-switch"
    names = [f"ddp-bench-{os.getpid()}-{node}" for node in range(nodes)]
    made = []
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
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            limit(name, "eth0")
            limit(switch, f"port{node}")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name, check=False)


def sent_bytes(namespace):
    return json.loads(ip("-n", namespace, "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]


def measure(names, flat, port):
    """Seconds of an all-reduce, and bytes that the busiest node sent for it."""
    identity = "DDP_VIRTUAL_NODE=$RANK " if flat else ""
    script = f"{identity}exec {paired.COLLECTIVES} --memory private --seconds 0.1 --bytes {BYTES}"
    commands = [(["ip", "netns", "exec", name, harness.DDP_RUN, "--nnodes", str(len(names)), "--node-rank", str(node),
                  "--rdzv-id", "links", "--rdzv-endpoint", f"10.77.0.1:{port}", "--nproc-per-node", str(RANKS_EACH),
                  "--no-python", "sh", "-c", script], {}) for node, name in enumerate(names)]
    before = [sent_bytes(name) for name in names]
    line = paired.run_all(commands)[0]
    sent = max(sent_bytes(name) - earlier for name, earlier in zip(names, before))
    return line["median_max_s"], sent / (line["runs"] + WARMUPS)


def figures():
    harness.require(harness.DDP_RUN, paired.COLLECTIVES, "ip", "tc")
    if os.geteuid() != 0:
        sys.exit("bench: links needs root, for it makes network namespaces")
    for nodes in WORLDS:
        with network(nodes) as names:
            port = 29400
            taken = {False: [], True: []}
            for repeat in range(REPEATS):
                for flat in ((False, True) if repeat % 2 == 0 else (True, False)):
                    taken[flat].append(measure(names, flat, port))
                    port += 1
        seconds = {flat: statistics.median(time for time, _ in runs) for flat, runs in taken.items()}
        sent = {flat: statistics.median(wire for _, wire in runs) / MIB for flat, runs in taken.items()}
        formula = 2 * (nodes - 1) / nodes * BYTES
        ideal = formula / (RATE_MBIT * 1e6 / 8)
        world = f"{nodes} nodes x {RANKS_EACH} ranks, {paired.label(BYTES)}, {RATE_MBIT} Mbit/s, private"
        # Frames have headers of 4.6 % and the links carry them too.
        yield harness.figure(f"{world}, bytes on the wire for each node", sent[False], formula / MIB, "2(M-1)/M n", "MiB", 0.9)
        yield harness.figure(f"{world}, time", seconds[False], ideal, "2(M-1)/M n over the bandwidth", "s", 0.87)
        yield harness.figure(f"{world}, bytes on the wire, two levels against flat", sent[False], sent[True], "ours, flat",
                             "MiB", None)
        yield harness.figure(f"{world}, time, two levels against flat", seconds[False], seconds[True], "ours, flat", "s", None)
