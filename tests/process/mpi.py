#!/usr/bin/env python3
"""mpirun starts ddp-run, or workers of libddp without it: mpi.py BIN_DIR SUM_WORKER. With Open MPI's mpirun, and with MPICH's if it is
there. Skips (77) without either.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
LIMIT_S = 240
WORDS = "echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $GROUP_RANK"

ddp_run, sum_worker = str(Path(sys.argv[1]) / "ddp-run"), sys.argv[2]


def launchers():
    """The command lines before the number of processes, by name."""
    found = {}
    for name in ("mpirun.openmpi", "mpirun"):
        if shutil.which(name) and "Open MPI" in subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout:
            found["Open MPI"] = [name, "--allow-run-as-root", "--oversubscribe", "-np"]
    if shutil.which("mpiexec.hydra"):
        found["MPICH's launcher"] = ["mpiexec.hydra", "-np"]
    return found


def run(command, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_", "PET_"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, env={**environment, **variables},
                          check=False)


def each_is_a_node(launcher, name):
    done = run([*launcher, "2", ddp_run, "--nproc-per-node", "2", "sh", "-c", WORDS])
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"rank \d of .*", done.stdout))
    assert found == [f"rank {rank} of 4, local {rank % 2} of 2, node {rank // 2}" for rank in range(4)], (done.stdout, done.stderr)
    done = run([*launcher, "2", ddp_run, "sh", "-c", WORDS])
    assert done.returncode != 0 and f"{name} has started 2 ddp-runs on this machine, where one starts all workers" in done.stderr, done.stderr


def one_node_is_as_without(launcher):
    done = run([*launcher, "1", ddp_run, "--nproc-per-node", "2", "sh", "-c", WORDS])
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d of .*", done.stdout))[1] == "rank 1 of 2, local 1 of 2, node 0", done.stdout


def digests(folder, name, command, ranks, **variables):
    done = run([*command, sum_worker, str(folder / name), "50"], **variables)
    assert done.returncode == 0, done.stderr
    files = sorted(folder.glob(f"{name}.*"))
    assert [file.name for file in files] == [f"{name}.{rank}" for rank in range(ranks)], (files, done.stderr)
    (digest,) = {file.read_text() for file in files}
    return digest


def workers_are_one_world(launcher, folder, expected):
    """They compute what workers of ddp-run compute, which depends on the number of ranks."""
    assert digests(folder, "mpi", [*launcher, "3"], 3) == expected
    for file in folder.glob("mpi.*"):
        file.unlink()
    # Alone, each is a world of one. What a launcher has said wins.
    assert digests(folder, "alone", [*launcher, "1"], 1) != expected
    done = run([*launcher, "2", sum_worker, str(folder / "one"), "50"], WORLD_SIZE="1", RANK="0")
    assert done.returncode == 0 and [file.name for file in folder.glob("one.*")] == ["one.0"], done.stderr
    for file in [*folder.glob("alone.*"), *folder.glob("one.*")]:
        file.unlink()


def main():
    found = launchers()
    if not found:
        print("neither Open MPI nor MPICH is here")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="ddp_mpi.") as made:
        folder = Path(made)
        expected = digests(folder, "ddp_run", [ddp_run, "--nproc-per-node", "3"], 3)
        for name, launcher in found.items():
            each_is_a_node(launcher, name)
            one_node_is_as_without(launcher)
            workers_are_one_world(launcher, folder, expected)
    print(", ".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
