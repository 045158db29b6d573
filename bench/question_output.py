"""What does forwarding the workers' output cost? 64 workers of one node write 10,000 lines each, to files and to the console.

The workers are `cat` of one file, so that the launcher takes nearly all of the processor time. The console is a file. Each run
checks that the console has every line, and the workers' files every byte.

The rate is over the whole run, including the start. Memory is the peak of the launcher's largest process. BENCH_WORKERS and
BENCH_LINES set the size.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

WORKERS = int(os.environ.get("BENCH_WORKERS", "64"))
LINES = int(os.environ.get("BENCH_LINES", "10000"))
ROUNDS = 5 if "BENCH_QUICK" not in os.environ else 3


def peak_mb(pid, workers_program):
    """Peak memory so far of the largest process below pid that is not a worker."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0  # It has just ended.
    own = 0.0 if status["Name"] == workers_program else int(status.get("VmHWM", "0 kB").split()[0]) / 1024
    return max([own] + [peak_mb(child, workers_program) for child in children])


class Job:
    """One launcher and the way it starts the workers."""

    def __init__(self, folder, name, command):
        self.folder, self.name, self.command = Path(folder), name, command
        self.runs = 0

    def run(self, watch=None):
        """Lines a second. Calls `watch` with the launcher's process id again and again, which costs time."""
        # A new folder each time, because ext4 is slow to create files where others have just been removed.
        self.runs += 1
        logs, console = self.folder / f"{self.name}.logs{self.runs}", self.folder / f"{self.name}.console{self.runs}"
        with open(console, "wb") as out:
            begin = time.perf_counter()
            child = subprocess.Popen([word.replace("LOGS", str(logs)) for word in self.command], stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=subprocess.DEVNULL)
            while watch is not None and child.poll() is None:
                watch(child.pid)
                time.sleep(0.005)
            child.wait()
            seconds = time.perf_counter() - begin
        written = int(subprocess.run(["wc", "-l", console], capture_output=True, check=True).stdout.split()[0])
        kept = sum(path.stat().st_size for path in logs.rglob("*") if path.is_file() and not path.is_symlink()
                   and path.suffix in (".out", ".log"))
        expected = WORKERS * (self.folder / "lines").stat().st_size
        if child.returncode != 0 or written != WORKERS * LINES or kept != expected:
            sys.exit(f"bench: {self.name} ended with {child.returncode}, {written} of {WORKERS * LINES} lines on the console, "
                     f"{kept} of {expected} bytes in files")
        return WORKERS * LINES / seconds

    def memory(self):
        """Peak memory of the launcher's largest process in MB, read every 5 ms: the kernel keeps the peak until the process ends."""
        peaks = [0.0]
        self.run(lambda pid: peaks.append(peak_mb(pid, "cat")))
        return max(peaks)


def figures():
    harness.require(harness.DDP_RUN, harness.TORCHRUN[0])
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        lines.write_text("".join(f"epoch 3 step {i:6d} loss {1 / (i + 1):.6f} lr 0.001\n" for i in range(LINES)))
        workers = [f"{WORKERS}", "--tee", "3"]
        ours = Job(folder, "ddp-run", [harness.DDP_RUN, "--standalone", "--log-dir", "LOGS", "--nproc-per-node", *workers,
                                       "--no-python", "cat", str(lines)])
        peer = Job(folder, "torchrun", [*harness.TORCHRUN, "--standalone", "--log_dir", "LOGS", "--nproc_per_node", *workers,
                                        "--no_python", "cat", str(lines)])
        rates = harness.alternate({"ours": ours.run, "peer": peer.run}, ROUNDS)
        yield harness.figure(f"lines a second of {WORKERS} workers, {LINES} each", rates["ours"], rates["peer"],
                             "torchrun --tee 3", "lines/s", 20, lower_is_better=False, digits=0)
        yield harness.figure("largest process of the launcher meanwhile", ours.memory(), peer.memory(), "torchrun --tee 3",
                             "MB", None, digits=1)
