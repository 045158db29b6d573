#!/usr/bin/env python3
"""What ddp-run reports of failures, with torch's own @record and torch's own readers; and node roles, counted as in torchrun.

usage: torchrun_failures.py BIN_DIR

Skips (status 77) without a Python that has torch.
"""
import json
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

SKIPPED = 77
LIMIT_S = 240
SCRIPTS = Path(__file__).resolve().parent / "torchrun_scripts"
CULPRIT, RAISES, ROLES = (SCRIPTS / f"{name}.py" for name in ("culprit", "raises", "roles"))
# ProcessFailure and ChildFailedError are what a torchrun reads the files of its workers with.
READER = """
import json, sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
for path, status in zip(sys.argv[1::2], sys.argv[2::2]):
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=int(status), error_file=path)
    print(json.dumps([failure.timestamp, ChildFailedError("inner", {0: failure}).format_msg()]))
"""


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def run(folder, *commands, environment=None):
    """All at once. (statuses, outputs)"""
    logs = [Path(folder) / f"log.{i}" for i in range(len(commands))]
    for log in logs:
        log.write_text("")
    environment = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin", "PYTHON_EXEC": torchrun.PYTHON, "TMPDIR": str(folder), **(environment or {})}
    nodes = [jobs.Node(list(map(str, command)), log, environment) for command, log in zip(commands, logs)]
    try:
        statuses = [node.wait(LIMIT_S) for node in nodes]
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.kill()
    return statuses, [log.read_text(errors="replace") for log in logs]


def the_first_cause_is_named_though_its_worker_ends_last(ddp_run):
    """As torchrun 2.14.1 does, which reads the files of the workers that it has ended, too (_poll of multiprocessing/api.py)."""
    for nodes, how in ((1, "raises"), (1, "exits"), (2, "raises"), (2, "exits")):
        with tempfile.TemporaryDirectory() as folder:
            fifo = f"{folder}/port"
            os.mkfifo(fifo)
            size = ["--standalone", "--nproc-per-node=2"]
            if nodes == 2:
                size = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=a-job", f"--rdzv-endpoint=127.0.0.1:{jobs.free_port()}"]
            # The node of rank 0 tells first.
            commands = [[ddp_run, *size, *([f"--node-rank={i}"] if nodes == 2 else []), CULPRIT, fifo, how] for i in range(nodes)]
            statuses, outputs = run(folder, *commands, environment={"TORCHELASTIC_ERROR_FILE": f"{folder}/above.json"})
            text = "".join(outputs)
            check(statuses == [1] * nodes, f"{nodes} nodes, {how}: status {statuses}, not the culprit's:\n{text}")
            others, root = text.split("Root Cause", 1)
            check(re.search(r"\n  rank      : 1 ", root), f"rank 1 is not the root cause:\n{text}")
            check("message   : ValueError: batch 17 holds no sample" in root, root)
            check("raise ValueError" in root, f"no callstack:\n{root}")
            other = "exit code 7" if how == "exits" else "exit code 1: ConnectionError: rank 1 closed the connection"
            check(re.search(rf"\[1\]: rank 0 on \S+ failed: {other}", others), f"rank 0 is not listed:\n{text}")
            above = json.loads(Path(f"{folder}/above.json").read_text())["message"]
            check(above["message"] == "ValueError: batch 17 holds no sample", above)
            print(f"culprit.py, {nodes} nodes, rank 0 {how}: rank 1 is the root cause", flush=True)


