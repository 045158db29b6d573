#!/usr/bin/env python3
"""The pods of configs/kubernetes_job.yaml become one job: kubernetes_pods.py BIN_DIR CONFIGS_DIR. Needs root for namespaces, else skips (77)."""
import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import pods

LIMIT_S = 240
PROGRAM = ["sh", "-c", "echo pod $JOB_COMPLETION_INDEX is rank $RANK of $WORLD_SIZE in $TORCHELASTIC_RUN_ID"]


def main():
    pods.enter_network()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp_pods."))
        job = pods.IndexedJob(Path(sys.argv[2]) / "kubernetes_job.yaml", Path(sys.argv[1]) / "ddp-run", folder)
        flags = job.command[:job.command.index("ddp-train")]
        started = []
        for index in reversed(range(job.pods)):
            started.insert(0, job.start(index, [*flags, *PROGRAM]))
            stack.callback(started[0].kill)
        for index, pod in enumerate(started):
            status = pod.wait(LIMIT_S)
            assert status == 0, (index, status, pod.tail())
            assert pod.says(f"pod {index} is rank {index} of {job.pods} in {job.name}\n"), (index, pod.tail())
            assert not pod.says("anybody"), pod.tail()
    print(f"{job.pods} pods were one job")


if __name__ == "__main__":
    main()
