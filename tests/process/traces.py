#!/usr/bin/env python3
"""Traces of real jobs, by each of the ways to ask for one: traces.py BIN_DIR LATE_WORKER.

Where Debian has Perfetto's trace processor (chromium-shell), SQL must find what the trace holds; elsewhere only Python does.
"""
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs  # noqa: E402
import trace_processor  # noqa: E402

LIMIT_S = 240
STEPS = 600
TOKEN = "the token of this test"

EVERY_STEP_ONCE = """
select extract_arg(arg_set_id, 'args.rank') as rank, extract_arg(arg_set_id, 'args.round') as round,
       extract_arg(arg_set_id, 'args.step') as step, count(*) as times
from slice where category = 'step' group by rank, round, step"""
APART = """
with operations as (
  select extract_arg(arg_set_id, 'args.round') as round, extract_arg(arg_set_id, 'args.group') as name,
         extract_arg(arg_set_id, 'args.sequence') as sequence, ts as begins, ts + dur as ends
  from slice where category = 'collective')
select round, name, sequence, count(*) as ranks, max(begins) < min(ends) as overlap
from operations group by round, name, sequence"""


def start(folder, name, port, node, flags, program, env=None):
    return jobs.Node([str(BIN / "ddp-run"), "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", name, "--node-rank", str(node),
                      "--max-restarts", "3", *flags, *program], folder / f"{name}{node}.log", env)


def start_late(folder, name, port, milliseconds, env=None):
    """Two nodes with a worker each, whose steps take so long; those of a node with a file slow.NODE take twice as long."""
    return [start(folder, name, port, node, [], [str(LATE_WORKER), str(milliseconds)], {"OUT": str(folder), "TEST_NODE": str(node), **(env or {})})
            for node in (0, 1)]


def train(folder):
    return [str(BIN / "ddp-train"), "--model", "toy", "--train-samples", "60000", "--epochs", "10", "--batch-size", "25", "--max-steps", str(STEPS),
            "--threads", "1", "--log-every", "50", "--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", "200"]


