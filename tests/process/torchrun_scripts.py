#!/usr/bin/env python3
"""Scripts that were written for torchrun (torchrun_scripts/) run unchanged under ddp-run, on one node and on two, with the same
results as under torch's own torchrun.

usage: torchrun_scripts.py BIN_DIR

Skips (status 77) without a Python that has torch.
"""
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

SKIPPED = 77
LIMIT_S = 240
SCRIPTS = Path(__file__).resolve().parent / "torchrun_scripts"


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def size_flags(nodes, workers):
    if nodes == 1:
        return ["--standalone", "--nproc_per_node", str(workers)]
    return ["--nnodes", str(nodes), "--nproc_per_node", str(workers), "--rdzv_backend", "c10d", "--rdzv_id", "a-job",
            "--rdzv_endpoint", f"127.0.0.1:{jobs.free_port()}"]


# The peer is mended where Debian's PyTorch lacks libuv, its workers are not: their rank 0 makes the store.
PEER_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "USE_LIBUV": "0"}


def run(launcher, nodes, workers, *script):
    """The same command on all nodes, with so many workers on each. (statuses, all output)"""
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, *size_flags(nodes, workers), str(SCRIPTS / script[0]), *script[1:]]
        environment = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin", **(PEER_ENVIRONMENT if launcher == torchrun.COMMAND else {})}
        started = [jobs.Node(command, Path(folder) / f"{i}.log", environment)
                   for i in range(nodes)]
        try:
            statuses = [node.wait(LIMIT_S) for node in started]
        finally:
            for node in started:
                if node.process.poll() is None:
                    node.kill()
        return statuses, "".join(node.log_path.read_text(errors="replace") for node in started)


def ranks(text, world, pattern):
    found = sorted(re.findall(rf"rank (\d) of {world} has {pattern}\.", text))
    check([line[0] for line in found] == [str(rank) for rank in range(world)], f"not all ranks:\n{text}")
    return found


def computes_the_same(ddp_run, script, arguments=(), pattern="([0-9a-f]{64})", sizes=((1, 2), (2, 1))):
    """Sizes: nodes, and workers on each."""
    for nodes, workers in sizes:
        results = {}
        for name, launcher in (("ddp-run", ddp_run), ("torchrun", torchrun.COMMAND)):
            statuses, text = run(launcher, nodes, workers, script, *arguments)
            check(statuses == [0] * nodes, f"{name}, {nodes} nodes, {script}: {statuses}\n{text}")
            results[name] = ranks(text, nodes * workers, pattern)
        check(results["ddp-run"] == results["torchrun"], f"{script}, {nodes} nodes: {results}")
        check(len({line[1] for line in results["ddp-run"]}) == 1, f"ranks differ: {results}")
        print(f"{script}, {nodes} nodes of {workers} workers: {results['ddp-run'][0][1][:16]}... under both", flush=True)


def the_exception_is_in_the_report(ddp_run):
    for nodes, workers in ((1, 2), (2, 1)):
        last = nodes * workers - 1
        statuses, text = run(ddp_run, nodes, workers, "recorded.py")
        check(statuses == [1] * nodes, f"{statuses}\n{text}")
        check(f"ValueError: batch 17 of rank {last} holds no sample" in text, text)
        check(re.search(rf"\brank {last}\b", text), f"the report does not name rank {last}:\n{text}")
        print(f"recorded.py, {nodes} nodes: the report has the exception of rank {last}", flush=True)


def main():
    if not torchrun.is_there():
        print(f"SKIPPED: {torchrun.PYTHON} has no torch (package python3-torch)")
        return SKIPPED
    ddp_run = [str(Path(sys.argv[1]).resolve() / "ddp-run")]
    computes_the_same(ddp_run, "elastic_ddp.py", sizes=((1, 2), (2, 2)))
    with tempfile.TemporaryDirectory() as folder:
        computes_the_same(ddp_run, "checkpoint_demo.py", [f"{folder}/model.pt"],
                          "([0-9a-f]{64}), loaded what was saved: True")
    computes_the_same(ddp_run, "model_parallel_demo.py", ["--steps", "5"])
    the_exception_is_in_the_report(ddp_run)
    return 0


sys.exit(main())
