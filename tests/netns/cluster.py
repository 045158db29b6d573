"""One training on the nodes of a network (tests/support/netns.py), and what can be seen of it from outside."""
import dataclasses
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import jobs
import netns

LIMIT_S = 240
GONE_S = 20  # Less than --shutdown-timeout.
PORT = 29400  # In namespaces of their own, where nobody else is.
DISK_MB = 8   # Of the file system with the checkpoints.
# Gives a node its name, and its own /tmp, /dev/shm and lock of the checkpoints' folder: a file server takes the lock from a node that
# it cannot reach.
OWN_FILES = ('hostname "$(basename "$1")" && mount --bind "$1/tmp" /tmp && mount --bind "$1/shm" /dev/shm && { [ ! -e "$2/.lock" ] || '
             'mount --bind "$1/lock" "$2/.lock"; } && shift 2 && exec "$@"')
ROUND = re.compile(rb": round (\d+) begins")
WORLD = re.compile(rb"round (\d+): (\d+) workers go on after")
COORDINATES = b"this node coordinates the job from now on"
KEEPERS = re.compile(rb": (\d+) of its ddp-runs keep its record")
KEEPERS_CHANGE = b"other ddp-runs are about to keep its record"
STEP = re.compile(rb'"step":(\d+)')


@dataclasses.dataclass
class Settings:
    bin_dir: Path
    base: Path  # The folder of everything that is written.
    draw: random.Random
    nodes: int
    workers_each: int = 1
    keep: bool = False  # The logs.


class Follower:
    """What is added to a file, in whole lines."""

    def __init__(self, path):
        self.path, self.at, self.rest = path, 0, b""

    def lines(self):
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.at:  # Begun again.
                    self.at, self.rest = 0, b""
                file.seek(self.at)
                added = file.read()
        except FileNotFoundError:
            return []
        self.at += len(added)
        *lines, self.rest = (self.rest + added).split(b"\n")
        return lines


