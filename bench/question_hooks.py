"""What does the machinery of hooks cost a backward for each parameter, with 2,000 parameters of four elements?

bench-hooks says how: contenders in turn within one process, the time of backward() alone. Ours is what
DistributedDataParallel adds to the module alone, reduction of the buckets and waiting included; the goal is a microsecond
for a parameter. cpu_ns is the same in processor time of the process. A hook that does nothing shows LibTorch's own share.
BENCH_QUICK=1: fewer rounds.
"""
import statistics

import harness
import paired

PROGRAM = str(harness.BIN / "bench-hooks")
PARAMETERS = 2000
GOAL_NS = 1000
CONTENDERS = {"views": "gradients are buckets", "copies": "gradients are copied", "idle": "a hook that does nothing"}


def added(line, name, unit=""):
    return [mine - bare for mine, bare in zip(line[name + unit], line["bare" + unit])]


def figures():
    harness.require(harness.DDP_RUN, PROGRAM)
    rounds = 6 if paired.QUICK else 40
    for workers in (1, 2):
        command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(workers), "--no-python", PROGRAM, str(PARAMETERS),
                   str(rounds)]
        line = next(line for line in paired.run_all([(command, {})]) if "bare" in line)
        for name, what in CONTENDERS.items():
            times = added(line, name)
            ratios = [GOAL_NS / max(1, each) for each in times]
            yield {"figure": f"a parameter's hook, {workers} worker{'s' * (workers > 1)}, {what}",
                   "ours": round(statistics.median(times)), "peer": GOAL_NS, "peer_name": "a microsecond",
                   "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3), "unit": "ns",
                   "goal": None if name == "idle" else 1.0, "cpu_ns": round(statistics.median(added(line, name, " cpu")))}
