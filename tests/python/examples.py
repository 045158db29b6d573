"""The examples as users start them: examples.py BIN_DIR [SEED COUNT [FOLDER_OF_MNIST]]

The elastic one is disturbed from outside, at random: a worker, an agent, ddp-run or a whole node is killed, or a node stands still.
It ends with the weights of an undisturbed run. COUNT such runs begin with SEED; the default is one.
"""
import contextlib
import os
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
import torch
import torchrun

BIN = Path(sys.argv[1]).resolve()
SEED, COUNT = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (1, 1)
DATA = ["--data", sys.argv[4]] if len(sys.argv) > 4 else []
EXAMPLES = Path(__file__).resolve().parents[2] / "worker/python/examples"
LIMIT_S = 240
STEPS = 400


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Nodes:
    """A job of two workers, on one node or two. A node that is gone is started again."""

    def __init__(self, folder, count, program, arguments):
        self.folder = folder
        port = jobs.free_port()
        placement = ["--standalone"] if count == 1 else ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
        self.command = [BIN / "ddp-run", *placement, "--nproc-per-node", str(2 // count), "--max-restarts", "50",
                        EXAMPLES / program, "--checkpoints", f"{folder}/checkpoints", "--steps", str(STEPS), *arguments, *DATA]
        self.starts = 0
        self.nodes = [self.start() for _ in range(count)]

    def start(self):
        self.starts += 1
        with open(f"{self.folder}/output{self.starts}", "w") as output:
            return subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                    start_new_session=True)

    def output(self):
        return "".join(Path(f"{self.folder}/output{i + 1}").read_text() for i in range(self.starts))

    def disturb(self, chosen):
        """Returns what was done."""
        number = chosen.randrange(len(self.nodes))
        pid = self.nodes[number].pid
        what = chosen.choice(["worker", "agent", "ddp-run", "node", "stop"])
        agents = jobs.children(pid)
        workers = [worker for agent in agents for worker in jobs.children(agent)]
        if what == "worker":
            send([chosen.choice(workers)] if workers else [], signal.SIGKILL)
        elif what == "agent":
            send(agents, signal.SIGKILL)
        elif what == "ddp-run":
            send([pid], signal.SIGKILL)
        elif what == "node":
            send([pid, *jobs.descendants(pid)], signal.SIGKILL)
        else:
            stopped = [pid, *jobs.descendants(pid)]
            send(stopped, signal.SIGSTOP)
            time.sleep(chosen.uniform(0.1, 7))
            send(stopped[::-1], signal.SIGCONT)
        return what

    def ended(self):
        """Starts nodes again that were killed. Whether all have ended well."""
        codes = [node.poll() for node in self.nodes]
        if all(code == 0 for code in codes):
            return True
        for number, code in enumerate(codes):
            if code not in (None, 0):
                self.nodes[number] = self.start()
        return False

    def close(self):
        for node in self.nodes:
            send([node.pid, *jobs.descendants(node.pid)], signal.SIGKILL)
            node.wait()


def weights(output):
    found = set(re.findall(r"weights ([0-9a-f]{64})", output))
    assert len(found) == 1, output[-4000:]
    return found.pop()


def trained(nodes, program, arguments, chosen=None, most=4):
    """The weights' hash. With `chosen`, disturbs the job up to `most` times."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Nodes(folder, nodes, program, arguments)) as job:
        left = chosen.randrange(most) + 1 if chosen else 0
        next_time = time.monotonic() + (chosen.uniform(2, 6) if chosen else 0)
        deadline = time.monotonic() + LIMIT_S
        while not job.ended():
            assert time.monotonic() < deadline, job.output()[-4000:]
            if left and time.monotonic() > next_time:
                print(f"  {job.disturb(chosen)}", flush=True)
                left -= 1
                next_time = time.monotonic() + chosen.uniform(0.5, 5)
            time.sleep(0.02)
        return weights(job.output())


def elastic_one_ends_the_same():
    known = {}
    for seed in range(SEED, SEED + COUNT):
        chosen = random.Random(seed)
        optimizer = chosen.choice(["SGD", "AdamW"])
        arguments = ["--optimizer", optimizer, "--backend", chosen.choice(["ddp", "gloo"]), "--workers", chosen.choice(["0", "2"])]
        nodes = chosen.choice([1, 2])
        print(f"seed {seed}: {nodes} nodes, {arguments}", flush=True)
        if optimizer not in known:
            known[optimizer] = trained(1, "elastic.py", ["--optimizer", optimizer])
        assert trained(nodes, "elastic.py", arguments, chosen) == known[optimizer]


def fully_sharded_one_ends_the_same():
    """It goes on from its last checkpoint, in new processes."""
    if not hasattr(torch.cpu.Stream, "record_event"):
        print(f"PyTorch {torch.__version__} has no FSDP2 on CPUs")
        return
    assert trained(1, "fully_sharded.py", [], random.Random(SEED), most=1) == trained(1, "fully_sharded.py", [])


def data_parallel_one_runs_under_both_launchers():
    def run(*command, **more):
        done = subprocess.run([*command, "--standalone", "--nproc-per-node", "2", EXAMPLES / "data_parallel.py"], timeout=LIMIT_S,
                              env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0 and "1 node" in done.stdout, done.stdout
        return weights(done.stdout)
    assert run(BIN / "ddp-run") == run(*torchrun.COMMAND, **torchrun.RANK_0_STORE)


data_parallel_one_runs_under_both_launchers()
elastic_one_ends_the_same()
fully_sharded_one_ends_the_same()
