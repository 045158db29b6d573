#!/usr/bin/env python3
"""Another user of the machine on which a job runs: other_user.py BIN_DIR SUM_WORKER. Needs root, else skips (77).

Three nodes compute on this machine, in a network namespace of their own. Meanwhile a process of the user nobody tries every port and
every abstract socket that the job has, again and again: as an agent, as one that guesses the token, as a PyTorch client, as a browser, as
another worker, and by connections that say nothing. It also tries to read the job's files. It gets nothing, the job ends with the
result of a run that was left alone, and the rendezvous has counted the attempts.
"""
import ctypes
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

SKIPPED = 77
NOBODY = 65534
LIMIT_S = 240
FLOOD = 2000
SILENT_AT_ONCE = 200
CLONE_NEWNET = 0x40000000
STEPS = 2000
bin_dir, worker = Path(sys.argv[1]), sys.argv[2]
base = Path(tempfile.mkdtemp(prefix="ddp_other_user."))
base.chmod(0o755)


def frame(text):
    return struct.pack("<I", len(text)) + text


JOIN = json.dumps({"type": "join", "job_id": "job", "node_id": "intruder", "host": "intruder", "nproc": 1}).encode()
SET = b"\x00" + struct.pack("<Q", 4) + b"/key" + struct.pack("<Q", 5) + b"value"
WORDS = {
    "agent": b"\xddDPR\x01" + frame(JOIN),
    "guess": b"\xddDPR\x02\x01\x03job" + bytes(32) + bytes(32),
    "store": SET + b"\x06",
    "new store client": b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x06",
    "browser": b"GET /status HTTP/1.1\r\n\r\n",
    "worker": b"DDPL" + struct.pack("<IQqiii", 1, 0, 0, 3, 0, 1) + bytes(12),
}


def bring_loopback_up():
    with socket.socket() as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def listening_ports():
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def abstract_names():
    """Those of the job. The one that reserves the test's port is no business of the job's."""
    lines = Path("/proc/net/unix").read_bytes().splitlines()[1:]
    paths = [line.split(None, 7)[7] for line in lines if len(line.split(None, 7)) == 8]
    return {path[1:] for path in paths if path.startswith(b"@") and not path.startswith(b"@" + jobs.RESERVATION.encode())}


class Intruder:
    """A process of another user. It runs until its input ends; then it says what it did."""

    def __init__(self):
        self.told, told = os.pipe()
        inward, self.input = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.input)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                os.write(told, json.dumps(intrude(inward)).encode())
                os._exit(0)
            except BaseException as error:  # noqa: a forked process must not return
                os.write(told, json.dumps({"error": repr(error)}).encode())
                os._exit(1)
        os.close(told)
        os.close(inward)

    def end(self):
        os.close(self.input)
        with os.fdopen(self.told) as report:
            text = report.read()
        os.waitpid(self.pid, 0)
        return json.loads(text)


def answer(family, address, words):
    """What comes back, or why nothing does."""
    with socket.socket(family) as client:
        client.settimeout(5)
        try:
            client.connect(address)
            client.sendall(words)
            return client.recv(4096)
        except (ConnectionError, BlockingIOError, TimeoutError):
            return b""


def readable_files():
    """What another user can read in the folder for temporary files."""
    found = []
    for folder, folders, files in os.walk(base / "tmp"):
        found += [os.path.join(folder, name) for name in folders + files if os.access(os.path.join(folder, name), os.R_OK)]
    return found


def intrude(inward):
    report = {"answers": [], "ports": [], "names": [], "attempts": 0, "silent": 0, "files": []}
    os.set_blocking(inward, False)
    silent = []
    while True:
        try:
            if os.read(inward, 1) == b"":
                return report
        except BlockingIOError:
            pass
        for port in listening_ports():
            if port not in report["ports"]:
                report["ports"].append(port)
            for who, words in WORDS.items():
                report["attempts"] += 1
                heard = answer(socket.AF_INET, ("127.0.0.1", port), words)
                if heard:
                    report["answers"].append(f"{who} at port {port}: {heard!r}")
            for _ in range(20):
                client = socket.socket()
                client.setblocking(False)
                if client.connect_ex(("127.0.0.1", port)) in (0, 115):
                    report["silent"] += 1
                silent.append(client)
        for client in silent[:-SILENT_AT_ONCE]:
            client.close()
        silent = silent[-SILENT_AT_ONCE:]
        for name in abstract_names():
            if repr(name) not in report["names"]:
                report["names"].append(repr(name))
            heard = answer(socket.AF_UNIX, b"\0" + name, frame(JOIN))
            if heard:
                report["answers"].append(f"the socket @{name!r}: {heard!r}")
        report["files"] += readable_files()


