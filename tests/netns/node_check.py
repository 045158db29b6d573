#!/usr/bin/env python3
"""`ddp-run check` on nodes of a network: node_check.py BIN_DIR. Needs root, else skips (77).

Healthy nodes are fit. A node whose ports are closed, a node that reaches one other node no more and a node on a slow link are named,
and no other node is.
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import netns

SKIPPED = 77
UNFIT = 77
NODES = 3
PORT = 29400
LIMIT_S = 240
DDP_RUN = str(Path(sys.argv[1]) / "ddp-run")
base = Path(tempfile.mkdtemp(prefix="ddp_node_check.", dir="/dev/shm"))


def name(node):
    return f"check{node}"


def hosts_file(without=None):
    """What /etc/hosts says on the nodes."""
    lines = ["127.0.0.1 localhost"]
    lines += [f"{netns.address(node)} {name(node)}" for node in range(NODES) if node != without]
    path = base / "hosts"
    path.write_text("\n".join(lines) + "\n")
    return path


def on_node(net, node, *command):
    """The command in the node's namespace, with names of its own."""
    setup = f"mount --bind {base}/hosts /etc/hosts && hostname {name(node)} && exec \"$@\""
    return netns.inside(net.names[node], "unshare", "--uts", "--mount", "sh", "-c", setup, "sh", *command)


def run_check(net, *flags, last=()):
    """Starts the check on all nodes, with the flags `last` on the last one; the statuses, and what the first node prints."""
    command = [DDP_RUN, "check", "--nnodes", str(NODES), "--rdzv-endpoint", f"{netns.address(0)}:{PORT}", "--rdzv-replicas", "1",
               "--join-timeout", str(LIMIT_S), *flags]
    nodes = []
    for node in range(NODES):
        own = [*command, "--node-rank", str(node), *(last if node == NODES - 1 else ())]
        nodes.append(subprocess.Popen(on_node(net, node, *own), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      stdin=subprocess.DEVNULL, text=True))
    outputs = [node.communicate(timeout=LIMIT_S) for node in nodes]
    statuses = [node.returncode for node in nodes]
    assert all(output == "" for output, _ in outputs[1:]), outputs
    return statuses, outputs[0][0], [error for _, error in outputs]


def states(net, expected, ignoring=(), last=()):
    """The checks that are not all right, as {(host, check): text}, for --json."""
    statuses, output, errors = run_check(net, "--json", last=last)
    assert statuses == [expected] * NODES, (statuses, output, errors)
    page = json.loads(output)
    assert page["fit"] == (expected == 0) and [node["host"] for node in page["nodes"]] == [name(node) for node in range(NODES)], page
    for node in page["nodes"]:
        assert node["fit"] == all(check["state"] != "failed" for check in node["checks"]), node
    return {(node["host"], check["check"]): check["measured"] for node in page["nodes"] for check in node["checks"]
            if check["state"] != "ok" and check["check"] not in ignoring}


def healthy(net):
    hosts_file()
    statuses, output, errors = run_check(net)
    assert statuses == [0] * NODES, (statuses, output, errors)
    lines = [line.split() for line in output.splitlines()]
    assert lines[0][:3] == ["NODE", "CHECK", "STATE"], output
    for node in range(NODES):
        seen = {line[1] for line in lines if line and line[0] == name(node)}
        assert {"port", "clock", "latency", "bandwidth"} <= seen, output
    # All have one clock, and the measurement knows how wrong it may be.
    for line in lines:
        if line[:2] in ([name(1), "clock"], [name(2), "clock"]):
            assert abs(float(line[3])) <= float(line[7]) + 0.1, line
    assert states(net, 0) == {}


def unknown_name(net):
    hosts_file(without=1)
    found = states(net, 0)
    assert set(found) == {(name(1), "own name"), (name(1), "name elsewhere")}, found
    assert found[name(1), "name elsewhere"] == f"unknown to {name(0)}, {name(2)}", found
    hosts_file()


def firewall(net, node):
    """Closes the node's ports: what wants to connect to it gets no answer. Empty if this kernel can; otherwise the reason."""
    for words in (("qdisc", "add", "dev", "eth0", "clsact"),
                  ("filter", "add", "dev", "eth0", "ingress", "protocol", "ip", "u32", "match", "ip", "protocol", "6", "0xff",
                   "match", "u8", "0x02", "0x12", "at", "33", "action", "drop")):
        done = subprocess.run(netns.inside(net.names[node], "tc", *words), stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.stderr.strip()
    return ""


def closed_ports(net):
    reason = firewall(net, 2)
    try:
        if reason:
            return print(f"closed ports: left out, because tc filters nothing here: {reason}")
        found = states(net, UNFIT)
        assert set(found) == {(name(2), "port"), (name(2), "bandwidth")}, found
        text = found[name(2), "port"]
        assert text.startswith(f"not reached by {name(0)}, {name(1)}: {netns.address(2)}:"), found
    finally:
        subprocess.run(netns.inside(net.names[2], "tc", "qdisc", "del", "dev", "eth0", "clsact"), stderr=subprocess.DEVNULL)
    return None


def wrong_address(net):
    """The last node is reached by nobody, but reaches all."""
    found = states(net, UNFIT, ignoring=("name elsewhere",), last=("--local-addr", netns.address(77)))
    assert set(found) == {(name(2), "port"), (name(2), "bandwidth")}, found
    text = found[name(2), "port"]
    assert text.startswith(f"not reached by {name(0)}, {name(1)}: {netns.address(77)}:"), found


def lost_way(net):
    """Node 1 does not reach node 2, and so node 2 gets no answer from it."""
    net.deafen(1, 2)
    found = states(net, UNFIT, ignoring=("bandwidth", "latency"))
    net.hear_again(1, 2)
    assert set(found) == {(name(1), "port"), (name(2), "port")}, found
    assert found[name(2), "port"].startswith(f"not reached by {name(1)}: "), found
    assert found[name(1), "port"].startswith(f"not reached by {name(2)}: "), found


def slow_link(net):
    net.limit(1, 100)
    found = states(net, UNFIT)
    net.unlimit(1)
    assert set(found) == {(name(1), "bandwidth")}, found
    speed = float(found[name(1), "bandwidth"].split()[0])
    assert 5 <= speed <= 14, found


def main():
    reason = netns.reason_to_skip()
    if reason:
        print(reason)
        sys.exit(SKIPPED)
    with netns.network("ddp-check", NODES) as net:
        for case in (healthy, unknown_name, closed_ports, wrong_address, lost_way, slow_link):
            case(net)
            print(f"{case.__name__}: as expected")
    shutil.rmtree(base)


main()
