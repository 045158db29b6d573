#!/usr/bin/env python3
"""A training continues from checkpoint to checkpoint with 2, then 4, then 3 workers, by FORMAT.md's rules for another world size.

Samples that an epoch has consumed stay consumed, and the rest is divided again; all workers share the optimizer state. So the
result is that of one process that takes the joint batches of 2, 4 and 3 workers, up to the order of additions. Two such runs have
the same bytes, and so has a run whose optimizer state is divided among the workers, again for each world size.

usage: checkpoint_worlds.py BIN_DIR
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.argv[1])
SAMPLES, BATCH, EPOCHS, RATE = 240, 4, 2, 0.05
# Workers, and the step after which they stop (0: at the end).
LIVES = [(2, 5), (4, 9), (3, 0)]


def train(folder, workers, batch, rate, stop, mode="ddp"):
    summary = folder / "summary.json"
    launcher = [BIN / "ddp-run", "--standalone", "--nproc-per-node", str(workers)] if workers > 1 else []
    command = [*launcher, BIN / "ddp-train", "--model", "toy", "--threads", "1", "--train-samples", str(SAMPLES), "--test-samples",
               "0", "--batch-size", str(batch), "--lr", str(rate), "--momentum", "0.9", "--epochs", str(EPOCHS), "--max-steps",
               str(stop), "--grad-sync", mode, "--checkpoint-dir", folder / "checkpoints", "--summary", summary]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=240,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"checkpoint_worlds: {command} ended with {done.returncode}:\n{done.stdout}")
    return json.loads(summary.read_text()), done.stdout


def several_worlds(mode):
    with tempfile.TemporaryDirectory(prefix="checkpoint_worlds.") as folder:
        for workers, stop in LIVES:
            summary, log = train(Path(folder), workers, BATCH, RATE, stop, mode)
        if "the checkpoint is of 4 ranks, now there are 3" not in log:
            sys.exit(f"checkpoint_worlds: no word of the ranks that there are no more:\n{log}")
        return summary


def one_process():
    with tempfile.TemporaryDirectory(prefix="checkpoint_worlds.") as folder:
        for workers, stop in LIVES:
            summary, _ = train(Path(folder), 1, BATCH * workers, RATE * workers, stop)
        return summary


several, again, divided, one = several_worlds("ddp"), several_worlds("ddp"), several_worlds("zero1"), one_process()
# 5 steps of 8 and 4 of 16 leave 136 samples of the first epoch, which are 11 steps of 12; the second epoch has 20.
expected_steps = 5 + 4 + (SAMPLES - 5 * 8 - 4 * 16) // 12 + SAMPLES // 12
difference = abs(several["train_loss"] - one["train_loss"])
print(f"{several['steps']} steps, loss {several['train_loss']:.9f}; one process {one['steps']} steps, {one['train_loss']:.9f}")
if not several["steps"] == one["steps"] == expected_steps:
    sys.exit(f"checkpoint_worlds: expected {expected_steps} steps")
if difference > 1e-5:
    sys.exit("checkpoint_worlds: the losses differ")
if several["weights_sha256"] != again["weights_sha256"]:
    sys.exit("checkpoint_worlds: the same once more gave other bytes")
if several["weights_sha256"] != divided["weights_sha256"]:
    sys.exit("checkpoint_worlds: the divided optimizer gave other bytes")