def refusals(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return {name: int(count) for name, count in re.findall(r'ddp_refused_total{reason="(\w+)"} (\d+)', page.read().decode())}


class Job:
    """Three nodes of one worker each. The workers wait for the file `go` of the job's folder."""

    def __init__(self, name):
        self.folder = base / name
        self.folder.mkdir()
        self.port = jobs.free_port()
        (base / "tmp").mkdir(exist_ok=True)
        (base / "tmp").chmod(0o1777)
        waits = self.folder / "wait.sh"
        waits.write_text(f'until [ -e {self.folder}/go ]; do sleep 0.02; done\nexec "$@"\n')
        arguments = ["--nnodes", "3", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job", "--join-timeout", str(LIMIT_S),
                     "--max-restarts", "3", "--log-dir", str(self.folder / "logs"),
                     "sh", str(waits), worker, str(self.folder / "sum"), str(STEPS)]
        environment = {"DDP_RDZV_TOKEN": "the token of this test", "TMPDIR": str(base / "tmp")}
        self.nodes = [jobs.Node([str(bin_dir / "ddp-run"), "--node-rank", str(index), *arguments], self.folder / f"node{index}.log",
                                env=environment)
                      for index in range(3)]

    def await_start(self):
        jobs.wait_until(lambda: sum(len(node.workers()) for node in self.nodes) == 3, LIMIT_S, f"three workers\n{self.logs()}")

    def go(self):
        (self.folder / "go").touch()

    def logs(self):
        return "\n".join(f"--- {node.log_path}\n{node.tail()}" for node in self.nodes)

    def finish(self):
        for node in self.nodes:
            status = node.wait(LIMIT_S)
            assert status == 0, f"status {status}\n{self.logs()}"
        for node in self.nodes:
            assert "round 1" not in node.log_path.read_text(), f"a restart\n{self.logs()}"
        return [(self.folder / f"sum.{rank}").read_text() for rank in range(3)]


def compute(name, disturbed):
    job = Job(name)
    intruder = report = counts = None
    try:
        job.await_start()
        if disturbed:
            intruder = Intruder()
            counts = jobs.wait_until(lambda: refusals(job.port)["other_user"] > FLOOD // 2 and refusals(job.port), LIMIT_S, "a flood")
        job.go()
        result = job.finish()
    finally:
        if intruder:
            report = intruder.end()
        for node in job.nodes:
            node.kill()
    return result, report, counts, job


def undisturbed_and_flooded():
    quiet, *_ = compute("quiet", disturbed=False)
    flooded, report, counts, job = compute("flooded", disturbed=True)
    assert "error" not in report, report
    print(f"{report['attempts']} attempts, {report['silent']} silent connections, ports {report['ports']}, names {report['names']}, "
          f"refused before the work began: {counts}", flush=True)
    assert not report["answers"], report["answers"]
    assert not report["files"], report["files"]
    assert len(report["ports"]) >= 3, "the rendezvous, and two daemons that stand by"
    assert len(report["names"]) == 3, f"the places of the nodes, which have numbers: {report['names']}"
    assert report["attempts"] + report["silent"] >= FLOOD, report
    assert counts["wrong_token"] == counts["no_token"] == counts["malformed"] == 0, f"somebody was let in as far as that: {counts}"
    assert len(set(quiet)) == 1 and flooded == quiet, f"{flooded}, not {quiet}"
    log = job.nodes[0].log_path.read_text()
    assert f"it belongs to user {NOBODY} of this machine" in log, log
    assert log.count("of this machine") < 400, "the log is flooded, too"


def main():
    if os.geteuid() != 0:
        print("SKIPPED: needs root, to become another user")
        return SKIPPED
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        print("SKIPPED: no network namespaces here")
        return SKIPPED
    bring_loopback_up()
    undisturbed_and_flooded()
    shutil.rmtree(base)
    return 0


sys.exit(main())
