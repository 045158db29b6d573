"""How much of the communication does DDP hide behind backward, where the link is the limit?

Two workers with one thread each, on two nodes (network.py) whose links carry RATES. The model is ddp_task.h's mlp: PARTS equal
layers, 33.6 MB of gradients. Contenders, alternating: "local" (no communication), "step" (reduces at the optimizer's step) and
"ddp" (reduces during backward), the last in two ways: with a bucket for each layer (BUCKET_MB) and with the default of 25 MiB,
which leaves seven of the eight layers in one bucket that is full when backward ends.

With C = step - local, the communication by itself, and B, backward's time in "local": the gradients of the last layer to come
are there when backward ends, and the first ones after a PARTth of it. So PyTorch's rule to reduce a parameter in one piece
leaves at most (1 - 1/PARTS) min(B, C) to be gained:
  perfect = step - (1 - 1/PARTS) min(B, C),  share = (step - ddp) / (step - perfect)
That takes the link for the only thing that communication needs. Here it takes the cores, too, on which the workers compute
(TCP, the emulated links, the sums), so a worker's step cannot be shorter than the processor time it needs: "cpu_ms" has that
time (getrusage: interrupts that others' packets cause are in it, too), "bound_ms" is the greater of perfect and ddp's, and
"share_of_bound" the share of the gain that this leaves.
"""
import os
import statistics

import harness
import network
import paired

OURS = str(harness.BIN / "bench-ddp")
MBIT = {"1GB/s": 8000, "250MB/s": 2000}
RATES = os.environ.get("BENCH_PARTS", ",".join(MBIT)).split(",")
PARTS = 8
BUCKET_MB = 4
STEPS = 3 if paired.QUICK else 15
INNER_ROUNDS = 1 if paired.QUICK else 3
MODES = {"local": ["local"], "step": ["step"], "ddp": ["ddp", str(BUCKET_MB)], "ddp_default": ["ddp"]}
FIRST_PORT = 29400


def contender(names, arguments, ports):
    def run():
        line = paired.run_all(network.ddp_run(names, next(ports), [OURS, arguments[0], "mlp", str(STEPS), str(INNER_ROUNDS),
                                                                *arguments[1:]]))[0]
        order = sorted(range(INNER_ROUNDS), key=lambda number: line["steps_per_second"][number])
        middle = order[INNER_ROUNDS // 2]
        return {"step": {"seconds": 1 / line["steps_per_second"][middle], "backward": line["backward_ms"][middle] / 1e3,
                         "cpu": line["cpu_ms"][middle] / 1e3}}
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


def figure(rounds, ddp, label, link, goal):
    taken = {mode: [result["step"] for result in rounds.results[contender]]
             for mode, contender in {"local": "local", "step": "step", "ddp": ddp}.items()}
    each = [shares(*steps) for steps in zip(*taken.values())]
    share = [one["share"] for one in each]
    of_bound = [one["share_of_bound"] for one in each if one["share_of_bound"] is not None]
    return {"figure": f"mlp of 33.6 MB, 2 nodes, {label}: gain by overlap",
            "ours": ms([one["gained"] for one in each]), "peer": ms([one["possible"] for one in each]),
            "peer_name": "perfect overlap", "ratio": round(statistics.median(share), 3), "low": round(paired.lower_bound(share), 3),
            "unit": "ms", "goal": goal,
            **{f"{mode}_ms": ms([step["seconds"] for step in steps]) for mode, steps in taken.items()},
            "perfect_ms": ms([one["perfect"] for one in each]), "backward_ms": ms([step["backward"] for step in taken["local"]]),
            "cpu_ms": {mode: ms([step["cpu"] for step in steps]) for mode, steps in taken.items()},
            "bound_ms": ms([one["bound"] for one in each]),
            # Null where processor time alone takes as long as "step".
            "share_of_bound": round(statistics.median(of_bound), 3) if of_bound else None,
            "link_MB_per_s": round(link / 1e6, 1)}


def figures():
    harness.require(harness.DDP_RUN, OURS, paired.ROOF)
    network.require("overlap")
    for label in RATES:
        with network.network(2, MBIT[label]) as names:
            ports = iter(range(FIRST_PORT, FIRST_PORT + 1000))
            # The links' rate counts frames, which have headers of 4.6 %.
            link = statistics.median(network.link_rate(names, next(ports)) for _ in range(3))
            contenders = {mode: contender(names, arguments, ports) for mode, arguments in MODES.items()}
            rounds = paired.Rounds(f"overlap, {label}", contenders)
            yield figure(rounds, "ddp", f"links of {label}, buckets of {BUCKET_MB} MiB", link, 0.9)
            yield figure(rounds, "ddp_default", f"links of {label}, default buckets", link, None)
