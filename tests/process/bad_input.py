#!/usr/bin/env python3
"""Each kind of bad input has its exit code and one line that names the flag or file, the value and what was expected.

usage: bad_input.py BIN_DIR [CASE...]
"""
import gzip
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

BIN = Path(sys.argv[1])
DDP_RUN, DDP_TRAIN = str(BIN / "ddp-run"), str(BIN / "ddp-train")
TRAIN = [DDP_TRAIN, "--model", "mnist", "--data", "synthetic", "--train-samples", "1024", "--test-samples", "64",
         "--epochs", "1", "--batch-size", "64", "--threads", "1"]
folder = Path()  # A fresh one for each case.


def run(*command, limit_s=240):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit_s,
                          stdin=subprocess.DEVNULL)


def local(*command, flags=()):
    return run(DDP_RUN, "--standalone", "--nproc-per-node", "2", *flags, *command)


def expect(done, status, *words):
    """The exit status, and one line of standard error that has all the words."""
    assert done.returncode == status, f"exit status {done.returncode}, expected {status}\n{done.stdout}\n{done.stderr}"
    lines = done.stderr.splitlines() + done.stdout.splitlines()
    assert any(all(word in line for word in words) for line in lines), \
        f"no line has all of {words}\n{done.stdout}\n{done.stderr}"


def unknown_flag():
    done = run(DDP_RUN, "--standalone", "--nproc-per-nod3", "2", "true")
    expect(done, 2, "--nproc-per-nod3", "--nproc-per-node")


def nodes_reversed():
    expect(run(DDP_RUN, "--nnodes", "4:2", "--rdzv-endpoint", "127.0.0.1:1", "true"), 64, "--nnodes", "4:2", "MIN:MAX")


def port_in_use():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run(DDP_RUN, "--nnodes", "1", "--rdzv-endpoint", f"127.0.0.1:{port}", "--no-python", "true")
        expect(done, 66, "--rdzv-endpoint", str(port))


def no_such_program():
    expect(local("/no/such/program"), 127, "/no/such/program")


def not_executable():
    path = folder / "script"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    expect(local(path), 126, str(path))


def nobody_answers():
    port = jobs.free_port()
    done = run(DDP_RUN, "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", f"127.0.0.1:{port}",
               "--join-timeout", "1", "--no-python", "true")
    expect(done, 67, "--rdzv-endpoint", f"127.0.0.1:{port}")


def somebody_missing():
    port = jobs.free_port()
    done = run(DDP_RUN, "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", f"127.0.0.1:{port}",
               "--join-timeout", "1", "--no-python", "true")
    expect(done, 67, "1 of 2", "missing")


def write_mnist(to, images=256, cut=None, magic=2051, label_count=None):
    """Four IDX files; `cut` shortens the training images, `magic` is theirs."""
    to.mkdir()
    for name, count in (("train", images), ("t10k", 64)):
        pixels = bytes((7 * i) % 256 for i in range(784)) * count
        data = struct.pack(">IIII", magic if name == "train" else 2051, count, 28, 28) + pixels
        if name == "train" and cut is not None:
            data = data[:cut]
        (to / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(data, 1))
        labels = label_count if label_count is not None and name == "train" else count
        data = struct.pack(">II", 2049, labels) + bytes(i % 10 for i in range(labels))
        (to / f"{name}-labels-idx1-ubyte").write_bytes(data)
    return to


def train_on(data):
    return local(DDP_TRAIN, "--model", "mnist", "--data", "mnist", "--data-dir", data, "--epochs", "1",
                 "--batch-size", "64", "--threads", "1")


def idx_files_right():
    done = train_on(write_mnist(folder / "data"))
    assert done.returncode == 0, done.stderr


def idx_truncated():
    expect(train_on(write_mnist(folder / "data", cut=5000)), 65, "train-images-idx3-ubyte.gz", "200720")


def idx_truncated_gzip():
    data = write_mnist(folder / "data")
    path = data / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:200])
    expect(train_on(data), 65, "train-images-idx3-ubyte.gz")


def idx_wrong_magic():
    expect(train_on(write_mnist(folder / "data", magic=1234)), 65, "train-images-idx3-ubyte.gz", "1234", "2051")


def idx_counts_differ():
    expect(train_on(write_mnist(folder / "data", label_count=200)), 65, "256", "200")


