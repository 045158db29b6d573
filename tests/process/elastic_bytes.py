#!/usr/bin/env python3
"""Kills workers of a training under ddp-run, each at a random moment after it has made a step. The others continue in their
processes, and the training ends with the bytes of a run that lost no worker, however far apart commits are. With 20 steps between
commits, the second loss mostly comes before anything has been committed since the first. Prints the seed.

usage: elastic_bytes.py BIN_DIR [SEED]
"""
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

BIN = Path(sys.argv[1])
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
LIMIT_S = 240
COMMITS = {"dropout": ["1", "20"], "powersgd": ["7", "auto"]}
RECIPES = {
    "dropout": ["--dropout", "0.2"],
    "powersgd": ["--comm-hook", "powersgd:rank=2,start_iter=5", "--bucket-cap-mb", "0.03"],
}
# Some seconds long, so that on a loaded machine, too, it still runs when this program has seen its first step.
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "6000", "--test-samples", "256", "--epochs", "4",
            "--batch-size", "64", "--log-every", "5"]


def workers(launcher):
    """Processes of ddp-train that descend from the launcher."""
    parents, trainers = {}, []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        pid, name = int(entry.name), stat[stat.index("(") + 1:stat.rindex(")")]
        parents[pid] = int(stat[stat.rindex(")") + 2:].split()[1])
        if name == "ddp-train":
            trainers.append(pid)

    def below(pid):
        while pid > 1 and pid != launcher:
            pid = parents.get(pid, 0)
        return pid == launcher

    return sorted(pid for pid in trainers if below(pid))


def train(folder, recipe, commit_every, kills, random_source):
    summary, log = folder / "summary.json", folder / "log"
    summary.unlink(missing_ok=True)
    with log.open("w") as out:
        job = subprocess.Popen([BIN / "ddp-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "9", BIN / "ddp-train",
                                *TRAINING, *RECIPES[recipe], "--commit-every", commit_every, "--summary", summary],
                               stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + LIMIT_S
    try:
        # A line of the step before a kill may come after it.
        seen, goes_on = 0, r"step \d+/"
        for _ in range(kills):
            while not re.search(goes_on, log.read_text()[seen:]):
                if job.poll() == 0:
                    raise jobs.TooLate(f"the {recipe} training was over")
                if job.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{recipe}: no step:\n{log.read_text()}")
                time.sleep(0.01)  # sleep: until it has made a step
            time.sleep(random_source.uniform(0, 0.2))  # sleep: until a random moment
            alive = workers(job.pid)
            seen, goes_on = len(log.read_text()), r"(?s)workers go on after step \d+.*?step \d+/"
            if not alive or not jobs.send(random_source.choice(alive), signal.SIGKILL):
                raise jobs.TooLate(f"the workers of the {recipe} training had ended")
        status = job.wait(timeout=LIMIT_S)
    finally:
        job.kill()
        job.wait()
    text = log.read_text()
    if status != 0:
        sys.exit(f"{recipe}: ddp-run exits with {status}:\n{text}")
    return json.loads(summary.read_text()), text


def check(recipe, every, expected, found, log):
    what = f"{recipe}, --commit-every {every}"
    for key in ("weights_sha256", "train_loss", "test_accuracy", "steps"):
        if found[key] != expected[key]:
            sys.exit(f"{what}: {key} is {found[key]}, undisturbed {expected[key]}\n{log}")
    went_on = [int(step) for step in re.findall(r"workers go on after step (\d+)", log)]
    if len(went_on) != 2 or found["rounds"] != 3 or found["restarts"] != 2:
        sys.exit(f"{what}: {len(went_on)} rounds went on from memory, of {found['rounds']}\n{log}")
    if found["resumed_from_step"] != went_on[-1]:
        sys.exit(f"{what}: resumed_from_step is {found['resumed_from_step']}\n{log}")
    print(f"{what}: {found['weights_sha256'][:16]}, went on after steps {went_on}")


def main():
    print(f"seed {SEED}")
    source = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        for recipe in RECIPES:
            expected, _ = train(Path(name), recipe, "1", 0, source)
            for every in COMMITS[recipe]:
                check(recipe, every, expected, *jobs.in_time(lambda _: train(Path(name), recipe, every, 2, source)))  # pylint: disable=W0640


main()