def run_trace(*words, env=None):
    return subprocess.run([str(BIN / "ddp-run"), "trace", *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False, env={**os.environ, **(env or {})}, timeout=LIMIT_S)


def is_recording(worker):
    """What the agent has written into the memory of its round (common/wire/shm_layout.h): one worker on each node."""
    trace_bytes, page = (1 << 20) + 4096, 4096
    for name in os.listdir(f"/proc/{worker}/fd"):
        if os.readlink(f"/proc/{worker}/fd/{name}").startswith("/memfd:ddp-round"):
            with open(f"/proc/{worker}/fd/{name}", "rb", buffering=0) as memory:
                memory.seek(os.fstat(memory.fileno()).st_size - trace_bytes)
                return memory.read(page)[:4] != bytes(4)
    raise AssertionError(f"worker {worker} has no memory of a round")


def spans_of(events, kind):
    return [event for event in events if event.get("cat") == kind and event["ph"] == "X"]


def every_step_is_there(steps):
    """steps: (rank, round, step, times) of whole steps. Of steps that were trained again after the kill, each round has its own."""
    twice = [step for step in steps if step[3] != 1]
    assert not twice, twice
    for rank in range(4):
        of_rounds = collections.defaultdict(list)
        for of_rank, number, step, _ in steps:
            if of_rank == rank:
                of_rounds[number].append(step)
        rounds = [sorted(of_rounds[number]) for number in sorted(of_rounds)]
        ends = [(of_round[0], of_round[-1]) for of_round in rounds]
        assert len(rounds) == 2 and ends[0][0] == 1 and ends[1][1] == STEPS, (rank, ends)
        for of_round in rounds:
            assert of_round == list(range(of_round[0], of_round[-1] + 1)), (rank, of_round)
        assert ends[1][0] <= ends[0][1] + 1, ends  # None is missing.


def traced_through_a_kill(folder):
    """The file, and the log of the node that writes it."""
    folder.mkdir()
    file, port = folder / "whole.json", jobs.free_port()
    nodes = [start(folder, "whole", port, node, ["--nproc-per-node", "2", "--trace", str(file)], train(folder)) for node in (0, 1)]
    try:
        jobs.wait_while_running(nodes, lambda: b"step 250" in nodes[0].log_path.read_bytes(), LIMIT_S, "step 250")
        workers = nodes[1].workers()
        if not workers or not jobs.send(workers[-1], signal.SIGKILL):
            raise jobs.TooLate("the workers had ended before one was killed")
        for node in nodes:
            assert node.wait(LIMIT_S) == 0, node.tail()
    finally:
        for node in nodes:
            node.kill()
    return file, nodes[0].tail()


def a_whole_job_is_traced_through_a_kill(folder):
    file, log = jobs.in_time(lambda attempt: traced_through_a_kill(folder / f"attempt{attempt}"))
    events = json.loads(file.read_text())
    assert "not complete" not in log, log
    every_step_is_there([(e["args"]["rank"], e["args"]["round"], e["args"]["step"], 1) for e in spans_of(events, "step")])
    names = {event["name"].split(" (")[0] for event in events}
    missing = {"forward", "backward", "optimizer", "fill", "queue", "reduce", "all_reduce", "batch", "wait for other ranks", "checkpoint", "write",
               "round 0", "round 1"} - names
    assert not missing, missing
    ends = [event["args"]["end"] for event in spans_of(events, "round")]
    assert "signal 9" in ends[0], ends
    if not trace_processor.is_there():
        return
    trace = trace_processor.TraceProcessor(file)
    every_step_is_there([tuple(map(int, row)) for row in trace.query(EVERY_STEP_ONCE)])
    operations = trace.query(APART)
    assert len(operations) > STEPS, len(operations)
    assert [row for row in operations if row[3] == "4" and row[4] != "1"] == []
    # Only what was under way at the kill is not on all ranks.
    assert len([row for row in operations if row[3] != "4"]) < 20, operations
    assert trace.query("select count(*) from process where name glob 'rank * (*)'") == [("4",)]


def who_is_late_is_named(folder):
    port, file = jobs.free_port(), folder / "some.json"
    (folder / "slow.1").touch()
    nodes = start_late(folder, "late", port, 100)  # Far longer than what a loaded machine adds to a step.
    try:
        jobs.wait_until(lambda: run_trace(f"127.0.0.1:{port}", "--steps", "1", "--output", file).returncode == 0, LIMIT_S, "a first trace")
        done = run_trace(f"127.0.0.1:{port}", "--steps", "5", "--output", file, "--summary")
        assert done.returncode == 0 and "The others wait for rank 1" in done.stdout, done
        found = re.search(r"^(\d+) steps of 2 ranks are in (.*); open", done.stdout, re.M)
        assert found and int(found[1]) >= 5 and found[2] == str(file), done
        # The same from the file, which ends in the middle.
        again = run_trace(file, "--summary")
        assert again.returncode == 0 and "The others wait for rank 1" in again.stdout, again
        if trace_processor.is_there():
            assert int(trace_processor.TraceProcessor(file).query("select count(*) from slice where category = 'step'")[0][0]) >= 10
        done = run_trace(f"127.0.0.1:{port}", "--output", folder)
        assert done.returncode == 64 and "Is a directory" in done.stderr, done
        # Nobody asks any more.
        for node in nodes:
            jobs.wait_until(lambda: not is_recording(node.workers()[0]), LIMIT_S, "the end of the recording")  # pylint: disable=W0640
        def is_traced_again():
            done = run_trace(f"127.0.0.1:{port}", "--steps", "5", "--output", file)
            assert done.returncode == 0 and "not read in time" not in file.read_text(), done
            return is_recording(nodes[0].workers()[0])  # For three seconds more.
        jobs.wait_until(is_traced_again, LIMIT_S, "a recording")
        # By a signal, while the job goes on. The trace of an earlier run stays.
        (folder / "trace-late-1.json").write_text("earlier")
        for node, text in ((nodes[0], "trace-late-2.json; open it"), (nodes[1], f"run ddp-run trace 127.0.0.1:{port}")):
            node.process.send_signal(signal.SIGUSR2)
            jobs.wait_until(lambda: text.encode() in node.log_path.read_bytes(), LIMIT_S, "the answer to SIGUSR2")  # pylint: disable=W0640
            assert node.process.poll() is None, node.tail()
        assert len(spans_of(json.loads((folder / "trace-late-2.json").read_text()), "step")) >= 40
        assert (folder / "trace-late-1.json").read_text() == "earlier"
    finally:
        for node in nodes:
            node.kill()


def a_token_is_asked_for(folder):
    port, file = jobs.free_port(), folder / "guarded.json"
    endpoint = f"127.0.0.1:{port}"
    nodes = start_late(folder, "guarded", port, 5, {"DDP_RDZV_TOKEN": TOKEN})
    try:
        jobs.wait_until(lambda: run_trace(endpoint, "--steps", "1", "--output", file).returncode != 67, LIMIT_S, "an answer")
        done = run_trace(endpoint, "--output", file)
        assert done.returncode == 74 and "this job has a token" in done.stderr and not file.exists(), done
        done = run_trace(endpoint, "--output", file, env={"DDP_RDZV_TOKEN": TOKEN + "x"})
        assert done.returncode == 74 and "another token" in done.stderr, done
        secret = folder / "token"
        secret.write_text(TOKEN)
        secret.chmod(0o600)
        jobs.wait_until(lambda: run_trace(endpoint, "--steps", "3", "--output", file, "--rdzv-token-file", secret).returncode == 0, LIMIT_S,
                        "a trace with the token")
        # What could not be taken leaves what was there.
        file.write_text("an earlier one")
        assert run_trace(endpoint, "--output", file).returncode == 74 and file.read_text() == "an earlier one"
        done = run_trace(endpoint, "--job", "another", "--output", file, env={"DDP_RDZV_TOKEN": TOKEN})
        assert done.returncode == 64 and "no such job runs" in done.stderr, done
    finally:
        for node in nodes:
            node.kill()


def a_job_on_hosts_is_traced_until_it_is_stopped(folder):
    """Its rendezvous is in the ddp-run that starts the others."""
    agent, trace, page = folder / "agent", folder / "hosts.json", folder / "hosts.html"
    agent.write_text("#!/bin/sh\nshift\nexec \"$@\"\n")
    agent.chmod(0o700)
    job = jobs.Node([str(BIN / "ddp-run"), "--hosts", "a,b", "--launch-agent", str(agent), "-x", "OUT", "-x", "TEST_NODE", "--rdzv-id", "hosts",
                     "--trace", str(trace), "--page-file", str(page), str(LATE_WORKER), "2"], folder / "hosts.log",
                    {"OUT": str(folder), "TEST_NODE": "none"})
    try:
        jobs.wait_until(lambda: trace.exists() and trace.read_text().count('"cat":"step"') > 100, LIMIT_S, "steps in the trace")
        job.process.send_signal(signal.SIGUSR2)
        jobs.wait_until(lambda: b"trace-hosts-1.json; open it" in job.log_path.read_bytes(), LIMIT_S, "the trace of SIGUSR2")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LIMIT_S) == 128 + signal.SIGTERM, job.tail()
    finally:
        job.kill()
    events = json.loads(trace.read_text())  # It is whole.
    assert {event["args"]["rank"] for event in spans_of(events, "step")} == {0, 1}
    assert "<!doctype html" in page.read_text().lower()


