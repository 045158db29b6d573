"""What can happen to a training: each leaves a job that can go on.

A fault is a function of the cluster. It strikes, and tells by a Struck what it did, how long that lasts, and what ends it.
"""
import errno
import os
import signal
import time
from typing import Callable, NamedTuple

import jobs
from cluster import GONE_S

# Longer than the lease of 5 s and the time in which a node that is back may rejoin.
PAST_THE_LEASE_S = 7


class Struck(NamedTuple):
    what: str
    lasts_s: float = 0
    mend: Callable = lambda: None


def signal_one(cluster, pids, number):
    """To one of them; whether there was one."""
    return any(jobs.send(pid, number) for pid in cluster.settings.draw.sample(sorted(pids), len(pids)))


def continue_all(pids):
    for pid, born in pids.items():
        if jobs.identity(pid) == born:
            jobs.send(pid, signal.SIGCONT)


def stop(cluster, pids, what, seconds):
    known = {pid: jobs.identity(pid) for pid in pids}
    for pid in pids:
        jobs.send(pid, signal.SIGSTOP)
    return Struck(f"{what} stopped for {seconds:.1f} s", seconds, lambda: continue_all(known))


def others_of(cluster, node):
    return [other for other in range(cluster.settings.nodes) if other != node]


# ---- processes ----

def worker_killed(cluster):
    node = cluster.any_node()
    signal_one(cluster, cluster.nodes[node].workers(), signal.SIGKILL)
    return Struck(f"a worker of node {node} killed")


def worker_stopped(cluster):
    """Hangs for ever, as far as anybody can see: it counts as lost after --progress-timeout, or the group says so before."""
    node = cluster.any_node()
    signal_one(cluster, cluster.nodes[node].workers(), signal.SIGSTOP)
    return Struck(f"a worker of node {node} stopped for ever")


def agent_killed(cluster):
    node = cluster.any_node()
    signal_one(cluster, cluster.nodes[node].agents(), signal.SIGKILL)
    return Struck(f"the agent of node {node} killed")


def agent_stopped(cluster):
    """Silent for longer than the lease, and back."""
    node = cluster.any_node()
    return stop(cluster, cluster.nodes[node].agents(), f"the agent of node {node}", PAST_THE_LEASE_S)


def node_killed(cluster, node=None):
    """ddp-run itself, of any node; the scheduler starts it again."""
    node = cluster.any_node() if node is None else node
    cluster.nodes[node].processes()
    cluster.nodes[node].process.kill()
    cluster.nodes[node].process.wait()
    jobs.wait_until(lambda: not cluster.nodes[node].left_behind(), GONE_S, f"what ddp-run of node {node} left behind")
    cluster.replace(node)
    return Struck(f"ddp-run of node {node} killed and started again")


def host_killed(cluster):
    """ddp-run of the node that hosts the rendezvous at first: another node coordinates from then on."""
    return node_killed(cluster, 0)


def machine_killed(cluster, node=None):
    """As by a power cut: the others hear nothing. It is started again at once."""
    node = cluster.any_node() if node is None else node
    cluster.net.cut(node)
    cluster.kill_node(node)
    cluster.replace(node)
    cluster.net.mend(node)
    return Struck(f"all of node {node} killed behind a cut cable and started again")


def host_stopped(cluster):
    """ddp-run of the first node, for longer than it takes to elect another coordinator. Its agent and workers go on."""
    os.kill(cluster.nodes[0].process.pid, signal.SIGSTOP)
    cluster.wait_until(lambda: any("coordinates the job from now on" in node.log_path.read_text(errors="replace")
                                   for node in cluster.nodes), "another coordinator")
    os.kill(cluster.nodes[0].process.pid, signal.SIGCONT)
    return Struck("ddp-run of node 0 stopped until another node coordinated")


def something_stopped(cluster):
    """A worker, an agent, a ddp-run or all of a node, mostly for less than the lease."""
    draw, node = cluster.settings.draw, cluster.any_node()
    what = draw.choice(["worker", "agent", "ddp-run", "machine"])
    pids = {"worker": cluster.nodes[node].workers, "agent": cluster.nodes[node].agents,
            "ddp-run": lambda: [cluster.nodes[node].process.pid], "machine": lambda: cluster.net.processes(node)}[what]()
    seconds = draw.uniform(0.1, 3) if draw.random() < 0.8 else draw.uniform(5, PAST_THE_LEASE_S)
    return stop(cluster, pids, f"{what} of node {node}", seconds)


def daemon_killed(cluster):
    """The workers go on while there is no coordinator; a new one learns the round from the agents."""
    cluster.daemon.kill()
    steps = cluster.step()
    jobs.wait_until(lambda: cluster.step() > steps or cluster.trained(), 10, "a step without a coordinator")
    cluster.start_daemon()
    return Struck("ddp-rendezvous killed and started again")


