"""Rank 1 raises under @record and is slow to exit; rank 0 fails because its connection to rank 1 closes. Uses plain sockets.

usage: culprit.py FIFO raises|exits      how rank 0 fails; FIFO carries the port from rank 0 to rank 1
"""
import atexit
import os
import signal
import socket
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


def wait_for_the_end_of_rank_1(fifo, how):
    with socket.create_server(("127.0.0.1", 0)) as server:
        with open(fifo, "w") as port:
            port.write(str(server.getsockname()[1]))
        peer = server.accept()[0]
        if peer.recv(1):
            raise RuntimeError("rank 1 said something")
    if how == "exits":
        sys.exit(7)
    raise ConnectionError("rank 1 closed the connection")


def wait_for_the_next_tick():
    """Of the clock that files are stamped with, so that rank 0's error file has a later time."""
    coarse = 5  # CLOCK_REALTIME_COARSE, which the module has no name for.
    written = os.stat(os.environ["TORCHELASTIC_ERROR_FILE"]).st_mtime_ns // 1_000_000
    while int(time.clock_gettime(coarse) * 1_000) <= written:
        pass


@record
def main():
    fifo, how = sys.argv[1:]
    if os.environ["RANK"] == "0":
        wait_for_the_end_of_rank_1(fifo, how)
    with open(fifo) as port:
        link = socket.create_connection(("127.0.0.1", int(port.read())))
    # Run in the other order, after the exception was recorded: never does it exit by itself.
    atexit.register(signal.pause)
    atexit.register(link.close)
    atexit.register(wait_for_the_next_tick)
    raise ValueError("batch 17 holds no sample")


if __name__ == "__main__":
    main()
