"""How long is it from a failure to the next step?

One small model, two workers, a step every few milliseconds (bench-recovery; for torchrun also recovery_python.py). A process is
killed or stopped at some step; the workers record every step and every failed collective in a file. Seconds from the kill until
  answer      the survivor's collective returns with the failure
  first step  all workers have finished the first step of the new round
Recovery is in process, with a standby worker or a new one, or by restart from a checkpoint, as torchrun does it.
Rows with "Python" are of recovery_elastic.py with the package ddp_run, and left out where that is not built.
The peers' rows are torchrun with the same C++ program and with its Python script. Under torchrun 2.6 and
2.14 that script often does not recover: torchrun keeps the store, so workers of the second attempt read the first attempt's
addresses in it and wait for dead processes (`peer_answered` is false if it never recovered).

BENCH_PARTS=worker,python,node,silent chooses, BENCH_ROUNDS the rounds.
"""
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import commanded
import harness
import jobs
import paired

PROGRAM = str(harness.BIN / "bench-recovery")
SCRIPT = str(harness.ROOT / "bench" / "recovery_python.py")
ELASTIC_SCRIPT = [harness.PYTHON, str(harness.ROOT / "bench" / "recovery_elastic.py")]
PARTS = os.environ.get("BENCH_PARTS", "worker,python,node,silent").split(",")
ROUNDS = paired.ROUNDS
STEPS = 1_000_000  # More than any run reaches: the job is ended when it has recovered.
LIMIT_S = 60
LEASE_S = 5.0
# How long to wait for a job that does not answer.
PATIENCE_S = 20.0


