#!/usr/bin/env python3
"""Trains on nodes that are network namespaces, while failures happen to them; see README.md beside this file.

usage: failures.py BIN_DIR [--kinds NAME,...] [--chaos [N]] [--in-turn N] [--nodes N] [--seed S] [--keep]

--in-turn N: each node in turn is killed, cut off or stopped, and comes back; the table has the seconds from each fault to the next step
of the others. --nodes is the number of nodes (3).
"""
import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import netns

LIMIT_S = 150
SKIPPED = 77
FULL = os.environ.get("DDP_TEST_FULL") == "1"
# Longer than the lease of 5 s and the time in which a node that is back may rejoin.
PAST_THE_LEASE_S = 7
PORT = 29400  # In namespaces of their own, where nobody else is.
# All that can be lost is in it: momentum, dropout's generators, a schedule, an epoch's end. Seconds, when nothing happens.
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "3072", "--test-samples", "64", "--batch-size", "16",
            "--epochs", "4", "--threads", "1", "--log-every", "1"]
# Steps of a few milliseconds; between two faults there are about a hundred of them, in a row of few faults perhaps far more.
CHAOS_TRAINING = ["--model", "toy", "--train-samples", "6000", "--epochs", "100000", "--batch-size", "5", "--optimizer", "adam",
                  "--threads", "1", "--log-every", "10"]
CHAOS_STEPS = 1000
STEPS_A_FAULT = 150

parser = argparse.ArgumentParser()
parser.add_argument("bin_dir", type=Path)
parser.add_argument("--kinds", default=None)
parser.add_argument("--chaos", type=int, nargs="?", const=100 if FULL else 5)
parser.add_argument("--in-turn", type=int, default=None)
parser.add_argument("--nodes", type=int, default=3)
parser.add_argument("--seed", type=int, default=None)
parser.add_argument("--keep", action="store_true", help="keep the logs")
args = parser.parse_args()
NODES = args.nodes
TRAINING_STEPS = 4 * 3072 // (16 * NODES)  # With one worker on each node; with more of them fewer.
seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
# What happens to whole nodes is the same with one worker each, and starting them is most of the work.
WORKERS_EACH = 2 if FULL or args.chaos is not None or args.kinds else 1
print(f"failures: --seed {seed}", flush=True)
draw = random.Random(seed)
base = Path(tempfile.mkdtemp(prefix="ddp_failures."))


