#!/usr/bin/env python3
"""Workers whose checkpoints lie on a disk that stands still, fails or is full. No save fails because it is slow; none is reported that
is not there; training goes on; nothing of a failed save stays; and the next save succeeds once the disk is well.

usage: slow_disks.py BIN_DIR SNAPSHOT_WORKER [--cases NAME,...] [--stall SECONDS]

Without --stall, a disk stands for 12 s (with DDP_TEST_FULL=1 for 60 s): longer than a writer may be silent. Skips where there is no FUSE.
"""
import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import fuse_disk

SKIPPED = 77
LIMIT_S = 240
parser = argparse.ArgumentParser()
parser.add_argument("bin_dir", type=Path)
parser.add_argument("worker", type=Path, help="snapshot_worker")
parser.add_argument("--cases", default=None)
parser.add_argument("--stall", type=float, default=60 if os.environ.get("DDP_TEST_FULL") == "1" else 12)
args = parser.parse_args()
WORKERS = 2


def wait_until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in {LIMIT_S} s: {what}")
        time.sleep(0.02)


class Job:
    """`ddp-run` on this machine, with its output."""

    def __init__(self, base, arguments, flags=()):
        self.output = Path(base, "output")
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen([args.bin_dir / "ddp-run", "--standalone", *flags, *arguments], stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=subprocess.STDOUT)

    def text(self):
        return self.output.read_text(errors="replace")

    def wait_for(self, pattern):
        wait_until(lambda: re.search(pattern, self.text()) or self.process.poll() is not None, pattern)
        expect(re.search(pattern, self.text()), f"no '{pattern}' in:\n{self.text()}")

    def end(self):
        status = self.process.wait(LIMIT_S)
        expect(status == 0, f"the job ended with {status}:\n{self.text()}")

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(LIMIT_S)


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


@contextlib.contextmanager
def training(disk, last, rate=0, timeout_s=""):
    """Two workers that save in each step up to `last`, at `rate` bytes per second each; 4 MB each. They go on when a save fails."""
    with tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
        os.environ.update(OUT=str(disk.mount), SAVE_TIMEOUT_S=timeout_s)
        job = Job(base, [args.worker, "wait", str(last), str(rate), "1000000"], ("--nproc-per-node", str(WORKERS)))
        try:
            yield job
        finally:
            disk.set()
            disk.go()
            job.close()


def check(disk, job, steps):
    """Every save has ended as it says; the last two good ones are there and sound, and nothing else."""
    told = sorted(int(step) for step in re.findall(r"rank 0 has (\d+) written at ", job.text()))
    expect(told == steps, f"saves of {told}, not {steps}:\n{job.text()}")
    run = disk.mount / "checkpoints"
    # Old checkpoints that were being removed when the job ended are the next save's.
    left = [name for name in os.listdir(run) if name.startswith(".tmp-") and not name.startswith(".tmp-removed-step-")]
    expect(not left, f"leftovers: {left}\n{job.text()}")
    names = sorted(name for name in os.listdir(run) if name.startswith("step-"))
    expect(names == [f"step-{step:010}" for step in steps[-2:]], f"checkpoints {names}, not of {steps}")
    for name in names:
        files = sorted(os.listdir(run / name))
        expect(not any(file.startswith(("alive-", "failed-", "part-")) for file in files), f"{name}: {files}")
    verified = subprocess.run([args.bin_dir / "ddp-checkpoint", "verify", run], capture_output=True, text=True, check=False)
    expect(verified.returncode == 0, verified.stdout + verified.stderr)


def a_long_fsync(disk):
    disk.set({"op": "fsync", "name": "shard-00001*", "fault": "hold"})
    with training(disk, 3) as job:
        wait_until(lambda: disk.held("fsync"), "a held fsync")
        begin = time.monotonic()
        job.wait_for(r"checkpoint of step 1: shard-00001.safetensors has been stuck in fsync for 1\d s on ")
        time.sleep(max(0, args.stall - (time.monotonic() - begin)))
        expect(job.process.poll() is None and "written" not in job.text(), job.text())
        disk.set()
        job.end()
        check(disk, job, [1, 2, 3])


def a_server_that_hangs(disk):
    with training(disk, 2, rate=2_000_000) as job:
        wait_until(lambda: any(Path(disk.folder, "checkpoints").glob(".tmp-step-*/shard-*")), "the files of a save")
        disk.stop()
        time.sleep(args.stall)
        disk.go()
        job.end()
        check(disk, job, [1, 2])


def a_lock_that_cannot_be_closed(disk):
    """Closing a file waits for the disk's server. So nobody closes that of the lock once rank 0 has it: an agent that did would be lost."""
    with training(disk, 3, rate=2_000_000) as job:
        job.wait_for("rank 0 begins at 0")
        disk.set({"op": "flush", "name": "*lock*", "fault": "hold"})
        job.end()
        check(disk, job, [1, 2, 3])


