#!/usr/bin/env python3
"""SIGUSR1 to ddp-run, then to one worker: a checkpoint each time, and training goes on. SIGTERM to ddp-run: a checkpoint, and
status 143. Started again, the training ends with the bytes of one that was left alone. The same for ddp-train without ddp-run,
where no agent passes requests on.

usage: checkpoint_signals.py BIN_DIR
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

BIN = Path(sys.argv[1])
LIMIT_S = 60
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "4000", "--test-samples", "100", "--epochs", "2",
            "--batch-size", "4", "--dropout", "0.2", "--momentum", "0.9", "--threads", "1", "--log-every", "1"]


LAUNCHED = [str(BIN / "ddp-run"), "--standalone", "--nproc-per-node", "2"]
ALONE = []  # Without a launcher.


def command(launcher, summary, *more):
    return [*launcher, str(BIN / "ddp-train"), *TRAINING, "--summary", str(summary), *more]


def check(condition, text):
    if not condition:
        sys.exit(f"checkpoint_signals: {text}")


def steps_of(folder):
    return sorted(int(entry.name[5:15]) for entry in folder.glob("step-*"))


def train(launcher, summary, *more):
    done = subprocess.run(command(launcher, summary, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                          text=True)
    check(done.returncode == 0, f"the training ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return jobs.summary(summary)


def newer_than(checkpoints, step):
    return lambda: [other for other in steps_of(checkpoints) if other > step]


def disturb(launcher, folder, checkpoints):
    node = jobs.Node(command(launcher, folder / "first.json", "--checkpoint-dir", str(checkpoints), "--checkpoint-keep", "0"),
                     folder / "first.log")
    try:
        jobs.wait_until(lambda: re.search(r"step +\d", node.log_path.read_text(errors="replace")), LIMIT_S, "a step")
        node.process.send_signal(signal.SIGUSR1)
        first = jobs.wait_until(newer_than(checkpoints, 0), LIMIT_S, "the checkpoint that the command was asked for")[-1]
        os.kill(node.workers()[1] if launcher else node.process.pid, signal.SIGUSR1)
        second = jobs.wait_until(newer_than(checkpoints, first), LIMIT_S, "the checkpoint that a worker was asked for")[-1]
        node.process.send_signal(signal.SIGTERM)
        status = node.wait(LIMIT_S)
        log = node.log_path.read_text(errors="replace")
        check(status == 128 + signal.SIGTERM, f"SIGTERM gave status {status}:\n{log[-3000:]}")
        stopped = re.search(r"stopped by SIGTERM after step (\d+), whose checkpoint is complete", log)
        check(stopped, f"nobody said that a checkpoint is complete:\n{log[-3000:]}")
        check(steps_of(checkpoints)[-1] == int(stopped[1]) > second, f"{steps_of(checkpoints)}, but stopped after {stopped[1]}")
        check(not node.alive(), "processes are left")
        return first, second, int(stopped[1])
    finally:
        if node.process.poll() is None:
            node.kill()


def compare(launcher, folder):
    folder.mkdir()
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    undisturbed = train(launcher, folder / "undisturbed.json")
    saved = disturb(launcher, folder, checkpoints)
    resumed = train(launcher, folder / "resumed.json", "--checkpoint-dir", str(checkpoints))
    check(resumed["resumed_from_step"] == saved[-1], f"resumed from {resumed['resumed_from_step']}, saved {saved}")
    for key in ("weights_sha256", "train_loss", "test_accuracy", "steps"):
        check(resumed[key] == undisturbed[key], f"{key}: {resumed[key]} after resuming, {undisturbed[key]} undisturbed")
    print(f"ok: checkpoints after steps {saved}, the same bytes after {undisturbed['steps']} steps")


with tempfile.TemporaryDirectory(prefix="checkpoint_signals.") as name:
    for number, launcher in enumerate((LAUNCHED, ALONE)):
        compare(launcher, Path(name) / str(number))
