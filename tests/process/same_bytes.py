#!/usr/bin/env python3
"""The promise: a run that was interrupted at any moment ends with exactly the bytes of an uninterrupted run.

Trains once undisturbed, then again and again with one process killed (SIGKILL) at a random moment: a worker, an agent, or
the ddp-run of one of two nodes, which is then started again. Compares weights_sha256 of every run and looks for processes
and files that they left behind. The seed determines the list of disturbances and is printed. Two trainings run at a time.

Without --count, each kind runs once in each mode; with DDP_TEST_FULL=1, there are twenty disturbances.

usage: same_bytes.py BIN_DIR [--seed S] [--count N] [--grad-sync ddp|step|zero1|all] [--kinds worker,agent,node]
"""
import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

LIMIT_S = 240
GONE_S = 20  # Less than --shutdown-timeout.
# What is trained. Each takes about as long undisturbed as it takes to start LibTorch a few times.
RECIPES = {
    "mnist": ["--model", "mnist", "--data", "synthetic", "--train-samples", "3072", "--test-samples", "256", "--epochs", "3",
              "--batch-size", "64"],
    "adam": ["--model", "toy", "--train-samples", "12000", "--epochs", "4", "--batch-size", "5", "--optimizer", "adam",
             "--lr-schedule", "warmup-exponential", "--lr-decay-epochs", "1", "--accumulate-steps", "3",
             "--clip-grad-norm", "1"],
    "parallel": ["--model", "toy-model-parallel", "--micro-batches", "2", "--train-samples", "6000", "--epochs", "4",
                 "--batch-size", "10", "--optimizer", "adamw", "--lr-schedule", "step", "--lr-decay-epochs", "2"],
    "gpt": ["--model", "gpt", "--layers", "1", "--width", "32", "--context", "16", "--train-samples", "3072", "--test-samples", "64",
            "--epochs", "3", "--batch-size", "16", "--sample-bytes", "0"],
    "powersgd": ["--model", "mnist", "--train-samples", "1536", "--test-samples", "64", "--epochs", "3", "--batch-size", "32",
                 "--comm-hook", "powersgd:rank=2,start_iter=10", "--bucket-cap-mb", "0.03"],
    "quantize": ["--model", "mnist", "--train-samples", "1536", "--test-samples", "64", "--epochs", "3", "--batch-size", "32",
                 "--comm-hook", "quantize_per_channel", "--bucket-cap-mb", "0.03"],
    "localsgd": ["--model", "toy", "--train-samples", "6000", "--epochs", "4", "--batch-size", "10", "--momentum", "0.9",
                 "--comm-hook", "post_localsgd:start_iter=30,period=7,subgroup_size=1"],
}
EVERY = {"mnist": 3, "adam": 40, "parallel": 40, "gpt": 20, "powersgd": 3, "quantize": 3, "localsgd": 45}  # Steps between checkpoints.

parser = argparse.ArgumentParser()
parser.add_argument("bin_dir", type=Path)
parser.add_argument("--seed", type=int, default=None)
parser.add_argument("--count", type=int, default=20 if os.environ.get("DDP_TEST_FULL") == "1" else 7)
parser.add_argument("--grad-sync", choices=["ddp", "step", "zero1", "all"], default="all")
parser.add_argument("--kinds", default="worker,agent,node")
parser.add_argument("--recipe", default=",".join(RECIPES))
args = parser.parse_args()
seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
print(f"same_bytes: --seed {seed}", flush=True)
base = Path(tempfile.mkdtemp(prefix="same_bytes."))


def train_command(folder, recipe, mode, undisturbed):
    checkpoint = [] if undisturbed else ["--checkpoint-dir", str(folder / "checkpoints"),
                                         "--checkpoint-every", str(EVERY[recipe])]
    return [str(args.bin_dir / "ddp-train"), *RECIPES[recipe], "--threads", "1", "--log-every", "1000",
            "--grad-sync", mode, *checkpoint, "--summary", str(folder / "summary.json")]


