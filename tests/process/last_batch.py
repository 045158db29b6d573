#!/usr/bin/env python3
"""--drop-last off: several workers with uneven shards train like one process with the joint batch.

Four workers with batches of 3 against one process with batches of 12: the last step of an epoch has one sample (so three
workers have none) or seven (two each, one for the last). Compares the losses of all epochs and the numbers of steps, in both
modes, and also if workers run different numbers of backwards in a step.

usage: last_batch.py BIN_DIR
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

bin_dir = Path(sys.argv[1])
WORKERS, EPOCHS = 4, 6
RATE = 0.2  # So large that a sample with a wrong weight is seen.


def train(workers, samples, batch, more=()):
    with tempfile.TemporaryDirectory(prefix="last_batch.") as folder:
        summary = Path(folder) / "summary.json"
        launcher = [bin_dir / "ddp-run", "--standalone", "--nproc-per-node", str(workers)] if workers > 1 else []
        command = [*launcher, bin_dir / "ddp-train", "--model", "toy", "--threads", "1", "--train-samples", str(samples),
                   "--test-samples", "0", "--batch-size", str(batch), "--lr", str(RATE / workers), "--drop-last", "off",
                   "--epochs", str(EPOCHS), "--summary", str(summary), *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=240,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"last_batch: {command} ended with {done.returncode}:\n{done.stdout}")
        return json.loads(summary.read_text())


failed = False
for samples in (49, 55):
    one = train(1, samples, 12)
    for more in (("--grad-sync", "ddp"), ("--grad-sync", "step"), ("--grad-sync", "ddp", "--accumulate-steps", "3")):
        batch = 1 if "--accumulate-steps" in more else 3
        several = train(WORKERS, samples, batch, more)
        difference = abs(several["train_loss"] - one["train_loss"])
        right = several["steps"] == one["steps"] == 5 * EPOCHS and difference < 1e-6
        failed |= not right
        print(f"{'ok' if right else 'WRONG'}: {samples} samples, {' '.join(more)}: {several['steps']} steps, loss "
              f"{several['train_loss']:.9f}, one process {one['steps']} steps, {one['train_loss']:.9f}", flush=True)
sys.exit(1 if failed else 0)
