"""torch_xla's published tables on our trainer: what does averaging during backward cost, compared with averaging at the step?

Four tables, each as JSON figures and, on stderr, as a table with the published values beside ours:

  resnet50   fake data, --grad-sync step and ddp          published 418.54 and 395.97 images/s per process: 5.39 % overhead
  mnist      fake data, likewise                          17864.19 and 10701.39; 41.22 % overhead, taken from the 90 % column
  accuracy   MNIST's own images, 18 epochs, both modes    99 % and 97.48 %
  pipeline   ResNet50 in two stages against one device    7 % slower

A reading is the rate over `--log-every` steps, as ddp-train writes it with --rates, per process: the total divided by the number
of processes. A run's first reading does not count. Contenders run in turn (paired.py); a row has the readings of all kept rounds.
The ratio of the two modes comes from bench-ddp (modes.py), which trains the same model in both modes in turn within one process,
with gradients as bucket views. Between processes, which may run on different cores, a difference of 1 % cannot be seen. Other
ratios are taken within a round between the medians of its readings. "cpu" beside a ratio is the same ratio of processor time,
which other programs on the machine disturb less.

A device is a core here, so one thread: "one device" is the undivided model on one thread, "two stages" has a thread each.
Without pipelining the stages take turns, as in the published comparison, which measures the cost of passing data between them.
With pipelining two cores work, so the undivided model on two threads is shown as well: the same cores without stages.

BENCH_PARTS=resnet50,mnist,accuracy,pipeline chooses tables, BENCH_IMAGE the side of the images (32), BENCH_QUICK=1 a short
look, BENCH_ROUNDS the rounds.

Images have 32 x 32 pixels since a step at 224 takes a minute here. With 49 times less arithmetic for the same gradients,
communication weighs more than at the published size. torch_xla smooths its readings; we do not.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import modes
import paired

TRAIN = str(harness.BIN / "ddp-train")
DATA = harness.PEERS.parent / "data" / "mnist"
PARTS = os.environ.get("BENCH_PARTS", "resnet50,mnist,accuracy,pipeline").split(",")
IMAGE = int(os.environ.get("BENCH_IMAGE", 32))
WORKERS = 2
MODES = ("step", "ddp")
COLUMNS = ("mean", "median", "p90", "sd", "cv")
PUBLISHED = {
    "resnet50": {"step": (418.54, 419.22, 430.40, 9.76, 0.02), "ddp": (395.97, 395.54, 407.13, 7.60, 0.02)},
    "mnist": {"step": (17864.19, 20108.96, 24351.74, 5866.83, 0.33), "ddp": (10701.39, 11770.00, 14313.78, 3102.92, 0.29)},
}
PUBLISHED_ACCURACY = {"step": 99.0, "ddp": 97.48}
# Steps per turn and turns per run of bench-ddp, which measures the difference of the modes.
TURNS = {"resnet50": (1, 3 if paired.QUICK else 20), "mnist": (30, 3 if paired.QUICK else 20)}
# Goals: at most 1 % and 5 % slower; two stages at most 7 %.
GOALS = {"resnet50": 0.99, "mnist": 0.95}
STAGES_GOAL = 0.93
ASKED_ACCURACY = 99.0


def say(text=""):
    print(text, file=sys.stderr, flush=True)


def train(flags, workers=1):
    """Runs ddp-train with the flags, by default with one thread a worker; returns its rate lines and its summary."""
    with tempfile.TemporaryDirectory(prefix="bench-tables.") as folder:
        rates, summary = Path(folder) / "rates.jsonl", Path(folder) / "summary.json"
        launcher = [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(workers)] if workers > 1 else []
        threads = [] if "--threads" in flags else ["--threads", "1"]
        command = [*launcher, TRAIN, *flags, *threads, "--rates", str(rates), "--summary", str(summary)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"bench: {' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
        return [json.loads(line) for line in rates.read_text().splitlines()], json.loads(summary.read_text())


def contender(flags, workers=1):
    """Returns {"readings": samples a second per process, "cpu": seconds of processor time per sample of a process}."""
    def run():
        lines = train(flags, workers)[0][1:]
        return {"readings": [line["samples_per_second"] / workers for line in lines],
                "cpu": statistics.median(line["cpu_seconds"] / line["samples"] * workers for line in lines)}
    return run


def row(readings):
    mean, sd = statistics.fmean(readings), statistics.stdev(readings)
    p90 = statistics.quantiles(readings, n=10, method="inclusive")[8]
    return mean, statistics.median(readings), p90, sd, sd / mean


def rows(rounds, names):
    return {name: row([rate for result in rounds.results[name] for rate in result["readings"]]) for name in names}


def print_table(title, named_rows):
    say(f"\n{title}")
    say(f"  {'samples/s of a process':<44}" + "".join(f"{column:>11}" for column in ("mean", "median", "90 %", "std dev", "CV")))
    for name, values in named_rows:
        digits = 2 if values[0] >= 10 else 3
        say(f"  {name:<44}" + "".join(f"{value:>11.{digits}f}" for value in values))


def row_figure(what, values, published=None):
    """A row of means. It has no ratio, because the machines differ too much."""
    line = {"figure": what, "ours": round(values[0], 3), "peer": published[0] if published else None,
            "peer_name": "torch_xla on a TPU v3-8 (published)" if published else None, "ratio": None, "unit": "samples/s", "goal": None,
            **{column: round(value, 4) for column, value in zip(COLUMNS, values)}}
    if published:
        line["published"] = dict(zip(COLUMNS, published))
    return line


def ratio_figure(rounds, what, mine, peer, peer_name, goal):
    """The ratio of the medians of a round's readings, and that of the processor time beside it."""
    def median(result):
        return statistics.median(result["readings"])
    pairs = list(zip(rounds.results[mine], rounds.results[peer]))
    ratios = [median(our) / median(theirs) for our, theirs in pairs]
    return {"figure": what, "ours": round(statistics.median(median(our) for our, _ in pairs), 3),
            "peer": round(statistics.median(median(theirs) for _, theirs in pairs), 3), "peer_name": peer_name,
            "ratio": round(statistics.median(ratios), 4), "low": round(paired.lower_bound(ratios), 4), "unit": "samples/s",
            "goal": goal, "cpu": round(statistics.median(theirs["cpu"] / our["cpu"] for our, theirs in pairs), 4)}


