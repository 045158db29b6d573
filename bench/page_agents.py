"""Agents that a daemon takes for those of a large training: page_agents.py PORT COUNT. They have no workers.

Each joins, answers what it must, and says once a second how far it has come. Prints "running" when all have their round; ends with
its standard input.
"""
import json
import selectors
import socket
import sys
import time

PREAMBLE = b"\xddDPR\x01"
STEPS_PER_SECOND = 20
LATE_EVERY = 100  # One node of so many computes longer than the others.


def frame(**message):
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "little") + text


class Agent:
    def __init__(self, port, number, count):
        self.number, self.received, self.skip, self.round = number, b"", len(PREAMBLE), None
        self.socket = socket.create_connection(("127.0.0.1", port))
        rules = {"min_nodes": count, "max_nodes": count, "join_timeout_ms": 600_000}
        self.socket.sendall(PREAMBLE + frame(type="join", job_id="large", node_id=f"{number:016x}", host=f"node{number}", program="train.py", nproc=1,
                                             rules=rules))
        self.socket.setblocking(False)

    def read(self):
        """Looks only for the beginning of a round: its text is long, so it is not parsed."""
        try:
            more = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not more:
            sys.exit(f"page_agents: the daemon has closed the connection of agent {self.number}")
        self.received += more
        if self.skip:
            self.received, self.skip = self.received[self.skip:], max(self.skip - len(self.received), 0)
        while len(self.received) >= 4:
            size = 4 + int.from_bytes(self.received[:4], "little")
            if len(self.received) < size:
                break
            message, self.received = self.received[4:size], self.received[size:]
            if b'"type":"round_start"' in message:
                self.round = 0

    def tell(self, begun):
        seconds = time.monotonic() - begun
        step = int(seconds * STEPS_PER_SECOND)
        share = 1.5 if self.number % LATE_EVERY == 1 else 0.5
        self.socket.setblocking(True)
        self.socket.sendall(frame(type="heartbeat", step=step, loss=1 / (1 + seconds), samples_per_second=1000.0 + self.number, total_steps=1_000_000,
                                  computed=[[step, step * share * 1000 / STEPS_PER_SECOND]]))
        self.socket.setblocking(False)


def main(port, count):
    agents = [Agent(port, number, count) for number in range(count)]
    waiting = selectors.DefaultSelector()
    for agent in agents:
        waiting.register(agent.socket, selectors.EVENT_READ, agent)
    waiting.register(sys.stdin, selectors.EVENT_READ, None)
    begun, turn = None, 0
    while True:
        for key, _ in waiting.select(0.02):
            if key.data is None:
                return
            key.data.read()
        if begun is None and all(agent.round is not None for agent in agents):
            begun = time.monotonic()
            print("running", flush=True)
        # A part of them each time, so that the heartbeats come evenly.
        due = count if begun is None else int((time.monotonic() - begun) * count)
        while begun is not None and turn < due:
            agents[turn % count].tell(begun)
            turn += 1
        if begun is None and turn < count:
            turn = 0


main(int(sys.argv[1]), int(sys.argv[2]))
