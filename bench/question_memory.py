"""How much memory does each daemon take at its peak (VmHWM) while two workers run?"""
import subprocess
import time
from pathlib import Path

import harness
import jobs

LIMIT_MB = 15  # The most that a daemon may take; the goal is the peer's figure divided by it.


def peak_mb(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def peaks(command, names):
    """Peak memory of each named program of the command, once both workers (`sleep`) run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        def sleepers():
            return sum(jobs.program_of(pid) == "sleep" for pid in jobs.descendants(process.pid)) == 2
        jobs.wait_until(sleepers, 30, "two workers")
        time.sleep(0.3)
        found = {}
        for pid in [process.pid] + jobs.descendants(process.pid):
            program = jobs.program_of(pid)
            if program in names or "" in names and pid == process.pid:
                found[program] = max(found.get(program, 0.0), peak_mb(pid))
        return found
    finally:
        process.terminate()
        process.wait(40)


def figures():
    harness.require(harness.DDP_RUN, harness.TORCHRUN[0])
    ours_command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", "--no-python", "sleep", "30"]
    peer_command = [*harness.TORCHRUN, "--standalone", "--nproc_per_node", "2", "--no_python", "sleep", "30"]
    ours = peaks(ours_command, ["ddp-run", "ddp-agent"])
    peer = max(peaks(peer_command, [""]).values())
    daemon = subprocess.Popen([str(harness.BIN / "ddp-rendezvous"), "--port", "0"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    ours["ddp-rendezvous"] = peak_mb(daemon.pid)
    daemon.terminate()
    daemon.wait(10)
    for program, mb in sorted(ours.items()):
        yield harness.figure(f"peak memory of {program}", mb, peer, "torchrun", "MB", round(peer / LIMIT_MB, 2), digits=1)