def overhead(published, column):
    at = COLUMNS.index(column)
    return 100 * (1 - published["ddp"][at] / published["step"][at])


def two_modes(table, what, flags, column):
    """A published table: the rows of both modes, and the overhead of averaging during backward, published for `column`."""
    rounds = paired.Rounds(f"tables, {table}", {mode: contender([*flags, "--grad-sync", mode], WORKERS) for mode in MODES})
    ours, published = rows(rounds, MODES), PUBLISHED[table]
    print_table(what, [row for mode in MODES for row in
                       ((f"ours, {mode} mode", ours[mode]), (f"published, {mode} mode (TPU v3-8)", published[mode]))])
    for mode in MODES:
        yield row_figure(f"{what}, {mode} mode", ours[mode], published[mode])
    turn = modes.contender(MODES, table, *TURNS[table], env=paired.TUNED_MALLOC)
    line = modes.figure([turn() for _ in range(paired.KEEP)], f"{what}, ddp mode against step mode", "ddp", "step",
                        "ours, step mode", GOALS[table])
    line["overhead_percent"] = {by: round(overhead(ours, by), 2) for by in ("mean", "median", "p90")}
    line["overhead_percent"]["turns"] = round(100 * (1 - line["ratio"]), 2)
    line["published_overhead_percent"] = round(overhead(published, column), 2)
    say(f"  overhead of ddp mode: {line['overhead_percent']['turns']} % (median of the turns), "
        f"{line['overhead_percent'][column]} % of the rows' {column} as published; published {line['published_overhead_percent']} %; "
        f"goal at most {100 * (1 - GOALS[table]):.0f} %")
    yield line


def resnet50():
    steps = 3 if paired.QUICK else 5
    batch = 32 if paired.QUICK else 128
    # One epoch with the published schedule: its warm-up takes 0.9 of it.
    flags = ["--model", "resnet50", "--data", "fake", "--image-size", str(IMAGE), "--batch-size", str(batch), "--optimizer", "sgd",
             "--momentum", "0.9", "--weight-decay", "1e-4", "--lr", "0.5", "--lr-schedule", "warmup-exponential", "--epochs", "1",
             "--train-samples", str(steps * batch * WORKERS), "--test-samples", "0", "--log-every", "1"]
    yield from two_modes("resnet50", f"ResNet50, fake data, {IMAGE} x {IMAGE} pixels (published: 224), batch {batch}, {WORKERS} workers",
                         flags, "mean")


