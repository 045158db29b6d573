#!/usr/bin/env python3
"""`ddp-run demo`: a training that loses a worker ends with the same bytes, and nothing of the demo is left.

usage: demo.py BIN_DIR
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

bin_dir = Path(sys.argv[1])


def run(command, folder):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=300,
                          env={**os.environ, "TMPDIR": str(folder)})


def expect(condition, text, output):
    if not condition:
        sys.exit(f"demo: {text}:\n{output}")


def ends_with_the_same_bytes(folder):
    done = run([bin_dir / "ddp-run", "demo"], folder)
    expect(done.returncode == 0, f"status {done.returncode}", done.stdout)
    digests = re.findall(r"^(\w+): .* weights_sha256 ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    expect([name for name, _ in digests] == ["undisturbed", "killed"], "two results were expected", done.stdout)
    expect(len({digest for _, digest in digests}) == 1, "the results differ", done.stdout)
    expect(re.search(r"^killed: .* restarts 1,", done.stdout, re.MULTILINE), "no worker was killed", done.stdout)
    expect(re.search(r"http://127\.0\.0\.1:\d+/", done.stdout), "the page's address is missing", done.stdout)
    expect(not list(folder.iterdir()), f"{list(folder.iterdir())} is left", done.stdout)


def interrupted(folder):
    demo = subprocess.Popen([bin_dir / "ddp-run", "demo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                            text=True, env={**os.environ, "TMPDIR": str(folder)})
    said = ""
    for line in demo.stdout:  # The second training writes a checkpoint every 20 steps.
        said += line
        if line.startswith("== 2"):
            break
    demo.send_signal(signal.SIGINT)
    said += demo.communicate(timeout=300)[0]
    expect(not list(folder.iterdir()), f"{list(folder.iterdir())} is left", said)
    if demo.returncode == 0:
        raise jobs.TooLate("the demo was over before SIGINT came")
    expect(demo.returncode == 130, f"status {demo.returncode} after SIGINT", said)


def leaves_nothing_when_it_is_interrupted(folder):
    jobs.in_time(lambda _: interrupted(folder))


def says_what_it_is(folder):
    done = run([bin_dir / "ddp-run", "demo", "--help"], folder)
    expect(done.returncode == 0 and "usage: ddp-run demo" in done.stdout, "--help", done.stdout)
    done = run([bin_dir / "ddp-run", "demo", "faster"], folder)
    expect(done.returncode == 2 and "usage: ddp-run demo" in done.stdout, "an argument that it does not have", done.stdout)


def needs_ddp_train(folder):
    """As after installing the package ddp-run alone."""
    for name in ("ddp-run", "ddp-demo"):
        shutil.copy(bin_dir / name, folder / name)
    done = run([folder / "ddp-run", "demo"], folder)
    expect(done.returncode == 127 and "install the package ddp-train" in done.stdout, "without ddp-train", done.stdout)


for check in (ends_with_the_same_bytes, leaves_nothing_when_it_is_interrupted, says_what_it_is, needs_ddp_train):
    with tempfile.TemporaryDirectory(prefix="demo.") as scratch:
        check(Path(scratch))
