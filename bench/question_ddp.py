"""How many steps a second do two workers train, against PyTorch's DistributedDataParallel and without communication?

Models and batches: ddp_task.h. One thread a worker, one node. In all contenders the gradients are views of the buckets and keep
their memory between steps, except with "set_to_none" (ddp_task.h). "local" is our program with two workers that do not
communicate: the limit of the machine. In "barrier" they also wait for each other in each step, which is the least that any
communication costs when two cores are not equally fast at every moment. Our modes take turns within one process (modes.py).

Only ratios within a round are meaningful: the two workers use both cores of a two-core machine, so anything else that runs slows
them down. A peer's rate is the median of three turns, ours of eight. A turn ends when both workers have finished it, even if they
do not communicate. With "set_to_none", DDP copies each new gradient into its bucket, which costs a tenth of a step of resnet18;
training without communication copies nothing. bench-c10d is LibTorch's own C++ Reducer over gloo, so that no interpreter is in
the figure; it needs libgloo-dev, and a header that Debian 12 leaves out (ddp_c10d_stub).
BENCH_PARTS=mnist,resnet18,mlp chooses models.
"""
import os
import statistics
import sys
import tempfile

import harness
import modes
import paired

C10D = str(harness.BIN / "bench-c10d")
PYTHON_PEER = str(harness.ROOT / "bench" / "ddp_python.py")
MODELS = os.environ.get("BENCH_PARTS", "mnist,resnet18,mlp").split(",")
# Steps in one of our turns: a third to half a second.
STEPS = {"mnist": 30, "resnet18": 2, "mlp": 8}
TURNS = 8
# The peers' turns are longer and fewer.
PEER_TURNS = 3
AGAINST_PYTHON = {"mnist": 1.4, "resnet18": 1.0, "mlp": 1.0}
# No communication takes at most 3 % more steps a second than ddp.
AGAINST_LOCAL = {"resnet18": 0.97}
# Also measured with PyTorch 2's default of zero_grad(). Most of its step beside the computation is memory traffic.
SET_TO_NONE = {"resnet18"}
# Models that spend a fifth of a step in page faults with glibc's default malloc, in C++ and in Python. For these, our program first
# runs as ddp-train does (with keep_freed_memory(), which any program may call) against peers with their defaults; then all
# contenders run with the default malloc, and all with a tuned one.
PAGE_FAULTS = {"mnist"}
KEEP = {"KEEP_FREED_MEMORY": "1"}


def median_rate(lines):
    line = next(line for line in lines if "steps_per_second" in line)
    return {"rate": {"steps_per_second": statistics.median(line["steps_per_second"])}}


def c10d(model, steps, env):
    def run():
        with tempfile.TemporaryDirectory(prefix="bench-c10d.") as folder:
            command = [C10D, os.path.join(folder, "store"), model, str(steps), str(PEER_TURNS)]
            return median_rate(paired.run_all([(command, {**env, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]))
    return run


def python(model, steps, env):
    if model == "mnist":
        command = [harness.PEERS / "ddp_mnist.py", "ddp", "--steps", steps, "--rounds", PEER_TURNS]
    else:
        command = [PYTHON_PEER, model, steps, PEER_TURNS]
    return lambda: median_rate(paired.python_pair(*command, env=env))


def figure(rounds, name, mode, peer, peer_name, goal):
    kept = rounds.comparable("ours", peer)
    our_rates = [1 / statistics.median(rounds.results["ours"][number][mode]["seconds"]) for number in kept]
    peer_rates = [rounds.results[peer][number]["rate"]["steps_per_second"] for number in kept]
    ratios = [our / theirs for our, theirs in zip(our_rates, peer_rates)]
    return {"figure": name, "ours": round(statistics.median(our_rates), 2), "peer": round(statistics.median(peer_rates), 2),
            "peer_name": peer_name, "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3),
            "rounds": len(kept), "unit": "steps/s", "goal": goal}


def figures():
    harness.require(harness.DDP_RUN, modes.OURS, paired.ROOF, harness.PYTHON)
    has_c10d = os.path.exists(C10D)
    if not has_c10d:
        print("bench: bench-c10d is not built (libgloo-dev): Python's DDP is the only peer", file=sys.stderr)
    for model in MODELS:
        if model not in PAGE_FAULTS:
            yield from contest(model, "", {}, {}, AGAINST_PYTHON[model], has_c10d, AGAINST_LOCAL.get(model))
            if model in SET_TO_NONE:
                dropped = {"SET_TO_NONE": "1"}
                yield from contest(model, ", set_to_none", dropped, dropped, AGAINST_PYTHON[model], has_c10d)
            continue
        yield from contest(model, "", KEEP, {}, AGAINST_PYTHON[model], has_c10d)
        yield from contest(model, ", all with tuned malloc", paired.TUNED_MALLOC, paired.TUNED_MALLOC, AGAINST_PYTHON[model], has_c10d)
        yield from contest(model, ", all with default malloc", {}, {}, None, has_c10d)


def contest(model, label, our_env, env, against_python, has_c10d, against_local=None):
    steps = 1 if paired.QUICK else STEPS[model]
    peer_steps = steps * TURNS // PEER_TURNS
    contenders = {"ours": modes.contender(("ddp", "step", "barrier", "local"), model, steps, TURNS, env=our_env),
                  "python": python(model, peer_steps, env)}
    if has_c10d:
        contenders["c10d"] = c10d(model, peer_steps, env)
    rounds = paired.Rounds(f"ddp, {model}{label}, 2 workers", contenders)
    for mode in ("ddp", "step"):
        what = f"{model}{label}, 2 workers, {mode} mode"
        yield figure(rounds, f"{what}, against Python", mode, "python", "Python DDP over gloo", against_python)
        if has_c10d:
            yield figure(rounds, f"{what}, against C++", mode, "c10d", "c10d::Reducer over gloo, in C++", 1.0)
        yield modes.figure(rounds.results["ours"], f"{what}, against no communication", mode, "local",
                           "the same without communication", against_local if mode == "ddp" else None)
        yield modes.figure(rounds.results["ours"], f"{what}, against a barrier", mode, "barrier",
                           "the same with a barrier a step and no data", None)
