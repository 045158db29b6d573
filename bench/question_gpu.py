"""How fast is the backend "ddp" for CUDA tensors in Python's torch.distributed, against PyTorch's "nccl"?

gpu_python.py: all ranks of both backends wait for commands, so the backends take turns of about a second (a round) without
starting anew. With at least two GPUs each rank has its own. With one, two ranks share it. NCCL refuses that within one host, so
NCCL_HOSTID makes it take them for two hosts, which are connected by loopback. Figures and stderr say which it was.

* DDP: steps a second of ResNet50 (64 images of 224x224, channels_last) and of a GPT (124 million parameters, 8 sequences of
  1024), bf16 autocast, SGD. Gradients are views of the buckets and keep their memory between steps, in all contenders. "No
  communication" is the same training without DistributedDataParallel, in our process.
* all_reduce: "one" is issued, waited for and synchronised. "Host" is the time of a call when many (200, or 512 MiB of them) are
  issued.
* Of the peak: TFLOP/s of our training with one rank against those of products of large bf16 matrices, and the rate of copying
  25 MiB to pinned memory against that of 1 GiB. For ResNet50, an image counts as 3 * 2 * 4.1e9 operations; for the GPT, a token
  as 6 for each parameter and 6 for each layer, dimension and position (half of what attention would be without its mask).
* Dead rank: rank 1 is killed while rank 0 waits in an all-reduce; milliseconds until rank 0 gets an exception.
* Graph: a replay of a training step with an all-reduce for each gradient. The program verifies where training ends.
* Deterministic: 1 if two jobs of ours end with the same bits after 20 steps; "as_peer" says whether the peer's does, too.

A figure that failed has "error"; if we failed, its ratio is 0. BENCH_QUICK=1 takes at most 150 s. PYTHON names the interpreter,
PYTHONPATH may name the folder of the package ddp_run. BENCH_DEVICE=cpu tries the question where there is no GPU: with tiny
models, against gloo. BENCH_PARTS=one,two,dead chooses: one rank, two ranks, dead rank and determinism.
"""
import os
import statistics
import sys
import time

import commanded
import harness
import paired
from commanded import Contender, Failed, Pair, compare

PROGRAM = str(harness.ROOT / "bench" / "gpu_python.py")
DEVICE = os.environ.get("BENCH_DEVICE", "cuda")
PEER = {"cuda": "nccl", "cpu": "gloo"}[DEVICE]
PARTS = os.environ.get("BENCH_PARTS", "one,two,dead").split(",")
TOTAL_S = 140 if paired.QUICK else 1500
COMMAND_S = 30 if paired.QUICK else 60
STEPS = {"gpt": 3, "resnet50": 5} if paired.QUICK else {"gpt": 8, "resnet50": 15}
if DEVICE == "cpu":
    STEPS = dict.fromkeys(STEPS, 1)
SIZES = [4, 64 * paired.KIB, paired.MIB, 25 * paired.MIB, 100 * paired.MIB]
ONE_RANK_SIZES = [4, 25 * paired.MIB]
REPLAYS = 10 if paired.QUICK else 50
DETERMINISTIC_STEPS = 20
NOTICE_S = 20
DEATHS = 1 if paired.QUICK else 3
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def contender(side, world, gpus, deadline):
    shared = DEVICE == "cuda" and world > gpus
    ranks = [{"LOCAL_RANK": "0" if shared else str(rank), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
              **({**LOOPBACK, "NCCL_HOSTID": f"bench-{rank}"} if shared else {})} for rank in range(world)]
    return Contender([commanded.PYTHON, PROGRAM, side, DEVICE], ranks, deadline, COMMAND_S)


def pair_of(world, gpus, deadline):
    """Both backends with so many ranks."""
    place = "" if world == 1 else " on one GPU" if world > gpus else " on two GPUs"
    return Pair(contender("ours", world, gpus, deadline), contender("peer", world, gpus, deadline),
                f"{world} rank{'s' * (world > 1)}{place if DEVICE == 'cuda' else ', CPU'}")


def speed(line):
    return line["steps_per_second"]


def training(pair, model):
    """Steps a second. Returns the figures, and the rate of operations of ours with DDP (None if it failed)."""
    arguments = {"model": model, "steps": STEPS[model]}
    turns = {"ours": lambda: pair.ours.ask("train", ddp=True, **arguments),
             "peer": lambda: pair.peer.ask("train", ddp=True, **arguments)}
    if pair.ours.world == 1:
        turns["local"] = lambda: pair.ours.ask("train", ddp=False, **arguments)
    results = pair.rounds(turns, warm_up=1)
    found = [compare(f"DDP of {model}, {pair.where}", results, speed, "steps/s", 1.0, PEER, rate=True)]
    if "local" in turns:
        found.append(compare(f"DDP of {model}, {pair.where}, against no communication", results, speed, "steps/s", 0.97,
                             "the same without communication", "local", rate=True))
    pair.forget()
    ours = results["ours"]
    return found, None if isinstance(ours, str) else statistics.median(speed(line) for line in ours) * ours[0]["flop"]


def reductions(pair, sizes):
    for size in sizes:
        results = pair.both("all_reduce", size=size)
        name = f"all_reduce of {paired.label(size)}, {pair.where}"
        if pair.ours.world > 1:
            yield compare(f"{name}, one", results, lambda line: line["seconds"], "us", None, PEER, scale=1e6)
        yield compare(f"{name}, host", results, lambda line: line["host_seconds"], "us", None, PEER, scale=1e6)


