"""How much of the communication does DDP hide behind backward when the link is the bottleneck?

Two workers with one thread each, on two nodes (network.py) whose links carry RATES. The model is ddp_task.h's mlp: PARTS equal
layers, 33.6 MB of gradients. Modes, in turn within one process (modes.py): "local" (no communication), "step" (reduces at the
optimizer's step) and "ddp" (reduces during backward); once with the default buckets, which put seven of the eight layers into
one, and once with a bucket for each layer.

Let C = step - local be the time of the communication alone, and B the time of backward in "local". The first gradients are ready
after a PARTth of backward, and the last ones when it ends. PyTorch reduces each parameter in one piece, so overlap can gain at
most (1 - 1/PARTS) min(B, C):
  perfect = step - (1 - 1/PARTS) min(B, C),  share = (step - ddp) / (step - perfect)
This assumes that communication needs only the link. Here it also needs the cores on which the workers compute (TCP, the emulated
links, the sums), so a worker's step cannot be shorter than its processor time: "cpu_ms" is that time (from getrusage, so it
includes interrupts for other workers' packets), "bound_ms" is the greater of perfect and ddp's cpu_ms, and "share_of_bound" is
the share of the gain that this bound allows.

The congestion control is cubic. bbr would take the rate at which a computing worker reads for the rate of the link, and so undo
all that overlap gains. At 1 GB/s the copies, TCP and the emulation take about as long as the link, which leaves almost nothing to
hide; a network card that moves the bytes itself would leave more. "link_MB_per_s" is what plain TCP carries in both directions at
once (link_rate.py); frames carry 4.6 % of headers. BENCH_PARTS=1GB/s,250MB/s chooses.
"""
import os
import statistics

import harness
import modes
import network
import paired

MBIT = {"1GB/s": 8000, "250MB/s": 2000}
RATES = os.environ.get("BENCH_PARTS", ",".join(MBIT)).split(",")
PARTS = 8
STEPS = 2 if paired.QUICK else 4
TURNS = 2 if paired.QUICK else 10
MODES = ("local", "step", "ddp")
# Names of contenders and their bucket settings.
BUCKETS = {"default buckets": [], "buckets of 4 MiB": [4]}
FIRST_PORT = 29400


def contender(names, bucket_mb, ports):
    def run():
        command = modes.arguments(MODES, "mlp", STEPS, TURNS, *bucket_mb)
        return modes.by_mode(paired.run_all(network.ddp_run(names, next(ports), command)))
    return run


def shares(local, step, ddp):
    """For one round: the time with perfect overlap, without and with the cores as a limit, and the shares of the gain."""
    alone = step["seconds"] - local["seconds"]
    gain = (1 - 1 / PARTS) * min(local["backward"], alone)
    perfect = step["seconds"] - gain
    bound = max(perfect, ddp["cpu"])
    gained = step["seconds"] - ddp["seconds"]
    return {"perfect": perfect, "bound": bound, "gained": gained, "possible": gain, "share": gained / gain,
            "share_of_bound": gained / (step["seconds"] - bound) if step["seconds"] > bound else None}


def ms(values):
    return round(1e3 * statistics.median(values), 2)


def figure(results, label, link, goal):
    taken = {mode: [dict(zip(("seconds", "backward", "cpu"), step)) for step in
                    zip(*(modes.turns(results, mode, what) for what in ("seconds", "backward", "cpu")))] for mode in MODES}
    each = [shares(*steps) for steps in zip(*taken.values())]
    share = [one["share"] for one in each]
    of_bound = [one["share_of_bound"] for one in each if one["share_of_bound"] is not None]
    return {"figure": f"mlp of 33.6 MB, 2 nodes, {label}: gain by overlap",
            "ours": ms([one["gained"] for one in each]), "peer": ms([one["possible"] for one in each]),
            "peer_name": "perfect overlap", "ratio": round(statistics.median(share), 3), "low": round(paired.lower_bound(share), 3),
            "turns": len(share), "unit": "ms", "goal": goal,
            **{f"{mode}_ms": ms([step["seconds"] for step in steps]) for mode, steps in taken.items()},
            "perfect_ms": ms([one["perfect"] for one in each]), "backward_ms": ms([step["backward"] for step in taken["local"]]),
            "cpu_ms": {mode: ms([step["cpu"] for step in steps]) for mode, steps in taken.items()},
            "bound_ms": ms([one["bound"] for one in each]),
            # Null where processor time alone takes as long as "step".
            "share_of_bound": round(statistics.median(of_bound), 3) if of_bound else None,
            "link_MB_per_s": round(link / 1e6, 1)}


def figures():
    harness.require(harness.DDP_RUN, modes.OURS, paired.ROOF)
    network.require("overlap")
    for label in RATES:
        with network.network(2, MBIT[label]) as names:
            ports = iter(range(FIRST_PORT, FIRST_PORT + 1000))
            # The links' rate includes the frames' headers, 4.6 %.
            link = statistics.median(network.link_rate(names, next(ports)) for _ in range(3))
            rounds = paired.Rounds(f"overlap, {label}", {name: contender(names, mb, ports) for name, mb in BUCKETS.items()})
            for name in BUCKETS:
                yield figure(rounds.results[name], f"links of {label}, {name}", link, 0.9)