def idx_missing():
    data = write_mnist(folder / "data")
    (data / "t10k-labels-idx1-ubyte").unlink()
    expect(train_on(data), 65, "t10k-labels-idx1-ubyte")


def checkpoint_folder_unwritable():
    (folder / "file").write_text("")
    expect(local(*TRAIN, "--checkpoint-dir", folder / "file" / "checkpoints"), 68, "--checkpoint-dir", str(folder / "file"))


def valid_steps(checkpoints):
    return sorted(int(path.name.split("-")[1]) for path in checkpoints.glob("step-*"))


def flipped_byte():
    """The damaged newest checkpoint is passed over with a line that says so; the older one gives the same bytes."""
    checkpoints = folder / "checkpoints"
    reference = folder / "reference.json"
    assert local(*TRAIN, "--summary", reference).returncode == 0
    assert local(*TRAIN, "--checkpoint-dir", checkpoints, "--checkpoint-every", "3", "--max-steps", "6").returncode == 0
    older, newest = valid_steps(checkpoints)[-2:]
    shard = sorted((checkpoints / f"step-{newest:010d}").glob("shard-*"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = local(*TRAIN, "--checkpoint-dir", checkpoints, "--summary", folder / "summary.json")
    expect(done, 0, f"step-{newest:010d}", "checksum")
    result = jobs.summary(folder / "summary.json")
    assert result["resumed_from_step"] == older, (result, older)
    assert result["weights_sha256"] == jobs.summary(reference)["weights_sha256"]


def on_small_disk(*command):
    """Runs with a file system of 450 KB at folder/disk, in a mount namespace of its own."""
    (folder / "disk").mkdir(exist_ok=True)
    script = 'mount -t tmpfs -o size=450k none "$0" && "$@"; status=$?; cp -r "$0" "$0.copy"; exit $status'
    return run("unshare", "--mount", "sh", "-c", script, folder / "disk", *command)


def full_disk_stops():
    done = on_small_disk(DDP_RUN, "--standalone", "--nproc-per-node", "2", *TRAIN, "--checkpoint-dir", folder / "disk" / "c",
                         "--checkpoint-every", "1", "--checkpoint-keep", "9", "--checkpoint-failure", "stop")
    expect(done, 69, "No space left on device", str(folder / "disk" / "c"))
    expect_all_complete(folder / "disk.copy" / "c")


def full_disk_goes_on():
    reference = folder / "reference.json"
    assert local(*TRAIN, "--summary", reference).returncode == 0
    done = on_small_disk(DDP_RUN, "--standalone", "--nproc-per-node", "2", *TRAIN, "--checkpoint-dir", folder / "disk" / "c",
                         "--checkpoint-every", "1", "--checkpoint-keep", "9", "--checkpoint-failure", "continue",
                         "--summary", folder / "summary.json")
    expect(done, 0, "No space left on device", str(folder / "disk" / "c"))
    assert jobs.summary(folder / "summary.json")["weights_sha256"] == jobs.summary(reference)["weights_sha256"]
    expect_all_complete(folder / "disk.copy" / "c")


def expect_all_complete(checkpoints):
    """Every published checkpoint has all of its files at the sizes that its manifest says."""
    steps = sorted(checkpoints.glob("step-*"))
    assert steps, f"no checkpoint in {checkpoints}: the disk of this test is too small for one"
    for step in steps:
        for file in json.loads((step / "manifest.json").read_text())["files"]:
            assert (step / file["name"]).stat().st_size == file["bytes"], (step, file)


NEEDS_MOUNT = (full_disk_stops, full_disk_goes_on)
CASES = [unknown_flag, nodes_reversed, port_in_use, no_such_program, not_executable, nobody_answers, somebody_missing,
         idx_files_right, idx_truncated, idx_truncated_gzip, idx_wrong_magic, idx_counts_differ, idx_missing,
         checkpoint_folder_unwritable, flipped_byte, full_disk_stops, full_disk_goes_on]


def main():
    global folder
    can_mount = run("unshare", "--mount", "true").returncode == 0
    failed = []
    for case in CASES:
        if sys.argv[2:] and case.__name__ not in sys.argv[2:]:
            continue
        if case in NEEDS_MOUNT and not can_mount:
            print(f"{case.__name__}: skipped, a mount namespace needs root", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(prefix="bad_input."))
        try:
            case()
            print(f"{case.__name__}: ok", flush=True)
        except Exception:
            failed.append(case.__name__)
            print(f"{case.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
        shutil.rmtree(folder)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


main()
