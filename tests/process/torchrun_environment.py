#!/usr/bin/env python3
"""The environment of workers, variable by variable, under ddp-run and under torchrun, for the same command lines:
torchrun_environment.py BIN_DIR. The peer is the torchrun of this Debian (1.13.1, 2.6.0, 2.14.1) with one bug fixed
(tests/support/torchrun.py). DIFFERENCES lists every difference with its reason; a listed one that does not occur is an error, too."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import torchrun  # noqa: E402
from jobs import free_port  # noqa: E402

DUMP = """
import json, os, sys
path = os.path.join(os.environ["OUT"], os.environ["RANK"] + ".json")
with open(path + ".new", "w") as out:
    json.dump({"environment": dict(os.environ), "argv": sys.argv[1:]}, out)
os.rename(path + ".new", path)
"""

# variable -> (reason, what ours is, what torchrun's is), each a pattern, or ABSENT; and from which release on they are equal.
ABSENT = ""
DIFFERENCES = {
    "MASTER_ADDR": ("ours is the numeric address of the coordinator, so that no name service is asked", r"127\.0\.0\.1", r".+"),
    "MASTER_PORT": ("ours is the rendezvous' own port, which is open all the time; 1.13 looks for a free one", r"\d+", r"\d+"),
    "OMP_NUM_THREADS": ("each worker's share of the usable cores; torchrun's is 1, and only where there are several", r"\d+", r"1?"),
    "TORCHELASTIC_ERROR_FILE": ("each launcher has its own folders", r"/.+error\.json", r"/.+error\.json"),
    "TORCHELASTIC_RUN_ID": ("random where none is given", r"\w+", r"[\w-]+"),
    # Where the workers' PyTorch is built without libuv, ours has rank 0 make the store; torchrun's workers fail.
    "TORCHELASTIC_USE_AGENT_STORE": ("1.13 and what has no libuv use rank 0's store", r"True|False", r"True|False"),
    "DDP_STORE_ADDR": ("where libddp finds the rendezvous' store then", r"127\.0\.0\.1", ABSENT),
    "DDP_STORE_PORT": ("likewise", r"\d+", ABSENT),
    "USE_LIBUV": ("PyTorch would ask for it by default", r"0", ABSENT),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("the newer name of NCCL_ASYNC_ERROR_HANDLING", r"1", ABSENT, (2, 2)),
    "NCCL_ASYNC_ERROR_HANDLING": ("newer releases warn of it and set the newer name alone", ABSENT, r"1", (2, 2)),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": ("newer releases set it", r"SIG\w+(,SIG\w+)*", ABSENT, (2, 14)),
    "TORCHINDUCTOR_CACHE_DIR": ("torchrun imports all of torch to warn of a signal, which sets it", ABSENT, r".+torchinductor.+"),
    "DDP_COORDINATOR_ADDR": ("the way to it shows which address of the machine other nodes can reach", r"127\.0\.0\.1", ABSENT),
    "DDP_COORDINATOR_PORT": ("where its status page is, too", r"\d+", ABSENT),
    "DDP_CONTROL_FD": ("libddp's channel to the agent", r"\d+", ABSENT),
    "DDP_NODE_ID": ("libddp's name of the node", r"\w+", ABSENT),
    "DDP_ROUND": ("the number of the round", r"0", ABSENT),
    "DDP_ROUND_REASON": ("why the round began", r"first round", ABSENT),
    "DDP_SHM_FD": ("shared memory of the node's workers", r"\d+", ABSENT),
    "DDP_SNAPSHOTS": ("how many checkpoints the agent takes at once; none without ddp-checkpoint", r"\d*", ABSENT),
}
# Equal by chance, or on some machines.
MAY_BE_EQUAL = {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "DDP_SNAPSHOTS",
                "TORCHELASTIC_USE_AGENT_STORE", "DDP_STORE_ADDR", "DDP_STORE_PORT", "USE_LIBUV"}


def listed(release):
    return {name: row[:3] for name, row in DIFFERENCES.items() if len(row) == 3 or release < row[3]}


def cases(script, release):
    """Flags and program of each command line; {port} is a free port. The numbers of variables that are equal differ."""
    python = ["--no_python", "/usr/bin/python3", script, "x"]
    yield "standalone", ["--standalone", "--nproc_per_node", "2", *python]
    yield "static", ["--nnodes=1", "--node_rank=0", "--nproc_per_node=2", "--master_addr=127.0.0.1", "--master_port={port}", *python]
    yield "c10d", ["--nnodes=1:1", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=job7",
                   "--max_restarts=2", "--role=trainer", *python]
    yield "script", ["--nproc_per_node=1", "--rdzv_id=job8", "--master_port={port}", script, "x", "--y=1"]
    if release >= (2, 14):
        # Names that no signal has are told and left out, but not here.
        yield "signals", ["--standalone", "--signals_to_handle", "SIGTERM, SIGNONE,SIGUSR2", *python]
    yield "module", ["--standalone", "-m", Path(script).stem, "x"]


def run(launcher, flags, more):
    """The environments and arguments of the workers, by rank."""
    with tempfile.TemporaryDirectory() as out:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": out, "LC_ALL": "C.UTF-8", "OUT": out,
            "TMPDIR": out, "PYTHONPATH": more, "PYTHON_EXEC": "/usr/bin/python3", "RANK": "99", "MINE": "kept",
        }
        done = subprocess.run([*launcher, *flags], env=environment, cwd=out, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            raise SystemExit(f"{launcher[0]} {flags}: status {done.returncode}\n{done.stdout}{done.stderr}")
        workers = {}
        for path in Path(out).glob("*.json"):
            workers[int(path.stem)] = json.loads(path.read_text())
        text = json.dumps(workers)
        return json.loads(text.replace(out, "/OUT"))


def differences(name, known, ours, theirs):
    """Complaints about what differs and is not listed, and the names of what differs."""
    seen = set()
    for variable in sorted(set(ours) | set(theirs)):
        mine, other = ours.get(variable), theirs.get(variable)
        if mine == other:
            continue
        seen.add(variable)
        if variable not in known:
            yield f"{name}: {variable} is {mine!r}, torchrun's {other!r}", None
            continue
        for whose, value, pattern in (("ours", mine, known[variable][1]), ("torchrun's", other, known[variable][2])):
            if not re.fullmatch(pattern, value or ""):
                yield f"{name}: {variable}: {whose} is {value!r}, which should be {pattern}", None
    for variable in seen:
        yield None, variable


def main():
    binaries = Path(sys.argv[1]).resolve()
    if not torchrun.is_there():
        raise SystemExit("python3-torch is missing; scripts/setup installs it")
    release = torchrun.release()
    known = listed(release)
    complaints, occurred = [], set()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "dump_environment.py"
        script.write_text(DUMP)
        for name, line in cases(str(script), release):
            results = []
            for launcher in ([str(binaries / "ddp-run")], torchrun.COMMAND):
                flags = [word.replace("{port}", str(free_port())) for word in line]
                results.append(run(launcher, flags, folder))
            ours, theirs = results
            if ours.keys() != theirs.keys() or not ours:
                complaints.append(f"{name}: our ranks are {sorted(ours)}, torchrun's {sorted(theirs)}")
                continue
            for rank in sorted(ours):
                if ours[rank]["argv"] != theirs[rank]["argv"]:
                    complaints.append(f"{name}: our arguments are {ours[rank]['argv']}, torchrun's {theirs[rank]['argv']}")
                for complaint, variable in differences(f"{name}, rank {rank}", known, ours[rank]["environment"], theirs[rank]["environment"]):
                    complaints += [complaint] if complaint else []
                    occurred |= {variable} if variable else set()
            print(f"{name}: {len(ours)} workers, {len(ours['0']['environment'])} variables")
    for variable in sorted(set(known) - occurred - MAY_BE_EQUAL):
        complaints.append(f"{variable}: listed as a difference, but the two are the same")
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
