#!/usr/bin/env python3
"""Bad nodes: bad_nodes.py BIN_DIR. `ddp-run check` under real limits: of files, of memory, on small disks. A node that fails its
health check, or that fails three times, is left out, and a spare takes its place. Needs root for the disks; says what it leaves out.
"""
import atexit
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

BIN = Path(sys.argv[1])
DDP_RUN = str(BIN / "ddp-run")
UNFIT = 77
LIMIT_S = 240
# A tmpfs, so that a slow disk does not count.
base = Path(tempfile.mkdtemp(prefix="ddp_bad_nodes.", dir="/dev/shm"))
atexit.register(subprocess.run, ["rm", "-rf", str(base)], check=True)  # Also after a failure: other tests look at /dev/shm.


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def run(*command, preexec=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, preexec_fn=preexec)


def check(*flags, expected, preexec=None, before=()):
    """What `ddp-run check --json` says: the checks of the one node by name."""
    done = run(*before, DDP_RUN, "check", "--json", *flags, preexec=preexec)
    assert done.returncode == expected, (done.returncode, done.stdout, done.stderr)
    page = json.loads(done.stdout)
    assert page["fit"] == (expected == 0), page
    assert done.stderr == "", done.stderr
    return {one["check"]: one for one in page["nodes"][0]["checks"]}


def failed(checks):
    return sorted(name for name, one in checks.items() if one["state"] == "failed")


def healthy():
    checks = check("--check-dir", str(base), expected=0)
    assert {"/dev/shm", "memory", "shared memory", "open files", "own name", "free disk", "write speed", "fsync"} <= set(checks), checks
    assert all(one["remedy"] == "" for one in checks.values() if one["state"] == "ok"), checks
    assert list(base.iterdir()) == [], "the check has left a file"
    done = run(DDP_RUN, "check")
    assert done.returncode == 0 and done.stdout.startswith("NODE"), (done.stdout, done.stderr)
    assert "free disk" not in done.stdout and done.stderr == "", (done.stdout, done.stderr)


def lines():
    """What can be typed."""
    done = run(DDP_RUN, "check", "--help")
    assert done.returncode == 0 and "Exit status" in done.stdout, done
    done = run(DDP_RUN, "check", "train.py")
    assert done.returncode == 2 and "train.py" in done.stderr and "leave it out" in done.stderr, done
    done = run(DDP_RUN, "check", "--no-such-flag")
    assert done.returncode == 2 and "--no-such-flag" in done.stderr, done


def open_files():
    checks = check(expected=UNFIT, preexec=few_files)
    assert failed(checks) == ["open files"], checks
    assert checks["open files"]["measured"] == "256" and checks["open files"]["limit"] == "at least 516", checks
    done = run(DDP_RUN, "check", preexec=few_files)
    assert done.returncode == UNFIT and "\nWhat to do:\nopen files on " in done.stdout and done.stderr == "", done
    # With more workers, more is needed, and still one of them looks.
    checks = check("--nproc-per-node", "3", expected=UNFIT, preexec=few_files)
    assert checks["open files"]["limit"] == "at least 524", checks


def mounted(options, where, script=""):
    """A command that runs what follows with a tmpfs of its own at `where`."""
    return ("unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o {options} none {where} && {script or 'true'} && exec \"$0\" \"$@\"")


def disks():
    if os.geteuid() != 0 or run("unshare", "--mount", "true").returncode != 0:
        return print("disks: left out, because this user may not mount")
    folder = base / "disk"
    folder.mkdir()
    checks = check("--check-dir", str(folder), expected=UNFIT, before=mounted("size=32m", folder))
    assert failed(checks) == ["checkpoint folder"], checks
    assert checks["checkpoint folder"]["measured"].endswith("cannot be written: No space left on device"), checks
    checks = check("--check-dir", str(folder), expected=UNFIT, before=mounted("size=512m", folder))
    assert failed(checks) == ["free disk"], checks
    assert checks["free disk"]["measured"] == f"512.0 MiB at {folder}", checks
    checks = check("--check-dir", str(folder), expected=UNFIT, before=mounted("size=2g,nr_inodes=500", folder))
    assert failed(checks) == ["free inodes"] and checks["free inodes"]["measured"] == "499", checks
    checks = check("--check-dir", str(folder), expected=UNFIT, before=mounted("size=2g,nr_inodes=2", folder, f"touch {folder}/full"))
    assert checks["checkpoint folder"]["measured"].endswith("no file can be made: No space left on device"), checks
    checks = check(expected=UNFIT, before=mounted("size=64m", "/dev/shm"))
    assert failed(checks) == ["/dev/shm"] and checks["/dev/shm"]["measured"] == "64.0 MiB free", checks


