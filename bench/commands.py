"""A rank that obeys commanded.py.

It reads commands from standard input, a JSON line each: {"do": method, ...arguments}. It answers each with a JSON line: what the
method returned, or {"error"}, after which it ends.
"""
import json
import os
import sys

import torch.distributed as dist


def answer(line):
    print(json.dumps(line), flush=True)


def serve(make_rank):
    """Obeys by the methods of make_rank()."""
    try:
        rank = make_rank()
        answer({"ready": True})
        for line in sys.stdin:
            command = json.loads(line)
            answer(getattr(rank, command.pop("do"))(**command))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"[:600]})
        sys.stdout.flush()
        os._exit(1)  # Threads that wait for other ranks would hold up the end.
    dist.destroy_process_group()