class Cluster:
    """One training on the nodes of a network; node 0's address is where they meet.

    daemon: the rendezvous runs in a process of its own on node 0, and not in that node's ddp-run.
    """

    def __init__(self, net, name, training, flags=(), daemon=False, least=NODES, checkpoints=True):
        self.net, self.folder = net, base / name
        self.folder.mkdir()
        self.daemon = None
        if daemon:
            self.start_daemon()
        self.command = [str(args.bin_dir / "ddp-run"), "--nnodes", f"{least}:{NODES}", "--nproc-per-node", str(WORKERS_EACH),
                        "--rdzv-endpoint", f"{netns.address(0)}:{PORT}", "--rdzv-id", name, "--max-restarts", "100000",
                        "--max-no-progress", "0", "--join-timeout", str(LIMIT_S), "--shutdown-timeout", "5",
                        "--progress-timeout", "4", *flags, str(args.bin_dir / "ddp-train"), *training,
                        "--summary", str(self.folder / "summary.json")]
        if checkpoints:
            self.command += ["--checkpoint-dir", str(self.folder / "checkpoints")]
        if daemon:
            self.command[1:1] = ["--rdzv-conf", "is_host=false"]
        self.nodes = [self.start_node(node) for node in range(NODES)]
        self.gone = []
        self.started = time.monotonic()

    def start_daemon(self):
        self.daemon = jobs.Node(netns.inside(self.net.names[0], str(args.bin_dir / "ddp-rendezvous"), "--port", str(PORT)),
                                self.folder / "daemon.log")

    def start_node(self, node):
        return jobs.Node(netns.inside(self.net.names[node], *self.command, "--rates", str(self.folder / "rates.jsonl")),
                         self.folder / f"node{node}.log", env={"DDP_LOG_LEVEL": "info", "OMP_NUM_THREADS": "1"})

    def replace(self, node):
        """The node's ddp-run is gone (or is killed now); it is started again, as a scheduler would."""
        self.nodes[node].kill()
        self.gone.append(self.nodes[node])
        self.nodes[node] = self.start_node(node)

    def running(self):
        return any(node.process.poll() is None for node in self.nodes)

    def step(self):
        """Of the newest line that rank 0 wrote about its steps; -1 before the first."""
        try:
            lines = (self.folder / "rates.jsonl").read_text().count("\n")
        except FileNotFoundError:
            return -1
        return lines

    def trained(self):
        """Rank 0 has made its last step."""
        return (self.folder / "summary.json").exists()

    def await_step(self, step):
        jobs.wait_until(lambda: self.step() >= step or not self.running(), LIMIT_S, f"step {step}\n" + self.logs())

    def round(self):
        """The newest one that a coordinator has begun."""
        return max((int(number) for node in self.nodes + self.gone
                    for number in re.findall(r": round (\d+) begins", node.log_path.read_text(errors="replace"))), default=-1)

    def await_round(self, number):
        jobs.wait_until(lambda: self.round() >= number, LIMIT_S, f"round {number}\n{self.logs()}")

    def await_progress(self, limit_s=LIMIT_S):
        """Until rank 0 has made a step that it had not made before, or the job is over."""
        before = self.step()
        jobs.wait_until(lambda: self.step() > before or not self.running(), limit_s, "a new step\n" + self.logs())

    def finish(self):
        step, deadline = self.step(), time.monotonic() + LIMIT_S
        while self.running():
            for node in self.nodes:
                node.processes()
            if self.step() > step:
                step, deadline = self.step(), time.monotonic() + LIMIT_S
            if time.monotonic() > deadline:
                raise TimeoutError("the job hangs\n" + self.logs())
            time.sleep(0.02)
        self.seconds = time.monotonic() - self.started
        return [node.process.returncode for node in self.nodes]

    def result(self):
        """What the summary says, once all nodes have ended well and nothing is left of them."""
        codes = self.finish()
        if any(codes):
            raise AssertionError(f"the ddp-runs ended with {codes}\n{self.logs()}")
        jobs.wait_until(lambda: not any(node.alive() for node in self.nodes + self.gone), 5, "processes left behind")
        summary = jobs.summary(self.folder / "summary.json")
        self.end()
        return summary

    def end(self):
        for node in self.nodes + self.gone + ([self.daemon] if self.daemon else []):
            node.kill()
        if not args.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self):
        everything = self.nodes + self.gone + ([self.daemon] if self.daemon else [])
        return "\n".join(f"--- {node.log_path}\n{node.tail()}" for node in everything)

    def any_node(self):
        return draw.randrange(NODES)


def signal_one(pids, number):
    """To one of them; whether there was one."""
    for pid in draw.sample(sorted(pids), len(pids)):
        try:
            os.kill(pid, number)
            return True
        except ProcessLookupError:
            continue
    return False


# ---- what can happen: each leaves a job that can go on ----

def worker_killed(cluster):
    signal_one(cluster.nodes[cluster.any_node()].workers(), signal.SIGKILL)


def worker_stopped(cluster):
    """Hangs for ever, as far as anybody can see: it counts as lost after --progress-timeout, or the group says so before."""
    signal_one(cluster.nodes[cluster.any_node()].workers(), signal.SIGSTOP)


def agent_killed(cluster):
    signal_one(cluster.nodes[cluster.any_node()].agents(), signal.SIGKILL)


def agent_stopped(cluster):
    """Silent for longer than the lease, and back."""
    pids = cluster.nodes[cluster.any_node()].agents()
    if signal_one(pids, signal.SIGSTOP):
        time.sleep(PAST_THE_LEASE_S)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


def node_killed(cluster, node=None):
    """ddp-run itself, of any node; the scheduler starts it again."""
    node = cluster.any_node() if node is None else node
    cluster.nodes[node].processes()
    cluster.nodes[node].process.kill()
    cluster.nodes[node].process.wait()
    jobs.wait_until(lambda: not cluster.nodes[node].left_behind(), 5, f"what ddp-run of node {node} left behind")
    cluster.replace(node)


