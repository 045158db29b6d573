#!/usr/bin/env python3
"""A training that waits for a slow disk does not count as hung, although each save takes longer than --progress-timeout.

usage: slow_checkpoint.py BIN_DIR
"""
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.argv[1])
TIMEOUT_S = 10  # On a loaded machine, the exit handlers of a process take seconds; they are no progress, either.
# About 5 MB, of which each of two workers writes a half at 0.2 MB/s, twice.
TRAINING = ["--model", "mlp", "--data", "synthetic", "--train-samples", "256", "--test-samples", "16", "--batch-size", "16",
            "--epochs", "1", "--checkpoint-every", "4", "--checkpoint-bandwidth", "0.2", "--threads", "1"]

with tempfile.TemporaryDirectory(prefix="slow_checkpoint.") as folder:
    begin = time.monotonic()
    done = subprocess.run([BIN / "ddp-run", "--standalone", "--nproc-per-node", "2", "--progress-timeout", str(TIMEOUT_S),
                           BIN / "ddp-train", *TRAINING, "--checkpoint-dir", f"{folder}/run"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, text=True)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        sys.exit(f"the training ended with {done.returncode}:\n{done.stdout}")
    if seconds < 2 * TIMEOUT_S:
        sys.exit(f"the training took {seconds:.1f} s: nobody had to wait")
    print(f"{seconds:.1f} s")
