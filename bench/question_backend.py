"""How fast is the backend "ddp" of Python's torch.distributed on CPUs, against gloo of the same PyTorch?

backend_python.py: all ranks of both backends wait for commands and take turns (commanded.py), one thread each. A figure compares
within rounds. "No communication" is the same training by two ranks of ours at once without DistributedDataParallel.

* mnist, models: steps a second of DDP for the network of PEERS/ddp_mnist.py, and for ResNet18, an MLP of 25 million parameters and a
  GPT of 10 million. Gradients are views of the buckets and keep their memory between steps. "One barrier a step" is no communication
  but an all-reduce of 4 bytes after backward: what it costs that the ranks wait for the slower one in every step.
* all_reduce, collectives: PyTorch's functions on ordinary tensors; rank 0's median, as bench/README.md has it.
* mpi: all_reduce from Python against MPI_Allreduce from C, both on private memory.
* call: what all_reduce of 4 bytes takes from Python beyond what bench-collectives takes from C++ in the same round. The peer is the
  limit of 15 us.
* tcp: each rank is a node of its own (DDP_VIRTUAL_NODE).
* fsdp: steps of the GPT, with fully_shard for each block. PyTorch 2.6 and older have no FSDP2 on CPUs.
* dead: one of four ranks is killed in an all_reduce; milliseconds until all others have raised, each time in a new group
  (abort_python.py). The limit is 50 ms. gloo has a timeout of 2 s, without which some of its ranks would wait for 30 minutes.

A figure that failed has "error"; if we failed, its ratio is 0. PYTHON names the interpreter, PYTHONPATH may name the folder of the
package ddp_run. BENCH_PARTS chooses among the names above. With BENCH_QUICK=1 a part takes
less than 40 s on a quiet machine.
"""
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import commanded
import harness
import paired
from commanded import Contender, Failed, Pair, compare
from paired import KIB, MIB

PROGRAM = str(harness.ROOT / "bench" / "backend_python.py")
ABORT = str(harness.ROOT / "bench" / "abort_python.py")
ALL_PARTS = ["mnist", "models", "all_reduce", "mpi", "call", "collectives", "tcp", "fsdp", "dead"]
PARTS = os.environ.get("BENCH_PARTS", ",".join(ALL_PARTS)).split(",")
TOTAL_S = 400 if paired.QUICK else 3600
COMMAND_S = 30 if paired.QUICK else 60
PART_S = 20  # Without the round that runs then.
STARTS = 12  # Operations that a backend lacks end its ranks.
SECONDS = 0.05 if paired.QUICK else 0.15
STEPS = {"mnist": 10, "resnet18": 1, "large_mlp": 1, "small_gpt": 1} if paired.QUICK else \
    {"mnist": 60, "resnet18": 4, "large_mlp": 4, "small_gpt": 4}
NAMES = {"mnist": "the MNIST network", "resnet18": "ResNet18", "large_mlp": "an MLP of 25 M", "small_gpt": "a GPT of 10 M"}
ALL_REDUCE_GOALS = {4 * KIB: 10, MIB: 8, 25 * MIB: 8, 100 * MIB: 8}
COLLECTIVES = ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "send_recv"]
SIZES = [64 * KIB, MIB, 25 * MIB]
CALL_LIMIT_US = 15
DEATHS, GLOO_DEATHS = (20, 2) if paired.QUICK else (200, 10)
DEATH_LIMIT_MS = 50
GLOO_TIMEOUT_S = 2
DEATHS_LIMIT_S = 38 if paired.QUICK else 600


def pair_of(world, deadline, nodes=False):
    ranks = [{"DDP_VIRTUAL_NODE": f"bench-{rank}"} if nodes else {} for rank in range(world)]
    return Pair(*(Contender([commanded.PYTHON, PROGRAM, side], ranks, deadline, COMMAND_S, STARTS) for side in ("ours", "peer")),
                f"{world} nodes over TCP" if nodes else f"{world} ranks")