def host_killed(cluster):
    """ddp-run of the node that hosts the rendezvous at first: another node coordinates from then on."""
    node_killed(cluster, 0)


def host_cut(cluster):
    cable_cut(cluster, 0)


def host_stopped(cluster):
    """ddp-run of the first node, for longer than it takes to elect another coordinator. Its agent and workers go on."""
    os.kill(cluster.nodes[0].process.pid, signal.SIGSTOP)
    jobs.wait_until(lambda: not cluster.running() or any("coordinates the job from now on" in node.log_path.read_text(errors="replace")
                                                         for node in cluster.nodes), LIMIT_S, f"another coordinator\n{cluster.logs()}")
    os.kill(cluster.nodes[0].process.pid, signal.SIGCONT)


def host_half_open(cluster):
    half_open(cluster, 0)


def daemon_killed(cluster):
    """The workers go on while there is no coordinator; a new one learns the round from the agents."""
    cluster.daemon.kill()
    steps = cluster.step()
    jobs.wait_until(lambda: cluster.step() > steps or cluster.trained(), 10, "a step without a coordinator")
    cluster.start_daemon()


def cable_cut(cluster, node=None):
    """For longer than the lease, then mended."""
    node = cluster.any_node() if node is None else node
    cluster.net.cut(node)
    time.sleep(PAST_THE_LEASE_S)
    cluster.net.mend(node)


def silence(cluster):
    """Of a switch, for less than a second: nobody is lost. The interfaces notice nothing; with them, ARP would take a second."""
    node = cluster.any_node()
    others = [other for other in range(NODES) if other != node]
    for other in others:
        cluster.net.deafen(node, other)
        cluster.net.deafen(other, node)
    time.sleep(draw.uniform(0.1, 0.4))
    for other in others:
        cluster.net.hear_again(node, other)
        cluster.net.hear_again(other, node)


def half_open(cluster, node=None):
    """What the node says does not arrive, what others say to it does."""
    node = cluster.any_node() if node is None else node
    for other in range(NODES):
        if other != node:
            cluster.net.deafen(node, other)
    time.sleep(PAST_THE_LEASE_S)
    for other in range(NODES):
        if other != node:
            cluster.net.hear_again(node, other)


def slow_link(cluster):
    """Is no failure."""
    node = cluster.any_node()
    cluster.net.limit(node, 20)
    time.sleep(2)
    cluster.net.unlimit(node)


def two_at_once(cluster):
    for node in draw.sample(range(NODES), 2):
        signal_one(cluster.nodes[node].workers(), signal.SIGKILL)


def during_recovery(cluster):
    """The next failure comes while the survivors of the first one are still on their way."""
    signal_one(cluster.nodes[cluster.any_node()].workers(), signal.SIGKILL)
    time.sleep(draw.uniform(0.0, 0.5))
    draw.choice([worker_killed, agent_killed])(cluster)


KINDS = {kind.__name__: kind for kind in (worker_killed, worker_stopped, agent_killed, agent_stopped, node_killed, host_killed,
                                          host_cut, host_stopped, host_half_open, daemon_killed, cable_cut, silence,
                                          half_open, slow_link, two_at_once, during_recovery)}
# Those that differ most; agent_job_test, ddp_run_nodes_test and others have the rest on one machine.
FEW_KINDS = ["host_killed", "host_cut", "host_stopped", "daemon_killed", "silence",
             draw.choice(["cable_cut", "half_open", "host_half_open", "agent_stopped"])]
CHAOS = [worker_killed, worker_killed, worker_killed, agent_killed, agent_killed, node_killed, host_killed, silence,
         two_at_once, during_recovery]


def undisturbed(net, name, training):
    cluster = Cluster(net, name, training)
    try:
        summary = cluster.result()
    except BaseException:
        cluster.end()
        raise
    print(f"{name}: {cluster.seconds:.1f} s, {summary['steps']} steps, {summary['weights_sha256']}", flush=True)
    return summary["weights_sha256"]


