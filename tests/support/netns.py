"""Emulates the nodes of a network on this machine: namespaces around a bridge, which has its own namespace.

Needs root and the right to make namespaces (reason_to_skip() says what is missing). The names begin with PREFIX-PID-; they
are removed at the end, even after a failure or SIGTERM.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import sys

ADDRESS = "10.77.0.{}"
SUBNET = "10.77.0.0/24"
NOBODY = "02:00:00:00:00:fe"  # A link-layer address that no interface has.
# The burst of tbf: packets have up to 64 KiB (segmentation is offloaded to the end of a veth), and a timer that is 0.25 ms late
# must not cost bandwidth.
LEAST_BURST = 128 * 1024
BURST_S = 0.25e-3


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def inside(namespace, *command):
    """The command, to be run in that namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def is_in(pid, namespace):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino == namespace
    except OSError:
        return False


def tc(namespace, *words):
    subprocess.run(inside(namespace, "tc", *words), check=True)


def address(node):
    return ADDRESS.format(node + 1)


def reason_to_skip():
    """The reason why no network can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "not root, so no network namespaces can be made"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "ip and tc are missing (package iproute2)"
    name = f"ddp-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], stderr=subprocess.PIPE, text=True)
    if made.returncode == 0:
        made = subprocess.run(["ip", "-n", name, "link", "add", "bridge", "type", "bridge"], stderr=subprocess.PIPE, text=True)
        ip("netns", "del", name)
    return "" if made.returncode == 0 else f"this machine makes no network namespaces or bridges: {made.stderr.strip()}"


class Network:
    """names[k] is the namespace of node k, whose address is address(k)."""

    def __init__(self, prefix, nodes):
        self.switch = f"{prefix}-{os.getpid()}-switch"
        self.names = [f"{prefix}-{os.getpid()}-{node}" for node in range(nodes)]
        self.made = []

    def build(self):
        for name in [self.switch, *self.names]:
            ip("netns", "add", name)
            self.made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for node, name in enumerate(self.names):
            ip("-n", self.switch, "link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", f"port{node}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(node)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def remove(self):
        for name in self.made:
            ip("netns", "del", name, check=False)

    def cut(self, node):
        """Pulls the cable at the switch: the node's own interface loses its carrier."""
        ip("-n", self.switch, "link", "set", f"port{node}", "down")

    def mend(self, node):
        ip("-n", self.switch, "link", "set", f"port{node}", "up")

    def deafen(self, node, to):
        """Silently drops what the node sends to that other node; the other direction still works."""
        ip("-n", self.names[node], "neigh", "replace", address(to), "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")

    def hear_again(self, node, to):
        ip("-n", self.names[node], "neigh", "del", address(to), "dev", "eth0")

    def limit(self, node, mbit):
        """Limits the node's link to this rate in each direction."""
        burst = max(LEAST_BURST, int(mbit * 1e6 / 8 * BURST_S))
        for namespace, device in ((self.names[node], "eth0"), (self.switch, f"port{node}")):
            tc(namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", str(burst),
               "latency", "100ms")

    def lose(self, node, share):
        """Loses this share of the packets that the node sends, one by one. The kernels of small machines lack netem; this is a
        BPF program: load a random number; modulo 1000; compare; drop (2) or go on."""
        program = f"5,32 0 0 4294963256,148 0 0 1000,53 1 0 {round(share * 1000)},6 0 0 2,6 0 0 4294967295"
        tc(self.names[node], "qdisc", "replace", "dev", "eth0", "clsact")
        tc(self.names[node], "filter", "replace", "dev", "eth0", "egress", "pref", "1", "handle", "1", "protocol", "all", "bpf",
              "da", "bytecode", program)

    def lose_nothing(self, node):
        tc(self.names[node], "qdisc", "del", "dev", "eth0", "clsact")

    def processes(self, node):
        """Of the node's namespace, zombies excepted."""
        namespace = os.stat(f"/run/netns/{self.names[node]}").st_ino
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_in(pid, namespace)]

    def unlimit(self, node):
        for namespace, device in ((self.names[node], "eth0"), (self.switch, f"port{node}")):
            tc(namespace, "qdisc", "del", "dev", device, "root")


@contextlib.contextmanager
def network(prefix, nodes):
    net = Network(prefix, nodes)
    # So that the code below also runs when the job is asked to end.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        net.build()
        yield net
    finally:
        net.remove()
        signal.signal(signal.SIGTERM, former)
