"""What does it cost that every operation and message is written into the flight recorder?

Nanoseconds an event (issued, started, finished), of which the look at the clock is most on a virtual machine. A message that
is done at once is one event.
"""
import json
import statistics
import subprocess

import harness

PROGRAM = str(harness.BIN / "bench-recorder")
LIMIT_NS = 100


def figures():
    harness.require(PROGRAM)
    runs = [json.loads(subprocess.run([PROGRAM], check=True, stdout=subprocess.PIPE).stdout) for _ in range(5)]
    event = statistics.median(run["ns"] for run in runs)
    message = statistics.median(run["message_ns"] for run in runs)
    clock = statistics.median(run["clock_ns"] for run in runs)
    yield harness.figure("flight recorder, ns an event", event, LIMIT_NS, "limit", "ns", 1)
    yield harness.figure("flight recorder, ns a message that is done at once", message, LIMIT_NS, "limit", "ns", 1)
    yield harness.figure("flight recorder, an event against a look at the clock", event, clock, "clock", "ns", None)