def peaks(pair, rates):
    """rates: model -> rate of operations."""
    try:
        measured = pair.peer.ask("peaks")
    except Failed as error:
        yield {"figure": "peaks", "ours": None, "peer": None, "peer_name": None, "ratio": None, "unit": None, "goal": None,
               "error": str(error)}
        return
    for model, rate in rates.items():
        if rate is not None:
            yield harness.figure(f"operations of {model}, {pair.where}", rate / 1e12, measured["flop_per_second"] / 1e12,
                                 "products of large bf16 matrices", "TFLOP/s", None, lower_is_better=False)
    yield harness.figure("copy of 25 MiB to pinned host memory", measured["bucket_to_host"] / 1e9, measured["to_host"] / 1e9,
                         "copies of 1 GiB", "GB/s", None, lower_is_better=False)
    yield {"figure": "copy of 1 GiB on the device", "ours": round(measured["on_device"] / 1e9, 4), "peer": None,
           "peer_name": None, "ratio": None, "unit": "GB/s", "goal": None}


def one_rank(gpus, deadline):
    with pair_of(1, gpus, deadline) as pair:
        rates = {}
        for model in STEPS:
            found, rates[model] = training(pair, model)
            yield from found
        yield from peaks(pair, rates)
        yield from reductions(pair, ONE_RANK_SIZES)


def two_ranks(pair):
    for model in STEPS:
        yield from training(pair, model)[0]
    yield from reductions(pair, SIZES)
    if DEVICE == "cuda":
        yield compare(f"replay of a CUDA graph with all_reduce, {pair.where}", pair.both("graph", replays=REPLAYS),
                      lambda line: line["seconds"], "us", None, PEER, scale=1e6)


def outlive(contender):
    """Kills rank 1 while rank 0 waits for it: (milliseconds until rank 0 gets an exception or None, what it learned)."""
    contender.ask("all_reduce", size=4)
    contender.send(0, "outlive")
    if contender.next(time.monotonic() + COMMAND_S) != (0, {"waiting": True}):
        contender.fail("rank 0 did not wait")
    time.sleep(0.5)  # It issues the operation, and the GPU begins it.
    killed = time.monotonic()
    contender.processes[1].kill()
    until = min(killed + NOTICE_S, contender.deadline)
    rank = 1
    while rank == 1:  # Its end.
        rank, line = contender.next(until)
    took = 1e3 * (time.monotonic() - killed)
    if rank is None:
        learned = None, f"does not raise within {until - killed:.0f} s"
    elif line is None:
        learned = None, f"does not raise; after {took:.0f} ms its process {contender.last_words(0)}"
    elif "at" in line:
        learned = 1e3 * (line["at"] - killed), f"{line['how']} raises: {line['text']}"
    else:
        learned = None, line.get("how") or line["error"]
    contender.stop(0)
    contender.starts -= 1  # A death on purpose does not count.
    return learned


def try_outlive(contender):
    try:
        return outlive(contender)
    except Failed as error:
        return None, f"failed: {error}"


def fingerprint(contender):
    try:
        return contender.ask("fingerprint", steps=DETERMINISTIC_STEPS)["sha256"], None
    except Failed as error:
        return None, str(error)


def deaths(pair):
    """Also determinism: the second run with the same seed is in the processes that replace the dead ones."""
    first, peers = fingerprint(pair.ours), fingerprint(pair.peer)
    ours = [try_outlive(pair.ours) for _ in range(DEATHS)]
    second = fingerprint(pair.ours)
    same = first[0] is not None and first[0] == second[0]
    line = {"figure": f"{DETERMINISTIC_STEPS} deterministic steps, {pair.where}: same bits in two jobs",
            "ours": int(same) if first[0] and second[0] else None, "peer": 1, "peer_name": "equal", "ratio": float(same),
            "unit": "equal", "goal": 1.0, "sha256": [first[0], second[0]],
            "as_peer": first[0] == peers[0] if first[0] and peers[0] else None}
    errors = [f"{who}: {error}" for who, (_, error) in (("ours", first), ("ours again", second), (PEER, peers)) if error]
    yield {**line, "error": "; ".join(errors)} if errors else line
    pair.ours.stop()
    theirs, says = try_outlive(pair.peer)
    took = [ms for ms, _ in ours if ms is not None]
    mine = statistics.median(took) if len(took) == len(ours) else None
    yield {"figure": f"dead rank, {pair.where}: until the other one gets an exception", "ours": mine and round(mine, 2),
           "peer": theirs and round(theirs, 2), "peer_name": PEER,
           "ratio": round(theirs / mine, 3) if mine and theirs else None, "unit": "ms", "goal": None,
           "ours_says": ours[-1][1], "peer_says": says}


def figures():
    deadline = time.monotonic() + TOTAL_S
    found = commanded.about(PROGRAM, "about", DEVICE)
    if DEVICE == "cuda" and not found["gpus"]:
        sys.exit(f"bench: the PyTorch {found['torch']} of {commanded.PYTHON} finds no GPU, which the question gpu needs")
    if DEVICE == "cuda":
        how = "each rank has a GPU of its own" if found["gpus"] > 1 else \
            "two ranks share the GPU and are two hosts for NCCL (NCCL_HOSTID), connected by loopback"
        print(f"gpu: {found['gpus']} x {found['gpu']}, PyTorch {found['torch']}, NCCL {found['nccl']}; {how}", file=sys.stderr,
              flush=True)
    if "one" in PARTS:
        yield from one_rank(found["gpus"], deadline)
    if "two" in PARTS or "dead" in PARTS:
        with pair_of(2, found["gpus"], deadline) as pair:
            if "two" in PARTS:
                yield from two_ranks(pair)
            if "dead" in PARTS:
                yield from deaths(pair)
