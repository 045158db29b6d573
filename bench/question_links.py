"""How much do two levels (memory inside a node, links between nodes) save on slow links, and do they use the links fully? What do a
token and TLS cost on a fast one?

Each node has one limited link (network.py). "flat" is the same world with every rank on a node of its own. Bytes are counted
at the nodes' interfaces.
"""
import statistics
import tempfile

import certificates
import harness
import network
import paired
from paired import MIB, QUICK

RATE_MBIT = 200
BYTES = (4 if QUICK else 16) * MIB
RANKS_EACH = 2
GUARDED_BYTES = [4096, paired.MIB, 25 * paired.MIB]
GOALS = {"token": 0.97, "TLS": None}  # The proof is over before the first byte. For TLS there is nothing to compare with.
WORLDS = [2] if QUICK else [2, 4]
WARMUPS = 3  # Warm-up runs of bench-collectives; they also send bytes.
REPEATS = 1 if QUICK else 3


def measure(names, flat, port):
    """Seconds of an all-reduce, and bytes that the busiest node sent for it."""
    identity = "DDP_VIRTUAL_NODE=$RANK " if flat else ""
    script = f"{identity}exec {paired.COLLECTIVES} --memory private --seconds 0.1 --bytes {BYTES}"
    commands = network.ddp_run(names, port, ["sh", "-c", script], RANKS_EACH)
    before = [network.sent_bytes(name) for name in names]
    line = paired.run_all(commands)[0]
    sent = max(network.sent_bytes(name) - earlier for name, earlier in zip(names, before))
    return line["median_max_s"], sent / (line["runs"] + WARMUPS)


def guarded():
    """Two nodes over the loopback interface: the fastest network there is, so that encryption costs the most."""
    with tempfile.TemporaryDirectory(prefix="bench-links.") as folder:
        token = {"DDP_RDZV_TOKEN": "the token of a bench"}
        tls = certificates.flags_of_new(folder, ["127.0.0.1"])
        share = {"ranks": 2, "sizes": GUARDED_BYTES, "seconds": 0.3 if QUICK else 1, "memories": ("private",), "nodes": 2}
        compared = paired.Rounds("links", {"open": paired.ours(**share), "token": paired.ours(**share, env=token),
                                           "TLS": paired.ours(**share, flags=tls)})
    for kind in ("token", "TLS"):
        for size in GUARDED_BYTES:
            key = ("all_reduce", "f32", "private", size)
            yield compared.figure(f"2 nodes over loopback, {paired.label(size)}, with {'a token' if kind == 'token' else kind}",
                                  (kind, key), ("open", key), "open", GOALS[kind])


def figures():
    harness.require(harness.DDP_RUN, paired.COLLECTIVES)
    yield from guarded()
    network.require("links")
    for nodes in WORLDS:
        with network.network(nodes, RATE_MBIT) as names:
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
        # Frames have 4.6 % of headers, which the links also carry.
        yield harness.figure(f"{world}, bytes on the wire for each node", sent[False], formula / MIB, "2(M-1)/M n", "MiB", 0.9)
        yield harness.figure(f"{world}, time", seconds[False], ideal, "2(M-1)/M n over the bandwidth", "s", 0.87)
        yield harness.figure(f"{world}, bytes on the wire, two levels against flat", sent[False], sent[True], "ours, flat",
                             "MiB", None)
        yield harness.figure(f"{world}, time, two levels against flat", seconds[False], seconds[True], "ours, flat", "s", None)
