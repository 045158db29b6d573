#!/usr/bin/env python3
"""While jobs run, the wall clock of all their processes jumps by an hour, ahead and back, again and again: nothing changes.

usage: clock_jumps.py BIN_DIR CLOCK_SHIM

The first job's workers have a timer of torchelastic, which is set by the wall clock. The second one is a training on two nodes that must
end with the bytes of a training whose clock is left alone, in one round.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs  # noqa: E402

BIN, SHIM = Path(sys.argv[1]), sys.argv[2]
LIMIT_S = 240
HOUR = 3600
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "2048", "--test-samples", "64", "--batch-size", "16",
            "--epochs", "3", "--threads", "1", "--checkpoint-every", "20"]
TIMER = """
import json, os, time
timer = {"version": 1, "pid": os.getpid(), "scope_id": "a", "expiration_time": time.time() + 600, "signal": 9}
with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as file:
    file.write(json.dumps(timer) + "\\n")
begun = time.time()
print("timer is set", flush=True)
while abs(time.time() - begun) < 1800: time.sleep(0.01)
print("the clock has jumped", flush=True)
end = time.monotonic() + 3
while time.monotonic() < end: time.sleep(0.01)
"""


class Clock:
    """The wall clock of the processes that are started with `environment`."""

    def __init__(self, folder):
        self.file = Path(folder, "clock")
        self.file.write_bytes(struct.pack("<q", 0))
        self.environment = {**os.environ, "LD_PRELOAD": SHIM, "DDP_TEST_CLOCK": str(self.file)}

    def jump(self, seconds):
        with open(self.file, "r+b") as file:
            file.write(struct.pack("<q", seconds * 1_000_000_000))


def expect(condition, text):
    if not condition:
        sys.exit(text)


def timers(folder):
    clock = Clock(folder)
    environment = {**clock.environment, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": folder}
    job = subprocess.Popen([BIN / "ddp-run", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable, "-c", TIMER],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    output = []
    for line in job.stdout:
        output.append(line)
        if sum("timer is set" in one for one in output) == 2:
            clock.jump(HOUR)
    expect(job.wait(LIMIT_S) == 0, f"timers: status {job.returncode}\n{''.join(output)}")
    expect(sum("jumped" in one for one in output) == 2, "".join(output))


def training(folder, jumps):
    """The summary of a training on two nodes, and how often the clock jumped."""
    clock = Clock(folder)
    port = jobs.free_port()
    nodes = []
    for node in range(2):
        command = [BIN / "ddp-run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "clock", "--max-restarts", "3",
                   "--progress-timeout", "60", BIN / "ddp-train", *TRAINING, "--checkpoint-dir", f"{folder}/run"]
        with open(f"{folder}/out.{node}", "wb") as output:
            nodes.append(subprocess.Popen([*command, "--summary", f"{folder}/summary.json"], stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=subprocess.STDOUT, env=clock.environment))
    count = 0
    end = time.monotonic() + LIMIT_S
    while any(node.poll() is None for node in nodes) and time.monotonic() < end:
        time.sleep(0.1)  # sleep: the moments of the jumps are what is tried out.
        if jumps:
            count += 1
            clock.jump((HOUR, 0, -HOUR, 0)[count % 4])
    said = "".join(Path(folder, f"out.{node}").read_text(errors="replace") for node in range(2))
    expect(all(node.poll() == 0 for node in nodes), f"{[node.poll() for node in nodes]}\n{said}")
    return json.loads(Path(folder, "summary.json").read_text()), count


def with_jumps(_):
    with tempfile.TemporaryDirectory(prefix="clock_jumps.") as folder:
        result, count = training(folder, jumps=True)
    if count < 8:
        raise jobs.TooLate(f"the clock had jumped only {count} times when the training was over")
    return result, count


with tempfile.TemporaryDirectory(prefix="clock_jumps.") as base:
    timers(base)
with tempfile.TemporaryDirectory(prefix="clock_jumps.") as base:
    calm, _ = training(base, jumps=False)
wild, jumped = jobs.in_time(with_jumps)
expect(wild["weights_sha256"] == calm["weights_sha256"], f"{wild}\n{calm}")
expect(wild["rounds"] == calm["rounds"] and wild["restarts"] == 0, f"{wild}\n{calm}")
print(f"{jumped} jumps, weights {wild['weights_sha256'][:12]}, {wild['rounds']} round")
