#!/usr/bin/env python3
"""Trains on nodes that are network namespaces, while failures happen to them; see README.md beside this file.

usage: failures.py BIN_DIR [--kinds NAME,...] [--chaos [N]] [--in-turn N] [--soak SECONDS] [--nodes N] [--seed S] [--keep]

--chaos N: N random faults (30) in one training of 4 nodes. --in-turn N: each node in turn is killed, cut off or stopped, and comes
back; the table has the seconds from each fault to the next step of the others. --soak SECONDS: nothing fails, but the machine is busy
and processes of the job are stopped for half a second each; nobody may be taken for lost. --nodes is the number of nodes (3).
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import netns
from chaos import run_chaos
from cluster import Cluster, Settings
from faults import KINDS
from in_turn import run_in_turn
from soak import run_soak
from training import SHORT, compare, steps_of_short

SKIPPED = 77
FULL = os.environ.get("DDP_TEST_FULL") == "1"
# Those that differ most, and one of some others; agent_job_test, ddp_run_nodes_test and others have the rest on one machine.
FEW_KINDS = ["host_killed", "host_cut", "host_stopped", "daemon_killed", "silence"]
ONE_OF = ["cable_cut", "half_open", "host_half_open", "agent_stopped"]


def run_kinds(net, settings, kinds):
    first = Cluster(net, "undisturbed", SHORT, settings)
    try:
        summary = first.result()
    finally:
        first.end()
    expected = summary["weights_sha256"]
    print(f"undisturbed: {first.seconds:.1f} s, {summary['steps']} steps, {expected}", flush=True)
    for name in kinds:
        cluster = Cluster(net, name, SHORT, settings, daemon=name == "daemon_killed")
        try:
            # Between the first step and the middle, so that it meets a training and not its end.
            cluster.await_step(settings.draw.randrange(1, steps_of_short(settings.nodes) // settings.workers_each // 2))
            struck = KINDS[name](cluster)
            time.sleep(struck.lasts_s)
            struck.mend()
            summary = cluster.result()
        except BaseException:
            print(cluster.logs())
            raise
        finally:
            cluster.end()
        compare(name, cluster, summary, expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--kinds", default=None)
    parser.add_argument("--chaos", type=int, nargs="?", const=100 if FULL else 30)
    parser.add_argument("--in-turn", type=int, default=None)
    parser.add_argument("--soak", type=float, default=None)
    parser.add_argument("--nodes", type=int, default=None)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    args = parser.parse_args()
    print(f"failures: --seed {args.seed}", flush=True)
    reason = netns.reason_to_skip()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    # Not in /tmp, which each node has for itself.
    settings = Settings(bin_dir=args.bin_dir.resolve(), base=Path(tempfile.mkdtemp(prefix="ddp_failures.", dir="/var/tmp")),
                        draw=random.Random(args.seed), nodes=args.nodes or (3 if args.chaos is None else 4), keep=args.keep)
    with netns.network("ddp-test", settings.nodes) as net:
        if args.in_turn is not None:
            run_in_turn(net, settings, args.in_turn)
        elif args.soak is not None:
            run_soak(net, settings, args.soak)
        elif args.chaos is not None:
            run_chaos(net, settings, args.chaos)
        else:
            # What happens to whole nodes is the same with one worker each, and starting them is most of the work.
            settings.workers_each = 2 if FULL or args.kinds else 1
            few = [*FEW_KINDS, settings.draw.choice(ONE_OF)]
            run_kinds(net, settings, args.kinds.split(",") if args.kinds else KINDS if FULL else few)
    if not args.keep:
        shutil.rmtree(settings.base, ignore_errors=True)


main()
