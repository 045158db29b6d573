"""How long do the other collectives take, against Open MPI's?

The time of a run is that of its slowest rank (a root is often done before the others). Sizes are the input of a rank, or for
scatter its output; send_recv is half of a message there and back. Only private memory compares like with like.
"""
import tempfile

import harness
import paired
from paired import KIB, MIB, QUICK, label

OPS = ["broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send_recv"]
SIZES = [64 * KIB, MIB] if QUICK else [64 * KIB, MIB, 25 * MIB]
SECONDS = 0.05 if QUICK else 0.1


def figures():
    paired.require()
    with tempfile.TemporaryDirectory(prefix="bench-mpi.") as folder:
        program = paired.compile_mpi(harness.ROOT / "bench" / "mpi_collectives.c", folder)
        rounds = paired.Rounds("collectives, 2 ranks, f32", {"ours": paired.ours(2, SIZES, SECONDS, ops=OPS),
                                                             "mpi": paired.mpi(program, 2, SIZES, SECONDS, ops=OPS)})
    for op in OPS:
        for size in SIZES:
            for memory, goal in (("private", 1.0), ("registered", None)):
                yield rounds.figure(f"{op}, 2 ranks, f32, {label(size)}, {memory}", ("ours", (op, "f32", memory, size)),
                                    ("mpi", (op, "f32", "private", size)), "Open MPI (private)", goal, statistic="median_max_s")
