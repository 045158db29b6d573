"""Random faults in one training. In the end it must have the bytes of an undisturbed one, and nothing may be left of it."""
import statistics
import time

from cluster import Cluster
from faults import (agent_killed, clock_jump, cut_for_a_while, during_recovery, full_disk, host_killed, machine_killed, node_killed,
                    one_way_cut, silence, slow_link, something_stopped, two_at_once, worker_killed)
from training import OPEN_ENDED, compare_with_undisturbed

DRAWN = {"kill": [worker_killed, agent_killed, node_killed, host_killed, machine_killed, two_at_once, during_recovery],
         "stop": [something_stopped], "cut": [cut_for_a_while, silence], "one-way cut": [one_way_cut], "slow link": [slow_link],
         "full disk": [full_disk], "clock jump": [clock_jump]}
SUBJECTS = ["kill", "kill", "kill", "stop", "cut", "one-way cut", "slow link", "full disk", "clock jump"]


class Table:
    """Seconds from each fault until a round that began after it had made a step, and until all nodes took part again."""

    def __init__(self):
        self.rows = {}

    def add(self, subject, step_s, whole_s):
        self.rows.setdefault(subject, []).append((step_s, whole_s))

    def show(self):
        print("fault         number  restarts  to the next step: median, most  until all nodes take part: median, most")
        for subject, row in self.rows.items():
            steps = [step for step, _ in row if step is not None] or [0]
            whole = [seconds for _, seconds in row]
            print(f"{subject:12s} {len(row):7d} {sum(step is not None for step, _ in row):9d} {statistics.median(steps):22.2f}, "
                  f"{max(steps):5.2f} {statistics.median(whole):34.2f}, {max(whole):5.2f}", flush=True)


def strike(cluster, kind):
    """Lets it happen and waits until the job is whole again. Seconds to the next step of a new round (None if none was needed);
    seconds until all nodes take part again."""
    began, before, seen = time.monotonic(), cluster.round(), []

    def restarted():
        """Notes when a new round has made its first step."""
        if cluster.round() > before and len(seen) < 2:
            if not seen:
                seen.append(cluster.step())
            elif cluster.step() > seen[0]:
                seen.append(time.monotonic() - began)

    struck = kind(cluster)
    print(struck.what, end="; ", flush=True)
    while time.monotonic() < began + struck.lasts_s:
        restarted()
        time.sleep(0.01)
    struck.mend()
    steps = cluster.step()

    def over():
        restarted()
        return cluster.is_whole() and cluster.step() > steps and len(seen) != 1
    cluster.wait_until(over, f"all nodes in a round that makes steps, after: {struck.what}")
    return seen[1] if len(seen) > 1 else None, time.monotonic() - began


def run_chaos(net, settings, faults):
    cluster = Cluster(net, "chaos", OPEN_ENDED + ["--logical-world-size", str(settings.nodes)], settings,
                      ["--rdzv-conf", "last_call_timeout=60"], least=settings.nodes - 1)
    table, draw = Table(), settings.draw
    try:
        cluster.wait_until(lambda: cluster.is_whole() and cluster.step() > 0, "the first step")
        for number in range(faults):
            time.sleep(draw.uniform(0, 0.3))
            subject = draw.choice(SUBJECTS)
            kind = draw.choice(DRAWN[subject])
            print(f"{number + 1:4d} {time.monotonic() - cluster.started:7.1f} s, step {cluster.best:7d}: ", end="")
            step_s, whole_s = strike(cluster, kind)
            if not cluster.running():
                raise AssertionError(f"the training was over after fault {number + 1}")
            table.add(subject, step_s, whole_s)
            print(f"{f'next step after {step_s:.2f} s, ' if step_s else ''}whole after {whole_s:.2f} s", flush=True)
        table.show()
        compare_with_undisturbed(f"chaos, {faults} faults", cluster)
    except BaseException:
        table.show()
        print(cluster.logs())
        raise
    finally:
        cluster.end()
