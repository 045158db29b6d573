"""How much faster are several processes than one process with several devices? DistributedDataParallel against DataParallel.

The same model, the same joint batch, two cores: bench-ddp with two workers of one thread each, and bench-dp with one process,
as two replicas on two threads or as the whole module with LibTorch's own two threads.
"""
import statistics

import harness
import modes
import paired

DP = str(harness.BIN / "bench-dp")
STEPS = {"mnist": 30, "resnet18": 2}
TURNS = 8
PEERS = {"dp": "DataParallel, two replicas", "whole": "one process, undivided on two threads"}


def alone(model, steps):
    return lambda: modes.by_mode(paired.run_all([([DP, ",".join(PEERS), model, str(steps), str(TURNS)], {})]))


def figures():
    harness.require(harness.DDP_RUN, modes.OURS, DP, paired.ROOF)
    for model, usual in STEPS.items():
        steps = 1 if paired.QUICK else usual
        rounds = paired.Rounds(f"dp, {model}", {
            "ours": modes.contender(("ddp",), model, steps, TURNS, env={"KEEP_FREED_MEMORY": "1"}), "alone": alone(model, steps)})
        kept = rounds.comparable("ours", "alone")
        ours = [1 / statistics.median(rounds.results["ours"][number]["ddp"]["seconds"]) for number in kept]
        for mode, peer_name in PEERS.items():
            theirs = [1 / statistics.median(rounds.results["alone"][number][mode]["seconds"]) for number in kept]
            ratios = [mine / other for mine, other in zip(ours, theirs)]
            yield {"figure": f"{model}, DistributedDataParallel, 2 workers", "ours": round(statistics.median(ours), 2),
                   "peer": round(statistics.median(theirs), 2), "peer_name": peer_name, "ratio": round(statistics.median(ratios), 3),
                   "low": round(paired.lower_bound(ratios), 3), "rounds": len(kept), "unit": "steps/s",
                   "goal": 1.0 if mode == "dp" else None}
