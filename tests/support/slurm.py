"""A real SLURM on this machine: slurmctld and nodes n1, n2, ..., each its own slurmd on loopback with two CPUs.

Needs root and the packages slurm-wlm and munge (reason_to_skip() says what is missing). Everything is in one folder, and
stop() ends everything that was started, even what jobs have left behind.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import jobs

PROGRAMS = ["munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "scancel", "scontrol", "squeue"]
PLACES = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
CONFIGURATION = """ClusterName=ddp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=10
KillWait=20
ReturnToService=2
MpiDefault=none
JobRequeue=1
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def find(program):
    return shutil.which(program, path=os.pathsep.join([*PLACES, os.environ.get("PATH", "")]))


def reason_to_skip():
    if os.geteuid() != 0:
        return "not root, so slurmd cannot start jobs"
    missing = [program for program in PROGRAMS if not find(program) and program != "slurmstepd"]
    return f"{', '.join(missing)}: not installed (packages slurm-wlm, munge)" if missing else ""


class Slurm:
    def __init__(self, folder, nodes=3):
        self.folder, self.count = Path(folder), nodes
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.environment["PATH"] = os.pathsep.join([*PLACES, self.environment.get("PATH", "")])
        self.started = {}  # name: (pid, when it was born)

    def start(self):
        folder = self.folder
        (folder / "state").mkdir(parents=True)
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.daemon("munged", "munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
                    f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
                    f"--seed-file={folder}/munge.seed")
        first = jobs.free_port(self.count + 1)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=socket.gethostname().split(".")[0], controller=first, folder=folder, count=self.count, first=first + 1,
            last=first + self.count))
        self.daemon("slurmctld", "slurmctld")
        for node in range(1, self.count + 1):
            self.start_node(f"n{node}")
        jobs.wait_until(self.all_idle, 60, f"{self.count} idle nodes (see {folder}/slurmctld.log)")
        return self

    def start_node(self, name):
        self.daemon(f"slurmd-{name}", "slurmd", "-N", name)

    def all_idle(self):
        states = self.call("sinfo", "-h", "-N", "-o", "%T", check=False).split()
        return len(states) == self.count and set(states) == {"idle"}

    def daemon(self, name, program, *arguments):
        """Starts a program that goes into the background and writes NAME.pid."""
        path = self.folder / f"{name}.pid"
        path.unlink(missing_ok=True)
        with open(self.folder / f"{name}.start", "wb") as said:
            status = subprocess.run([find(program), *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=said,
                                    stderr=said).returncode
        if status:
            raise RuntimeError(f"{program}: status {status}: {(self.folder / f'{name}.start').read_text()}")
        pid = int(jobs.wait_until(lambda: path.exists() and path.read_text().strip(), 30, f"{path}"))
        self.started[name] = (pid, jobs.identity(pid))

    def call(self, program, *arguments, check=True, **more):
        done = subprocess.run([find(program), *arguments], env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, **more)
        if check and done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def processes(self):
        """pids of the nodes' processes and of everything that their jobs have started."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = {pid for pid, born in self.started.values() if jobs.identity(pid) == born}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                        found.add(int(entry))
                except OSError:
                    pass
        return {pid for pid in found if jobs.identity(pid) is not None}

    def kill_node(self, name):
        """Takes a node away: slurmd and every process of jobs there."""
        mark = f"SLURMD_NODENAME={name}".encode()
        pid, born = self.started[f"slurmd-{name}"]
        if jobs.identity(pid) == born:
            os.kill(pid, signal.SIGKILL)
        stepds = [step for step in self.processes() if jobs.program_of(step) == "slurmstepd"
                  and f"-{name}" in str(self.step_node(step))]
        victims = stepds + [pid for pid in self.processes() if mark in self.environment_of(pid)]
        # A machine stops as a whole: no agent may survive to report a worker that was killed before it.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for victim in victims:
                try:
                    os.kill(victim, number)
                except ProcessLookupError:
                    pass

    @staticmethod
    def environment_of(pid):
        try:
            return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return []

    @staticmethod
    def step_node(pid):
        """The spool folder that a slurmstepd has open names its node."""
        try:
            return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return []

    def submit(self, script, *flags, **more):
        """Submits a batch script and returns the job's number. `more` goes to subprocess.run."""
        return int(self.call("sbatch", "--parsable", *flags, str(script), **more).strip().split(";")[0])

    def job(self, number):
        """What scontrol says of a job, as a dictionary."""
        text = self.call("scontrol", "show", "job", "-o", str(number), check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_for_state(self, number, states, limit_s):
        def reached():
            state = self.job(number).get("JobState", "")
            return state if state in states else None
        return jobs.wait_until(reached, limit_s, f"job {number} becomes {' or '.join(states)}, is {self.job(number)}")

    def stop(self):
        self.call("scancel", "--user=root", check=False)
        for name in sorted(self.started, key=lambda each: each != "slurmctld"):
            pid, born = self.started[name]
            if name != "munged" and jobs.identity(pid) == born:
                os.kill(pid, signal.SIGTERM)
        self.wait_for_all_but({self.started.get("munged", (0, 0))[0]})
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait_for_all_but(set())  # Even SIGKILL takes time.

    def wait_for_all_but(self, others):
        deadline = time.monotonic() + 10
        while self.processes() - others and time.monotonic() < deadline:
            time.sleep(0.05)
