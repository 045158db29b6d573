"""Runs bench-ddp with several of its modes in turn within one process, and what may be said of them: ratios within a turn.

The modes take their turns of a second or less one after the other (measure_steps in ddp_task.cc), so what the machine does to
one of them it does to all: ratios scatter far less than between processes, each of which may find the cores elsewhere.
"""
import statistics

import harness
import paired

OURS = str(harness.BIN / "bench-ddp")


def arguments(modes, model, steps, turns, *bucket_mb):
    return [OURS, ",".join(modes), model, str(steps), str(turns), *map(str, bucket_mb)]


def by_mode(lines):
    """{mode: {"seconds", "backward", "cpu": of a step, by turn}} of a run's output."""
    return {line["mode"]: {"seconds": [1 / rate for rate in line["steps_per_second"]],
                           "backward": [ms / 1e3 for ms in line["backward_ms"]], "cpu": [ms / 1e3 for ms in line["cpu_ms"]]}
            for line in lines}


def contender(*what, env=None):
    """Two workers on this node; `what` as for arguments()."""
    command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", "--no-python", *arguments(*what)]
    return lambda: by_mode(paired.run_all([(command, env or {})]))


def turns(results, mode, what="seconds"):
    """Of all turns of all runs."""
    return [value for result in results for value in result[mode][what]]


def figure(results, name, mine, peer, peer_name, goal):
    """Steps a second in mode `mine` against mode `peer` in the same turn; "cpu" is the same ratio of processor time."""
    ours, theirs = turns(results, mine), turns(results, peer)
    ratios = [other / own for own, other in zip(ours, theirs)]
    cpu = [other / own for own, other in zip(turns(results, mine, "cpu"), turns(results, peer, "cpu"))]
    return {"figure": name, "ours": round(1 / statistics.median(ours), 3), "peer": round(1 / statistics.median(theirs), 3),
            "peer_name": peer_name, "ratio": round(statistics.median(ratios), 4), "low": round(paired.lower_bound(ratios), 4),
            "turns": len(ratios), "unit": "steps/s", "goal": goal, "cpu": round(statistics.median(cpu), 4)}
