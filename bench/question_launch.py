"""How long does a launch of workers that do nothing take, from the command to its end, and how much memory does it use?

Two and 256 workers on one node, and 64 nodes of one worker on this machine: `ddp-run --hosts` and mpirun with 64 hosts, both
with a launch agent that runs the command here instead of on the host, and with an /etc/hosts of their own that has the names
(mpirun looks up each name, and waits seconds for a name server that does not answer). Memory is the proportional share (Pss) of all
processes of the launch except the workers, while the workers (`sleep`) run. BENCH_PARTS=two,many,nodes chooses.

It needs root. Debian's mpirun hangs in about one of three launches of 256 workers that end at once; such a launch is ended and
repeated.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import jobs

WORKERS = 256
NODES = 64
LIMIT_S = 120
HANG_S, HANGS_MAX = 10, 20
PARTS = os.environ.get("BENCH_PARTS", "two,many,nodes").split(",")
# mpirun behaves differently on machines with few cores; that is not the question here.
MANY = ["--oversubscribe"]
WAIT = ["sleep", "600"]


def ours(nproc, program):
    return [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(nproc), "--no-python", *program]


def mpirun(nproc, program):
    return [*harness.MPIRUN, *MANY, "-np", str(nproc), *program]


def agent_script(folder):
    """The stand-in for ssh of both launchers. It runs what follows the host's name on this machine under that name (mpirun's
    daemons insist on the name), with a shell, because Open MPI 5 puts assignments before the command."""
    path = os.path.join(folder, "agent")
    with open(path, "w") as file:
        file.write('#!/bin/sh\nhost=$1\nshift\nexec unshare --uts sh -c "hostname $host; $*"\n')
    os.chmod(path, 0o755)
    return path


def with_names(folder):
    """Prefix of a command that makes the hosts' names known to it. The addresses belong to no machine, so that mpirun takes the
    hosts for other machines."""
    names, script = os.path.join(folder, "hosts"), os.path.join(folder, "with_names")
    with open(names, "w") as file:
        file.write(Path("/etc/hosts").read_text() + "".join(f"10.250.0.{i + 1} n{i}\n" for i in range(NODES)))
    with open(script, "w") as file:
        file.write(f'#!/bin/sh\nmount --bind {names} /etc/hosts\nexec "$@"\n')
    os.chmod(script, 0o755)
    return ["unshare", "--mount", script]


def ours_nodes(agent, program):
    return [harness.DDP_RUN, "--hosts", ",".join(f"n{i}" for i in range(NODES)), "--launch-agent", agent, "--no-python", *program]


def mpirun_nodes(agent, program):
    hosts = ",".join(f"n{i}:1" for i in range(NODES))
    return [*harness.MPIRUN, "--mca", "plm_rsh_agent", agent, "--host", hosts, "-np", str(NODES), *program]


def pss_mb(pid):
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0


def running(program):
    """Number of processes of the launch that run it. Some daemons of mpirun have left it and are this process's children (guard.py)."""
    return sum(jobs.program_of(pid) == program for pid in jobs.descendants(os.getpid()))


def held_mb(command, workers):
    """Memory of the launch once so many workers (`sleep`) run, without the shells of the stand-in for ssh."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        jobs.wait_until(lambda: running("sleep") == workers, LIMIT_S, f"{workers} workers of {' '.join(command)}")
        time.sleep(0.5)
        return sum(pss_mb(pid) for pid in jobs.descendants(os.getpid()) if jobs.program_of(pid) not in ("sleep", "dash"))
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        jobs.wait_until(lambda: running("sleep") == 0, LIMIT_S, "the end of the workers")


def until_it_ends(command):
    """Seconds of a launch by mpirun that ends. Open MPI 4.1 hangs in some launches of 256 workers that end at once."""
    for _ in range(HANGS_MAX):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        begin = time.perf_counter()
        try:
            process.wait(HANG_S)
            if process.returncode != 0:
                sys.exit(f"bench: {' '.join(command)} ended with {process.returncode}")
            return time.perf_counter() - begin
        except subprocess.TimeoutExpired:
            print(f"launch: {command[0]} hung for {HANG_S} s; trying again", file=sys.stderr)
            process.terminate()
            process.wait(LIMIT_S)
    sys.exit(f"bench: {' '.join(command)} hung {HANGS_MAX} times")


def against(name, mine, peer, peer_name, rounds, goal, measure=until_it_ends):
    medians = harness.alternate({"ours": lambda: harness.seconds(mine), "peer": lambda: measure(peer)}, rounds=rounds)
    return harness.figure(name, medians["ours"], medians["peer"], peer_name, "s", goal)


def memory(name, mine, peer, peer_name, workers):
    medians = harness.alternate({"ours": lambda: held_mb(mine, workers), "peer": lambda: held_mb(peer, workers)}, rounds=3,
                                warmup=0)
    return harness.figure(name, medians["ours"], medians["peer"], peer_name, "MB", 1.0, digits=1)


def two():
    yield against("two workers, true", ours(2, ["true"]), mpirun(2, ["true"]), "mpirun", 21, 1.0)
    torchrun = [*harness.TORCHRUN, "--standalone", "--nproc_per_node", "2", "--no_python", "true"]
    yield against("two workers, true", ours(2, ["true"]), torchrun, "torchrun", 5, 30, harness.seconds)


def many():
    yield against(f"{WORKERS} workers, true", ours(WORKERS, ["true"]), mpirun(WORKERS, ["true"]), "mpirun", 7, 1.0)
    yield memory(f"{WORKERS} workers, memory of the launcher", ours(WORKERS, WAIT), mpirun(WORKERS, WAIT), "mpirun", WORKERS)


def nodes():
    with tempfile.TemporaryDirectory(prefix="bench-launch.") as folder:
        if os.geteuid() != 0:
            sys.exit("bench: BENCH_PARTS=nodes gives processes other host names, which only root can; choose two,many or be root")
        agent, prefix, peer_name = agent_script(folder), with_names(folder), "mpirun, a daemon a node"
        ends, waits = ([[*prefix, *make(agent, program)] for make in (ours_nodes, mpirun_nodes)] for program in (["true"], WAIT))
        yield against(f"{NODES} nodes of one worker, true", *ends, peer_name, 7, 1.0)
        yield memory(f"{NODES} nodes of one worker, memory of the launchers", *waits, peer_name, NODES)


def figures():
    harness.require(harness.DDP_RUN, "mpirun", harness.TORCHRUN[0])
    for part, ask in (("two", two), ("many", many), ("nodes", nodes)):
        if part in PARTS:
            yield from ask()