class Job:
    """Two workers: on one node, or on one each of two."""

    def __init__(self, folder, recipe, mode, nodes, undisturbed=False):
        folder.mkdir()
        self.folder, self.nodes_asked = folder, nodes
        # A kill may hit before the first step, too.
        flags = ["--max-restarts", "5", "--restart-on-start-failure", "--nproc-per-node", str(2 // nodes)]
        if nodes == 1:
            flags += ["--standalone"]
        else:
            flags += ["--nnodes", str(nodes), "--rdzv-endpoint", f"127.0.0.1:{jobs.free_port()}", "--rdzv-id", folder.name,
                      "--join-timeout", str(LIMIT_S)]
        self.command = [str(args.bin_dir / "ddp-run"), *flags, *train_command(folder, recipe, mode, undisturbed)]
        self.started = time.monotonic()
        self.nodes = [self.start_node(index) for index in range(nodes)]
        self.killed_nodes = []

    def start_node(self, index):
        return jobs.Node(self.command, self.folder / f"node{index}.log", env={"DDP_LOG_LEVEL": "info"})

    def replace(self, index):
        self.killed_nodes.append(self.nodes[index])
        self.nodes[index] = self.start_node(index)

    def all_nodes(self):
        return self.nodes + self.killed_nodes

    def finish(self):
        """Waits for the end; gives the summary."""
        deadline = time.monotonic() + LIMIT_S
        while any(node.process.poll() is None for node in self.nodes):
            for node in self.nodes:
                node.processes()
            if time.monotonic() > deadline:
                raise TimeoutError("the job hangs\n" + self.logs())
            time.sleep(0.01)
        self.seconds = time.monotonic() - self.started
        codes = [node.process.returncode for node in self.nodes]
        if any(codes):
            raise AssertionError(f"ddp-run ended with {codes}\n{self.logs()}")
        self.expect_nothing_left()
        return jobs.summary(self.folder / "summary.json")

    def expect_nothing_left(self):
        jobs.wait_until(lambda: not any(node.alive() for node in self.all_nodes()), GONE_S, "processes left behind")

    def logs(self):
        return "\n".join(f"--- {node.log_path}\n{node.tail()}" for node in self.all_nodes())

    def kill(self):
        for node in self.all_nodes():
            node.kill()


def kill_one(job, kind, draw):
    """SIGKILL to one process of that kind; gives what was killed, or None if there was none at this moment."""
    index = draw.randrange(len(job.nodes))
    node = job.nodes[index]
    if node.process.poll() is not None:
        return None
    if kind == "node":
        node.processes()
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.wait()
        jobs.wait_until(lambda: not node.left_behind(), GONE_S, f"what ddp-run of node {index} left behind")
        job.replace(index)
        return f"ddp-run of node {index}"
    pids = node.workers() if kind == "worker" else node.agents()
    if not pids:
        return None
    pid = draw.choice(sorted(pids))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"{kind} {pid} of node {index}"


def shared_memory_files():
    return set(os.listdir("/dev/shm"))


def disturbed(number, recipe, mode, kind, nodes, seconds, expected, draw):
    moment = draw.uniform(0.02, 1.0) * seconds
    job = Job(base / f"{number:02d}-{recipe}-{mode}-{kind}-{nodes}", recipe, mode, nodes)
    try:
        victim = None
        while victim is None and any(node.process.poll() is None for node in job.nodes):
            remaining = moment - (time.monotonic() - job.started)
            if remaining > 0:
                time.sleep(min(remaining, 0.01))
                for node in job.nodes:
                    node.processes()
            else:
                victim = kill_one(job, kind, draw)
        result = job.finish()
    except BaseException:
        print(job.logs())
        job.kill()
        raise
    same = result["weights_sha256"] == expected
    print(f"{number:2d} {recipe} {mode:4s} {nodes} node(s), at {moment:5.2f} s killed {victim or 'nothing (the run was over)'}: "
          f"resumed from step {result['resumed_from_step']}, {result['restarts']} restart(s), {job.seconds:.2f} s, "
          f"{'same bytes' if same else 'DIFFERENT BYTES ' + result['weights_sha256']}", flush=True)
    if not same:
        raise AssertionError(f"the weights differ from the undisturbed run's {expected}\n{job.logs()}")
    shutil.rmtree(job.folder)


def main():
    modes = ["ddp", "step", "zero1"] if args.grad_sync == "all" else [args.grad_sync]
    kinds = args.kinds.split(",")
    recipes = args.recipe.split(",")
    # Neighbours differ in both, so that a short run sees something of everything.
    ways = [(recipe, modes[(index + turn) % len(modes)]) for turn in range(len(modes)) for index, recipe in enumerate(recipes)]
    # A divided optimizer has no communication hook.
    ways = [(recipe, mode) for recipe, mode in ways if mode != "zero1" or "--comm-hook" not in RECIPES[recipe]]
    before_shm, before_tmp = shared_memory_files(), set(os.listdir("/tmp"))
    reference, seconds, undisturbed_lock = {}, {}, {way: threading.Lock() for way in ways}

    def train_undisturbed(recipe, mode, nodes):
        job = Job(base / f"undisturbed-{recipe}-{mode}-{nodes}", recipe, mode, nodes, undisturbed=True)
        try:
            weights = job.finish()["weights_sha256"]
        except BaseException:
            job.kill()
            raise
        seconds[recipe, mode, nodes] = job.seconds
        print(f"undisturbed, {recipe}, {mode}, {nodes} node(s): {job.seconds:.2f} s, {weights}", flush=True)
        # Sums are in rank order wherever the ranks are, so one node and two give the same bytes.
        assert reference.setdefault((recipe, mode), weights) == weights, "one node and two nodes differ"
        for one, other in (("zero1", "ddp"), ("ddp", "zero1")):
            assert mode != one or reference.get((recipe, other), weights) == weights, "a divided optimizer gives other bytes"

    def disturb(number):
        draw = random.Random(f"{seed} {number}")
        (recipe, mode), kind = ways[number % len(ways)], kinds[number % len(kinds)]
        nodes = 2 if kind == "node" else draw.choice([1, 2])
        with undisturbed_lock[recipe, mode]:
            if (recipe, mode, nodes) not in seconds:
                train_undisturbed(recipe, mode, nodes)
        disturbed(number, recipe, mode, kind, nodes, seconds[recipe, mode, nodes], reference[recipe, mode], draw)

    # A job of two workers spends half of its time on starting and on waiting.
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(disturb, number) for number in range(args.count)]:
            try:
                done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    new_shm = shared_memory_files() - before_shm
    new_tmp = {entry for entry in set(os.listdir("/tmp")) - before_tmp if "ddp" in entry or "torchelastic" in entry}
    if new_shm or new_tmp:
        raise AssertionError(f"left behind: /dev/shm {sorted(new_shm)}, /tmp {sorted(new_tmp)}")
    shutil.rmtree(base)


main()
