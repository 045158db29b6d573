"""Which test accuracy does torch_xla's published training of MNIST (18 epochs, 2 workers) reach, in both modes?"""
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import jobs

DATA = harness.PEERS.parent / "data" / "mnist"
# torch_xla's published table: its DDP run reached 97.48 %, its step mode 99 %. Ours must reach 99.0 % in both.
PUBLISHED = {"ddp": 97.48, "step": 99.0}
ASKED = 99.0


def figures():
    harness.require(harness.DDP_RUN, str(harness.BIN / "ddp-train"))
    for mode, published in PUBLISHED.items():
        with tempfile.TemporaryDirectory(prefix="bench-mnist.") as folder:
            summary = Path(folder) / "summary.json"
            command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", str(harness.BIN / "ddp-train"),
                       "--model", "mnist", "--data", "mnist", "--data-dir", str(DATA), "--epochs", "18",
                       "--grad-sync", mode, "--summary", str(summary)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            result = jobs.summary(summary)
        print(f"mnist {mode}: {result['samples_per_second']:.0f} samples/s, BLAS {result['blas']}", file=sys.stderr)
        accuracy = 100 * result["test_accuracy"]
        yield harness.figure(f"MNIST test accuracy, {mode} mode", accuracy, published, "torch_xla (published)", "%",
                             round(ASKED / published, 4), lower_is_better=False)
