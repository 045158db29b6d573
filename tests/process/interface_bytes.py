#!/usr/bin/env python3
"""ddp::initialize and ddp::Trainer train mnist to the bytes of ddp-train with the same settings, even when their workers are killed
during training. The Trainer's survivors, and those of an engine under run_elastic(), go on in their processes; with ZeRO all start again.

usage: interface_bytes.py BIN_DIR WORKER engine|trainer
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BIN, WORKER, INTERFACE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
WORKERS, EPOCHS, BATCH, RATE, MOMENTUM, EVERY = 2, 2, 64, 0.01, 0.5, 4
STEPS = EPOCHS * (1536 // (WORKERS * BATCH))
# The update before which a rank is killed: with no checkpoint yet, between two, and just behind one that is being written.
KILLS = [(3, 0), (11, 1), (17, 0)]
# What the interface calls a way, and what ddp-train's --grad-sync does.
WAYS = {"engine": {0: "ddp", 1: "zero1"}, "trainer": {"ddp": "ddp", "ddp_step": "step", "zero1": "zero1"}}


def run(folder, *command):
    launcher = [BIN / "ddp-run", "--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "5", "--restart-on-start-failure",
                "--no-python"]
    done = subprocess.run([*map(str, launcher), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, timeout=300, text=True)
    if done.returncode != 0:
        sys.exit(f"interface_bytes: {command} ended with {done.returncode}:\n{done.stdout}")
    summary = json.loads((folder / "summary.json").read_text())
    summary["processes"] = len(set(re.findall(r"process (\d+)", done.stdout)))
    return summary


def ddp_train(folder, grad_sync):
    return run(folder, BIN / "ddp-train", "--model", "mnist", "--data", "synthetic", "--train-samples", 1536, "--test-samples", 0,
               "--epochs", EPOCHS, "--batch-size", BATCH, "--lr", RATE, "--momentum", MOMENTUM, "--threads", 1, "--grad-sync", grad_sync,
               "--summary", folder / "summary.json")


def engine(folder, stage, *more):
    config = folder / "config.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": BATCH, "steps_per_print": 1000, "zero_optimization": {"stage": stage},
        # ddp-train multiplies the rate by the number of workers.
        "optimizer": {"type": "SGD", "params": {"lr": RATE * WORKERS, "momentum": MOMENTUM}}}))
    return run(folder, WORKER, config, EPOCHS, folder / "summary.json", *more)


def trainer(folder, strategy, *more):
    return run(folder, WORKER, strategy, EPOCHS, BATCH, RATE, MOMENTUM, folder / "summary.json", *more)


train = {"engine": engine, "trainer": trainer}[INTERFACE]


def check(folder, way, what, expected, *more):
    """Trains, with or without kills."""
    summary = train(folder, way, *more)
    if summary["steps"] != STEPS or summary["weights_sha256"] != expected["weights_sha256"]:
        sys.exit(f"interface_bytes: {way}: {what}: {summary}, ddp-train: {expected['weights_sha256']}")
    return summary["processes"]


def check_killed(folder, way, goes_on_in, expected, processes):
    """Trains, and kills a worker three times. That many processes must have trained."""
    marks = [folder / f"{Path(goes_on_in).name}.mark{number}" for number in range(len(KILLS))]
    kills = [part for kill, mark in zip(KILLS, marks) for part in (*kill, mark)]
    trained = check(folder, way, f"{INTERFACE}, killed, {goes_on_in}", expected, goes_on_in, EVERY, *kills)
    if trained != processes:
        sys.exit(f"interface_bytes: {way}, {goes_on_in}: {trained} processes trained, expected {processes}")
    for mark in marks:
        if not mark.exists():
            sys.exit(f"interface_bytes: the kill of {mark.name} did not happen")


SURVIVORS_STAY, ALL_START_AGAIN = WORKERS + len(KILLS), WORKERS * (1 + len(KILLS))
for way, grad_sync in WAYS[INTERFACE].items():
    with tempfile.TemporaryDirectory(prefix="interface_bytes.") as name:
        folder = Path(name)
        expected = ddp_train(folder, grad_sync)
        check(folder, way, INTERFACE, expected)
        stay = INTERFACE == "trainer" and way != "zero1"
        check_killed(folder, way, folder / "checkpoints", expected, SURVIVORS_STAY if stay else ALL_START_AGAIN)
        if (INTERFACE, way) == ("engine", 0):
            check_killed(folder, way, "elastic", expected, SURVIVORS_STAY)
        print(f"interface_bytes: {INTERFACE} {way}: {STEPS} steps, {expected['weights_sha256']}, after {len(KILLS)} kills, too")