class Run:
    """Two workers, on one node or on two."""

    def __init__(self, launcher, nodes, mode):
        self.folder = tempfile.mkdtemp(prefix="bench-recovery.")
        self.events_file = os.path.join(self.folder, "events")
        worker = {"elastic": [PROGRAM, "--elastic"], "restart": [PROGRAM], "python": [SCRIPT], "elastic python": ELASTIC_SCRIPT}[mode]
        command = [*worker, self.events_file, os.path.join(self.folder, "checkpoint"), str(STEPS)]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": commanded.environment()["PYTHONPATH"]}
        self.nodes = [jobs.Node([*flags, *command], os.path.join(self.folder, f"node{node}.log"), environment)
                      for node, flags in enumerate(launcher(nodes, mode))]

    def events(self):
        try:
            with open(self.events_file) as file:
                return [json.loads(line) for line in file.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []

    def await_event(self, condition, limit_s=LIMIT_S):
        """The first event that satisfies the condition; None if none comes in time."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for event in self.events():
                if condition(event):
                    return event
            time.sleep(0.02)
        return None

    def close(self):
        for node in self.nodes:
            node.kill()
        for pid in {event["pid"] for event in self.events()}:  # torchrun leaves orphans.
            if "recovery" in jobs.program_of(pid) or "python" in jobs.program_of(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)


def ours(nodes, mode, more=()):
    flags = [harness.DDP_RUN, "--max-restarts", "10", "--nproc-per-node", str(2 // nodes), "--no-python", *more]
    if nodes == 1:
        return [[*flags, "--standalone"]]
    return [[*flags, "--nnodes", str(nodes), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench"]
            for port in [jobs.free_port()] for _ in range(nodes)]


def ours_with_standby(nodes, mode):
    return ours(nodes, mode, ["--standby", "1"])


def torchrun(nodes, mode):
    flags = [*harness.TORCHRUN, "--max_restarts", "10", "--nproc_per_node", str(2 // nodes),
             *([] if mode == "python" else ["--no_python"])]
    if nodes == 1:
        return [[*flags, "--standalone"]]
    return [[*flags, "--nnodes", str(nodes), "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}",
             "--rdzv_id", "bench"] for port in [jobs.free_port()] for _ in range(nodes)]


def worker_killed(launcher, mode):
    """Seconds to the survivor's answer (None if workers are restarted) and to the first step of all (None if the peer makes none)."""
    run = Run(launcher, 1, mode)
    try:
        if not run.await_event(lambda event: event["event"] == "step" and event["step"] >= 30):
            sys.exit(f"bench: no step within {LIMIT_S} s\n{run.nodes[0].tail()}")
        if launcher is ours_with_standby:
            if not run.await_event(lambda event: event["event"] == "start" and event["rank"] == -1):
                sys.exit(f"bench: there is no standby worker\n{run.nodes[0].tail()}")
            time.sleep(1)  # Until it waits for a rank.
        victim = next(event["pid"] for event in run.events() if event["rank"] == 1)
        before = {event["pid"] for event in run.events()}
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        limit_s = PATIENCE_S if launcher is torchrun else LIMIT_S
        # torchrun's workers do not know rounds; they are new processes instead.
        first = [run.await_event(lambda event: event["event"] == "step" and event["rank"] == rank and
                                 (event["round"] > 0 or event["pid"] not in before),
                                 limit_s) for rank in (0, 1)]
        if not all(first):
            if launcher is torchrun:
                return None, None
            sys.exit(f"bench: no step after the kill within {limit_s} s\n{run.nodes[0].tail()}")
        error = run.await_event(lambda event: event["event"] == "error", 0.05)
        return (error["time"] - killed if error else None), max(event["time"] for event in first) - killed
    finally:
        run.close()


def process_start(program):
    """Seconds until the program says that it could begin: the time of loading LibTorch, or of the imports."""
    began = time.time()
    done = subprocess.run([*program, "--start"], check=True, stdout=subprocess.PIPE, text=True, env=commanded.environment())
    return float(done.stdout) - began


def node_lost(launcher, mode, stop):
    """On two nodes with one worker each, kills the second node's agent, or stops the whole node (`stop`). Returns the seconds to
    the other worker's answer; None if none comes."""
    run = Run(launcher, 2, mode)
    try:
        if not run.await_event(lambda event: event["event"] == "step" and event["step"] >= 30):
            sys.exit(f"bench: no step within {LIMIT_S} s\n{run.nodes[0].tail()}")
        rank_of = {event["pid"]: event["rank"] for event in run.events()}
        node = run.nodes[1]
        survivor = next(rank for pid, rank in rank_of.items() if pid not in node.processes())
        victims = node.processes() if stop else (node.agents() or [node.process.pid])
        last = time.time()
        for pid in reversed(victims):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
        event = run.await_event(lambda event: event["rank"] == survivor and event["time"] > last and
                                (event["event"] in ("error", "start")), PATIENCE_S)
        return event["time"] - last if event else None
    finally:
        run.close()


def row(name, value, bound, bound_name, **more):
    return {"figure": name, "ours": round(value * 1e3, 2), "peer": round(bound * 1e3, 2), "peer_name": bound_name,
            "ratio": round(bound / value, 3), "unit": "ms", "goal": 1.0, **more}


def against(name, value, peer, peer_name):
    watched = peer or PATIENCE_S
    return {"figure": name, "ours": round(value * 1e3, 2), "peer": round(watched * 1e3, 2), "peer_name": peer_name,
            "ratio": round(watched / value, 3), "unit": "ms", "goal": None, "peer_answered": peer is not None, "watched_s": PATIENCE_S}


def median(pairs, index):
    values = [pair[index] for pair in pairs if pair[index] is not None]
    return statistics.median(values) if values else None


def in_turns(contenders):
    """What each contender returns, by its name."""
    taken = {name: [] for name in contenders}
    for number in range(ROUNDS):
        names = list(contenders)
        for name in names[number % len(names):] + names[:number % len(names)]:
            if (None, None) not in taken[name]:  # A contender that failed to recover once is not tried again.
                taken[name].append(contenders[name]())
    return taken


def python_figures():
    if not commanded.has_package():
        return
    taken = in_turns({"standby": lambda: worker_killed(ours_with_standby, "elastic python"),
                      "respawned": lambda: worker_killed(ours, "elastic python"),
                      "torchrun": lambda: worker_killed(torchrun, "python"),
                      "start": lambda: (None, process_start(ELASTIC_SCRIPT))})
    start = median(taken["start"], 1)
    yield row("Python, first step of all, a worker stands by", median(taken["standby"], 1), 0.15, "150 ms")
    yield row("Python, first step of all, a new worker", median(taken["respawned"], 1), 0.1 + start,
              "100 ms and the start of the interpreter", start_ms=round(start * 1e3, 1))
    for name in ("standby", "respawned"):
        yield against(f"Python, first step of all, {name}", median(taken[name], 1), median(taken["torchrun"], 1), "torchrun, its Python script")


def worker_figures():
    taken = in_turns({"standby": lambda: worker_killed(ours_with_standby, "elastic"),
                      "respawned": lambda: worker_killed(ours, "elastic"),
                      "restart": lambda: worker_killed(ours, "restart"),
                      "torchrun": lambda: worker_killed(torchrun, "restart"),
                      "torchrun, Python": lambda: worker_killed(torchrun, "python"),
                      "start": lambda: (None, process_start([PROGRAM]))})
    start = median(taken["start"], 1)
    answers = [pair[0] for name in ("standby", "respawned") for pair in taken[name]]
    yield row("a worker is killed: the survivor's collective returns, in process", statistics.median(answers), 0.005,
              "5 ms", worst_ms=round(max(answers) * 1e3, 2))
    yield row("first step of all, in process, a worker stands by", median(taken["standby"], 1), 0.1, "100 ms")
    yield row("first step of all, in process, a new worker", median(taken["respawned"], 1), 0.1 + start,
              "100 ms and the start of a process", start_ms=round(start * 1e3, 1))
    for peer in ("torchrun", "torchrun, Python"):
        label = "torchrun, the same program" if peer == "torchrun" else "torchrun, its Python script"
        for name in ("standby", "respawned", "restart"):
            yield against(f"first step of all, {name}", median(taken[name], 1), median(taken[peer], 1), label)


def lost_figures(stop):
    what = "a node stands still" if stop else "an agent is killed"
    rounds = max(3, ROUNDS // 3) if stop else ROUNDS
    mine = statistics.median(node_lost(ours, "elastic", stop) or PATIENCE_S for _ in range(rounds))
    bound = LEASE_S + 0.05 if stop else 0.05
    yield row(f"{what}: the other node's collective returns", mine, bound, "the lease and 50 ms" if stop else "50 ms")
    theirs = node_lost(torchrun, "restart", stop)
    yield against(f"{what}: answer", mine, theirs, "torchrun, the same program")


def figures():
    harness.require(harness.DDP_RUN, PROGRAM, harness.TORCHRUN[0])
    if "worker" in PARTS:
        yield from worker_figures()
    if "python" in PARTS:
        yield from python_figures()
    if "node" in PARTS:
        yield from lost_figures(stop=False)
    if "silent" in PARTS:
        yield from lost_figures(stop=True)
