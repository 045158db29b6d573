#!/usr/bin/env python3
"""Ctrl-C ends ddp-run at once while a name server does not answer.

    unanswered_name.py BIN

Needs root: network and files are a namespace's own.
"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.argv[1]).resolve()
SKIPPED = 77
LIMIT_S = 60
ENDS_WITHIN_S = 20  # The name is asked for twice as long.
RESOLV_CONF = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"
NAMESPACES = ["unshare", "--net", "--mount", "--kill-child", "--pid", "--fork", "--mount-proc"]
COMMAND = [BIN / "ddp-run", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node1.example:29400", "true"]


def in_namespace(folder):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name, text in (("resolv.conf", RESOLV_CONF), ("nsswitch.conf", "hosts: files dns\n")):
        Path(folder, name).write_text(text)
        subprocess.run(["mount", "--bind", f"{folder}/{name}", f"/etc/{name}"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as name_server:
        name_server.bind(("127.0.0.1", 53))
        name_server.settimeout(LIMIT_S)
        job = subprocess.Popen(COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in "A", "AAAA":  # ddp-run wants to know if the endpoint is on this machine. There is no such name, the answer says.
            question, asker = name_server.recvfrom(4096)
            assert b"\5node1\7example" in question, question
            name_server.sendto(question[:2] + b"\x81\x83" + question[4:12] + question[12:], asker)
        question = name_server.recv(4096)  # It connects, and for that it asks again.
        assert b"\5node1\7example" in question, question
        job.send_signal(signal.SIGINT)
        said = job.communicate(timeout=ENDS_WITHIN_S)[0]
    print(job.returncode, said)
    assert job.returncode == 128 + signal.SIGINT, (job.returncode, said)


def main():
    if os.geteuid() != 0 or subprocess.run([*NAMESPACES, "true"], check=False).returncode != 0:
        print("needs root and namespaces")
        return SKIPPED
    if not all(Path("/etc", name).exists() for name in ("resolv.conf", "nsswitch.conf")):
        print("no /etc/resolv.conf or /etc/nsswitch.conf here")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*NAMESPACES, sys.executable, __file__, str(BIN), folder], check=False).returncode


if len(sys.argv) > 2:
    in_namespace(sys.argv[2])
else:
    sys.exit(main())