def it_says_what_is_wrong():
    for words, status, text in ((["--steps", "5"], 2, "the rendezvous is missing"), (["a", "b"], 2, "only one endpoint"),
                                (["a", "--step"], 2, "no such flag"), (["a", "--steps"], 2, "needs a value"), (["a", "--steps", "0"], 64, "--steps 0"),
                                (["127.0.0.1:1"], 67, "nothing answers"),
                                ([__file__], 2, "--summary"), (["127.0.0.1:x"], 64, "127.0.0.1:x: ")):
        done = run_trace(*words)
        assert done.returncode == status and text in done.stderr, (words, done)
    done = run_trace("--help")
    assert done.returncode == 0 and "ui.perfetto.dev" in done.stdout, done
    done = run_trace(__file__, "--summary")
    assert done.returncode == 0 and "no whole step" in done.stdout, done


def main():
    with tempfile.TemporaryDirectory(prefix="ddp_trace.") as name:
        folder = Path(name)
        os.chdir(folder)  # A trace goes there that nobody has given a name.
        it_says_what_is_wrong()
        a_whole_job_is_traced_through_a_kill(folder)
        who_is_late_is_named(folder)
        a_token_is_asked_for(folder)
        a_job_on_hosts_is_traced_until_it_is_stopped(folder)
    if not trace_processor.is_there():
        print(f"without SQL: {trace_processor.LIBRARY} is not here (chromium-shell, since Debian 13)")


BIN, LATE_WORKER = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
if __name__ == "__main__":
    main()
