"""How long is it from the death of a worker to the start of its successor?"""
import os
import shutil
import subprocess
import tempfile

import harness

# Rank 0 waits at its first start until rank 1 has started, records the time and kills itself. Every start is recorded.
WORKER = """#!/bin/bash
echo "start $EPOCHREALTIME" >> "$1/rank$RANK"
[ "$RANK" = 1 ] && [ ! -e "$1/died" ] && { touch "$1/there"; exec sleep 60; }
[ -e "$1/died" ] && exit 0
while [ ! -e "$1/there" ]; do :; done
touch "$1/died"
echo "death $EPOCHREALTIME" >> "$1/rank0"
kill -9 $$
"""


def gap(command):
    folder = tempfile.mkdtemp(prefix="bench-restart.")
    script = os.path.join(folder, "worker")
    with open(script, "w") as file:
        file.write(WORKER)
    os.chmod(script, 0o755)
    try:
        subprocess.run([*command, script, folder], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=True)
        events = [line.split() for line in open(os.path.join(folder, "rank0"))]
        death = next(float(when) for what, when in events if what == "death")
        return min(float(when) for what, when in events if what == "start" and float(when) > death) - death
    finally:
        shutil.rmtree(folder)


def figures():
    harness.require(harness.DDP_RUN, harness.TORCHRUN[0])
    ours = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--no-python"]
    torchrun = [*harness.TORCHRUN, "--standalone", "--nproc_per_node", "2", "--max_restarts", "1", "--no_python"]
    medians = harness.alternate({"ours": lambda: gap(ours), "torchrun": lambda: gap(torchrun)}, rounds=7)
    yield harness.figure("death of a worker to start of its successor", medians["ours"], medians["torchrun"], "torchrun", "s", 10)
