#!/usr/bin/env python3
"""--tensorboard: whatever is killed and whenever, the curves are those of an undisturbed training, each step once.

usage: tensorboard.py BIN_DIR [SEED]

Twice the whole job is killed and started again, and twice a worker is killed while its job goes on, after steps that the seed
decides. A reader that has nothing of our code (event_reader.py) reads the file.
"""
import json
import random
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from event_reader import read_scalars
from jobs import Node, TooLate, in_time, send, wait_until, wait_while_running

BIN = Path(sys.argv[1])
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
LIMIT_S = 240
STEPS, EVERY, EVAL_EVERY, SAVE_EVERY = 160, 3, 20, 7
# The last checkpoint of an epoch is made before its accuracy is measured.
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "1280", "--test-samples", "256", "--batch-size", "8", "--epochs",
            "2", "--checkpoint-every", str(SAVE_EVERY), "--eval-every", str(EVAL_EVERY), "--log-every", str(EVERY), "--threads", "1"]
EXACT = {"loss", "learning_rate", "test_accuracy"}


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.node = Node([BIN / "ddp-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "9", BIN / "ddp-train", *TRAINING,
                          "--checkpoint-dir", folder / "run", "--tensorboard", folder / "board", "--rates", folder / "rates"], folder / "log")

    def curves(self):
        return read_scalars(self.folder / "board" / "events.out.tfevents.ddp-run")

    def step(self):
        """The last step in the file of --rates, which is written beside the curves."""
        try:
            return json.loads((self.folder / "rates").read_text().splitlines()[-1])["step"]
        except (OSError, ValueError, IndexError):
            return 0  # It is being written.

    def await_step(self, step):
        wait_while_running([self.node], lambda: self.step() >= step, LIMIT_S, f"step {step}")

    def finish(self):
        if self.node.wait(LIMIT_S) != 0:
            raise AssertionError(self.node.tail())
        return self.curves()


def disturbed(folder, draw):
    folder.mkdir()
    job = Job(folder)
    try:
        for kills_all in (True, False, True, False):
            job.await_step(min(job.step() + draw.randrange(3, 30), STEPS - 40))
            at = job.step()
            if kills_all:
                processes = job.node.processes()
                for pid in processes:
                    send(pid, signal.SIGKILL)
                job.node.wait(LIMIT_S)
                wait_until(lambda: not job.node.alive(), LIMIT_S, "the end of all processes")
                job = Job(folder)
            else:
                workers = job.node.workers()
                if not workers or not send(draw.choice(workers), signal.SIGKILL):
                    raise TooLate("the workers had ended before one was killed")
            print(f"{'all' if kills_all else 'a worker'} killed after step {at}", flush=True)
        return job.finish()
    finally:
        job.node.kill()


def main():
    print(f"tensorboard: seed {SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tensorboard.") as base:
        first = Path(base, "undisturbed")
        first.mkdir()
        expected = Job(first).finish()
        found = in_time(lambda attempt: disturbed(Path(base, f"disturbed{attempt}"), random.Random(SEED)))
    steps = [step for step in range(1, STEPS + 1) if step % EVERY == 0]
    saved = [step for step in range(1, STEPS + 1) if step % SAVE_EVERY == 0 or step % (STEPS // 2) == 0]
    evaluated = [step for step in range(1, STEPS + 1) if step % EVAL_EVERY == 0]
    for name, curves in (("undisturbed", expected), ("disturbed", found)):
        for tag in ("loss", "learning_rate", "samples_per_second", "restarts"):
            assert [step for step, _ in curves[tag]] == steps, f"{name}: {tag} has the steps {[step for step, _ in curves[tag]]}"
        for tag in ("checkpoint_seconds", "checkpoint_write_seconds"):
            assert [step for step, _ in curves[tag]] == saved, f"{name}: {tag} has the steps {[step for step, _ in curves[tag]]}"
            assert all(0 <= seconds < LIMIT_S for _, seconds in curves[tag]), f"{name}: {tag} is {curves[tag]}"
        assert [step for step, _ in curves["test_accuracy"]] == evaluated, f"{name}: accuracies at {curves['test_accuracy']}"
    for tag in EXACT:
        assert found[tag] == expected[tag], f"{tag}: {found[tag]} in place of {expected[tag]}"
    assert all(value == 0 for _, value in expected["restarts"])
    assert found["restarts"][-1][1] == 1, found["restarts"]  # The last kill was that of a worker.
    print("ok")


main()
