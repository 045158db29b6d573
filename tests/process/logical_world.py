#!/usr/bin/env python3
"""--logical-world-size: the same bytes with any number of workers, even if it changes during the training.

Every training runs on each number of workers; on as many workers without the flag, which must give the same; and once more in
pieces: stopped in the middle of an epoch and resumed from its checkpoint by another number of workers. Weights, loss and accuracy
of all runs must be equal to the last bit.

Without DDP_TEST_FULL=1, some runs are left out if another training covers them.

usage: logical_world.py BIN_DIR [NAME...]
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

bin_dir = Path(sys.argv[1])
FULL = os.environ.get("DDP_TEST_FULL") == "1"
MODES = ("ddp", "step")
failed = False


class Training:
    """workers: how many; the first is what the others are compared with. modes: without logical ranks."""

    def __init__(self, name, ranks, workers, flags, pieces=(), modes=MODES):
        self.name, self.ranks, self.workers, self.flags, self.pieces, self.modes = name, ranks, workers, flags, pieces, modes


# What all have in common: few samples, an epoch whose last step some ranks have no sample of, and another step besides.
TRAININGS = [
    # Random numbers and batch statistics of logical ranks, momentum.
    Training("mnist", 4, [1, 2, 3, 4],
             ["--model", "mnist", "--dropout", "0.3", "--momentum", "0.9", "--drop-last", "off", "--train-samples", "259",
              "--test-samples", "50", "--batch-size", "16", "--epochs", "3"],
             pieces=[(2, 3), (3, 7), (4, 8), (1, None)]),
    # Blocks that are no subtrees of the six ranks' tree; several backwards of a step.
    Training("adam", 6, [1, 2, 3, 4] if FULL else [1, 3, 4],
             ["--model", "mlp", "--optimizer", "adam", "--lr", "0.001", "--accumulate-steps", "2", "--clip-grad-norm", "0.5",
              "--drop-last", "off", "--train-samples", "196", "--test-samples", "20", "--batch-size", "4", "--epochs", "2",
              "--lr-schedule", "warmup-exponential", "--lr-decay-epochs", "1", "--weight-decay", "0.01"],
             pieces=[(4, 2), (1, 6), (2, None)], modes=MODES if FULL else ["ddp"]),
    Training("parallel", 3, [1, 2, 3],
             ["--model", "toy-model-parallel", "--micro-batches", "2", "--train-samples", "100", "--batch-size", "8"],
             pieces=[(1, 30), (2, None)], modes=MODES if FULL else ["step"]),
]


def run(workers, flags):
    launcher = [bin_dir / "ddp-run", "--standalone", "--nproc-per-node", str(workers)] if workers > 1 else []
    return subprocess.run([*launcher, bin_dir / "ddp-train", "--threads", "1", "--log-every", "1000", *flags],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=240, text=True)


def train(workers, flags):
    with tempfile.TemporaryDirectory(prefix="logical_world.") as folder:
        summary = Path(folder) / "summary.json"
        done = run(workers, [*flags, "--summary", str(summary)])
        if done.returncode != 0:
            sys.exit(f"logical_world: {workers} worker(s), {flags} ended with {done.returncode}:\n{done.stdout}")
        return json.loads(summary.read_text()), done.stdout


def check(what, right, seen):
    global failed
    failed |= not right
    print(f"{'ok' if right else 'WRONG'}: {what}: {seen}", flush=True)


def expect_same(what, summary, expected):
    members = ["weights_sha256", "train_loss", "test_accuracy", "steps", "epochs"]
    same = all(summary[member] == expected[member] for member in members)
    check(what, same, " ".join(str(summary[member]) for member in members))


def in_pieces(training, flags, expected):
    with tempfile.TemporaryDirectory(prefix="logical_world.") as folder:
        resumable = [*flags, "--checkpoint-dir", f"{folder}/checkpoints"]
        for workers, stop in training.pieces:
            limit = [] if stop is None else ["--max-steps", str(stop)]
            summary, out = train(workers, [*resumable, *limit])
            if "note:" in out:
                check(f"{training.name} in pieces, {workers} worker(s)", False, out)
        expect_same(f"{training.name} in pieces, {' -> '.join(str(workers) for workers, _ in training.pieces)} workers", summary,
                    expected)


def refused():
    """More workers than logical ranks; a training that would go on with another number of ranks, or without any."""
    flags = ["--model", "toy", "--train-samples", "40", "--batch-size", "4"]
    done = run(2, [*flags, "--logical-world-size", "1"])
    check("1 rank on 2 workers", done.returncode == 64 and "--logical-world-size 1: there are 2 workers" in done.stdout,
          done.stdout.splitlines()[0])
    for before, after in ((0, 2), (2, 0), (2, 3)):
        with tempfile.TemporaryDirectory(prefix="logical_world.") as folder:
            def ranks_and_steps(ranks, steps):
                logical = ["--logical-world-size", str(ranks)] if ranks else []
                return [*flags, *logical, "--checkpoint-dir", f"{folder}/checkpoints", "--max-steps", steps]
            train(1, ranks_and_steps(before, "1"))
            done = run(1, ranks_and_steps(after, "2"))
            check(f"{before} logical ranks resumed with {after}",
                  done.returncode == 64 and f"another --logical-world-size than {after}" in done.stdout, done.stdout.strip())


def main():
    for training in TRAININGS:
        if len(sys.argv) > 2 and training.name not in sys.argv[2:]:
            continue
        flags = [*training.flags, "--logical-world-size", str(training.ranks)]
        expected, _ = train(training.workers[0], flags)
        for workers in training.workers[1:]:
            expect_same(f"{training.name}, {training.ranks} ranks on {workers} worker(s)", train(workers, flags)[0], expected)
        for mode in training.modes:
            expect_same(f"{training.name}, {training.ranks} workers without logical ranks, {mode}",
                        train(training.ranks, [*training.flags, "--grad-sync", mode])[0], expected)
        in_pieces(training, flags, expected)


main()
if len(sys.argv) == 2:
    refused()
sys.exit(1 if failed else 0)
