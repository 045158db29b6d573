"""How much time does dividing the optimizer state among the workers cost in a step, and how much memory does it save?

bench-zero: AdamW, two workers, one thread each; ours with and without ZeroRedundancyOptimizer take turns within one process
(modes.py). The peer is Python's ZeroRedundancyOptimizer over gloo. Memory is measured with one mode at a time and 1, 2 and 4
workers: the optimizer's tensors, and the peak of rank 0's resident memory. BENCH_PARTS=mlp,resnet18,memory chooses.
"""
import os
import statistics

import harness
import modes
import paired

ZERO = str(harness.BIN / "bench-zero")
PEER = str(harness.ROOT / "bench" / "zero_python.py")
PARTS = os.environ.get("BENCH_PARTS", "mlp,resnet18,memory").split(",")
STEPS = {"resnet18": 2, "mlp": 8}
TURNS, PEER_TURNS = 8, 3
MB = 1e6


def command(workers, *arguments):
    return [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(workers), "--no-python", ZERO, *map(str, arguments)]


def ours(model, steps):
    def run():
        lines = paired.run_all([(command(2, "ddp,zero,overlap,bound", model, steps, TURNS), {})])
        return modes.by_mode([line for line in lines if "mode" in line])
    return run


def python(model, steps):
    def run():
        lines = paired.python_pair(PEER, model, steps, PEER_TURNS)
        return statistics.median(next(line for line in lines if "mode" in line)["steps_per_second"])
    return run


def contest(model):
    steps = 1 if paired.QUICK else STEPS[model]
    rounds = paired.Rounds(f"zero, {model}, 2 workers",
                           {"ours": ours(model, steps), "python": python(model, max(1, steps * TURNS // PEER_TURNS))})
    yield modes.figure(rounds.results["ours"], f"{model}, AdamW, 2 workers, divided state against whole", "zero", "ddp",
                       "DistributedDataParallel", round(1 / 1.05, 4))
    kept = rounds.comparable("ours", "python")
    theirs = [rounds.results["python"][number] for number in kept]
    # The bound shows how much of the difference is communication.
    for mode, what, goal in (("zero", "divided state", 2.0), ("overlap", "divided state, parameters arriving during forward", None),
                             ("bound", "no communication, half of the updates", None)):
        own = [1 / statistics.median(rounds.results["ours"][number][mode]["seconds"]) for number in kept]
        ratios = [mine / other for mine, other in zip(own, theirs)]
        yield {"figure": f"{model}, AdamW, 2 workers, {what}, against Python", "ours": round(statistics.median(own), 2),
               "peer": round(statistics.median(theirs), 2), "peer_name": "Python's ZeroRedundancyOptimizer over gloo",
               "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3), "rounds": len(kept),
               "unit": "steps/s", "goal": goal}


def memory(workers):
    def of(mode):
        lines = paired.run_all([(command(workers, mode, "mlp", 2, 1), {})])
        return next(line for line in lines if "memory" in line)
    whole, divided = of("ddp"), of("zero")
    for what, key, unit, goal in (("AdamW's state", "state_bytes", MB, 0.99 * workers), ("peak of resident memory", "peak_kib", MB / 1024, None)):
        yield {"figure": f"mlp, {workers} worker{'s' * (workers > 1)}, {what} on rank 0", "ours": round(divided[key] / unit, 2),
               "peer": round(whole[key] / unit, 2), "peer_name": "DistributedDataParallel",
               "ratio": round(whole[key] / divided[key], 3), "unit": "MB", "goal": goal}


def figures():
    harness.require(harness.DDP_RUN, ZERO, paired.ROOF, harness.PYTHON)
    for model in STEPS:
        if model in PARTS:
            yield from contest(model)
    if "memory" in PARTS:
        for workers in (1, 2, 4):
            yield from memory(workers)
