#!/usr/bin/env python3
"""The same measurement as bench-abort with a backend of torch.distributed: gloo, or our "ddp".

usage: abort_python.py [--backend gloo|ddp] --ranks N --phase PHASE --signal kill|stop --resident-mib N --turns N --timeout SECONDS
"""
import argparse
import datetime
import json
import mmap
import os
import random
import signal
import struct
import tempfile
import time

import torch
import torch.distributed as dist

LARGE = 16 << 20


def rank_process(args, rank, store, page):
    torch.set_num_threads(1)
    victim = rank == args.ranks - 1
    resident = mmap.mmap(-1, max(args.resident_mib, 1) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if victim:
        resident.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, args.resident_mib << 20, 4096):
            resident[at] = 1
    values = torch.ones(LARGE)
    dist.init_process_group(args.backend, init_method=f"file://{store}", rank=rank, world_size=args.ranks,
                            timeout=datetime.timedelta(seconds=args.timeout))
    dist.all_reduce(torch.zeros(1))
    struct.pack_into("q", page, rank * 16, 1)
    try:
        while True:
            if args.phase == "before" and victim:
                signal.pause()
            if args.phase == "barrier":
                dist.all_reduce(torch.zeros(1))  # Its barrier has a timeout of its own.
            elif args.phase == "broadcast":
                dist.broadcast(values, args.ranks - 1)
            else:
                dist.all_reduce(values)
    except RuntimeError:
        struct.pack_into("q", page, rank * 16 + 8, time.monotonic_ns())
        signal.pause()  # If it exited, that would tell the next rank.


def field(page, offset):
    return struct.unpack_from("q", page, offset)[0]


def wait(page, offsets):
    limit = time.monotonic() + 90
    while not all(field(page, offset) for offset in offsets):
        if time.monotonic() > limit:
            raise SystemExit("abort_python: a rank did not finish within 90 s")
        time.sleep(0.001)


def turn(args):
    page = mmap.mmap(-1, 4096)
    pids = []
    with tempfile.TemporaryDirectory(prefix="bench-gloo.") as folder:
        for rank in range(args.ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    rank_process(args, rank, folder + "/store", page)
                finally:
                    os._exit(0)
            pids.append(pid)
        wait(page, [rank * 16 for rank in range(args.ranks)])
        time.sleep(random.uniform(0.01, 0.04))
        begin = time.monotonic_ns()
        os.kill(pids[-1], signal.SIGSTOP if args.signal == "stop" else signal.SIGKILL)
        told = [rank * 16 + 8 for rank in range(args.ranks - 1)]
        wait(page, told)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return max(field(page, offset) - begin for offset in told) / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--phase", default="all_reduce")
    parser.add_argument("--signal", default="kill")
    parser.add_argument("--resident-mib", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=2)
    args = parser.parse_args()
    if args.backend == "ddp":
        import ddp_run  # noqa: F401
    print(json.dumps({"times_ms": [turn(args) for _ in range(args.turns)]}))


main()
