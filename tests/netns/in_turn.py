"""Each node in turn is killed, cut off or stopped, and comes back: how long the others take until their next step."""
import signal
import time

import jobs
from cluster import Cluster
from training import OPEN_ENDED, compare_with_undisturbed

KINDS = ("killed", "cut off", "stopped")


def strike(cluster, node, kind):
    """Gives what brings the node back."""
    if kind == "killed":
        cluster.kill_node(node)
        return lambda: cluster.replace(node)
    if kind == "cut off":
        cluster.net.cut(node)
        return lambda: cluster.net.mend(node)
    pids = cluster.net.processes(node)
    for pid in pids:
        jobs.send(pid, signal.SIGSTOP)
    return lambda: [jobs.send(pid, signal.SIGCONT) for pid in pids]


def run_in_turn(net, settings, turns):
    """Any number of workers gives the same bytes, so the others go on at once with those that are left."""
    cluster = Cluster(net, "turns", OPEN_ENDED + ["--logical-world-size", str(settings.nodes)], settings,
                      ["--rdzv-conf", "last_call_timeout=60"], least=settings.nodes - 1)
    seconds = {}
    try:
        cluster.wait_until(lambda: cluster.is_whole() and cluster.step() > 0, "the first step")
        for turn in range(turns):
            node, kind = turn % settings.nodes, KINDS[turn // settings.nodes % 3]
            cluster.await_progress()
            began, before = time.monotonic(), cluster.round()
            bring_back = strike(cluster, node, kind)
            cluster.await_round(before + 1)
            cluster.await_progress()
            seconds.setdefault((kind, node), []).append(time.monotonic() - began)
            print(f"turn {turn}: node {node} {kind}: {seconds[kind, node][-1]:.2f} s", flush=True)
            bring_back()
            cluster.await_round(before + 2)
            cluster.wait_until(cluster.is_whole, "a round with all nodes")
            if not cluster.running():
                raise AssertionError(f"the training was over after turn {turn}")
        show(seconds)
        compare_with_undisturbed(f"{turns} turns of {settings.nodes} nodes", cluster)
    except BaseException:
        print(cluster.logs())
        raise
    finally:
        cluster.end()


def show(seconds):
    for kind, node in sorted(seconds):
        print(f"{kind}, node {node}: {', '.join(f'{each:.2f}' for each in seconds[kind, node])} s")
    for kind in KINDS:
        all_of_it = [each for (its_kind, _), row in seconds.items() if its_kind == kind for each in row]
        if all_of_it:
            print(f"{kind}: at most {max(all_of_it):.2f} s, {len(all_of_it)} times")
