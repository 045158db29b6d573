"""Measures the rate of a link: one connection, on which both ends send as fast as they can.

usage: link_rate.py listen|connect ADDRESS PORT SECONDS, one of each. Prints {"bytes_per_second": ..}, the rate of
receiving after the first tenth of the time, in which the connection speeds up.
"""
import json
import socket
import sys
import threading
import time

PIECE = 1 << 20


def open_connection(role, address, port):
    if role == "listen":
        with socket.create_server((address, port)) as server:
            server.settimeout(10)
            return server.accept()[0]
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def fill(connection, seconds):
    data = bytes(PIECE)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def main(role, address, port, seconds):
    connection = open_connection(role, address, int(port))
    connection.settimeout(30)
    sender = threading.Thread(target=fill, args=(connection, float(seconds)))
    sender.start()
    landing = bytearray(PIECE)
    counted_from = time.monotonic() + float(seconds) / 10
    first, last, received = None, None, 0
    while count := connection.recv_into(landing):
        now = time.monotonic()
        if first is None:
            first = now if now >= counted_from else None
            continue
        received += count
        last = now
    sender.join()
    print(json.dumps({"bytes_per_second": received / (last - first)}))


main(*sys.argv[1:])