def mnist():
    # Fake data end after as many steps as 60,000 images make, as in the published procedure.
    steps, every = (80, 10) if paired.QUICK else (60000 // 128 // WORKERS, 20)
    flags = ["--model", "mnist", "--data", "fake", "--batch-size", "128", "--optimizer", "sgd", "--momentum", "0.5", "--lr", "0.01",
             "--epochs", "1", "--train-samples", str(steps * 128 * WORKERS), "--test-samples", "0", "--log-every", str(every)]
    yield from two_modes("mnist", f"MNIST, fake data, batch 128, {WORKERS} workers", flags, "p90")


def accuracy():
    epochs = 1 if paired.QUICK else 18
    flags = ["--model", "mnist", "--data", "mnist", "--data-dir", str(DATA), "--batch-size", "128", "--optimizer", "sgd",
             "--momentum", "0.5", "--lr", "0.01", "--epochs", str(epochs), "--seed", "1", "--log-every", "20"]
    what = f"MNIST, real data, {epochs} epochs, {WORKERS} workers"
    ended = {mode: train([*flags, "--grad-sync", mode], WORKERS)[1] for mode in MODES}
    same = ended["step"]["weights_sha256"] == ended["ddp"]["weights_sha256"]
    say(f"\n{what}: test accuracy\n  {'':<24}{'ours':>10}{'published':>11}  weights")
    for mode in MODES:
        share = 100 * ended[mode]["test_accuracy"]
        say(f"  {mode + ' mode':<24}{share:>8.2f} %{PUBLISHED_ACCURACY[mode]:>9.2f} %  {ended[mode]['weights_sha256']}")
        goal = None if paired.QUICK else round(ASKED_ACCURACY / PUBLISHED_ACCURACY[mode], 4)
        yield harness.figure(f"{what}, test accuracy, {mode} mode", share, PUBLISHED_ACCURACY[mode], "torch_xla (published)", "%",
                             goal, lower_is_better=False)
    say(f"  the two modes ended with {'the same bytes' if same else 'DIFFERENT weights'}")
    yield {**harness.figure(f"{what}, ddp mode against step mode", 100 * ended["ddp"]["test_accuracy"],
                            100 * ended["step"]["test_accuracy"], "ours, step mode", "%", 1.0, lower_is_better=False),
           "same_weights": same}


def pipeline():
    micro = 4
    batch, steps = (32, 4) if paired.QUICK else (128, 6)
    flags = ["--data", "fake", "--image-size", str(IMAGE), "--batch-size", str(batch), "--optimizer", "sgd", "--momentum", "0.9",
             "--lr", "0.01", "--epochs", "1", "--train-samples", str(steps * batch), "--test-samples", "0", "--log-every", "1"]
    stages = ["--model", "resnet50-model-parallel"]
    one, two, turns, flow = "one device (1 thread)", "undivided on 2 threads", "two stages in turn", f"two stages, {micro} micro-batches"
    rounds = paired.Rounds("tables, pipeline", {
        one: contender([*flags, "--model", "resnet50"]),
        two: contender([*flags, "--model", "resnet50", "--threads", "2"]),
        turns: contender([*flags, *stages]),
        flow: contender([*flags, *stages, "--micro-batches", str(micro)])}, max(paired.KEEP, paired.ROUNDS // 2))
    ours = rows(rounds, rounds.results)
    what = f"ResNet50 in two stages, {IMAGE} x {IMAGE} pixels, batch {batch}, 1 process"
    print_table(what, ours.items())
    for name, values in ours.items():
        yield row_figure(f"{what}, {name}", values)
    line = ratio_figure(rounds, f"{what}, two stages in turn against one device", turns, one, one, STAGES_GOAL)
    line["published_ratio"] = STAGES_GOAL
    say(f"  two stages in turn: {100 * (1 - line['ratio']):.2f} % slower than one device; published 7 %, goal at most 7 %")
    yield line
    line = ratio_figure(rounds, f"{what}, with {micro} micro-batches against in turn", flow, turns, turns, 1.0)
    say(f"  {micro} micro-batches: {line['ratio']} times the rate of the stages in turn")
    yield line
    line = ratio_figure(rounds, f"{what}, with {micro} micro-batches against one device", flow, one, one, STAGES_GOAL)
    yield line
    line = ratio_figure(rounds, f"{what}, with {micro} micro-batches against the same cores without stages", flow, two, two, None)
    say(f"  {micro} micro-batches: {line['ratio']} times the rate of the undivided model on both cores")
    yield line


def figures():
    harness.require(harness.DDP_RUN, TRAIN, modes.OURS, paired.ROOF)
    tables = {"resnet50": resnet50, "mnist": mnist, "accuracy": accuracy, "pipeline": pipeline}
    for name in PARTS:
        if name not in tables:
            sys.exit(f"bench: BENCH_PARTS has unknown table {name}; expected {', '.join(tables)}")
        yield from tables[name]()
