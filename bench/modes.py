"""Runs several modes of bench-ddp in turn within one process and compares them by their ratios within a turn.

The modes take turns of a second or less (measure_steps in ddp_task.cc), so disturbances of the machine affect all of them
alike. Ratios vary far less than between processes, which may run on different cores.
"""
import statistics

import harness
import paired

OURS = str(harness.BIN / "bench-ddp")


def arguments(modes, model, steps, turns, *bucket_mb):
    return [OURS, ",".join(modes), model, str(steps), str(turns), *map(str, bucket_mb)]


def by_mode(lines):
    """{mode: {"seconds", "backward", "cpu"}} from a run's output: a list for a step, with one entry a turn."""
    return {line["mode"]: {"seconds": [1 / rate for rate in line["steps_per_second"]],
                           "backward": [ms / 1e3 for ms in line["backward_ms"]], "cpu": [ms / 1e3 for ms in line["cpu_ms"]]}
            for line in lines}


def contender(*what, env=None):
    """Two workers on this node; `what` as for arguments()."""
    command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", "--no-python", *arguments(*what)]
    return lambda: by_mode(paired.run_all([(command, env or {})]))


def turns(results, mode, what="seconds"):
    """The values of all turns of all runs."""
    return [value for result in results for value in result[mode][what]]


def figure(results, name, mine, peer, peer_name, goal):
    """Steps a second in mode `mine` against mode `peer` in the same turn; "cpu" is the same ratio of processor time."""
    ours, theirs = turns(results, mine), turns(results, peer)
    ratios = [other / own for own, other in zip(ours, theirs)]
    cpu = [other / own for own, other in zip(turns(results, mine, "cpu"), turns(results, peer, "cpu"))]
    return {"figure": name, "ours": round(1 / statistics.median(ours), 3), "peer": round(1 / statistics.median(theirs), 3),
            "peer_name": peer_name, "ratio": round(statistics.median(ratios), 4), "low": round(paired.lower_bound(ratios), 4),
            "turns": len(ratios), "unit": "steps/s", "goal": goal, "cpu": round(statistics.median(cpu), 4)}