def a_disk_that_never_answers(disk):
    disk.set({"op": "fsync", "name": "shard-00001*", "fault": "hold"})
    with training(disk, 8, timeout_s="3") as job:
        for rank in range(WORKERS):
            job.wait_for(rf"rank {rank} has 1 refused because .*shard-00001.safetensors has been stuck in \w+ for \d+ s on ")
        job.wait_for("rank 1 has 2 refused because the disk still holds the writer of step 1 ")
        expect("longer than a save may wait for the disk (3 s): " in job.text(), job.text())
        disk.set()
        job.end()
        good = sorted(int(step) for step in re.findall(r"rank 0 has (\d+) written at ", job.text()))
        expect(good and good[-1] == 8 and 1 not in good, job.text())
        check(disk, job, good)
    with training(disk, 9) as job:
        job.end()
        expect("rank 0 begins at 8" in job.text(), job.text())


def an_error(op, fault, reason, times=1):
    """The first save fails with the reason, because this happens so often to rank 1's files; the next ones succeed."""
    def case(disk):
        disk.set({"op": op, "name": "*00001*", "fault": fault, "times": times})
        with training(disk, 3) as job:
            began = time.monotonic()
            job.wait_for(rf"rank 1 has 1 refused because .*{reason}")
            job.wait_for("rank 0 has 1 refused because .*(rank 1 could not write its share|another rank has given up this save)")
            expect(time.monotonic() - began < 100, "rank 0 learned of it by waiting")
            job.end()
            check(disk, job, [2, 3])
    return case


def a_small_disk(disk):
    """Room for two checkpoints that are kept, one that is being removed and one that is written: retention makes room for all saves."""
    with tmpfs("size=36m") as folder:
        os.environ.update(OUT=folder, SAVE_TIMEOUT_S="")
        with tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
            job = Job(base, [args.worker, "wait", "8", "0", "1000000"], ("--nproc-per-node", str(WORKERS)))
            try:
                job.end()
            finally:
                job.close()
            disk.mount = Path(folder)
            check(disk, job, list(range(1, 9)))


def hanging_logs(disk):
    """The logs and the output of ddp-run lie on a disk that stands still: the workers wait for it, and the node is not lost."""
    lines = 1500
    script = f"i=0; while [ $i -lt {lines} ]; do echo $i of $RANK; i=$((i + 1)); sleep 0.01; done"
    logs = Path("logs", "j")
    job = Job(disk.mount, ["sh", "-c", script], ("--nproc-per-node", "2", "--no-python", "--rdzv-id", "j", "--tee", "3", "--log-dir",
                                                 f"{disk.mount}/logs"))
    try:
        written = Path(disk.folder, logs)
        wait_until(lambda: sum(path.stat().st_size > 0 for path in written.glob("**/rank_*.out")) == 2, "a line of each worker")
        disk.stop()
        time.sleep(args.stall + 6)  # It is told after ten seconds at the earliest.
        disk.go()
        job.end()
    finally:
        disk.go()
        job.close()
    expect(re.search(r"--log-dir: the disk has not answered for [1-9]\d+ s on ", job.text()), job.text())
    expect("lost" not in job.text(), job.text())
    for rank in range(2):
        expected = [f"{line} of {rank}" for line in range(lines)]
        found = next(Path(disk.folder, logs).glob(f"**/rank_{rank}.*.out")).read_text().splitlines()
        expect(found == expected, f"rank {rank}'s file has {len(found)} lines")
        shown = [line.partition("] ")[2] for line in job.text().splitlines() if line.endswith(f" of {rank}")]
        expect(shown == expected, f"{len(shown)} lines of rank {rank} were shown:\n{job.text()}")


def logs_of_a_restart(disk):
    """A worker fails while the disk of the logs stands still: its exception is told and the next round begins, both at once."""
    script = ("echo $RANK in $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo $RANK >> $RESULTS && exit 0; "
              "while [ ! -e $RESULTS.fail ]; do sleep 0.01; done; "
              "echo '{\"message\": \"ValueError: no\"}' > $TORCHELASTIC_ERROR_FILE; exit 3")
    with tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
        results = Path(base, "results")
        os.environ["RESULTS"] = str(results)
        job = Job(base, ["sh", "-c", script], ("--nproc-per-node", "2", "--max-restarts", "1", "--no-python", "--log-dir",
                                               f"{disk.mount}/logs"))
        try:
            written = Path(disk.folder, "logs")
            wait_until(lambda: sum(path.stat().st_size > 0 for path in written.glob("**/rank_*.out")) == 2, "a line of each worker")
            disk.stop()
            Path(f"{results}.fail").touch()
            wait_until(lambda: results.exists() and len(results.read_text().split()) == 2, "the second round, without the disk")
            expect("ValueError: no" in job.text(), job.text())
            disk.go()
            job.end()
        finally:
            disk.go()
            job.close()
        expect("lost" not in job.text(), job.text())
        for restart in (0, 1):
            for rank in (0, 1):
                found = [path.read_text() for path in written.glob(f"**/round_{restart}/rank_{rank}.*.out")]
                expect(found == [f"{rank} in {restart}\n"], f"{found}")
        expect(any("ValueError" in path.read_text() for path in written.glob("**/round_0/*.error.json")), "no exception among the logs")