def failed(name, error, unit):
    return {"figure": name, "ours": None, "peer": None, "peer_name": None, "ratio": None, "unit": unit, "goal": None, "error": error}


def speed(line):
    return line["steps_per_second"]


def seconds(line):
    return line["seconds"]


def training(pair, model, goal):
    def turn(contender, how):
        return lambda: contender.ask("train", model=model, how=how, steps=STEPS[model])
    results = pair.rounds({"ours": turn(pair.ours, "ddp"), "peer": turn(pair.peer, "ddp"), "local": turn(pair.ours, "local"),
                           "barrier": turn(pair.ours, "barrier")}, warm_up=1)
    name = f"DDP of {NAMES[model]}, {pair.where}"
    yield compare(name, results, speed, "steps/s", goal, "gloo", rate=True)
    yield compare(f"{name}, against no communication", results, speed, "steps/s", 0.97, "the same without communication", "local",
                  rate=True)
    yield compare(f"{name}, against one barrier a step", results, speed, "steps/s", None, "the same with one barrier a step", "barrier",
                  rate=True)
    pair.forget()


def operation(pair, op, size, goal):
    results = pair.both("operation", op=op, size=size, seconds=SECONDS)
    return compare(f"{op} of {paired.label(size)}, {pair.where}", results, seconds, "us", goal, "gloo", scale=1e6)


def other_program(run, key):
    """A turn of a program that ends when it has measured."""
    def turn():
        try:
            return {"seconds": run()[key]["median_s"]}
        except (OSError, SystemExit) as error:
            raise Failed(str(error)[:600]) from error
    return turn


def against_mpi(pair):
    size = 25 * MIB
    name = f"all_reduce of {paired.label(size)}, {pair.where}, against Open MPI"
    with tempfile.TemporaryDirectory(prefix="bench-mpi.") as folder:
        try:
            program = paired.compile_mpi(harness.ROOT / "bench" / "mpi_collectives.c", folder)
        except (OSError, subprocess.CalledProcessError) as error:
            yield failed(name, str(error), "us")
            return

        def mpi(env):
            run = paired.mpi(program, 2, [size], SECONDS, env=env, ops=["all_reduce"])
            return other_program(run, ("all_reduce", "f32", "private", size))
        results = pair.rounds({"ours": lambda: pair.ours.ask("operation", op="all_reduce", size=size, seconds=SECONDS),
                               "mpi": mpi(None), "tuned": mpi(paired.TUNED_MALLOC)})
    yield compare(name, results, seconds, "us", 1.3, "Open MPI from C (private)", "mpi", scale=1e6)
    yield compare(f"{name}, tuned malloc", results, seconds, "us", None, "Open MPI from C (private), tuned malloc", "tuned", scale=1e6)


def call(pair):
    name = f"call of all_reduce, 4 B, {pair.where}, from Python beyond C++"
    cpp = other_program(paired.ours(2, [4], SECONDS, memories=("private",)), ("all_reduce", "f32", "private", 4))
    results = pair.rounds({"ours": lambda: pair.ours.ask("operation", op="all_reduce", size=4, seconds=SECONDS), "cpp": cpp})
    errors = [f"{who}: {found}" for who, found in results.items() if isinstance(found, str)]
    if errors:
        yield failed(name, "; ".join(errors), "us")
        return
    python, bare = ([1e6 * seconds(line) for line in results[who]] for who in ("ours", "cpp"))
    beyond = [mine - theirs for mine, theirs in zip(python, bare)]
    ratios = [CALL_LIMIT_US / max(0.1, extra) for extra in beyond]
    yield {"figure": name, "ours": round(statistics.median(beyond), 3), "peer": CALL_LIMIT_US, "peer_name": "limit",
           "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3), "rounds": len(ratios),
           "unit": "us", "goal": 1, "python_us": round(statistics.median(python), 3), "cpp_us": round(statistics.median(bare), 3)}


def models(pair):
    for model in ("resnet18", "large_mlp", "small_gpt"):
        yield from training(pair, model, 1.0)