def memory():
    """A control group with a limit of 450 MiB, in version 1 or 2, if this user may make one."""
    entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [path for _, controllers, path in entries if "memory" in controllers.split(",")]
    own = Path("/sys/fs/cgroup/memory" + v1[0]) if v1 else Path("/sys/fs/cgroup" + entries[-1][2])
    name = "memory.limit_in_bytes" if v1 else "memory.max"
    group = own / f"ddp-bad-nodes-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        return print(f"memory: left out, because no control group can be made: {error}")
    try:
        (group / name).write_text(str(450 << 20))
        checks = check(expected=UNFIT, preexec=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        assert failed(checks) == ["memory"], checks
        assert checks["memory"]["measured"] == f"450.0 MiB ({name} of {group})", checks
    except OSError as error:
        print(f"memory: left out, because the control group cannot be used: {error}")
    finally:
        jobs.wait_until(lambda: (group / "cgroup.procs").read_text() == "", LIMIT_S, "the end of the group's processes")
        group.rmdir()


class Cluster:
    """ddp-runs of a job of two nodes on this machine; the first one hosts the rendezvous."""

    # Workers stay until the file `end` is there; on a bad node they fail at once.
    WORKER = f"[ -z \"$BAD\" ] || exit 3; until [ -e {base}/end ]; do sleep 0.02; done"

    def __init__(self, name, *flags):
        self.endpoint = f"127.0.0.1:{jobs.free_port()}"
        self.name, self.flags, self.nodes = name, flags, []
        (base / "end").unlink(missing_ok=True)

    def start(self, preexec=None, bad=False):
        log = base / f"{self.name}.{len(self.nodes)}.log"
        command = [DDP_RUN, "--nnodes", "2", "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.name, "--join-timeout", str(LIMIT_S),
                   *self.flags, "sh", "-c", self.WORKER]
        environment = {**os.environ, **({"BAD": "1"} if bad else {})}
        process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment, preexec_fn=preexec)
        self.nodes.append((process, log))

    def job(self):
        done = run(DDP_RUN, "status", self.endpoint, "--json")
        found = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return found[0] if found else {"state": "none", "nodes": []}

    def await_job(self, condition, what):
        def holds():
            job = self.job()
            return job if condition(job) else None
        try:
            return jobs.wait_until(holds, LIMIT_S, what)
        except TimeoutError:
            for _, log in self.nodes:
                print(log.read_text())
            print(self.job())
            raise

    def ended(self, node):
        process, log = self.nodes[node]
        return process.wait(LIMIT_S), log.read_text()

    def stop(self):
        for process, _ in self.nodes:
            if process.poll() is None:
                process.kill()
                process.wait()


def runs_on(nodes):
    def condition(job):
        inside = [node for node in job["nodes"] if node["state"] == "in_round"]
        return job["state"] == "running" and len(inside) == nodes
    return condition


def unhealthy_spare():
    """The second of three nodes fails its health check. The third takes its place."""
    cluster = Cluster("unhealthy", "--health-check", "--check-dir", str(base))
    try:
        cluster.start()
        cluster.await_job(lambda job: job["state"] == "waiting", "the first node, which hosts")
        cluster.start(preexec=few_files)
        status, log = cluster.ended(1)
        assert status == UNFIT and "is left out: its health check failed: open files: 256 (at least 520)" in log, (status, log)
        assert "What to do:" in log, log
        job = cluster.await_job(lambda job: job.get("left_out"), "the reason in the status")
        assert "open files: 256" in job["left_out"][0]["reason"] and job["state"] == "waiting", job
        assert "left out: " in run(DDP_RUN, "status", cluster.endpoint).stdout
        cluster.start()
        cluster.await_job(runs_on(2), "a round on two nodes")
        (base / "end").touch()
        for node in (0, 2):
            status, log = cluster.ended(node)
            assert status == 0, (status, log)
    finally:
        cluster.stop()


def unhealthy_host():
    """The node that hosts the rendezvous fails: it has no workers, but the others need it."""
    cluster = Cluster("host", "--health-check")
    try:
        cluster.start(preexec=small_files)
        job = cluster.await_job(lambda job: job.get("left_out"), "the refusal of the first node")
        assert "shared memory: " in job["left_out"][0]["reason"], job
        cluster.start()
        cluster.start()
        cluster.await_job(runs_on(2), "a round on two nodes")
        assert cluster.nodes[0][0].poll() is None
        (base / "end").touch()
        for node in (0, 1, 2):
            status, log = cluster.ended(node)
            assert status == 0, (node, status, log)
        log = cluster.nodes[0][1].read_text()
        assert "the rendezvous runs here until the others have finished" in log, log
    finally:
        cluster.stop()


def failing_node(first_is_bad):
    """A node fails three times while there is a spare, and is left out."""
    cluster = Cluster(f"failing{first_is_bad}", "--max-restarts", "10")
    try:
        cluster.start(bad=first_is_bad)
        cluster.await_job(lambda job: job["state"] == "waiting", "the first node")
        cluster.start(bad=not first_is_bad)
        # Without a spare, both are needed, however often one fails.
        cluster.await_job(lambda job: job["restarts"] >= 4, "four restarts")
        cluster.start()
        job = cluster.await_job(lambda job: job.get("left_out") and runs_on(2)(job), "a round without the bad node")
        assert "within an hour (--max-node-failures 3), the last time: rank " in job["left_out"][0]["reason"], job
        (base / "end").touch()
        bad = 0 if first_is_bad else 1
        for node in (0, 1, 2):
            status, log = cluster.ended(node)
            # The rendezvous goes on where it is.
            assert status == (UNFIT if node == bad and not first_is_bad else 0), (node, status, log)
        log = cluster.nodes[bad][1].read_text()
        assert "is left out: it failed " in log, log
    finally:
        cluster.stop()


begin = time.monotonic()
for case in (healthy, lines, open_files, disks, memory, unhealthy_spare, unhealthy_host, lambda: failing_node(False),
             lambda: failing_node(True)):
    case()
print(f"{time.monotonic() - begin:.1f} s")
