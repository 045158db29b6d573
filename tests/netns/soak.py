"""A busy machine, and processes of the job that are stopped for half a second each. Nobody may be taken for lost."""
import contextlib
import os
import signal
import subprocess
import time

import jobs
from cluster import COORDINATES, Cluster
from training import OPEN_ENDED, compare_with_undisturbed

BUSY_PROCESSES = 20
STOPPED_S = 0.5


@contextlib.contextmanager
def busy_machine():
    """Processes that take all the time they get. In sessions of their own, since the kernel may divide time between sessions."""
    burners = [subprocess.Popen(["sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL, start_new_session=True)
               for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@contextlib.contextmanager
def punctual():
    """On a busy machine, this process runs when it wants to: a stop must not last longer because SIGCONT comes late."""
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as error:
        print(f"soak: stops may last longer: {error}", flush=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, parameter)


def stop_for_a_while(cluster):
    """One process of the job. Seconds until it went on."""
    nodes = cluster.settings.nodes
    pid = cluster.settings.draw.choice(sorted(pid for node in range(nodes) for pid in cluster.net.processes(node)))
    jobs.send(pid, signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(STOPPED_S)
    jobs.send(pid, signal.SIGCONT)
    return time.monotonic() - began


def run_soak(net, settings, seconds):
    # A busy worker may make no step for longer than is allowed elsewhere.
    cluster = Cluster(net, "soak", OPEN_ENDED + ["--logical-world-size", str(settings.nodes)], settings, ["--progress-timeout", "60"])
    stops = []
    try:
        cluster.wait_until(lambda: cluster.is_whole() and cluster.step() > 0, "the first step")
        with busy_machine(), punctual():
            end = time.monotonic() + seconds
            while time.monotonic() < end and cluster.round() == 0 and cluster.running():
                stops.append(stop_for_a_while(cluster))
                time.sleep(settings.draw.uniform(0, 0.3))
        if cluster.round() > 0 or not cluster.running():
            raise AssertionError(f"after {len(stops)} stops of up to {max(stops):.2f} s, a round was lost")
        terms = sum(node.log_path.read_bytes().count(COORDINATES) for node in cluster.nodes)
        print(f"soak: {seconds:.0f} s, {cluster.best} steps, {len(stops)} stops of up to {max(stops):.2f} s, {BUSY_PROCESSES} busy "
              f"processes: no round lost; the coordinator moved {terms} times", flush=True)
        compare_with_undisturbed("soak", cluster)
    except BaseException:
        print(cluster.logs())
        raise
    finally:
        cluster.end()
