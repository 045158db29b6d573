#!/usr/bin/python3
"""PyTorch's own TCPStore server, alone in a process: prints its port, serves until standard input closes."""
import sys
from datetime import timedelta

from torch.distributed import TCPStore


def serve(**options):
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300), **options)


try:
    store = serve()
except RuntimeError as error:
    if "libuv" not in str(error):
        raise
    store = serve(use_libuv=False)  # Debian's PyTorch 2 is built without libuv but would use it by default.
print(store.port, flush=True)
sys.stdin.read()
