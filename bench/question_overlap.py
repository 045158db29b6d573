"""How much of the communication does DDP hide behind backward, where the link is the limit?

Two workers with one thread each, on two nodes (network.py) whose links carry RATES. The model is ddp_task.h's mlp: PARTS equal
layers, 33.6 MB of gradients. Modes, in turn within one process (modes.py): "local" (no communication), "step" (reduces at the
optimizer's step) and "ddp" (reduces during backward); once with the default buckets, which put seven of the eight layers into
one, and once with a bucket for each layer.

With C = step - local, the communication by itself, and B, backward's time in "local": the gradients of the last layer to come
are there when backward ends, and the first ones after a PARTth of it. So PyTorch's rule to reduce a parameter in one piece
leaves at most (1 - 1/PARTS) min(B, C) to be gained:
  perfect = step - (1 - 1/PARTS) min(B, C),  share = (step - ddp) / (step - perfect)
That takes the link for the only thing that communication needs. Here it takes the cores, too, on which the workers compute
(TCP, the emulated links, the sums), so a worker's step cannot be shorter than the processor time it needs: "cpu_ms" has that
time (getrusage: interrupts that others' packets cause are in it, too), "bound_ms" is the greater of perfect and ddp's, and
"share_of_bound" the share of the gain that this leaves.

The congestion control is cubic. Where bbr is the machine's, it takes the rate at which a worker that computes reads for the
link's, and takes back all that overlap has gained. At 1 GB/s the copies, TCP and the emulation take about as long as the link
does, which leaves next to nothing to hide; a network card that moves the bytes itself would. "link_MB_per_s" is what plain TCP
gets through both ways at once (link_rate.py); frames carry 4.6 % of headers. BENCH_PARTS=1GB/s,250MB/s chooses.
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
# Names of contenders and what they say about buckets.
BUCKETS = {"default buckets": [], "buckets of 4 MiB": [4]}
FIRST_PORT = 29400


def contender(names, bucket_mb, ports):
    def run():
        command = modes.arguments(MODES, "mlp", STEPS, TURNS, *bucket_mb)
        return modes.by_mode(paired.run_all(network.ddp_run(names, next(ports), command)))
    return run


def shares(local, step, ddp):
    """Of one round: what perfect overlap would take, without and with the cores as a limit, and the shares of the gain."""
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
            # The links' rate counts frames, which have headers of 4.6 %.
            link = statistics.median(network.link_rate(names, next(ports)) for _ in range(3))
            rounds = paired.Rounds(f"overlap, {label}", {name: contender(names, mb, ports) for name, mb in BUCKETS.items()})
            for name in BUCKETS:
                yield figure(rounds.results[name], f"links of {label}, {name}", link, 0.9)