def reductions(pair):
    for size, goal in ALL_REDUCE_GOALS.items():
        yield operation(pair, "all_reduce", size, goal)


def collectives(pair):
    for op in COLLECTIVES:
        for size in SIZES:
            yield operation(pair, op, size, 2)


def between_nodes(pair):
    for size in (MIB, 25 * MIB):
        yield operation(pair, "all_reduce", size, 2)


def sharded(pair):
    results = pair.rounds({who: lambda contender=contender: contender.ask("train", model="small_gpt", how="fsdp",
                                                                         steps=STEPS["small_gpt"])
                           for who, contender in (("ours", pair.ours), ("peer", pair.peer))}, warm_up=1)
    yield compare(f"FSDP2 of {NAMES['small_gpt']}, {pair.where}", results, speed, "steps/s", 1.3, "gloo", rate=True)
    pair.forget()


def deaths(backend, turns, timeout_s):
    """Milliseconds of each."""
    command = [commanded.PYTHON, ABORT, "--backend", backend, "--ranks", "4", "--turns", str(turns), "--timeout", str(timeout_s)]
    process = subprocess.Popen(command, env=commanded.environment() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=DEATHS_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{turns} deaths took more than {DEATHS_LIMIT_S} s") from error
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # Its ranks, too.
        except ProcessLookupError:
            pass
        process.wait()
    if process.returncode != 0:
        raise Failed(" | ".join(err.strip().splitlines()[-3:])[-400:])
    return json.loads(out.splitlines()[-1])["times_ms"]


def dead():
    name = "kill -9 of one of 4 ranks until all others have raised"
    try:
        ours = deaths("ddp", DEATHS, 60)
    except Failed as error:
        yield {**failed(name, f"ours: {error}", "ms"), "ratio": 0.0, "goal": 1}
        return
    p99 = sorted(ours)[min(len(ours) - 1, int(0.99 * len(ours)))]
    yield {**harness.figure(f"{name}, p99", p99, DEATH_LIMIT_MS, "limit", "ms", 1), "deaths": len(ours)}
    try:
        gloo = deaths("gloo", GLOO_DEATHS, GLOO_TIMEOUT_S)
    except Failed as error:
        yield failed(f"{name}, median", f"gloo: {error}", "ms")
        return
    yield harness.figure(f"{name}, median", statistics.median(ours), statistics.median(gloo), f"gloo, timeout {GLOO_TIMEOUT_S} s",
                         "ms", None)


def ask(pair, parts):
    if not parts:
        return
    with pair:
        for part in parts:
            pair.until = time.monotonic() + PART_S if paired.QUICK else None
            yield from part(pair)


def figures():
    unknown = [part for part in PARTS if part not in ALL_PARTS]
    if unknown:
        sys.exit(f"bench: BENCH_PARTS has {', '.join(unknown)}; expected {', '.join(ALL_PARTS)}")
    deadline = time.monotonic() + TOTAL_S
    found = commanded.about(PROGRAM, "about")
    print(f"backend: PyTorch {found['torch']}, {found['ddp_run']}", file=sys.stderr, flush=True)
    two_ranks = {"mnist": lambda pair: training(pair, "mnist", 1.3), "models": models, "all_reduce": reductions, "mpi": against_mpi,
                 "call": call, "collectives": collectives}
    yield from ask(pair_of(2, deadline), [two_ranks[part] for part in two_ranks if part in PARTS])
    if "tcp" in PARTS:
        yield from ask(pair_of(2, deadline, nodes=True), [between_nodes])
    if "fsdp" in PARTS and not found["fsdp"]:
        print(f"backend: fsdp is left out: PyTorch {found['torch']} has no FSDP2 on CPUs, 2.7 has", file=sys.stderr, flush=True)
    elif "fsdp" in PARTS:
        for world in (2, 4):
            yield from ask(pair_of(world, deadline), [sharded])
    if "dead" in PARTS:
        yield from dead()
