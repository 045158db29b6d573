"""How much time do hooks add to a backward for each parameter, with 2,000 parameters of four elements?

bench-hooks measures: contenders in turn within one process, the time of backward() alone. Ours is the time that
DistributedDataParallel adds, with the reduction of the buckets, to a backward of the plain module after which the workers wait
for each other; the goal is a microsecond a parameter. With several workers there is also what it adds to a backward of the plain
module without waiting, so the wait for the slower worker is included. cpu_ns is the same in processor time of the process. A hook
that does nothing shows LibTorch's own share.
BENCH_QUICK=1: fewer rounds.
"""
import statistics

import harness
import paired

PROGRAM = str(harness.BIN / "bench-hooks")
PARAMETERS = 2000
GOAL_NS = 1000
CONTENDERS = {"views": "gradients are buckets", "copies": "gradients are copied", "idle": "a hook that does nothing"}


def added(line, name, to, unit=""):
    return [mine - bare for mine, bare in zip(line[name + unit], line[to + unit])]


def figure(line, name, to, what, goal):
    times = added(line, name, to)
    ratios = [GOAL_NS / max(1, each) for each in times]
    return {"figure": what, "ours": round(statistics.median(times)), "peer": GOAL_NS, "peer_name": "a microsecond",
            "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3), "unit": "ns", "goal": goal,
            "cpu_ns": round(statistics.median(added(line, name, to, " cpu")))}


def figures():
    harness.require(harness.DDP_RUN, PROGRAM)
    rounds = 6 if paired.QUICK else 40
    for workers in (1, 2):
        command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(workers), "--no-python", PROGRAM, str(PARAMETERS),
                   str(rounds)]
        line = next(line for line in paired.run_all([(command, {})]) if "bare" in line)
        for name, what in CONTENDERS.items():
            label = f"a parameter's hook, {workers} worker{'s' * (workers > 1)}, {what}"
            if name == "idle":
                yield figure(line, name, "bare", label, None)
                continue
            yield figure(line, name, "met", label, 1.0)
            if workers > 1:
                yield figure(line, name, "bare", f"{label}, waiting for the slower worker included", None)
