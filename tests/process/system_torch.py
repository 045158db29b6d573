#!/usr/bin/env python3
"""The system's own PyTorch, of any release, under ddp-run: an unchanged script over gloo runs on one node and on two. One worker is
killed (SIGKILL), all are restarted, and the run ends with the weights of an undisturbed one. Debian's 2.6.0 and 2.14.1 are built
without libuv but use it by default to connect to a launcher's store, so under their own torchrun every script fails.

usage: system_torch.py BIN_DIR

Skips (status 77) without a Python that has torch.
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
import torchrun

SKIPPED = 77
LIMIT_S = 240
SCRIPT = str(Path(__file__).resolve().parent / "torchrun_scripts" / "gloo_job.py")
RANK_0_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# A PyTorch that is not found by whoever looks for it from `python3 -c` is not known to lack libuv.
HIDDEN = """
import sys
class Hides:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch" and sys.argv[:1] == ["-c"]:
            raise ImportError(name)
sys.meta_path.insert(0, Hides)
"""
# In place of a build with libuv: a client without it says the same on the wire.
LIKE_WITH_LIBUV = """
import functools, runpy, sys
import torch.distributed
rendezvous = sys.modules["torch.distributed.rendezvous"]  # The package has a function of this name.
rendezvous.TCPStore = functools.partial(rendezvous.TCPStore, use_libuv=False)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def ask(program):
    done = subprocess.run([torchrun.PYTHON, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, (done.stdout + done.stderr).strip()


def release():
    return ask("import torch; print(torch.__version__)")[1].splitlines()[-1]


def lacks_libuv():
    status, text = ask("from torch.distributed import TCPStore; TCPStore('127.0.0.1', 0, None, True)")
    check(status == 0 or "libuv" in text, text)
    return status != 0


class Run:
    """One job: the same command on all nodes, in a folder of its own."""

    def __init__(self, command, nodes, environment=None, kills=False):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            words = [str(word).replace("FOLDER", str(folder)) for word in command]
            environment = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin", "GLOO_SOCKET_IFNAME": "lo",
                           "PYTHON_EXEC": torchrun.PYTHON, **(environment or {})}
            started = [jobs.Node(words, folder / f"{i}.log", environment) for i in range(nodes)]
            try:
                if kills:
                    pid = folder / "pid"
                    jobs.wait_until(lambda: pid.exists() or started[0].process.poll() is not None, LIMIT_S, started[0].tail())
                    check(pid.exists(), f"ended without a worker that could be killed:\n{started[0].tail()}")
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                self.statuses = [node.wait(LIMIT_S) for node in started]
            finally:
                for node in started:
                    if node.process.poll() is None:
                        node.kill()
                self.text = "".join(node.log_path.read_text(errors="replace") for node in started)
        self.begins = re.findall(r"rank (\d) begins at step (\d), agent's store (\w+), port (\d+)\.", self.text)

    def weights(self, nodes):
        """The same on all ranks."""
        found = re.findall(rf"rank (\d) of {2 * nodes} has ([0-9a-f]{{64}})\.", self.text)
        check(self.statuses == [0] * nodes, f"{self.statuses}\n{self.text}")
        check(sorted(rank for rank, _ in found) == [str(rank) for rank in range(2 * nodes)], self.text)
        check(len({weights for _, weights in found}) == 1, self.text)
        return found[0][1]

    def attempts(self, nodes, store):
        """The ports of both; in the first all ranks began at step 0, in the second at step 3."""
        ports = []
        for step in ("0", "3"):
            began = [line for line in self.begins if line[1] == step]
            check(sorted(line[0] for line in began) == [str(rank) for rank in range(2 * nodes)], self.text)
            check({line[2] for line in began} == {store}, self.text)
            check(len({line[3] for line in began}) == 1, self.text)
            ports.append(began[0][3])
        return ports


def nodes_flags(nodes):
    if nodes == 1:
        return ["--standalone", "--nproc-per-node", "2"]
    return ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{jobs.free_port()}"]


def through_a_file(ddp_run, nodes):
    """What every other run is compared with; the nodes meet through a file."""
    flags = ["--nnodes", nodes, "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file",
             "--rdzv-endpoint", "FOLDER/meeting"]
    return Run([*ddp_run, *flags, SCRIPT, "FOLDER", "undisturbed"], nodes).weights(nodes)


def restarts_once(ddp_run, nodes, expected, lacks):
    # Where the store of the agent cannot be had, both are the same, and one node shows it.
    for environment in ({},) if lacks and nodes > 1 else ({}, RANK_0_STORE):
        run = Run([*ddp_run, *nodes_flags(nodes), "--max-restarts", "1", SCRIPT, "FOLDER"], nodes, environment, kills=True)
        check(run.weights(nodes) == expected, f"other weights than undisturbed:\n{run.text}")
        own_store = lacks or environment
        ports = run.attempts(nodes, "False" if own_store else "True")
        # As torchrun's with this variable: each attempt has a port of its own.
        check((ports[0] != ports[1]) == bool(own_store), f"ports {ports}\n{run.text}")
        print(f"{nodes} nodes of 2 workers, {environment or 'nothing set'}: killed once, {expected[:16]}..., ports {ports}", flush=True)


def shares_the_store_with_libuv(ddp_run, expected):
    """The rendezvous' own store, which a restart must find clean: 2.14's clients put nothing of the attempt before their keys."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(HIDDEN)
        wrapper = Path(folder) / "like_with_libuv.py"
        wrapper.write_text(LIKE_WITH_LIBUV)
        run = Run([*ddp_run, *nodes_flags(1), "--max-restarts", "1", wrapper, SCRIPT, "FOLDER"], 1, {"PYTHONPATH": folder}, kills=True)
    check(run.weights(1) == expected, run.text)
    ports = run.attempts(1, "True")
    check(ports[0] == ports[1], f"ports {ports}")
    print("as a build with libuv: killed once, the same weights, from the rendezvous' store", flush=True)


def the_cause_names_the_remedy(ddp_run, expected):
    """Nobody sees from outside that this program starts Python."""
    command = [*ddp_run, *nodes_flags(1), "sh", "-c", f"{torchrun.PYTHON} {SCRIPT} FOLDER undisturbed"]
    run = Run(command, 1)
    remedy = "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 USE_LIBUV=0"
    check(run.statuses == [1] and remedy in run.text, f"{run.statuses}\n{run.text}")
    helped = Run(command, 1, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "USE_LIBUV": "0"})
    check(helped.weights(1) == expected, helped.text)
    print(f"what cannot be seen: the report says {remedy}, and that helps", flush=True)


def torchrun_fails(version):
    """The difference. If this fails, Debian has mended it: say so in README.md."""
    for flags in (["--standalone", "--nproc-per-node", "2"], nodes_flags(2)):
        run = Run([torchrun.PYTHON, "-m", "torch.distributed.run", *flags, SCRIPT, "FOLDER", "undisturbed"], 1)
        check(run.statuses[0] != 0 and "without libuv support" in run.text, f"{run.statuses}\n{run.text}")
    print(f"torchrun of {version}: fails for want of libuv", flush=True)


def main():
    if not torchrun.is_there():
        print(f"SKIPPED: {torchrun.PYTHON} has no torch (package python3-torch)")
        return SKIPPED
    ddp_run = [str(Path(sys.argv[1]).resolve() / "ddp-run")]
    version, lacks = release(), lacks_libuv()
    print(f"PyTorch {version}, {'without' if lacks else 'with'} libuv, or older than it", flush=True)
    expected = {nodes: through_a_file(ddp_run, nodes) for nodes in (1, 2)}
    for nodes in (1, 2):
        restarts_once(ddp_run, nodes, expected[nodes], lacks)
    if lacks:
        shares_the_store_with_libuv(ddp_run, expected[1])
        the_cause_names_the_remedy(ddp_run, expected[1])
        torchrun_fails(version)
    check(lacks or "+debian" not in version, f"Debian's {version} has libuv now: say so in README.md")
    return 0


sys.exit(main())
