"""Do time and memory grow linearly with the number of nodes, and of the store's clients?

  agents     so many ddp-runs, each with its agent and one worker, against one ddp-rendezvous, all on this machine. With the worker
             `true`: from the first start to the last end. With bench-scale-worker, which joins a round of libddp: from the first start
             to the first sum of all; from the SIGKILL of one ddp-run to the first sum of the others; from the order to end to the last
             end; memory (Pss) of the daemon and of each ddp-run with its agent while all run; processor time of all but the daemon
  simulator  bench-scale: processor time of the real coordinator and agents without a network, in one process; the peer is the same
             coordinator with as many nodes in jobs of 1,000, whose memory lies outside of the caches, too
  clients    store clients that have sent their greeting and are silent: memory of the daemon for each; one client's adds beside them

Of agents, `peer` is what it would take if it grew linearly from the number of nodes that peer_name says, so that a ratio below 1
is growth that is faster. The limits of the machine that bound the numbers are checked and printed first. BENCH_PARTS=agents,simulator,clients
chooses, BENCH_NODES=10,100 the numbers of agents. More clients than a process may open files need the right to raise that limit.
"""
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import harness
import jobs
from question_launch import pss_mb
from question_store import DAEMON, STORE, Server

QUICK = bool(os.environ.get("BENCH_QUICK"))
PARTS = os.environ.get("BENCH_PARTS", "agents,simulator,clients").split(",")
NODES = [int(count) for count in os.environ.get("BENCH_NODES", "5,20" if QUICK else "10,100,300,1000").split(",")]
SMALL, SIMULATED = (100, [1000]) if QUICK else (1000, [10_000, 100_000])
CLIENTS = 2000 if QUICK else 50_000
SIMULATION = str(harness.BIN / "bench-scale")
WORKER = str(harness.BIN / "bench-scale-worker")
LIMIT_S = 600
GOAL = 0.5  # The caches are larger than a small job, and smaller than a large one.
NODE_MB, NODE_TASKS = 12, 8  # Upper bounds of a node with its worker: memory, and processes and threads.
PORTS_EACH = 20_000  # Connections from one address; there are 28,000 ports for them.
SPARE_FILES, BATCH = 500, 250
HELLO = bytes.fromhex("00cef7853c0d39300000")  # VALIDATE, PING.


def first_number(path, key=""):
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return int("".join(c for c in line.removeprefix(key).split()[0] if c.isdigit()))
    raise KeyError(key)


def clients_possible():
    """As many as asked for, or as a process may open files here."""
    wanted, hard = CLIENTS + SPARE_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else max(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        return CLIENTS
    except (ValueError, OSError) as error:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        print(f"scale: {wanted} open files in a process: {error}; measures {hard - SPARE_FILES} clients in place of {CLIENTS}. Raise "
              "the hard limit (ulimit -Hn) or run it with CAP_SYS_RESOURCE", file=sys.stderr)
        return hard - SPARE_FILES


def check_limits(nodes):
    """Prints what the machine allows; exits if it does not allow so many nodes."""
    tasks = min(first_number("/proc/sys/kernel/threads-max"), first_number("/proc/sys/kernel/pid_max"))
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY:
        tasks = min(tasks, processes)
    memory = first_number("/proc/meminfo", "MemAvailable:") // 1024
    print(f"scale: {memory} MB of memory available, {tasks} processes and threads, {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open "
          f"files (at most {first_number('/proc/sys/fs/nr_open')})", file=sys.stderr)
    if nodes * NODE_MB > memory or nodes * NODE_TASKS > tasks:
        sys.exit(f"bench: {nodes} nodes take {nodes * NODE_MB} MB and {nodes * NODE_TASKS} processes and threads, which is more than "
                 f"there is; BENCH_NODES={nodes // 2} takes half")


class Nodes:
    """ddp-runs on this machine, and the daemon at which they meet. The lease is long, because on a few cores hundreds of them wait
    seconds for their turn."""

    def __init__(self, stack, count, worker):
        self.server = stack.enter_context(Server([DAEMON, "--port", "0", "--bind", "127.0.0.1"]))
        self.log = stack.enter_context(tempfile.TemporaryFile())
        stack.callback(self.end)
        command = [harness.DDP_RUN, "--nnodes", f"{count - 1}:{count}", "--rdzv-endpoint", f"127.0.0.1:{self.server.port}", "--rdzv-id",
                   "scale", "--rdzv-conf", f"is_host=false,last_call_timeout={LIMIT_S}", "--max-restarts", "1", "--join-timeout",
                   str(LIMIT_S), "--lease", str(LIMIT_S), "--no-python", *worker]
        self.began = time.perf_counter()
        self.processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log) for _ in range(count)]

    def wait(self):
        """Until all have ended; the killed one may have any status."""
        deadline = time.monotonic() + LIMIT_S
        for process in self.processes:
            if process.wait(max(1, deadline - time.monotonic())) not in (0, -signal.SIGKILL):
                self.log.seek(0)
                sys.exit(f"bench: a ddp-run ended with {process.returncode}:\n{self.log.read()[-3000:].decode(errors='replace')}")

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()

    def node_mb(self):
        """Of a ddp-run and its agent: the median of some."""
        return statistics.median(sum(pss_mb(pid) for pid in [process.pid, *jobs.children(process.pid)])
                                 for process in self.processes[:20])


