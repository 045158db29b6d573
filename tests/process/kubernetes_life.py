#!/usr/bin/env python3
"""What happens to pods: kubernetes_life.py BIN_DIR CONFIGS_DIR. Needs root for namespaces, else skips (77).

The training of configs/kubernetes_job.yaml loses a pod, which comes back with its index and is the same node. Then all pods are
terminated, as when the Job is deleted: the training's state is in a checkpoint before the pods have ended.
"""
import contextlib
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import pods
from commands import output_of

LIMIT_S = 240
GRACE_S = 30  # Kubernetes' default of terminationGracePeriodSeconds.
LOST = 2


def main():
    pods.enter_network()
    bin_dir = Path(sys.argv[1])
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp_pods.")))
        job = pods.IndexedJob(Path(sys.argv[2]) / "kubernetes_job.yaml", bin_dir / "ddp-run", folder)
        checkpoints = folder / "checkpoints"
        command = [*job.command, "--epochs", "1000000", "--checkpoint-dir", str(checkpoints)]

        def start(index):
            pod = job.start(index, command, PATH=f"{bin_dir}:{os.environ['PATH']}", OMP_NUM_THREADS="1")
            stack.callback(pod.kill)
            return pod

        started = [start(index) for index in range(job.pods)]
        jobs.wait_until(lambda: started[0].says("train loss"), LIMIT_S, "the end of an epoch")
        started[LOST].kill()
        jobs.wait_until(lambda: started[0].says(f"lost: {job.name}-{LOST}"), LIMIT_S, "the loss of a pod")
        started[LOST] = start(LOST)
        jobs.wait_until(lambda: started[0].says(f"round 1: {job.pods} workers go on after step"), LIMIT_S, "the pod that came back")
        for pod in started:
            pod.terminate(signal.SIGTERM)
        for index, pod in enumerate(started):
            status = pod.wait(GRACE_S)
            assert status == 128 + signal.SIGTERM, (index, status, pod.tail())
        logs = "\n".join(f"--- {pod.log_path}\n{pod.tail()}" for pod in started)
        went_on = int(re.search(r"workers go on after step (\d+)", logs)[1])
        verified = output_of(bin_dir / "ddp-checkpoint", "verify", checkpoints, limit_s=LIMIT_S)
        step = max((int(number) for number in re.findall(r"step-(\d+)", verified)), default=0)
        # If SIGTERM reaches rank 0 right after the others have saved with it and stopped, it ends with the round and says nothing.
        said = re.search(r"stopped by SIGTERM after step (\d+), whose checkpoint is complete", logs)
        assert step == int(said[1]) if said else step > went_on, (verified, logs)
    print(f"the pod came back, and step {step} is saved")


if __name__ == "__main__":
    main()
