#!/usr/bin/env python3
"""Checkpoints of earlier releases (kept_checkpoints/RELEASE, never changed) are read by this one: verified, exported to the same bytes,
and trained on. Each was written by `ddp-train --model toy --train-samples 64 --test-samples 0 --batch-size 4 --epochs 1` on two workers.

usage: kept_checkpoints.py BIN_DIR
"""
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from commands import output_of  # noqa: E402

bin_dir = Path(sys.argv[1])
kept = Path(__file__).with_name("kept_checkpoints")


def run(*command):
    return output_of(*command, limit_s=120)


def expect(condition, text):
    if not condition:
        sys.exit(f"kept_checkpoints: {text}")


def is_read(release):
    with tempfile.TemporaryDirectory(prefix="kept.") as scratch:
        folder = Path(scratch) / "checkpoints"
        shutil.copytree(release, folder)
        step = max(folder.glob("step-*"))
        expect(": good, " in run(bin_dir / "ddp-checkpoint", "verify", step), f"{release}: verify")
        exported = Path(scratch) / "weights.safetensors"
        run(bin_dir / "ddp-checkpoint", "export", step, exported)
        expect(hashlib.sha256(exported.read_bytes()).hexdigest() == (release / "weights.sha256").read_text().strip(), f"{release}: other weights")
        summary = Path(scratch) / "summary.json"
        run(bin_dir / "ddp-run", "--standalone", "--nproc-per-node", "2", bin_dir / "ddp-train", "--model", "toy", "--train-samples", "64",
            "--test-samples", "0", "--batch-size", "4", "--epochs", "2", "--checkpoint-dir", folder, "--summary", summary)
        result = json.loads(summary.read_text())
        expect((result["resumed_from_step"], result["steps"]) == (8, 16), f"{release}: {result}")


releases = sorted(kept.iterdir())
current = run(bin_dir / "ddp-run", "--version").split()[1]
expect(current in [release.name for release in releases], f"there is no checkpoint of this release, {current}; add one for the next")
for each in releases:
    is_read(each)
