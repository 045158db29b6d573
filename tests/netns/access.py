#!/usr/bin/env python3
"""Intruders on the network of a job with a token, and of one without: access.py BIN_DIR. Needs root, else skips (77).

Node 0 hosts the rendezvous, node 1 takes part, and node 2 is an intruder. The intruder gets no access: not as an agent, not as a
store client, and not by replaying what node 1 has sent. The job is not disturbed, and /metrics counts the attempts.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import netns

SKIPPED = 77
PORT = 29400
LIMIT_S = 240
REFUSED = 74
bin_dir = Path(sys.argv[1])
base = Path(tempfile.mkdtemp(prefix="ddp_access."))
STAYS = ("exec 2>&1; echo store at $MASTER_ADDR port $MASTER_PORT, $RANK of $WORLD_SIZE, round $DDP_ROUND; "
         f"until [ -e {base}/end ]; do sleep 0.02; done")


def start(net, node, name, environment, *flags, program=("sh", "-c", STAYS)):
    command = [str(bin_dir / "ddp-run"), "--nnodes", "2", "--rdzv-endpoint", f"{netns.address(0)}:{PORT}", "--rdzv-id", name,
               "--join-timeout", str(LIMIT_S), *flags, *program]
    clean = {key: value for key, value in os.environ.items() if key != "DDP_RDZV_TOKEN"}
    log = base / f"{name}.{node}.{time.monotonic_ns()}.log"
    process = subprocess.Popen(netns.inside(net.names[node], *command), env={**clean, **environment},
                               stdout=log.open("wb"), stderr=subprocess.STDOUT)
    return process, log


def await_text(log, text):
    jobs.wait_until(lambda: text in log.read_text(), LIMIT_S, f"'{text}' in\n{log.read_text()}")


def inside(net, node, *command, stdin=""):
    return subprocess.run(netns.inside(net.names[node], *command), input=stdin, capture_output=True, text=True, timeout=LIMIT_S)


def store_client(net, node, at=(netns.address(0), PORT)):
    """A PyTorch client's first request, and what comes back: the number of keys, or nothing."""
    script = ("import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20); s.sendall(b'\\x06'); "
              "print(len(s.recv(8)))")
    done = inside(net, node, sys.executable, "-c", script, at[0], str(at[1]))
    return "refused" if done.returncode != 0 else done.stdout.strip()


def store_of(log):
    """Where a worker finds the store."""
    return re.search(r"store at (\S+) port (\d+)", log.read_text()).groups()


def refusals(net):
    script = ("import sys, urllib.request; print(urllib.request.urlopen(f'http://{sys.argv[1]}:{sys.argv[2]}/metrics').read()"
              ".decode())")
    page = inside(net, 2, sys.executable, "-c", script, netns.address(0), str(PORT)).stdout
    return {name: int(count) for name, count in re.findall(r'ddp_refused_total{reason="(\w+)"} (\d+)', page)}


def finish(nodes):
    (base / "end").touch()
    for process, log in nodes:
        status = process.wait(LIMIT_S)
        assert status == 0, f"status {status}\n{log.read_text()}"
        assert log.read_text().count("round 0") == 1 and "round 1" not in log.read_text(), log.read_text()
    (base / "end").unlink()


def guarded(net):
    token = {"DDP_RDZV_TOKEN": "the token of this test"}
    nodes = [start(net, node, "guarded", token) for node in (0, 1)]
    try:
        for node, (_, log) in enumerate(nodes):
            await_text(log, "of 2, round 0")
        assert store_of(nodes[1][1])[0] == "127.0.0.1", nodes[1][1].read_text()
        assert store_client(net, 1, store_of(nodes[1][1])) == "8", "a worker of the job's other node"
        assert store_client(net, 0, store_of(nodes[0][1])) == "8", "a worker of the hosting node"
        # Nothing comes back, or the connection is reset.
        for node in (1, 2):
            assert store_client(net, node) in ("0", "refused"), "a stranger reads the store"
        assert store_client(net, 2, (netns.address(1), store_of(nodes[1][1])[1])) == "refused", "the agent listens for strangers"
        for environment, reason in (({"DDP_RDZV_TOKEN": "another token of this test"}, "another token"), ({}, "has none")):
            stranger, log = start(net, 2, "guarded", environment, program=("true",))
            assert stranger.wait(LIMIT_S) == REFUSED, log.read_text()
            assert reason in log.read_text(), log.read_text()
        counts = refusals(net)
        assert (counts["stranger"], counts["wrong_token"], counts["no_token"]) == (2, 1, 1), counts
        log = nodes[0][1].read_text()
        assert f"refused {netns.address(2)}:" in log and "the token of this test" not in log, log
        assert "anybody who reaches" not in log, log
        finish(nodes)
    finally:
        for process, _ in nodes:
            process.kill()


def open_job(net):
    """Without a token everybody is let in, and the hosting node says so once."""
    nodes = [start(net, node, "open", {}) for node in (0, 1)]
    try:
        for _, log in nodes:
            await_text(log, "of 2, round 0")
        assert store_of(nodes[1][1]) == (netns.address(0), str(PORT)), nodes[1][1].read_text()
        assert store_client(net, 2) == "8"
        finish(nodes)
        assert nodes[0][1].read_text().count("anybody who reaches") == 1, nodes[0][1].read_text()
        assert "anybody who reaches" not in nodes[1][1].read_text(), nodes[1][1].read_text()
    finally:
        for process, _ in nodes:
            process.kill()


def alone(net):
    """A job of one node without a token cannot be reached from elsewhere, with one it can."""
    for token, reachable in (({}, False), ({"DDP_RDZV_TOKEN": "the token of this test"}, True)):
        node = start(net, 0, "alone", token, "--nnodes", "1")
        try:
            await_text(node[1], "0 of 1, round 0")
            assert bool(refusals(net)) == reachable
            finish([node])
        finally:
            node[0].kill()


def main():
    reason = netns.reason_to_skip()
    if reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    with netns.network("ddp-access", 3) as net:
        for part in (guarded, open_job, alone):
            part(net)
            print(f"{part.__name__}: as it should be", flush=True)
    return 0


sys.exit(main())
