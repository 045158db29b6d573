"""How long after a rank dies or stops does the last survivor know?

Time from the signal to the last rank of a node until every other rank has its error. The signal comes in the middle of an
operation of each kind, or before the victim enters it. The victim has touched 16 MiB or 1 GiB beside its buffers. gloo runs the
same with a timeout of 2 s (its default is 30 min): its ranks that wait for another survivor see the error only after that
timeout, because survivors keep their process, as they would to recover in it. SIGSTOP: DDP_STALL_TIMEOUT_MS=500.
"""
import json
import os
import statistics
import subprocess
import sys

import harness

PROGRAM = str(harness.BIN / "bench-abort")
GLOO = [harness.PYTHON, str(harness.ROOT / "bench" / "abort_python.py")]
PHASES = ["before", "all_reduce", "barrier", "broadcast"]
LIMIT_MS = 50
GLOO_TIMEOUT_S = 2
STALL_MS = 500


def times(command, ranks, phase, signal, resident_mib, turns):
    environment = {**os.environ, "DDP_STALL_TIMEOUT_MS": str(STALL_MS)}
    flags = ["--ranks", str(ranks), "--phase", phase, "--signal", signal, "--resident-mib", str(resident_mib),
             "--turns", str(turns)]
    done = subprocess.run(command + flags, stdout=subprocess.PIPE, env=environment)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command + flags)} exited with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])["times_ms"]  # Newer gloo first prints whom it is connected to.


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def figures():
    harness.require(PROGRAM)
    gloo = GLOO + ["--timeout", str(GLOO_TIMEOUT_S)]
    name = f"gloo, timeout {GLOO_TIMEOUT_S} s"
    killed = []
    for ranks in (2, 4):
        for resident, turns, peer_turns in ((16, 25, 2), (1024, 5, 1)):
            for phase in PHASES:
                ours = times([PROGRAM], ranks, phase, "kill", resident, turns)
                peer = times(gloo, ranks, phase, "kill", resident, peer_turns)
                killed += ours
                where = f"{ranks} ranks, {resident} MiB resident, {phase}"
                yield harness.figure(f"kill -9, {where}, median", statistics.median(ours), statistics.median(peer), name, "ms", None)
                yield harness.figure(f"kill -9, {where}, p99", p99(ours), p99(peer), name, "ms", None)
    yield harness.figure("kill -9, p99 ms", p99(killed), LIMIT_MS, "limit", "ms", 1)
    for ranks in (2, 4):
        for phase in PHASES:
            ours = times([PROGRAM], ranks, phase, "stop", 16, 5)
            peer = times(gloo, ranks, phase, "stop", 16, 1)
            where = f"SIGSTOP, {ranks} ranks, stall timeout {STALL_MS} ms, {phase}"
            yield harness.figure(f"{where}, median", statistics.median(ours), statistics.median(peer), name, "ms", None)
