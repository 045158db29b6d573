#!/usr/bin/env python3
"""SIGUSR1 to ddp-run, then to one worker: each makes a checkpoint, and training continues. SIGTERM to ddp-run: a checkpoint and
status 143. Started again, the training ends with the bytes of an undisturbed one. The same for ddp-train without ddp-run, where
no agent forwards requests, and for ddp::Trainer and ddp::initialize. `ddp-run status` shows their step.

usage: checkpoint_signals.py BIN_DIR TRAINER_WORKER ENGINE_WORKER
"""
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

BIN, TRAINER_WORKER, ENGINE_WORKER = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
LIMIT_S = 240
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "4000", "--test-samples", "100", "--epochs", "3",
            "--batch-size", "4", "--dropout", "0.2", "--momentum", "0.9", "--threads", "1", "--log-every", "1"]


PORT = jobs.free_port()
LAUNCHED = [str(BIN / "ddp-run"), "--rdzv-endpoint", f"127.0.0.1:{PORT}", "--nproc-per-node", "2"]
ALONE = []  # Without a launcher.


class DdpTrain:
    name = "ddp-train"
    ends_by_signal = False
    complete = r"stopped by SIGTERM after step (\d+), whose checkpoint is complete"
    resumed = r"resumed from step (\d+)"
    results = ("weights_sha256", "train_loss", "test_accuracy", "steps")

    def command(self, summary, checkpoints):
        more = [] if checkpoints is None else ["--checkpoint-dir", str(checkpoints), "--checkpoint-keep", "0"]
        return [str(BIN / "ddp-train"), *TRAINING, "--summary", str(summary), *more]

    def saved_in(self, checkpoints):
        return checkpoints


class Trainer:
    name = "ddp::Trainer"
    ends_by_signal = True
    complete = r"SIGTERM: the checkpoint of update (\d+) is complete"
    resumed = r"going on after update (\d+)"
    results = ("weights_sha256", "steps")

    def command(self, summary, checkpoints):
        more = [] if checkpoints is None else [str(checkpoints), "0"]
        return [TRAINER_WORKER, "ddp", "3", "2", "0.01", "0.5", str(summary), *more]

    def saved_in(self, checkpoints):
        return checkpoints / "checkpoints"


class Engine:
    name = "ddp::initialize"
    ends_by_signal = True
    complete = Trainer.complete
    resumed = Trainer.resumed
    results = Trainer.results

    def command(self, summary, checkpoints):
        config = Path(summary).parent / "engine.json"
        config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "steps_per_print": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.02, "momentum": 0.5}}}))
        more = [] if checkpoints is None else [str(checkpoints), "0"]
        return [ENGINE_WORKER, str(config), "3", str(summary), *more]

    def saved_in(self, checkpoints):
        return checkpoints


def shows_a_step():
    """Whether ddp-run status knows what step the workers are at."""
    asked = subprocess.run([str(BIN / "ddp-run"), "status", "--json", f"127.0.0.1:{PORT}"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, timeout=LIMIT_S, text=True)
    return re.search(r'"step": [1-9]', asked.stdout)


def check(condition, text):
    if not condition:
        sys.exit(f"checkpoint_signals: {text}")


def steps_of(folder):
    return sorted(int(entry.name[5:15]) for entry in folder.glob("step-*"))


def newer_than(checkpoints, step):
    return lambda: [other for other in steps_of(checkpoints) if other > step]


class Comparison:
    def __init__(self, program, launcher, folder):
        self.program, self.launcher, self.folder = program, launcher, folder
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)

    def command(self, summary, checkpoints):
        return [*self.launcher, *self.program.command(summary, checkpoints)]

    def train(self, summary, checkpoints=None):
        done = subprocess.run(self.command(summary, checkpoints), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
                              text=True)
        check(done.returncode == 0, f"the training ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return jobs.summary(summary), done.stdout

    def await_checkpoint(self, node, step, what):
        return jobs.wait_while_running([node], newer_than(self.program.saved_in(self.checkpoints), step), LIMIT_S, what)[-1]

    def disturb(self, attempt):
        if attempt > 0:
            shutil.rmtree(self.checkpoints)
            self.checkpoints.mkdir()
        saved = self.program.saved_in(self.checkpoints)
        node = jobs.Node(self.command(self.folder / "first.json", self.checkpoints), self.folder / f"first{attempt}.log")
        try:
            # An engine catches SIGUSR1 from the first time it is asked for requests, after its first step.
            jobs.wait_while_running([node], lambda: re.search(r"step[ =]+([2-9]|\d\d)", node.log_path.read_text(errors="replace")), LIMIT_S,
                                    "a second step")
            if self.launcher:
                jobs.wait_while_running([node], shows_a_step, LIMIT_S, "a step in ddp-run status")
            node.process.send_signal(signal.SIGUSR1)
            first = self.await_checkpoint(node, 0, "the checkpoint that the command was asked for")
            told = (node.workers() if self.launcher else [node.process.pid])[-1:]
            if not told or not jobs.send(told[0], signal.SIGUSR1):
                raise jobs.TooLate("the workers had ended before the second request")
            second = self.await_checkpoint(node, first, "the checkpoint that a worker was asked for")
            node.process.send_signal(signal.SIGTERM)
            status = node.wait(LIMIT_S)
            if status == 0:
                raise jobs.TooLate("the training was over before SIGTERM came")
            log = node.log_path.read_text(errors="replace")
            # The Trainer ends its program by the signal; ddp-run and ddp-train make a status of it.
            wanted = -signal.SIGTERM if self.program.ends_by_signal and not self.launcher else 128 + signal.SIGTERM
            check(status == wanted, f"SIGTERM gave status {status}:\n{log[-3000:]}")
            stopped = re.search(self.program.complete, log)
            check(stopped, f"nobody said that a checkpoint is complete:\n{log[-3000:]}")
            check(steps_of(saved)[-1] == int(stopped[1]) > second, f"{steps_of(saved)}, but stopped after {stopped[1]}")
            jobs.wait_until(lambda: not node.alive(), LIMIT_S, "processes left behind")
            return first, second, int(stopped[1])
        finally:
            if node.process.poll() is None:
                node.kill()

    def run(self):
        undisturbed, _ = self.train(self.folder / "undisturbed.json")
        saved = jobs.in_time(self.disturb)
        resumed, log = self.train(self.folder / "resumed.json", self.checkpoints)
        begin = re.search(self.program.resumed, log)
        check(begin and int(begin[1]) == saved[-1], f"resumed from {begin and begin[0]}, saved {saved}")
        for key in self.program.results:
            check(resumed[key] == undisturbed[key], f"{key}: {resumed[key]} after resuming, {undisturbed[key]} undisturbed")
        print(f"ok: {self.program.name}: checkpoints after steps {saved}, the same bytes after {undisturbed['steps']} steps")


with tempfile.TemporaryDirectory(prefix="checkpoint_signals.") as name:
    for program in (DdpTrain(), Trainer(), Engine()):
        for number, launcher in enumerate((LAUNCHED, ALONE)):
            Comparison(program, launcher, Path(name) / program.name.replace(":", "") / str(number)).run()
