#!/usr/bin/env python3
"""Runs every case of one Promela model: check_model.py MODEL.pml WORK_DIR [NUMBER...]

A model lists its cases in its comments, one per line:

  case: holds -DNAME...                      every state is visited, there is no error, and no statement is never executed
  case: fails "TEXT" -DNAME...               an error is found and its description contains TEXT
  full: ...                                  the same, with bounds that take long: only with DDP_TEST_FULL=1 (tests/README.md)

A search that ends before every state was visited (memory, depth, time) is a failure. After an unexpected error the steps
that lead to it are printed. NUMBER: only these cases, counted from 1, whether full or not.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

MEMORY_MIB = 900
SEARCH_LIMIT_S = 100  # A search takes a few seconds; this is for machines that are busy with other things.
DEPTH = 200_000
TRAIL_LINES = 80
CASE = re.compile(r"^[\s*]*(case|full): (holds|fails)\b(.*)$", re.M)


class Failure(Exception):
    pass


def run(command, work, limit=SEARCH_LIMIT_S):
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[0]} took longer than {limit} s")
    return done.returncode, done.stdout + done.stderr


def build(model, options, optimization, work):
    shutil.copy(model, work)  # Spin leaves its files next to it.
    code, text = run(["spin", "-a", *options, model.name], work)
    if code != 0 or not (work / "pan.c").exists() or "Error" in text:
        raise Failure(f"spin -a: {text}")
    defines = ["-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MIB}"]
    code, text = run(["gcc", optimization, "-w", *defines, "-o", "pan", "pan.c"], work)
    if code != 0:
        raise Failure(f"gcc: {text}")


def search(work):
    """What pan prints, the description of the error it found or None, and the number of states."""
    _, text = run(["./pan", "-b", f"-m{DEPTH}", "-w22"], work)
    text = re.sub(r"^Depth=.*\n", "", text, flags=re.M)
    found = re.search(r"^pan:\d+: (.*)$", text, re.M)
    states = re.search(r"^\s*(\d+) states, stored", text, re.M)
    counted = re.search(r"errors: (\d+)", text)
    if not states or not counted:
        raise Failure(f"pan did not come to an end:\n{text}")
    if (int(counted.group(1)) != 0) != (found is not None):
        raise Failure(f"pan contradicts itself:\n{text}")
    return text, found.group(1) if found else None, int(states.group(1))


def check_holds(text, error, work):
    if error is not None:
        _, trail = run(["./pan", "-r", "-b", f"-m{DEPTH}"], work)
        steps = "\n".join(trail.splitlines()[-TRAIL_LINES:])
        raise Failure(f"{error}\nthe last of the steps that lead to it:\n{steps}")
    for sign in ("Search not completed", "max search depth too small", "out of memory", "hash-compact", "Bit statespace"):
        if sign in text:
            raise Failure(f"the search was not exhaustive:\n{text}")
    idle = re.findall(r'^\s+\S+:\d+, state \d+, "(?!-end-)(.*)"$', text, re.M)
    if idle:
        raise Failure("statements that no run executes, so the model is not what it seems:\n" + "\n".join(idle))


def check(model, extent, kind, rest, work):
    words = shlex.split(rest)
    expected = words.pop(0) if kind == "fails" else None
    if any(not word.startswith("-D") for word in words) or (expected is not None and expected.startswith("-D")):
        raise Failure(f"not a case: {kind}{rest}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    started = time.monotonic()
    # Compiling takes longer than a search of up to a million states, and errors are found at once.
    build(model, words, "-O1" if extent == "full" else "-O0", work)
    built = time.monotonic()
    text, error, states = search(work)
    memory = re.search(r"([\d.]+)\s+total actual memory usage", text)
    if kind == "holds":
        check_holds(text, error, work)
    elif error is None:
        raise Failure(f'no error was found; one with "{expected}" was expected')
    elif expected not in error:
        raise Failure(f'the error found is "{error}", not one with "{expected}"')
    return (f"{states} states, {memory.group(1) if memory else '?'} MB, built in {built - started:.1f} s, "
            f"searched in {time.monotonic() - built:.1f} s" + (f": {error}" if error else ""))


def main():
    model, base = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            sys.exit(f"check_model: {tool} is not installed; run scripts/setup (Debian package {tool})")
    cases = CASE.findall(model.read_text())
    kinds = [kind for extent, kind, _ in cases if extent == "case"]
    if kinds.count("holds") < 1 or kinds.count("fails") < 2:
        sys.exit(f"check_model: {model.name} needs a case that holds and two that fail")
    full = os.environ.get("DDP_TEST_FULL") == "1"
    chosen = [int(number) for number in sys.argv[3:]] or [
        number for number, (extent, _, _) in enumerate(cases, 1) if full or extent == "case"]
    failed = 0
    for number in chosen:
        extent, kind, rest = cases[number - 1]
        try:
            outcome = "ok: " + check(model, extent, kind, rest, base / str(number))
        except Failure as failure:
            outcome, failed = f"FAILED: {failure}", failed + 1
        print(f"{number}. {kind}{rest}\n   {outcome}", flush=True)
    sys.exit(1 if failed else 0)


main()
