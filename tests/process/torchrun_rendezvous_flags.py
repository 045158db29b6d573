#!/usr/bin/env python3
"""Compares how ddp-run and this Debian's torchrun read the same values of --rdzv-conf, --rdzv-endpoint, --master-addr and the
related variables: torchrun_rendezvous_flags.py BIN_DIR. It calls torchrun's own functions (2.14.1's rendezvous/utils.py,
launcher/api.py), so that nothing is launched; ddp-run makes a dry run. Where ddp-run is stricter, DIFFERENCES says why; a listed
difference that does not occur is an error, too."""
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import torchrun  # noqa: E402

LONG_LABEL = "x" * 64
LONG_NAME = ".".join(["x" * 50] * 5)
CONFS = ["timeout=1, rank=0", " timeout = 1 ,rank=0 ", "", "  ", "timeout=1,timeout=2", "timeout=", "timeout", "timeout=1,", ",timeout=1", " =1",
         "timeout= ", "timeout='1'", 'timeout="1"', "timeout=x", "is_host=TRUE", "is_host=y", "is_host=F", "is_host=maybe", "is_host='1'"]
ENDPOINTS = ["h", " h:1\t", " [::1]:5 ", "[fd00::1]", "10.0.0.1:7", "node_1.some-where.org:7", "", " ", "h :1", "h: 1", "a b:1", "a~:1", "h/x",
             "h:", "h:70000", ":29400", "tcp://h:1", "a..b:1", ".a", f"{LONG_LABEL}:1", f"{LONG_NAME}:1", "-h:1", "10.0.0.256", "n\u00f6de:1"]
MASTERS = ["m", " m", "m ", "a b", "a..b", "a~"]
SHUTDOWNS = ["5", " 5", "x", "", "-1", "1.5"]

# (subject, value) -> why ddp-run refuses what torchrun takes.
IMPOSSIBLE = "no machine can have this name; torchrun asks for it until the join time-out"
DIFFERENCES = {
    ("endpoint", " "): "a script's empty variable, more likely than a wish for localhost",
    ("endpoint", "a..b:1"): IMPOSSIBLE,
    ("endpoint", ".a"): IMPOSSIBLE,
    ("endpoint", f"{LONG_LABEL}:1"): IMPOSSIBLE,
    ("endpoint", f"{LONG_NAME}:1"): IMPOSSIBLE,
    ("endpoint", "-h:1"): IMPOSSIBLE,
    ("endpoint", "10.0.0.256"): IMPOSSIBLE,
    ("endpoint", "n\u00f6de:1"): "C's resolver, which opens the store, knows such names by their xn-- spelling only",
    ("master", "a..b"): IMPOSSIBLE,
    ("shutdown", "-1"): "torchrun checks the flag and not the variable, and then gives workers no time at all",
}
# (subject, value) -> why ddp-run takes what torchrun refuses.
EXTENSIONS = {
    ("master", "m "): "torchrun takes blanks before a name and around an endpoint",
    ("shutdown", "1.5"): "all of ddp-run's times may have a fraction",
}

ASK = """
import json, os, sys
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

def conf(text):
    parameters = RendezvousParameters("c10d", "h", "j", 1, 1, **_parse_rendezvous_config(text))
    for key in ("timeout", "rank"):
        parameters.get_as_int(key)
    parameters.get_as_bool("is_host")

def shutdown(text):
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = text
    LaunchConfig(1, 1, 1)

ways = {"conf": conf, "endpoint": lambda text: parse_rendezvous_endpoint(text, 29400),
        "master": lambda text: parse_rendezvous_endpoint(f"{text}:29500", -1), "shutdown": shutdown}
taken = []
for subject, text in json.load(sys.stdin):
    try:
        ways[subject](text)
        taken.append(True)
    except Exception:
        taken.append(False)
print(json.dumps(taken))
"""


def ours(binaries, subject, text):
    """Whether ddp-run takes it, and what it says."""
    flags = {"conf": [f"--rdzv-conf={text}"], "endpoint": [f"--rdzv-endpoint={text}"], "master": [f"--master-addr={text}"], "shutdown": []}
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    if subject == "shutdown":
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = text
    done = subprocess.run([binaries / "ddp-run", "--dry-run", *flags[subject], "true"], env=environment, capture_output=True, text=True,
                          timeout=60)
    if done.returncode not in (0, 64):
        raise SystemExit(f"{subject} {text!r}: status {done.returncode}\n{done.stderr}")
    return done.returncode == 0, done.stderr


def main():
    binaries = Path(sys.argv[1]).resolve()
    if not torchrun.is_there():
        raise SystemExit("python3-torch is missing; scripts/setup installs it")
    wanted = [("conf", text) for text in CONFS] + [("endpoint", text) for text in ENDPOINTS] + [("master", text) for text in MASTERS]
    if torchrun.release() >= (2, 14):
        wanted += [("shutdown", text) for text in SHUTDOWNS]
    asked = subprocess.run([torchrun.PYTHON, "-c", ASK], input=json.dumps(wanted), capture_output=True, text=True, timeout=240, check=True,
                           env={**os.environ, "PYTHONPATH": ""})
    complaints = []
    for what, theirs in zip(wanted, json.loads(asked.stdout.splitlines()[-1])):
        taken, said = ours(binaries, *what)
        is_listed = what in (DIFFERENCES if theirs else EXTENSIONS)
        is_stale = what in (EXTENSIONS if theirs else DIFFERENCES)
        if is_stale or (taken != theirs) != is_listed:
            complaints.append(f"{what[0]} {what[1]!r}: taken by ddp-run: {taken}, by torchrun: {theirs}; {said}")
    print(f"{len(wanted)} values, {len(complaints)} differ otherwise than listed")
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