def torch_reads_what_is_left_for_it(ddp_run):
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged"
        damaged.write_text("#!/no/such/interpreter\n")
        damaged.chmod(0o755)
        stamped = ("""echo '{"message": {"message": "of long ago", "extraInfo": {"py_callstack": "of then", "timestamp": "1700000000"}}}'"""
                   " >$TORCHELASTIC_ERROR_FILE; exit 4")
        cases = (([RAISES], 1, "KeyError: 'no such weight'"),
                 (["--no-python", "sh", "-c", "exit 5"], 5, "failed: exit code 5"),
                 (["--no-python", "sh", "-c", "kill -9 ${$}"], 137, "SIGKILL"),
                 (["--no-python", "sh", "-c", stamped], 4, "of then"),
                 (["--no-python", damaged], 126, "cannot be executed"))
        files = []
        for number, (program, status, _) in enumerate(cases):
            path = f"{folder}/above.{number}.json"
            statuses, outputs = run(folder, [ddp_run, "--standalone", *program], environment={"TORCHELASTIC_ERROR_FILE": path})
            check(statuses == [status], f"{program}: {statuses}\n{outputs}")
            files += [path, status]
        read, text = run(folder, [torchrun.PYTHON, "-c", READER, *files])
        check(read == [0], f"torch cannot read one of {files}:\n{text[0]}")
        shown_all = [json.loads(line) for line in text[0].splitlines() if line.startswith("[")]
        check(len(shown_all) == len(cases), text[0])
        for (program, _, expected), (timestamp, shown) in zip(cases, shown_all):
            check(expected in shown, f"{program}: torch shows:\n{shown}")
            check(int(timestamp) == 1_700_000_000 if "of then" in expected else int(timestamp) > 1_700_000_000, f"time {timestamp}")
        print("torch reads our error files", flush=True)


def one_worker():
    """Torchrun's command for one worker, up to what it starts."""
    return [*torchrun.COMMAND, "--nproc_per_node=1", f"--master_port={jobs.free_port()}"]


def a_torchrun_above_shows_the_inner_cause(ddp_run):
    with tempfile.TemporaryDirectory() as folder:
        for program, expected in (([RAISES], "KeyError: 'no such weight'"), (["--no-python", "sh", "-c", "exit 5"], "failed: exit code 5")):
            statuses, outputs = run(folder, [*one_worker(), "--no_python", ddp_run, "--standalone", *program])
            check(statuses == [1], f"{statuses}\n{outputs[0]}")
            # Torchrun's own report comes last.
            check(expected in outputs[0].rsplit("Root Cause", 1)[1], f"{program}:\n{outputs[0]}")
            check("ChildFailedError" in outputs[0], outputs[0])
        print("torchrun shows the cause of a ddp-run that it has started", flush=True)


def a_torchrun_below_tells_its_cause(ddp_run):
    with tempfile.TemporaryDirectory() as folder:
        statuses, outputs = run(folder, [ddp_run, "--standalone", "--no-python", *one_worker(), RAISES])
        check(statuses == [1], f"{statuses}\n{outputs[0]}")
        check("message   : KeyError: 'no such weight'" in outputs[0], outputs[0])
        print("ddp-run shows the cause of a torchrun that it has started", flush=True)


def roles_count_as_under_torchrun(ddp_run):
    with tempfile.TemporaryDirectory() as folder:
        seen = {}
        for name, launcher in (("torchrun", torchrun.COMMAND), ("ddp-run", [ddp_run])):
            out = Path(folder) / name
            out.mkdir()
            port = jobs.free_port()
            commands = [[*launcher, "--nnodes=3", f"--node_rank={i}", f"--nproc_per_node={workers}", f"--role={role}",
                         "--master_addr=127.0.0.1", f"--master_port={port}", "--monitor_interval=0.1", ROLES, out]
                        for i, (role, workers) in enumerate((("trainer", 2), ("reader", 1), ("trainer", 1)))]
            statuses, outputs = run(folder, *commands)
            check(statuses == [0] * 3, f"{name}: {statuses}\n{outputs}")
            seen[name] = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
        check(len(seen["torchrun"]) == 4, seen)
        check(seen["ddp-run"] == seen["torchrun"], f"ours {seen['ddp-run']}\ntorchrun's {seen['torchrun']}")
        check(seen["ddp-run"]["3"]["ROLE_RANK"] == "2" and seen["ddp-run"]["2"]["ROLE_WORLD_SIZE"] == "1", seen)
        print("roles of three nodes: the same under both", flush=True)


def main():
    if not torchrun.is_there():
        print(f"SKIPPED: {torchrun.PYTHON} has no torch (package python3-torch)")
        return SKIPPED
    ddp_run = Path(sys.argv[1]).resolve() / "ddp-run"
    the_first_cause_is_named_though_its_worker_ends_last(ddp_run)
    torch_reads_what_is_left_for_it(ddp_run)
    a_torchrun_above_shows_the_inner_cause(ddp_run)
    a_torchrun_below_tells_its_cause(ddp_run)
    roles_count_as_under_torchrun(ddp_run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