def two_at_once(cluster):
    nodes = cluster.settings.draw.sample(range(cluster.settings.nodes), 2)
    for node in nodes:
        signal_one(cluster, cluster.nodes[node].workers(), signal.SIGKILL)
    return Struck(f"a worker of each of nodes {nodes} killed")


def during_recovery(cluster):
    """The next failure comes while the survivors of the first one are still on their way."""
    first = worker_killed(cluster)
    time.sleep(cluster.settings.draw.uniform(0.0, 0.5))
    return Struck(f"{first.what}, then {cluster.settings.draw.choice([worker_killed, agent_killed])(cluster).what}")


# ---- the network ----

def cable_cut(cluster, node=None, seconds=PAST_THE_LEASE_S):
    """By default for longer than the lease."""
    node = cluster.any_node() if node is None else node
    cluster.net.cut(node)
    return Struck(f"node {node} cut off for {seconds:.1f} s", seconds, lambda: cluster.net.mend(node))


def host_cut(cluster):
    return cable_cut(cluster, 0)


def cut_for_a_while(cluster):
    return cable_cut(cluster, seconds=draw_silence(cluster))


def draw_silence(cluster):
    """Often too short to be noticed, and seldom longer than the lease."""
    draw = cluster.settings.draw
    return draw.uniform(0.1, 3) if draw.random() < 0.9 else draw.uniform(5, PAST_THE_LEASE_S)


def silence(cluster):
    """Of a switch, for less than a second: nobody is lost. The interfaces notice nothing; with them, ARP would take a second."""
    node, seconds = cluster.any_node(), cluster.settings.draw.uniform(0.1, 0.4)
    pairs = [pair for other in others_of(cluster, node) for pair in ((node, other), (other, node))]
    return deafened(cluster, pairs, f"node {node} unreachable for {seconds:.1f} s", seconds)


def deafened(cluster, pairs, what, seconds):
    for one, other in pairs:
        cluster.net.deafen(one, other)

    def mend():
        for one, other in pairs:
            cluster.net.hear_again(one, other)
    return Struck(what, seconds, mend)


def half_open(cluster, node=None, seconds=PAST_THE_LEASE_S):
    """What the node says does not arrive, what others say to it does."""
    node = cluster.any_node() if node is None else node
    pairs = [(node, other) for other in others_of(cluster, node)]
    return deafened(cluster, pairs, f"nothing from node {node} arrives for {seconds:.1f} s", seconds)


def host_half_open(cluster):
    return half_open(cluster, 0)


def one_way_cut(cluster):
    """In one direction or the other, for a while."""
    seconds = draw_silence(cluster)
    if cluster.settings.draw.random() < 0.5:
        return half_open(cluster, seconds=seconds)
    node = cluster.any_node()
    pairs = [(other, node) for other in others_of(cluster, node)]
    return deafened(cluster, pairs, f"nothing arrives at node {node} for {seconds:.1f} s", seconds)


def slow_link(cluster):
    """Is no failure."""
    draw, node = cluster.settings.draw, cluster.any_node()
    mbit, share, seconds = draw.choice([1, 5, 20]), draw.choice([0, 0.01, 0.1]), draw.uniform(0.5, 2)
    cluster.net.limit(node, mbit)
    cluster.net.lose(node, share)

    def mend():
        cluster.net.unlimit(node)
        cluster.net.lose_nothing(node)
    return Struck(f"node {node}'s link has {mbit} Mbit/s and loses {share:.0%} for {seconds:.1f} s", seconds, mend)


# ---- the rest of the machine ----

def full_disk(cluster):
    """The checkpoints' file system, until somebody makes room."""
    seconds, ballast = cluster.settings.draw.uniform(0.5, 3), cluster.checkpoints / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
    return Struck(f"the disk full for {seconds:.1f} s", seconds, ballast.unlink)


def clock_jump(cluster):
    """Of one node's wall clock, by up to a day in either direction; it stays there."""
    node = cluster.any_node()
    seconds = cluster.settings.draw.choice([-1, 1]) * cluster.settings.draw.choice([1, 60, 3_600, 86_400])
    cluster.jump(node, seconds)
    return Struck(f"the clock of node {node} now {seconds} s beside the others'")


KINDS = {kind.__name__: kind for kind in (worker_killed, worker_stopped, agent_killed, agent_stopped, node_killed, host_killed,
                                          machine_killed, host_cut, host_stopped, host_half_open, daemon_killed, cable_cut,
                                          silence, half_open, slow_link, two_at_once, during_recovery, full_disk, clock_jump)}
