"""Runs contenders in rounds and compares them by their ratios within a round, with a lower bound.

A round runs every contender once, for all its sizes, in an order that rotates from round to round; the machine's probe
(bench-roof --probe) runs between them. A round is dropped if other processes (or the hypervisor) took more than 5 % of the
CPU time, but the three least disturbed rounds are always kept. Two contenders are compared in those rounds in which the
cores were equally far apart for both.
"""
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import harness
import jobs

QUICK = bool(os.environ.get("BENCH_QUICK"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", 3 if QUICK else 10))
SEED = int(os.environ.get("BENCH_SEED", 7))
FOREIGN_LIMIT = 0.05
# The largest factor by which the round trips between the cores may differ around two contenders. (The probe's bandwidth
# varies by more than that even while the cores do not move.)
MOVED_LIMIT = 1.2
KEEP = 3
LIMIT_S = 120  # For one run of one contender.
COLLECTIVES = str(harness.BIN / "bench-collectives")
ROOF = str(harness.BIN / "bench-roof")
GLOO = str(harness.BIN / "bench-gloo")
# With the default threshold, each MPI_Allreduce on large buffers maps, faults and unmaps a temporary. The top of the heap must
# not be given back either, or the page faults remain.
TUNED_MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"}
MPI_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
KIB, MIB = 1024, 1024 * 1024


def label(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def require():
    harness.require(harness.DDP_RUN, COLLECTIVES, ROOF, "mpirun", "mpicc")


def compile_mpi(source, folder):
    program = os.path.join(folder, os.path.basename(str(source)).removesuffix(".c"))
    subprocess.run(["mpicc", "-O2", str(source), "-o", program], check=True)
    return program


def run_all(commands, env=None, limit_s=LIMIT_S):
    """Starts the commands (argv, more environment) together, waits for all and returns the JSON lines they printed.

    If one fails or takes too long, ends them all.
    """
    processes = []
    try:
        for command, more in commands:
            processes.append(subprocess.Popen(command, env={**os.environ, **(env or {}), **more}, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        lines = []
        deadline = time.monotonic() + limit_s
        for (command, _), process in zip(commands, processes):
            try:
                out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                sys.exit(f"bench: {' '.join(command)} did not finish within {limit_s} s")
            if process.returncode != 0:
                sys.exit(f"bench: {' '.join(command)} exited with status {process.returncode}:\n{out[-2000:]}{err[-4000:]}")
            # ddp-run puts a worker's name before its lines.
            lines += [json.loads(line[line.index("{"):]) for line in out.splitlines() if '{"' in line]
        return lines
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def comma(values):
    return ",".join(str(value) for value in values)


def ours(ranks, sizes, seconds, ops=("all_reduce",), dtype="f32", memories=("registered", "private"), nodes=1, flags=(), env=None):
    """A contender: bench-collectives on so many nodes of this machine; {(op, dtype, memory, bytes): line}. flags, env: ddp-run's."""
    worker = [COLLECTIVES, "--op", comma(ops), "--dtype", dtype, "--memory", comma(memories), "--seconds", str(seconds),
              "--bytes", comma(sizes)]

    def run():
        share = ["--nproc-per-node", str(ranks // nodes), "--no-python", *worker]
        if nodes == 1:
            commands = [([harness.DDP_RUN, "--standalone", *share], {})]
        else:
            endpoint = f"127.0.0.1:{jobs.free_port()}"
            commands = [([harness.DDP_RUN, "--nnodes", str(nodes), "--node-rank", str(node), "--rdzv-id", "bench",
                          "--rdzv-endpoint", endpoint, *flags, *share], env or {}) for node in range(nodes)]
        lines = run_all(commands)
        return {(line["op"], line["dtype"], line["memory"], line["bytes"]): line for line in lines}
    return run


def mpi(program, ranks, sizes, seconds, options=(), env=None, ops=None):
    """A contender: the program under mpirun; {(op, "f32", "private", bytes): line}."""
    more = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
    head = [program, str(seconds)] + ([comma(ops)] if ops else [])
    command = [*harness.MPIRUN, *more, *options, "-np", str(ranks), *head, *map(str, sizes)]

    def run():
        return {(line.get("op", "all_reduce"), "f32", "private", line["bytes"]): line for line in run_all([(command, env or {})])}
    return run


def gloo(ranks, sizes, seconds, ops=("all_reduce",)):
    """A contender: c10d::ProcessGroupGloo from C++."""
    def run():
        with tempfile.TemporaryDirectory(prefix="bench-gloo.") as folder:
            command = [GLOO, os.path.join(folder, "store"), str(seconds), comma(ops), *map(str, sizes)]
            lines = run_all([(command, {"RANK": str(rank), "WORLD_SIZE": str(ranks)}) for rank in range(ranks)])
        return {(line["op"], "f32", "private", line["bytes"]): line for line in lines}
    return run


def python_pair(script, *arguments, env=None):
    """Runs two ranks of a script that asks torch.distributed for gloo over a store of rank 0's; the lines they printed."""
    # Debian's PyTorch 2 is built without libuv, and asks for it unless told otherwise.
    where = {**(env or {}), "USE_LIBUV": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "WORLD_SIZE": "2",
             "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [harness.PYTHON, *map(str, (script, *arguments))]
    return run_all([(command, {**where, "RANK": str(rank)}) for rank in range(2)])


def roof(ranks, sizes, seconds):
    """A contender: the kernel of the all-reduce without synchronisation."""
    command = [ROOF, "--threads", str(ranks), "--seconds", str(seconds), "--bytes", comma(sizes)]

    def run():
        return {("all_reduce", "f32", "private", line["bytes"]): line for line in run_all([(command, {})])}
    return run


def probe():
    return run_all([([ROOF, "--probe"], {})])[0]


def cpu_ticks():
    """User, nice, system and stolen ticks of the whole machine so far, and all ticks.

    Interrupts are left out: those of our own traffic would count as foreign.
    """
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return ticks[0] + ticks[1] + ticks[2] + ticks[7], sum(ticks)


def own_ticks():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * \
        os.sysconf("SC_CLK_TCK")


def change(trips):
    """By which factor these round trips differ at most."""
    return max(trips) / max(1, min(trips))


class Rounds:
    """The results of the contenders (name -> function returning {key: line}): results[name] has one entry for each kept round."""

    def __init__(self, title, contenders, rounds=None):
        self.title = title
        taken, foreign, trips = [], [], []
        before = probe()
        self.say("probe " + json.dumps(before))
        for number in range(rounds or ROUNDS):
            names = list(contenders)
            names = names[number % len(names):] + names[:number % len(names)]
            if number % 2:
                names.reverse()
            results, around = {}, {}
            busy, every, own = *cpu_ticks(), own_ticks()
            for name in names:
                results[name] = contenders[name]()
                after = probe()
                around[name] = (before["round_trip_ns"], after["round_trip_ns"])
                before = after
            now_busy, now_every = cpu_ticks()
            taken.append(results)
            trips.append(around)
            foreign.append(max(0, now_busy - busy - (own_ticks() - own)) / max(1, now_every - every))
            self.say(f"round {number}: foreign CPU {100 * foreign[-1]:.1f} %, round trips of " +
                     ", ".join(f"{name} {around[name][0]} {around[name][1]}" for name in contenders))
        order = sorted(range(len(taken)), key=lambda number: foreign[number])
        keep = [number for number in order if foreign[number] <= FOREIGN_LIMIT]
        keep = sorted(keep if len(keep) >= KEEP else order[:KEEP])
        disturbed = sum(foreign[number] > FOREIGN_LIMIT for number in keep)
        self.say(f"{len(taken) - len(keep)} of {len(taken)} rounds dropped, {disturbed} disturbed ones kept")
        self.results = {name: [taken[number][name] for number in keep] for name in contenders}
        self.trips = {name: [trips[number][name] for number in keep] for name in contenders}

    def comparable(self, mine, peer):
        """The kept rounds in which the cores were equally far apart for both contenders throughout; at least the KEEP best
        ones."""
        changes = [change((*ours, *theirs)) for ours, theirs in zip(self.trips[mine], self.trips[peer])]
        order = sorted(range(len(changes)), key=lambda number: changes[number])
        alike = [number for number in order if changes[number] <= MOVED_LIMIT]
        return sorted(alike if len(alike) >= KEEP else order[:KEEP])

    def say(self, text):
        print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    def times(self, name, key, statistic):
        return [result[key][statistic] for result in self.results[name]]

    def figure(self, figure_name, mine, peer, peer_name, goal, statistic="median_s"):
        """A figure of times. mine and peer: (contender, key). The ratio is peer over mine, the median over the rounds."""
        our_times = self.times(*mine, statistic)
        if peer is None:
            return {"figure": figure_name, "ours": round(statistics.median(our_times), 9), "peer": None, "peer_name": peer_name,
                    "ratio": None, "low": None, "unit": "s", "goal": None}
        peer_times = self.times(*peer, statistic)
        kept = self.comparable(mine[0], peer[0])
        our_times, peer_times = [our_times[number] for number in kept], [peer_times[number] for number in kept]
        ratios = [theirs / our for our, theirs in zip(our_times, peer_times)]
        return {"figure": figure_name, "ours": round(statistics.median(our_times), 9), "peer": round(statistics.median(peer_times), 9),
                "peer_name": peer_name, "ratio": round(statistics.median(ratios), 3), "low": round(lower_bound(ratios), 3),
                "rounds": len(ratios), "unit": "s", "goal": goal}


def lower_bound(ratios):
    """The lower end of the median's 95 % interval, by bootstrap over the rounds."""
    dice = random.Random(SEED)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[49]
