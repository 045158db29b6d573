"""A training of two nodes that goes on while a benchmark disturbs it."""
import contextlib
import json
import os
import statistics
import tempfile
import time
import typing
from pathlib import Path

import harness
import jobs
import paired

LIMIT_S = 120
TAIL_BYTES = 4096  # Some lines of the rates.


class Window(typing.NamedTuple):
    """What was seen while some seconds went by."""

    steps: float  # A second.
    cpu: float  # CPU seconds a second of all processes below this one that are not workers.


class Training:
    def __init__(self, port, rates):
        self.port, self.rates = port, rates

    def steps(self):
        with open(self.rates, "rb") as rates:
            rates.seek(max(0, self.rates.stat().st_size - TAIL_BYTES))
            lines = rates.read().splitlines()
        return json.loads(lines[-1] if lines[-1].endswith(b"}") else lines[-2])["step"]

    def watch(self, seconds):
        """What happens from now on."""
        begin, steps, cpu = time.perf_counter(), self.steps(), cpu_seconds()
        time.sleep(seconds)
        steps, cpu, took = self.steps() - steps, cpu_seconds() - cpu, time.perf_counter() - begin
        return Window(steps / took, cpu / took)

    def rounds(self, disturbance, count, seconds):
        """Watches the training without the disturbance (a function that returns a context), with it, and without it again.

        Returns the rounds after the first as (undisturbed, disturbed): windows of so many seconds each. Machines become faster
        and slower as time goes by, so what is without is half before and half after, and short rounds tell more than long ones.
        """
        found = []
        for _ in range(count + 1):
            before = self.watch(seconds / 2)
            with disturbance():
                during = self.watch(seconds)
            after = self.watch(seconds / 2)
            found.append((Window(*map(statistics.mean, zip(before, after))), during))
        return found[1:]


def cpu_seconds():
    """CPU time so far of the processes below this one that are not workers."""
    total = 0
    for pid in jobs.descendants(os.getpid()):
        if jobs.program_of(pid) == "ddp-train":
            continue
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(thread.read_text().split()[0]) / 1e9
    return total


def figure(name, rounds, peer_name):
    """Steps a second with the disturbance against those without it in the same round."""
    ratios = [disturbed.steps / undisturbed.steps for undisturbed, disturbed in rounds]
    undisturbed, disturbed = ([window.steps for window in windows] for windows in zip(*rounds))
    return {"figure": name, "ours": round(statistics.median(disturbed), 2), "peer": round(statistics.median(undisturbed), 2), "peer_name": peer_name,
            "ratio": round(statistics.median(ratios), 4), "low": round(paired.lower_bound(ratios), 4), "rounds": len(ratios), "unit": "steps/s",
            "goal": 0.99}


@contextlib.contextmanager
def running(model="mnist"):
    harness.require(harness.DDP_RUN)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(jobs.free_port(), Path(folder) / "rates.jsonl")
        nodes = [jobs.Node([harness.DDP_RUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{training.port}", "--node-rank",
                            str(node), str(harness.BIN / "ddp-train"), "--model", model, "--data", "synthetic", "--epochs", "100000", "--threads", "1",
                            "--log-every", "1", "--rates", str(training.rates)], Path(folder) / f"node{node}.log") for node in (0, 1)]
        try:
            jobs.wait_until(lambda: training.rates.exists() and training.rates.stat().st_size > 0, LIMIT_S, "a first step")
            yield training
        finally:
            for node in nodes:
                node.kill()
