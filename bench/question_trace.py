"""What does a trace cost while somebody asks for one?

Steps a second of two nodes that train, while `ddp-run trace` reads what their ranks do, against while nobody does. The machine's own noise is larger
than what is looked for, so a second figure bounds it: the CPU time that the trace takes, which is what the training would lose if the ranks
waited for all of it. What recording costs while nobody asks is in the figures of `recorder`.
"""
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import harness
import jobs
import training

QUICK = bool(os.environ.get("BENCH_QUICK"))
SECONDS, ROUNDS = 2, int(os.environ.get("BENCH_ROUNDS", 5 if QUICK else 60))
MODELS = ("mnist",) if QUICK else ("mnist", "mlp")
LIMIT_S = 30
SETTLE_S = 1.5  # The first questions of a trace follow one another at once.
COST = 0.01  # Of the time of a step.


@contextlib.contextmanager
def traced(trained, file):
    command = [harness.DDP_RUN, "trace", f"127.0.0.1:{trained.port}", "--steps", "1000000000", "--output", file]
    first = trained.steps()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        jobs.wait_until(lambda: '"cat":"step"' in file.read_text() if file.exists() else False, LIMIT_S, "a first step in the trace")
        time.sleep(SETTLE_S)
        yield
        passed = trained.steps() - first
        process.terminate()
    seen = sum('"cat":"step"' in line for line in file.read_text().splitlines())
    file.unlink()
    if seen < passed:  # Two ranks make a step, and the last second is not in the trace.
        raise SystemExit(f"bench: the trace has only {seen} of {2 * passed} steps")


def figures():
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder, training.running(model) as trained:
            rounds = trained.rounds(lambda: traced(trained, Path(folder) / "trace.json"), ROUNDS, SECONDS)  # pylint: disable=W0640
        yield training.figure(f"steps a second while a trace is taken, {model}", rounds, "no trace")
        taken = statistics.median(during.cpu - quiet.cpu for quiet, during in rounds)
        yield harness.figure(f"CPU time that a trace takes, {model}", taken, COST, "1 % of a core", "s/s", 1.0)
