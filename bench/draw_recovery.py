#!/usr/bin/env python3
"""Draws a node that fails and comes back: launcher/ddp_run/recovery.svg, the picture of the README.

Runs bench-recovery twice on this machine, on two nodes of one worker each. The first run is undisturbed. In the second, the second
node's ddp-run gets a SIGKILL, which also ends its worker, and the same command starts it again a moment later. The picture shows
every step of the second run around the kill, as its workers recorded them, and compares the final weights of both runs.

    bench/draw_recovery.py [OUTPUT.svg]
"""
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT / "tests" / "support"))
import jobs  # noqa: E402

NODES, WORKERS, STEPS, KILL_AT = 2, 1, 1000, 300
AWAY_S = 0.2  # From the kill until the node is started again.
LIMIT_S = 60
MARGIN_S = 0.12  # Shown before the kill and after the recovery.

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 960, 132, 24, 92, 30, 18
NODE_COLORS, GRAY = ["#2563a8", "#b3541e"], "#6b7280"


class Run:
    """bench-recovery on two nodes."""

    def __init__(self, folder):
        self.folder, self.events_file = folder, folder / "events"
        endpoint = f"127.0.0.1:{jobs.free_port()}"
        self.command = [harness.DDP_RUN, "--nnodes", str(NODES), "--nproc-per-node", str(WORKERS), "--max-restarts", "3", "--rdzv-endpoint",
                        endpoint, "--rdzv-id", "picture", "--no-python", str(harness.BIN / "bench-recovery"), "--elastic",
                        str(self.events_file), "none", str(STEPS)]
        self.nodes = [self.start(0), self.start(1)]

    def start(self, node):
        return jobs.Node([*self.command[:1], "--node-rank", str(node), *self.command[1:]], self.folder / f"node{node}.log",
                         {"OMP_NUM_THREADS": "1"})

    def events(self):
        if not self.events_file.exists():
            return []
        return [json.loads(line) for line in self.events_file.read_text().split("\n")[:-1]]

    def weights(self):
        """Waits until all nodes have ended successfully; returns the one digest that all workers printed."""
        for node in self.nodes:
            if node.process.wait(LIMIT_S) != 0:
                sys.exit(f"draw_recovery: a node failed\n{node.tail()}")
        digests = set(re.findall(r"weights ([0-9a-f]{64})", "".join(path.read_text() for path in self.folder.glob("*.log"))))
        if len(digests) != 1:
            sys.exit(f"draw_recovery: expected the same digest from all workers, got {digests}")
        return digests.pop()

    def close(self):
        for node in self.nodes:
            node.kill()


def undisturbed():
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            return run.weights()
        finally:
            run.close()


def interrupted():
    """Returns the events, the times of the kill and of the second start, and the weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            jobs.wait_until(lambda: any(event["step"] >= KILL_AT for event in run.events()), LIMIT_S, f"step {KILL_AT}")
            killed = time.time()
            os.kill(run.nodes[1].process.pid, signal.SIGKILL)
            run.nodes[1].process.wait()
            time.sleep(AWAY_S)
            started = time.time()
            run.nodes[1] = run.start(1)
            return run, killed, started, run.weights()
        finally:
            run.events_seen = run.events()
            run.close()


class Picture:
    """An SVG whose x is milliseconds since the kill."""

    def __init__(self, begin_s, end_s):
        self.begin, self.scale = begin_s, (WIDTH - LEFT - RIGHT) / (end_s - begin_s)
        self.height = TOP + NODES * WORKERS * ROW + 86
        self.parts = []

    def x(self, seconds):
        return LEFT + (seconds - self.begin) * self.scale

    def text(self, x, y, text, color="#24292f", **attributes):
        self.add("text", text, x=f"{x:.1f}", y=f"{y:.1f}", style=f"fill: {color}", **attributes)

    def add(self, element, content="", **attributes):
        written = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(f"<{element} {written}>{content}</{element}>")

    def tick(self, seconds, y, color):
        self.add("rect", x=f"{self.x(seconds) - 0.6:.1f}", y=y, width=1.2, height=BAR, fill=color)

    def mark(self, seconds, label, color, line):
        """A vertical line at a moment, with its label in text line `line` above the rows."""
        x, y = self.x(seconds), 40 + 17 * line
        self.add("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=y + 4, y2=TOP + NODES * WORKERS * ROW - 6, stroke=color, stroke_width=1.5)
        fits = x < 0.7 * WIDTH
        self.text(x + 5 if fits else x - 5, y + 8, label, color, text_anchor="start" if fits else "end")

    def write(self, path):
        style = "text { font: 13px 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif } .title { font-size: 15px; font-weight: 600 }"
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}">\n'
                        f"<style>{style}</style>\n" + f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
                        + "\n".join(self.parts) + "\n</svg>\n")


def draw(path, events, killed, started, same_weights):
    steps = [event for event in events if event["event"] == "step"]
    last_round = max(event["round"] for event in steps)
    recovered = max(min(event["time"] for event in steps if event["rank"] == rank and event["round"] == last_round)
                    for rank in range(NODES * WORKERS))
    answers = [event["time"] for event in events if event["event"] == "error" and event["time"] >= killed]
    committed = max(event["step"] for event in steps if event["round"] < last_round)
    end = recovered - killed + MARGIN_S
    picture = Picture(-MARGIN_S, end)
    picture.text(LEFT, 24, "Every step of two workers on two nodes", **{"class": "title"})
    for rank in range(NODES * WORKERS):
        node, y = rank // WORKERS, TOP + rank * ROW
        picture.text(16, y + 14, f"node {node + 1}, rank {rank}")
        picture.add("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=BAR, fill="#f3f4f6")
        for event in steps:
            if event["rank"] == rank and -MARGIN_S <= event["time"] - killed <= end:
                picture.tick(event["time"] - killed, y, NODE_COLORS[node])
    for rank in range(WORKERS, NODES * WORKERS):
        picture.text(picture.x(started - killed) + 8, TOP + rank * ROW + 14, "starts: loads LibTorch, joins", GRAY)
    for rank in range(WORKERS):
        picture.text(picture.x(started - killed) + 8, TOP + rank * ROW + 14, "keeps its process and its memory, and waits", GRAY)
    picture.mark(0, "node 2 is killed" + (f"; node 1 knows after {(max(answers) - killed) * 1000:.1f} ms" if answers else ""),
                 "#c2212b", 0)
    picture.mark(started - killed, "the same command starts node 2 again", GRAY, 1)
    picture.mark(recovered - killed, f"all go on after step {committed}", "#1a7f37", 2)
    y = TOP + NODES * WORKERS * ROW + 12
    seconds = 0.0
    while seconds <= end:
        picture.text(picture.x(seconds), y, f"{seconds * 1000:.0f} ms", GRAY, text_anchor="middle")
        seconds = round(seconds + 0.2, 1)
    picture.text(LEFT, y + 32, f"Weights after step {STEPS}, this run:")
    picture.text(LEFT, y + 52, "The same run, never interrupted:")
    for line, digest in enumerate(same_weights):
        picture.text(LEFT + 220, y + 32 + 20 * line, f"SHA-256 {digest[:40]}…", font_family="monospace")
    picture.write(path)


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else harness.ROOT / "launcher" / "ddp_run" / "recovery.svg"
    expected = undisturbed()
    run, killed, started, weights = interrupted()
    if weights != expected:
        sys.exit(f"draw_recovery: the runs ended with different weights: {expected}, {weights}")
    draw(path, run.events_seen, killed, started, [weights, expected])
    print(path)


if __name__ == "__main__":
    main()
