"""A program for Hugging Face's accelerate under ddp-run: over gloo and over "ddp", whole, and with a worker killed.

    accelerate_programs.py BIN_DIR [FOLDER_OF_MNIST]      skips where accelerate is not installed
    accelerate_programs.py --worker WHAT ARGUMENT...      is a worker
"""
import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import ddp_run

EXAMPLES = Path(__file__).resolve().parents[2] / "worker/python/examples"
sys.path.insert(0, str(EXAMPLES))
import images

LIMIT_S = 240
SAMPLES, BATCH, EPOCHS = 320, 32, 3
STEPS = SAMPLES // BATCH // 2  # Of an epoch, on each of two ranks.


def example(arguments):
    sys.argv[1:] = arguments
    runpy.run_path(str(EXAMPLES / "accelerate_images.py"), run_name="__main__")


def killed(arguments):
    """Rank 1 ends in the middle of the second epoch, and the next round says where it begins."""
    is_first, told = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", []

    def progress(step, **_):
        if not told:
            print(f"begins with step {step}", flush=True)
        told.append(step)
        if is_first and os.environ["RANK"] == "1" and step == STEPS + 3:
            os.kill(os.getpid(), signal.SIGKILL)
    ddp_run.progress = progress
    example(arguments)


def plain(data):
    """The same training, written for torch.distributed alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset = images.digits(data[1] if data else None, SAMPLES)
    model = torch.nn.parallel.DistributedDataParallel(images.network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        order = torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(1 + epoch))
        batches = list(torch.utils.data.BatchSampler(order, BATCH, False))[dist.get_rank()::2]
        for inputs, labels in torch.utils.data.DataLoader(dataset, batch_sampler=batches):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"weights {ddp_run.weights_sha256(model.module)}")
    dist.destroy_process_group()


def run(program, *arguments, flags=()):
    """The weights' hash, and what was written."""
    command = [f"{BIN}/ddp-run", "--standalone", "--nproc-per-node", "2", *flags, *program, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = set(re.findall(r"weights ([0-9a-f]{64})", done.stdout))
    assert done.returncode == 0 and len(found) == 1, done.stdout[-5000:]
    return found.pop(), done.stdout


def main():
    worker = [__file__, "--worker"]
    with tempfile.TemporaryDirectory() as folder:
        known, _ = run([*worker, "plain"], *DATA)
        for backend in ("gloo", "ddp"):
            arguments = ["--samples", str(SAMPLES), "--epochs", str(EPOCHS), "--backend", backend, *DATA]
            whole, said = run([EXAMPLES / "accelerate_images.py"], *arguments, "--checkpoints", f"{folder}/{backend}")
            assert f"backend {backend}\n" in said, said
            assert whole == known, f"{backend}: other weights than without accelerate: {whole}, {known}"
            known = whole
            resumed, said = run([*worker, "killed"], *arguments, "--checkpoints", f"{folder}/{backend}-killed",
                                flags=["--max-restarts", "1"])
            begun = re.findall(r"begins with step (\d+)", said)
            assert begun == ["1", "1", str(STEPS + 1), str(STEPS + 1)], said
            assert resumed == whole, f"{backend}: other weights after a death: {resumed}, {whole}"
            print(f"{backend}: ok", flush=True)


if sys.argv[1] == "--worker":
    {"killed": killed, "plain": plain}[sys.argv[2]](sys.argv[3:])
elif importlib.util.find_spec("accelerate") is None:
    print("accelerate is not installed")
    sys.exit(77)
else:
    BIN, DATA = Path(sys.argv[1]).resolve(), ["--data", *sys.argv[2:]] if len(sys.argv) > 2 else []
    main()
