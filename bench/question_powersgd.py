"""How long does training take to the same accuracy over a link of 100 Mbit/s, with PowerSGD, with fp16 and without a hook?

Two workers with one thread each on two nodes (network.py): ddp-train's mlp (2.7 MB of gradients) on the real MNIST, the same
seed, batches and learning rate for all, STEPS steps. The hooks' settings are those that their documentation recommends:
PowerSGD begins after a tenth of the steps, with error feedback and warm start. TARGET is the same for all: what training without a
hook reaches after two thirds of the steps (96.9 % at their end). A curve that does not reach it has a time of null.

A line for each curve has "points", [seconds, test accuracy] every EVERY steps: seconds of the steps, without the evaluations.
The figures are the times of the first points at TARGET. "bytes_per_step" is what a node sent, all included.
"""
import json
import os
import sys
import tempfile

import harness
import network
import paired

MBIT = 100
STEPS = 60 if paired.QUICK else 300
EVERY = 10
TARGET = 0.85 if paired.QUICK else 0.965
DATA = harness.PEERS.parent / "data" / "mnist"
TRAIN = str(harness.BIN / "ddp-train")
PLAIN = "plain"
CURVES = {PLAIN: None, "fp16": "fp16",
          **{f"powersgd, rank {rank}": f"powersgd:rank={rank},start_iter={STEPS // 10}" for rank in (1, 2, 4)}}
LIMIT_S = 300


def train(names, port, hook):
    with tempfile.TemporaryDirectory(prefix="bench-powersgd.") as folder:
        rates = os.path.join(folder, "rates")
        command = [TRAIN, "--model", "mlp", "--data", "mnist", "--data-dir", str(DATA), "--batch-size", "128", "--lr", "0.05",
                   "--momentum", "0.9", "--seed", "1", "--epochs", "99", "--max-steps", str(STEPS), "--eval-every", str(EVERY),
                   "--log-every", str(EVERY), "--rates", rates]
        sent = network.sent_bytes(names[0])
        paired.run_all(network.ddp_run(names, port, command + (["--comm-hook", hook] if hook else [])), limit_s=LIMIT_S)
        with open(rates) as lines:
            return [json.loads(line) for line in lines], (network.sent_bytes(names[0]) - sent) / STEPS


def points(lines):
    seconds, found = 0.0, []
    for line in lines:
        seconds += line.get("seconds", 0)
        if "test_accuracy" in line:
            found.append([round(seconds, 3), line["test_accuracy"]])
    return found


def time_to_target(curve):
    return next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None)


def figures():
    harness.require(harness.DDP_RUN, TRAIN)
    network.require("powersgd")
    times = {}
    with network.network(2, MBIT) as names:
        for port, (name, hook) in enumerate(CURVES.items(), start=29400):
            lines, sent = train(names, port, hook)
            curve = points(lines)
            times[name] = time_to_target(curve)
            print(f"powersgd: {name}: {curve[-1][0]:.1f} s for {STEPS} steps, {100 * curve[-1][1]:.2f} %", file=sys.stderr)
            yield {"figure": f"curve, {MBIT} Mbit/s, {name}", "ours": times[name], "peer": None, "peer_name": None,
                   "ratio": None, "unit": "s", "goal": None, "hook": hook, "steps": STEPS, "final_accuracy": curve[-1][1],
                   "bytes_per_step": round(sent), "points": curve}
    for name in CURVES:
        if name == PLAIN:
            continue
        what = f"time to {100 * TARGET:g} % on MNIST, mlp, 2 nodes, {MBIT} Mbit/s, {name}"
        if times[name] is None or times[PLAIN] is None:
            yield {"figure": what, "ours": times[name], "peer": times[PLAIN], "peer_name": "no hook", "ratio": None,
                   "unit": "s", "goal": None}
        else:
            yield harness.figure(what, times[name], times[PLAIN], "no hook", "s", None)
