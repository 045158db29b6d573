#!/usr/bin/env python3
"""A node is lost before it has written its share of a checkpoint: rank 0 hears of it with the next round, and does not wait for the share.

usage: lost_share.py BIN_DIR
"""
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs  # noqa: E402

LIMIT_S = 240
BIN = Path(sys.argv[1]).resolve()
# Two shares of 2.5 MB, each of which takes more than a second.
TRAINING = ["--model", "mlp", "--data", "synthetic", "--train-samples", "16384", "--test-samples", "16", "--batch-size", "16",
            "--epochs", "1", "--checkpoint-every", "4", "--checkpoint-bandwidth", "2", "--threads", "1"]


def start(folder, port, rank):
    return jobs.Node([str(BIN / "ddp-run"), "--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job",
                      "--node-rank", str(rank), "--max-restarts", "3", str(BIN / "ddp-train"), *TRAINING, "--checkpoint-dir", str(folder / "run")],
                     folder / f"node{rank}.log")


def parts(run):
    return [path.name for path in run.glob(".tmp-step-*/part-*.json")]


def is_stopped_in_its_share(node, run):
    """Whether this node's writer stands still before it has written its share. One that has written it goes on."""
    for writer in (pid for pid in node.processes() if jobs.program_of(pid) == jobs.WRITER):
        os.kill(writer, signal.SIGSTOP)
        if any(run.glob(".tmp-step-*")) and "part-00001.json" not in parts(run):
            return True
        os.kill(writer, signal.SIGCONT)
    return False


def main():
    with tempfile.TemporaryDirectory(prefix="lost_share.") as name:
        folder, port = Path(name), jobs.free_port()
        nodes = [start(folder, port, rank) for rank in (0, 1)]
        try:
            jobs.wait_until(lambda: is_stopped_in_its_share(nodes[1], folder / "run"), LIMIT_S, "a save")
            jobs.wait_until(lambda: parts(folder / "run") == ["part-00000.json"], LIMIT_S, "the share of rank 0")
            nodes[1].kill()
            jobs.wait_until(lambda: "was not finished: " in nodes[0].tail(1000), LIMIT_S, "the end of the save")
            said = nodes[0].tail(1000)
            assert "the nodes of 1 of 2 ranks were lost before their shares were written (rank 1)" in said, said
        finally:
            for node in nodes:
                node.kill()


if __name__ == "__main__":
    main()
