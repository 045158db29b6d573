"""How long does an all-reduce take, against Open MPI, gloo and what the memory allows?

"registered" memory comes from ProcessGroup::allocate and is mapped by all ranks of the node; no peer has such memory. "private"
memory is the caller's own, as in all peers. See bench/README.md.
"""
import os
import subprocess
import sys
import tempfile
import time

import harness
import paired
from paired import KIB, MIB, QUICK, label

SIZES = [64 * KIB, MIB, 25 * MIB] if QUICK else [8, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 25 * MIB, 100 * MIB, 256 * MIB]
FOUR_SIZES = [MIB] if QUICK else [64 * KIB, MIB, 25 * MIB]
TCP_SIZES = [64 * KIB, MIB] if QUICK else [64 * KIB, MIB, 25 * MIB, 100 * MIB]
DISTURBED_SIZES = [MIB, 25 * MIB]
SECONDS = 0.1 if QUICK else 0.15  # For each size in each round.
TCP_SECONDS = 0.1 if QUICK else 0.5  # TCP's windows take some time to open.
LARGE = 25 * MIB


def key(memory, size, dtype="f32"):
    return "all_reduce", dtype, memory, size


def registered_goal(size):
    """Against Open MPI with its default settings."""
    return 3.0 if size >= 64 * KIB else 1.5 if size >= 4 * KIB else None


def two_ranks(mpi_program, size):
    contenders = {
        "ours": paired.ours(2, [size], SECONDS),
        "mpi": paired.mpi(mpi_program, 2, [size], SECONDS),
        "gloo": paired.gloo(2, [size], SECONDS),
    }
    if size >= LARGE:
        contenders["mpi tuned"] = paired.mpi(mpi_program, 2, [size], SECONDS, env=paired.TUNED_MALLOC)
        contenders["roof"] = paired.roof(2, [size], SECONDS)
    rounds = paired.Rounds(f"2 ranks, f32, {label(size)}", contenders)
    for memory in ("registered", "private"):
        name, mine, peer = f"2 ranks, f32, {label(size)}, {memory}", ("ours", key(memory, size)), key("private", size)
        registered = memory == "registered"
        private_goal = None if size < 4 * KIB else 1.3 if size == LARGE else 0.8
        yield rounds.figure(name, mine, ("mpi", peer), "Open MPI (private)", registered_goal(size) if registered else private_goal)
        if size >= LARGE:
            yield rounds.figure(name, mine, ("mpi tuned", peer), "Open MPI, tuned malloc (private)", 2.0 if registered else None)
        yield rounds.figure(name, mine, ("gloo", peer), "gloo from C++ (private)", 8.0 if registered and size >= MIB else None)
        if size >= LARGE:
            yield rounds.figure(name + ", fraction of the roof", mine, ("roof", peer), "roof", 0.85 if registered else None,
                                statistic="median_max_s")


def bfloat16():
    rounds = paired.Rounds("2 ranks, bf16", {"ours": paired.ours(2, SIZES, SECONDS, dtype="bf16")}, rounds=3)
    for size in SIZES:
        for memory in ("registered", "private"):
            # MPI has no type for it, and gloo in LibTorch 1.13 refuses it ("Invalid scalar type").
            yield rounds.figure(f"2 ranks, bf16, {label(size)}, {memory}", ("ours", key(memory, size, "bf16")), None, None, None)


def four_ranks(mpi_program, size):
    rounds = paired.Rounds(f"4 ranks, f32, {label(size)}", {"ours": paired.ours(4, [size], SECONDS),
                                                           "mpi": paired.mpi(mpi_program, 4, [size], SECONDS)})
    for memory in ("registered", "private"):
        yield rounds.figure(f"4 ranks, f32, {label(size)}, {memory}", ("ours", key(memory, size)),
                            ("mpi", key("private", size)), "Open MPI (private)", 3.0 if memory == "registered" else None)


def two_nodes(mpi_program, size):
    contenders = {
        "ours": paired.ours(2, [size], TCP_SECONDS, memories=("private",), nodes=2),
        "mpi": paired.mpi(mpi_program, 2, [size], TCP_SECONDS, options=paired.MPI_TCP),
        "gloo": paired.gloo(2, [size], TCP_SECONDS),
    }
    rounds = paired.Rounds(f"2 nodes over loopback TCP, f32, {label(size)}", contenders)
    name, mine, peer = f"2 nodes over TCP, f32, {label(size)}, private", ("ours", key("private", size)), key("private", size)
    yield rounds.figure(name, mine, ("gloo", peer), "gloo from C++ (private)", 1.5)
    yield rounds.figure(name, mine, ("mpi", peer), "Open MPI over TCP (private)", 1.2)


def beside_a_loop(contender):
    def run():
        loop = subprocess.Popen([sys.executable, "-c", "import time\nend = time.time() + 60\nwhile time.time() < end: pass"])
        try:
            time.sleep(0.2)
            return contender()
        finally:
            loop.kill()
            loop.wait()
    return run


def disturbed(mpi_program):
    """The cost of one busy process: the mean, which is what a job loses, and the median, which hides the runs that stood still."""
    ours = paired.ours(2, DISTURBED_SIZES, 2 * SECONDS)
    mpi = paired.mpi(mpi_program, 2, DISTURBED_SIZES, 2 * SECONDS)
    rounds = paired.Rounds("beside a busy loop", {"disturbed": beside_a_loop(ours), "quiet": ours,
                                                  "mpi disturbed": beside_a_loop(mpi)})
    for size in DISTURBED_SIZES:
        for memory in ("registered", "private"):
            name, mine = f"2 ranks, f32, {label(size)}, {memory}, beside a busy loop", ("disturbed", key(memory, size))
            yield rounds.figure(name + ", average", mine, ("quiet", key(memory, size)), "ours, undisturbed",
                                0.5 if memory == "registered" else None, statistic="average_s")
            yield rounds.figure(name + ", median", mine, ("quiet", key(memory, size)), "ours, undisturbed", None)
            yield rounds.figure(name + ", median", mine, ("mpi disturbed", key("private", size)), "Open MPI (private), disturbed too",
                                None)


def figures():
    paired.require()
    harness.require(paired.GLOO)
    print(f"allreduce: seed of the bootstrap {paired.SEED}", file=sys.stderr)
    wanted = os.environ.get("BENCH_PARTS", "two,bf16,four,tcp,disturbed").split(",")
    only = {int(size) for size in os.environ["BENCH_BYTES"].split(",")} if os.environ.get("BENCH_BYTES") else None
    with tempfile.TemporaryDirectory(prefix="bench-mpi.") as folder:
        program = paired.compile_mpi(harness.PEERS / "mpi_allreduce.c", folder)
        # Each size has its own rounds: in a shorter turn the cores move less often.
        parts = {"two": (two_ranks, SIZES), "four": (four_ranks, FOUR_SIZES), "tcp": (two_nodes, TCP_SIZES)}
        for part in wanted:
            if part in parts:
                question, sizes = parts[part]
                for size in sizes:
                    if only is None or size in only:
                        yield from question(program, size)
            else:
                yield from {"bf16": bfloat16, "disturbed": lambda: disturbed(program)}[part]()