def compare(name, cluster, summary, expected):
    same = summary["weights_sha256"] == expected
    print(f"{name}: {summary['restarts']} restarts, {summary['rounds']} rounds, {cluster.seconds:.1f} s, "
          f"{'same bytes' if same else 'DIFFERENT BYTES ' + summary['weights_sha256']}", flush=True)
    if not same:
        raise AssertionError(f"the weights differ from the undisturbed run's {expected}")


def run_kinds(net, kinds):
    expected = undisturbed(net, "undisturbed", TRAINING)
    for name in kinds:
        cluster = Cluster(net, name, TRAINING, daemon=name == "daemon_killed")
        try:
            # Between the first step and the middle, so that it meets a training and not its end.
            cluster.await_step(draw.randrange(1, TRAINING_STEPS // WORKERS_EACH // 2))
            KINDS[name](cluster)
            summary = cluster.result()
        except BaseException:
            print(cluster.logs())
            cluster.end()
            raise
        compare(name, cluster, summary, expected)


def run_chaos(net, faults):
    training = [*CHAOS_TRAINING, "--max-steps", str(CHAOS_STEPS + STEPS_A_FAULT * faults)]
    expected = undisturbed(net, "chaos-undisturbed", training)
    cluster = Cluster(net, "chaos", training)
    try:
        for number in range(faults):
            cluster.await_progress()
            time.sleep(draw.uniform(0, 0.3))
            if not cluster.running():
                raise AssertionError(f"the training was over after {number} faults; make it longer")
            kind = draw.choice(CHAOS)
            print(f"{time.monotonic() - cluster.started:6.1f} s, line {cluster.step()}: {kind.__name__}", flush=True)
            kind(cluster)
        summary = cluster.result()
    except BaseException:
        print(cluster.logs())
        cluster.end()
        raise
    compare(f"chaos, {faults} faults", cluster, summary, expected)


def run_in_turn(net, turns):
    """Any number of workers gives the same bytes, so the others go on at once with those that are left."""
    training = [*CHAOS_TRAINING, "--logical-world-size", str(NODES), "--max-steps", "100000000"]
    # Without checkpoints: rank 0 holds the lock of their folder, here also while its node is cut off.
    cluster = Cluster(net, "turns", training, ["--rdzv-conf", "last_call_timeout=60"], least=NODES - 1, checkpoints=False)
    seconds = {}
    try:
        for turn in range(turns):
            node, kind = turn % NODES, ("killed", "cut off", "stopped")[turn // NODES % 3]
            cluster.await_progress()
            began, before = time.monotonic(), cluster.round()
            pids = cluster.nodes[node].processes()
            if kind == "killed":
                cluster.nodes[node].kill()
            elif kind == "cut off":
                cluster.net.cut(node)
            else:
                for pid in pids:
                    signal_one([pid], signal.SIGSTOP)
            cluster.await_round(before + 1)
            cluster.await_progress()
            seconds.setdefault((kind, node), []).append(time.monotonic() - began)
            print(f"turn {turn}: node {node} {kind}: {seconds[kind, node][-1]:.2f} s", flush=True)
            if kind == "killed":
                cluster.replace(node)
            elif kind == "cut off":
                cluster.net.mend(node)
            else:
                for pid in pids:
                    signal_one([pid], signal.SIGCONT)
            cluster.await_round(before + 2)  # With all nodes.
            time.sleep(1)  # They have a majority of voters again.
    finally:
        cluster.end()
    for kind, node in sorted(seconds):
        print(f"{kind}, node {node}: {', '.join(f'{each:.2f}' for each in seconds[kind, node])} s")


def main():
    reason = netns.reason_to_skip()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    with netns.network("ddp-test", NODES) as net:
        if args.in_turn is not None:
            run_in_turn(net, args.in_turn)
        elif args.chaos is not None:
            run_chaos(net, args.chaos)
        else:
            run_kinds(net, args.kinds.split(",") if args.kinds else KINDS if FULL else FEW_KINDS)
    if not args.keep:
        shutil.rmtree(base, ignore_errors=True)


main()