def processor_s():
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_true(count):
    with ExitStack() as stack:
        before, nodes = processor_s(), Nodes(stack, count, ["true"])
        nodes.wait()
        return {"true: start to end": time.perf_counter() - nodes.began, "true: processor time": processor_s() - before}


def run_rounds(count):
    """The phases of a job whose workers form a group."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scale.")))
        rounds, end, before = folder / "rounds", folder / "end", processor_s()
        nodes = Nodes(stack, count, [WORKER, str(rounds), str(end)])

        def await_workers(number):
            def come():
                return rounds.exists() and any(line.split()[1] == str(number) for line in rounds.read_text().splitlines() if " " in line)
            jobs.wait_until(come, LIMIT_S, f"a round of {number} workers")
            return time.perf_counter()
        found = {"start to the first sum": await_workers(count) - nodes.began}
        found["memory of the daemon"] = nodes.server.resident_bytes() / 1e6
        found["memory of a node"] = nodes.node_mb()
        began = time.perf_counter()
        nodes.processes[count // 2].kill()
        found["loss of one to the next sum"] = await_workers(count - 1) - began
        found["peak memory of the daemon"] = peak_mb(nodes.server.process.pid)
        began = time.perf_counter()
        end.touch()
        nodes.wait()
        found["order to end to the last end"] = time.perf_counter() - began
        found["processor time"] = processor_s() - before
        return found


def peak_mb(pid):
    return first_number(f"/proc/{pid}/status", "VmHWM:") / 1024


def growth(name, found, unit_of, digits=4):
    """A figure for each measured thing and number of nodes, against the least number in `found` that is at least 100."""
    counts = sorted(found)
    base = next((count for count in counts if count >= 100), counts[0])
    for what in found[base]:
        for count in counts:
            unit, is_each = unit_of(what)
            linear = found[base][what] * (1 if is_each else count / base)
            goal = GOAL if count > base else None
            yield harness.figure(f"{name}, {count} nodes, {what}", found[count][what], linear, f"linear from {base} nodes", unit, goal,
                                 digits=digits)


def unit_of(what):
    """Unit, and whether it is a figure of one node."""
    return ("MB" if "memory" in what else "s"), what == "memory of a node"


def agents():
    check_limits(max(NODES))
    found = {}
    for count in NODES:
        found[count] = {**run_true(count), **run_rounds(count)}
        print(f"scale: {count} agents: {found[count]}", file=sys.stderr)
    yield from growth("agents", found, unit_of)


def simulate(count, jobs):
    done = subprocess.run([SIMULATION, "--nodes", str(count), "--jobs", str(jobs)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          text=True, check=True, timeout=LIMIT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {"memory": max(line["resident_mb"] for line in lines), **{line["phase"]: line["seconds"] for line in lines}}


def simulator():
    for count in SIMULATED:
        kinds, taken = {"one": 1, "small": count // SMALL}, {"one": [], "small": []}
        for round_number in range(3):
            for kind in sorted(kinds, reverse=round_number % 2 == 1):
                taken[kind].append(simulate(count, kinds[kind]))
        for what in taken["one"][0]:
            one, small = (statistics.median(run[what] for run in taken[kind]) for kind in ("one", "small"))
            yield harness.figure(f"simulated, {count} nodes, {what}", one, small, f"{count // SMALL} jobs of {SMALL} nodes", unit_of(what)[0],
                                 GOAL, digits=6)


def add_median(server):
    command = [STORE, "--protocol", "c10d-newest", "--port", str(server.port), "--clients", "1", "--op", "add", "--seconds", "0.3"]
    lines = [json.loads(subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=True).stdout)
             for _ in range(5)]
    return statistics.median(line["median_s"] for line in lines)


def clients():
    count = clients_possible()
    with Server([DAEMON, "--port", "0", "--bind", "127.0.0.1"]) as server, ExitStack() as stack:
        alone, before = add_median(server), server.resident_bytes()
        for first in range(0, count, BATCH):
            connected = []
            for number in range(first, min(first + BATCH, count)):
                source = (f"127.0.0.{2 + number // PORTS_EACH}", 0)
                connected.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), source_address=source)))
                connected[-1].sendall(HELLO)
            if any(client.recv(4) != HELLO[6:] for client in connected):
                sys.exit(f"bench: the daemon did not answer a client after the first {first}")
        each = (server.resident_bytes() - before) / count
        yield harness.figure(f"memory of an idle client, {count} of them", each, 4096, "limit", "bytes", 1.0)
        beside = add_median(server)
    yield harness.figure(f"add beside {count} idle clients, median latency", beside, alone, "ours, without them", "s", 0.5, digits=9)


def figures():
    harness.require(harness.DDP_RUN, SIMULATION, WORKER)
    for part, ask in (("agents", agents), ("simulator", simulator), ("clients", clients)):
        if part in PARTS:
            yield from ask()
