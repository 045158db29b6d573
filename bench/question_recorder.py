"""What does it cost to record every operation and message in the flight recorder?

Nanoseconds for each event (issued, started, finished). On a virtual machine most of it is reading the clock. A message that is
done at once is one event.
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
    traced = statistics.median(run["traced_ns"] for run in runs)
    message = statistics.median(run["message_ns"] for run in runs)
    clock = statistics.median(run["clock_ns"] for run in runs)
    yield harness.figure("flight recorder, ns an event", event, LIMIT_NS, "limit", "ns", 1)
    yield harness.figure("flight recorder, ns a message that is done at once", message, LIMIT_NS, "limit", "ns", 1)
    yield harness.figure("flight recorder, ns an event while a trace is taken", traced, 2 * LIMIT_NS, "limit", "ns", 1)
    yield harness.figure("flight recorder, an event against a look at the clock", event, clock, "clock", "ns", None)