def logs_that_cannot_be_closed(disk):
    """Writers of checkpoints are started while no copy of a log file can be closed: nobody waits for that but the thread that writes them."""
    with tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
        os.environ.update(OUT=base, SAVE_TIMEOUT_S="")
        job = Job(base, [args.worker, "wait", "3", "2000000", "1000000"], ("--nproc-per-node", str(WORKERS), "--tee", "3", "--log-dir",
                                                                           f"{disk.mount}/logs"))
        try:
            job.wait_for("rank 0 begins at 0")
            disk.set({"op": "flush", "name": "rank_*", "fault": "hold"})
            job.wait_for("rank 0 has 3 written at ")
            disk.set()
            # A disk that is still busy at the end of the job is given up after 2 s.
            wait_until(lambda: any("rank 0 has 3 written" in path.read_text() for path in Path(disk.folder, "logs").glob("**/rank_0.*.out")), "the last line")
        finally:
            disk.set()
            job.close()
        expect("lost" not in job.text(), job.text())


HELD_WORKER = """
import os, sys, time
disk, held = sys.argv[1:]
if os.environ["RANK"] == "1":
    file = os.open(disk + "/held", os.O_RDWR | os.O_CREAT)
    os.write(file, b"x")
    os.fsync(file)
while not os.path.exists(held): time.sleep(0.01)
sys.exit(3)
"""


def a_held_worker(disk):
    """Its node gives the worker up, which SIGKILL does not end, and starts no other."""
    disk.set({"op": "fsync", "name": "held", "fault": "hold"})
    with tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
        job = Job(base, [sys.executable, "-c", HELD_WORKER, disk.mount, f"{disk.faults_file}.held"],
                  ("--nproc-per-node", "2", "--max-restarts", "2", "--shutdown-timeout", "1", "--no-python"))
        try:
            status = job.process.wait(LIMIT_S)
        finally:
            disk.set()
            job.close()
        expect(status == 78, f"status {status}: {job.text()}")
        text = r"takes no further part: worker local rank 1 \(pid \d+\) did not end 5 s after SIGKILL; it is in state D in request_wait_answer"
        expect(re.search(text, job.text()), job.text())


@contextlib.contextmanager
def tmpfs(options):
    with tempfile.TemporaryDirectory(prefix="slow_disks.tmpfs.") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def a_full_log_folder(_disk):
    """The log files become full, and no inode is left for those of the second round: no line is lost, and the job goes on."""
    lines = 5000
    script = (f"seq -f \"%g of $RANK in $TORCHELASTIC_RESTART_COUNT\" {lines}; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
              "[ $RANK = 0 ] || exec sleep 1000; i=0; while touch $INODES/$i; do i=$((i + 1)); done 2>/dev/null; exit 3")
    for options in ("size=64k,nr_inodes=50", "size=64m,nr_inodes=50"):
        with tmpfs(options) as folder, tempfile.TemporaryDirectory(prefix="slow_disks.out.") as base:
            os.environ["INODES"] = folder
            job = Job(base, ["sh", "-c", script], ("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", f"{folder}/logs",
                                                   "--no-python"))
            try:
                job.end()
            finally:
                job.close()
            logs = "".join(path.read_text() for path in Path(folder, "logs").glob("**/*.out"))
            for rank, restart in ((0, 0), (0, 1), (1, 1)):
                for line in (1, lines // 2, lines):
                    text = rf"(?m)(^|\] ){line} of {rank} in {restart}$"
                    expect(re.search(text, logs) or re.search(text, job.text()), f"{options}: {text}:\n{job.text()[-3000:]}")
            told = [line for line in job.text().splitlines() if line.startswith("ddp-run: ") and "No space left" in line]
            expect(told and len(told) <= 8, f"{options}: told {len(told)} times\n" + "\n".join(told[:20]))


CASES = {
    "full_log_folder": a_full_log_folder,
    "hanging_logs": hanging_logs,
    "logs_of_a_restart": logs_of_a_restart,
    "held_logs": logs_that_cannot_be_closed,
    "held_worker": a_held_worker,
    "long_fsync": a_long_fsync,
    "server_hangs": a_server_that_hangs,
    "held_lock": a_lock_that_cannot_be_closed,
    "never_answers": a_disk_that_never_answers,
    "fsync_fails": an_error("fsync", "EIO", "Input/output error"),
    "full": an_error("write", "ENOSPC", "No space left on device"),
    "quota": an_error("write", "EDQUOT", "Disk quota exceeded"),
    # Nor can the rank leave a note that it has failed.
    "no_inodes": an_error("create", "ENOSPC", "No space left on device", times=2),
    "small_disk": a_small_disk,
}

if fuse_disk.why_not():
    print(f"skipped: {fuse_disk.why_not()}")
    sys.exit(SKIPPED)
for case in args.cases.split(",") if args.cases else CASES:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slow_disks.") as folder:
        with fuse_disk.Disk(f"{folder}/mount", f"{folder}/files") as one:
            CASES[case](one)
    print(f"{case}: {time.monotonic() - began:.1f} s", flush=True)