class Cluster:
    """A running job; node 0's address is where its nodes meet.

    least: the nodes with which it goes on. daemon: the rendezvous runs in a process of its own on node 0, and not in that node's
    ddp-run.
    """

    def __init__(self, net, name, training, settings, flags=(), daemon=False, least=None):
        self.net, self.settings, self.folder = net, settings, settings.base / name
        self.daemon, self.gone, self.coordinator = None, [], 0
        self.lines, self.best, self.begun, self.worlds, self.keepers = 0, -1, -1, {}, [0] * settings.nodes
        self.checkpoints = self.folder / "checkpoints"
        self.make_folders()
        self.followers = [Follower(self.folder / f"node{node}.log") for node in range(settings.nodes)]
        self.rates = Follower(self.folder / "rates.jsonl")
        if daemon:
            self.start_daemon()
        self.command = [str(settings.bin_dir / "ddp-run"), "--nnodes", f"{least or settings.nodes}:{settings.nodes}",
                        "--nproc-per-node", str(settings.workers_each), "--rdzv-endpoint", f"{netns.address(0)}:{PORT}",
                        "--rdzv-id", name, "--max-restarts", "100000", "--max-no-progress", "0", "--max-node-failures", "0",
                        "--join-timeout", str(LIMIT_S), "--shutdown-timeout", "5", "--progress-timeout", "4", *flags,
                        str(settings.bin_dir / "ddp-train"), *training, "--summary", str(self.folder / "summary.json"), "--rates", str(self.folder / "rates.jsonl"),
                        "--checkpoint-dir", str(self.checkpoints), "--checkpoint-failure", "continue"]
        if daemon:
            self.command[1:1] = ["--rdzv-conf", "is_host=false"]
        self.nodes = [self.start_node(node) for node in range(settings.nodes)]
        self.started = time.monotonic()

    def make_folders(self):
        self.folder.mkdir()
        self.checkpoints.mkdir()
        for node in range(self.settings.nodes):
            for each in ("tmp", "shm"):
                (self.own(node) / each).mkdir(parents=True)
                mount("tmpfs", self.own(node) / each)
            (self.own(node) / "lock").touch()
            self.jump(node, 0)
        mount("tmpfs", self.checkpoints, f"size={DISK_MB}m")
        (self.checkpoints / ".lock").touch()

    def own(self, node):
        """The folder of the files that the other nodes do not have."""
        return self.folder / f"node{node}"

    def jump(self, node, seconds):
        """Sets the node's wall clock so many seconds before or behind the machine's; see tests/support/clock_shim.c."""
        with open(self.own(node) / "clock", "r+b" if (self.own(node) / "clock").exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def start_daemon(self):
        self.daemon = jobs.Node(netns.inside(self.net.names[0], str(self.settings.bin_dir / "ddp-rendezvous"), "--port", str(PORT)),
                                self.folder / "daemon.log")

    def start_node(self, node):
        command = netns.inside(self.net.names[node], "unshare", "--uts", "sh", "-c", OWN_FILES, "sh", str(self.own(node)),
                               str(self.checkpoints), *self.command)
        env = {"DDP_LOG_LEVEL": "info", "OMP_NUM_THREADS": "1", "DDP_TEST_CLOCK": str(self.own(node) / "clock"),
               "LD_PRELOAD": str(self.settings.bin_dir.parent / "test-bin" / "libclock_shim.so")}
        return jobs.Node(command, self.folder / f"node{node}.log", env=env)

    def replace(self, node):
        """The node is gone (or is killed now); its ddp-run is started again, as a scheduler would."""
        self.kill_node(node)
        self.nodes[node].process.wait()
        self.keepers[node] = 0
        self.gone.append(self.nodes[node])
        self.nodes[node] = self.start_node(node)

    def running(self):
        return any(node.process.poll() is None for node in self.nodes)

    # ---- what it has done ----

    def look(self):
        """Reads what the nodes have written since the last time."""
        for node, follower in enumerate(self.followers):
            for line in follower.lines():
                if found := ROUND.search(line):
                    self.begun = max(self.begun, int(found[1]))
                elif found := WORLD.search(line):
                    self.worlds[int(found[1])] = int(found[2])
                elif found := KEEPERS.search(line):
                    self.keepers[node] = int(found[1])
                elif KEEPERS_CHANGE in line:
                    self.keepers[node] = 0
                elif COORDINATES in line:  # It says how many after that.
                    self.coordinator, self.keepers[node] = node, 0
        for line in self.rates.lines():
            self.lines += 1
            if found := STEP.search(line):
                self.best = max(self.best, int(found[1]))

    def step(self):
        """How many lines rank 0 has written about its steps."""
        self.look()
        return self.lines

    def round(self):
        """The newest one that a coordinator has begun; -1 before the first."""
        self.look()
        return self.begun

    def is_whole(self):
        """All nodes take part in the newest round, and three of them (or all) keep the job's record."""
        workers = self.worlds.get(self.round(), self.settings.nodes * self.settings.workers_each)
        return workers == self.settings.nodes * self.settings.workers_each and self.keepers[self.coordinator] >= min(3, self.settings.nodes)

    def trained(self):
        """Rank 0 has made its last step."""
        return (self.folder / "summary.json").exists()

    # ---- waiting ----

    def wait_until(self, condition, what, limit_s=LIMIT_S):
        """Until the condition holds or the job is over."""
        deadline = time.monotonic() + limit_s
        while not condition() and self.running():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {limit_s} s\n{self.logs()}")
            time.sleep(0.01)

    def await_step(self, step):
        self.wait_until(lambda: self.step() >= step, f"step {step}")

    def await_round(self, number):
        self.wait_until(lambda: self.round() >= number, f"round {number}")

    def await_progress(self, limit_s=LIMIT_S):
        """Until rank 0 has written a line that it had not written before, or the job is over."""
        before = self.step()
        self.wait_until(lambda: self.step() > before, "a new step", limit_s)

    def finish(self):
        """Waits for the end; the exit statuses."""
        step, deadline = self.step(), time.monotonic() + LIMIT_S
        while self.running():
            for node in self.nodes:
                node.processes()
            if self.step() > step:
                step, deadline = self.step(), time.monotonic() + LIMIT_S
            if time.monotonic() > deadline:
                raise TimeoutError("the job hangs\n" + self.logs())
            time.sleep(0.02)
        self.seconds = time.monotonic() - self.started
        return [node.process.returncode for node in self.nodes]

    # ---- the end ----

    def stop(self):
        """As a user does: SIGTERM to all ddp-runs, whose workers write a checkpoint. The step of that."""
        for node in self.nodes:
            jobs.send(node.process.pid, signal.SIGTERM)
        codes = self.finish()
        if any(code != 128 + signal.SIGTERM for code in codes):
            raise AssertionError(f"SIGTERM to all: the ddp-runs ended with {codes}\n{self.logs()}")
        return max(int(path.name[5:].split(".")[0]) for path in self.checkpoints.glob("step-*"))

    def resume(self, max_steps):
        """After stop(): starts the same job again, to be trained up to that step."""
        self.gone += self.nodes
        self.command += ["--max-steps", str(max_steps)]
        self.nodes = [self.start_node(node) for node in range(self.settings.nodes)]

    def result(self):
        """What the summary says, once all nodes have ended well and nothing is left of them."""
        codes = self.finish()
        if any(codes):
            raise AssertionError(f"the ddp-runs ended with {codes}\n{self.logs()}")
        self.expect_nothing_left()
        summary = jobs.summary(self.folder / "summary.json")
        self.end()
        return summary

    def expect_nothing_left(self):
        """Of a job that is over: no process in its network, no file but the checkpoints."""
        jobs.wait_until(lambda: not any(node.alive() for node in self.nodes + self.gone), GONE_S, "processes left behind")
        if self.daemon:
            self.daemon.kill()
        left = lambda: [pid for node in range(self.settings.nodes) for pid in self.net.processes(node)]  # noqa: E731
        try:
            jobs.wait_until(lambda: not left(), GONE_S, "processes left behind")
        except TimeoutError:
            raise AssertionError("processes left behind: " + ", ".join(f"{pid} ({jobs.program_of(pid)})" for pid in left()))
        files = [str(path) for node in range(self.settings.nodes) for each in ("tmp", "shm")
                 for path in (self.own(node) / each).rglob("*")]
        files += [str(path) for path in self.checkpoints.iterdir()
                  if not path.name.startswith("step-") and path.name not in ("latest", ".lock")]
        if files:
            raise AssertionError(f"files left behind: {files}")

    def kill_node(self, node):
        """All of its processes at once."""
        while pids := self.net.processes(node):
            for pid in pids:
                jobs.send(pid, signal.SIGKILL)
            self.nodes[node].process.poll()

    def end(self):
        for node in range(self.settings.nodes):
            self.kill_node(node)
        for node in range(self.settings.nodes):
            for each in ("tmp", "shm"):
                unmount(self.own(node) / each)
        unmount(self.checkpoints)
        if not self.settings.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self):
        everything = self.nodes + ([self.daemon] if self.daemon else [])
        return "\n".join(f"--- {node.log_path}\n{node.tail()}" for node in everything)

    def any_node(self):
        return self.settings.draw.randrange(self.settings.nodes)


def mount(kind, at, options="mode=1777"):
    subprocess.run(["mount", "-t", kind, "-o", options, "ddp-test", str(at)], check=True)


def unmount(at):
    subprocess.run(["umount", "--lazy", str(at)], check=False, stderr=subprocess.DEVNULL)
