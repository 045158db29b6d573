"""What does a trace cost while somebody asks for one?

Steps a second of two nodes that train, while `ddp-run trace` reads what their ranks do, against while nobody does. What recording costs
while nobody asks is in the figures of `recorder`.
"""
import os
import subprocess
import tempfile

import harness
import training

QUICK = bool(os.environ.get("BENCH_QUICK"))
SECONDS, ROUNDS = (3, 3) if QUICK else (8, 15)
MODELS = ("mnist",) if QUICK else ("mnist", "mlp")


def figures():
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder, training.running(model) as trained:

            def traced():
                file = f"{folder}/trace.json"
                command = [harness.DDP_RUN, "trace", f"127.0.0.1:{trained.port}", "--steps", "1000000000", "--output", file]  # pylint: disable=W0640
                with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                    value = trained.rate(SECONDS)  # pylint: disable=W0640
                    process.terminate()
                with open(file, encoding="utf-8") as events:
                    steps = sum('"cat":"step"' in line for line in events)
                if steps < SECONDS * value:  # Half of them: the trace begins a little later.
                    raise SystemExit(f"bench: the trace has only {steps} steps")
                return value

            found = harness.alternate({"ours": traced, "peer": lambda: trained.rate(SECONDS)}, ROUNDS)  # pylint: disable=W0640
            yield harness.figure(f"steps a second while a trace is taken, {model}", found["ours"], found["peer"], "no trace", "steps/s", 0.99,
                                 lower_is_better=False, digits=2)
