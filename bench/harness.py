"""Shared by the questions: paths of programs, description of the machine, alternating runs, figures."""
import functools
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "release" / "bin"))
PEERS = Path(os.environ.get("PEERS", ROOT.parent / "shared" / "peers"))
DDP_RUN = str(BIN / "ddp-run")
TORCHRUN = [str(PEERS / "torchrun"), "--monitor_interval", "0.1"]
PYTHON = "/usr/bin/python3"
MPIRUN = ["mpirun", "--allow-run-as-root"]


def blas():
    """The BLAS that the dynamic linker loads."""
    found = glob.glob("/usr/lib/*/libblas.so.3")
    return os.path.realpath(found[0]) if found else "none"


def machine():
    return f"{len(os.sched_getaffinity(0))} cores, BLAS {blas()}, load {os.getloadavg()[0]:.2f}"


def first_line(command):
    """The first line that the command prints; empty if it cannot be run."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""


# Importing torch would take a second or more.
TORCH_VERSION = """
import os, runpy
from importlib.util import find_spec
print(runpy.run_path(os.path.join(os.path.dirname(find_spec("torch").origin), "version.py"))["__version__"])
"""


@functools.cache
def pytorch_version():
    """Version of PyTorch in the Python that runs the peers' scripts."""
    return first_line([PYTHON, "-c", TORCH_VERSION]) or "none"


def peers():
    """Versions of the peers, and of the LibTorch that our programs and the C++ peers are linked with."""
    package = ["dpkg-query", "-W", "-f=${Version}"]
    found = {
        "PyTorch": pytorch_version(),
        "LibTorch": first_line([*package, "libtorch-dev"]),
        "gloo": first_line([*package, "libgloo-dev"]),
        "Open MPI": first_line(["mpirun", "--version"]).rpartition(" ")[2],
        "redis": first_line([*package, "redis-server"]),
    }
    return ", ".join(f"{name} {version or 'none'}" for name, version in found.items())


def build():
    """Builds the programs that only bench/run starts (bench/CMakeLists.txt). Configures first, to find newly installed peers."""
    folder = BIN.parent
    if not (folder / "CMakeCache.txt").exists():
        return
    for step in (["cmake", "--log-level=WARNING", folder], ["cmake", "--build", folder, "--target", "bench"]):
        if subprocess.run(step, stdout=sys.stderr).returncode != 0:
            sys.exit(f"bench: {' '.join(map(str, step))} failed")


def require(*programs):
    for program in programs:
        if not shutil.which(program):
            sys.exit(f"bench: {program} is missing; scripts/build builds our programs, scripts/setup --bench installs the peers, "
                     "and PEERS names the folder of the peers' scripts")


def seconds(command, expect=0, **options):
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)
    took = time.perf_counter() - begin
    if done.returncode != expect:
        sys.exit(f"bench: {' '.join(command)} exited with status {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return took


def alternate(contenders, rounds, warmup=1):
    """Runs each contender (name -> function returning a number) once a round, in alternating order; returns name -> median."""
    names = list(contenders)
    taken = {name: [] for name in names}
    for number in range(-warmup, rounds):
        order = names if number % 2 == 0 else names[::-1]
        for name in order:
            value = contenders[name]()
            if number >= 0:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


def plot(kind, path, lines):
    """Draws the figures in a process of its own, because this interpreter may be another one than that which has matplotlib."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if subprocess.run([PYTHON, str(ROOT / "bench" / "plot.py"), kind, str(path)], input=text, text=True).returncode != 0:
        sys.exit(f"bench: {path} cannot be drawn; scripts/setup --bench installs python3-matplotlib")


def figure(name, ours, peer, peer_name, unit, goal, lower_is_better=True, digits=4):
    ratio = peer / ours if lower_is_better else ours / peer
    return {"figure": name, "ours": round(ours, digits), "peer": round(peer, digits), "peer_name": peer_name,
            "ratio": round(ratio, 4), "unit": unit, "goal": goal}
