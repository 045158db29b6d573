#!/usr/bin/env python3
"""--logical-world-size while nodes leave and join: the bytes of an undisturbed run, whatever the number of workers.

Four logical ranks with dropout and batch statistics. A node with one worker begins; two more nodes join, one is lost,
and then a worker of the other is killed.

usage: logical_elastic.py BIN_DIR
"""
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

bin_dir = Path(sys.argv[1])
LIMIT_S = 240
EPOCHS, STEPS = 6, 6 * 100
TRAIN = [str(bin_dir / "ddp-train"), "--logical-world-size", "4", "--model", "mnist", "--dropout", "0.3", "--momentum", "0.9",
         "--train-samples", "1600", "--test-samples", "50", "--batch-size", "4", "--epochs", str(EPOCHS), "--log-every", "1"]
base = Path(tempfile.mkdtemp(prefix="logical_elastic."))
LAUNCH = [str(bin_dir / "ddp-run"), "--nnodes", "1:3", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{jobs.free_port()}",
          "--rdzv-id", base.name, "--last-call", "0.2", "--max-restarts", "10"]
nodes = []  # That are not lost.


def start_node(folder):
    nodes.append(jobs.Node([*LAUNCH, *TRAIN, "--summary", str(folder / "summary.json")], folder / f"node{len(nodes)}.log"))
    return nodes[-1]


def steps_done():
    found = [0]
    for node in nodes:
        found += [int(step) for step in re.findall(rf"step (\d+)/{STEPS}", node.log_path.read_text(errors="replace"))]
    return max(found)


def workers():
    return [pid for node in nodes for pid in node.workers() if jobs.program_of(pid) == "ddp-train"]


def more_steps(count, what):
    jobs.wait_while_running(nodes, lambda: len(workers()) == count, LIMIT_S, f"{count} worker(s), {what}")
    before = steps_done()
    jobs.wait_while_running(nodes, lambda: steps_done() > before + 10, LIMIT_S, f"steps after step {before}, {what}")
    print(f"step {steps_done()}: {what}, {count} worker(s)", flush=True)


def disturbed(attempt):
    nodes.clear()
    folder = base / f"attempt{attempt}"
    folder.mkdir()
    start_node(folder)
    more_steps(1, "one node")
    lost, other = start_node(folder), start_node(folder)
    more_steps(3, "two nodes more")
    lost.kill()
    nodes.remove(lost)
    more_steps(2, "a node is lost")
    killed = other.workers()
    if not killed or not jobs.send(killed[0], signal.SIGKILL):
        raise jobs.TooLate("the last worker had ended before it was killed")
    for node in nodes:
        if node.wait(LIMIT_S) != 0:
            sys.exit(f"logical_elastic: ddp-run ended with {node.process.returncode}\n{node.tail()}")
    return jobs.summary(folder / "summary.json")


def main():
    expected = base / "expected.json"
    undisturbed = jobs.Node([*TRAIN, "--summary", str(expected)], base / "undisturbed.log")
    if undisturbed.wait(LIMIT_S) != 0:
        sys.exit(undisturbed.tail())
    expected = jobs.summary(expected)

    result = jobs.in_time(disturbed)
    print({member: result[member] for member in ("rounds", "restarts", "world_size", "steps", "weights_sha256", "train_loss")})
    for member in ("weights_sha256", "train_loss", "test_accuracy", "steps"):
        assert result[member] == expected[member], f"{member}: {result[member]}, undisturbed {expected[member]}"
    assert result["rounds"] >= 4 and result["world_size"] == 2, result
    shutil.rmtree(base)


try:
    main()
except BaseException:
    for node in nodes:
        print(f"--- {node.log_path}\n{node.tail()}")
    raise
finally:
    for node in nodes:
        node.kill()
