"""What the questions share: where the programs are, what machine this is, alternating runs, figures."""
import glob
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
MPIRUN = ["mpirun", "--allow-run-as-root"]


def blas():
    """The BLAS that the dynamic linker takes."""
    found = glob.glob("/usr/lib/*/libblas.so.3")
    return os.path.realpath(found[0]) if found else "none"


def machine():
    return f"{len(os.sched_getaffinity(0))} cores, BLAS {blas()}, load {os.getloadavg()[0]:.2f}"


def build():
    """Builds what scripts/build leaves out since no test starts it (bench/CMakeLists.txt), where it is missing."""
    programs = ["bench-recorder", "bench-store"]
    if (BIN / "bench-ddp").exists():
        programs += ["bench-hooks", "bench-recovery", "bench-checkpoint", "bench-zero", "bench-dp", "bench-diloco"]
    if (BIN.parent / "build.ninja").exists() and not all((BIN / program).exists() for program in programs):
        print("bench: building the programs that only bench/run starts", file=sys.stderr)
        if subprocess.run(["cmake", "--build", BIN.parent, "--target", "bench"], stdout=sys.stderr).returncode != 0:
            sys.exit("bench: they cannot be built")


def require(*programs):
    for program in programs:
        if not shutil.which(program):
            sys.exit(f"bench: {program} is missing; scripts/build builds ours, scripts/setup --bench installs the peers, "
                     "PEERS names the folder of the peers' scripts")


def seconds(command, expect=0, **options):
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)
    took = time.perf_counter() - begin
    if done.returncode != expect:
        sys.exit(f"bench: {' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return took


def alternate(contenders, rounds, warmup=1):
    """Runs each contender (name -> function giving a number) once a round, in turning order; name -> median."""
    names = list(contenders)
    taken = {name: [] for name in names}
    for number in range(-warmup, rounds):
        order = names if number % 2 == 0 else names[::-1]
        for name in order:
            value = contenders[name]()
            if number >= 0:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


def figure(name, ours, peer, peer_name, unit, goal, lower_is_better=True, digits=4):
    ratio = peer / ours if lower_is_better else ours / peer
    return {"figure": name, "ours": round(ours, digits), "peer": round(peer, digits), "peer_name": peer_name,
            "ratio": round(ratio, 4), "unit": unit, "goal": goal}
