"""A training of two nodes that goes on while a benchmark disturbs it."""
import contextlib
import json
import tempfile
import time
from pathlib import Path

import harness
import jobs

LIMIT_S = 120


class Training:
    def __init__(self, port, rates):
        self.port, self.rates = port, rates

    def steps(self):
        lines = self.rates.read_text().splitlines()
        return json.loads(lines[-1] if lines[-1].endswith("}") else lines[-2])["step"]

    def rate(self, seconds):
        """Steps a second, over so many seconds from now on."""
        begin, first = time.perf_counter(), self.steps()
        time.sleep(seconds)
        return (self.steps() - first) / (time.perf_counter() - begin)


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
