"""Starts and disturbs whole jobs: ddp-run commands as nodes. Finds their processes through /proc."""
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path


def wait_until(condition, limit_s, what):
    """Polls condition until it holds; returns its value. Raises TimeoutError naming `what` after limit_s seconds."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s} s")
        time.sleep(0.002)


class TooLate(Exception):
    """A job was over before the test could disturb it: other programs kept the processors or the disk busy."""


def in_time(attempt, tries=5):
    """The value of attempt(number), which is called again if it raises TooLate."""
    for number in range(tries):
        try:
            return attempt(number)
        except TooLate as late:
            print(f"again: {late}", flush=True)
            reason = late
    raise AssertionError(f"{reason}, {tries} times")


def wait_while_running(nodes, condition, limit_s, what):
    """As wait_until(), for what jobs that run do. Raises TooLate if all nodes have ended, with status 0, before that."""
    over = object()
    value = wait_until(lambda: condition() or (over if all(node.process.poll() is not None for node in nodes) else None), limit_s, what)
    if value is not over:
        return value
    for node in nodes:
        if node.process.returncode != 0:
            raise AssertionError(f"{what}: ddp-run ended with {node.process.returncode} before that; its log:\n{node.tail()}")
    raise TooLate(f"the job was over before this: {what}")


PORTS = range(10_000, 29_000)  # Below the rendezvous' default and those that the system gives to connections.
RESERVATION = "ddp-test-port-"
_next_port = os.getpid() * 97 % len(PORTS)
_reserved = []


def _reserve(port):
    """Binds an abstract socket with the port's number in its name, as listener.h does. It is kept until this process ends."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
            name.bind(f"\0{RESERVATION}{port}")
        except OSError:
            name.close()
            return False
    _reserved.append(name)
    return True


def free_port(count=1):
    """The first of `count` consecutive free ports. No other test gets them while this process lives."""
    global _next_port
    for _ in PORTS:
        first = PORTS[_next_port]
        _next_port = (_next_port + count) % (len(PORTS) - count)
        if all(_reserve(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("no free port")


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid):
    found = []
    for child in children(pid):
        found += [child] + descendants(child)
    return found


def program_of(pid):
    """The name of the program a process runs, '' for a process that is gone or a zombie."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def identity(pid):
    """Start time of a process, so that a reused pid is not taken for it; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def send(pid, number):
    """Whether the process was there."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


WRITER = "ddp-checkpoint"


class Node:
    """One ddp-run and everything that it starts."""

    def __init__(self, command, log_path, env=None):
        self.log_path = Path(log_path)
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {})}, start_new_session=True)
        self.seen = {}

    def processes(self):
        """pids of this node: itself and all processes below; remembers them, to find leftovers after it has ended."""
        if self.process.returncode is not None:
            return []  # Another process may have its pid.
        pids = [self.process.pid] + descendants(self.process.pid)
        for pid in pids:
            born = identity(pid)
            if born is not None:
                self.seen[pid] = born
        return pids

    def agents(self):
        return [pid for pid in self.processes() if program_of(pid) == "ddp-agent"]

    def workers(self):
        return [child for agent in self.agents() for child in children(agent)
                if program_of(child) not in ("", "ddp-agent", WRITER)]

    def alive(self):
        """The processes ever seen in this node that still run."""
        return [pid for pid, born in self.seen.items() if identity(pid) == born]

    def left_behind(self):
        """Processes that still run although ddp-run was killed. Writers of checkpoints may finish what they have begun."""
        return [pid for pid in self.alive() if program_of(pid) != WRITER]

    def wait(self, limit_s):
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"ddp-run {self.process.pid} did not end within {limit_s} s; its log:\n{self.tail()}")

    def tail(self, lines=40):
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def kill(self):
        """SIGKILL to the whole node: after a failed test, and for tests in which the machine is lost."""
        for pid in self.processes() or self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def summary(path):
    return json.loads(Path(path).read_text())
