"""What a Python worker tells its agent: steps, the exception that ends it, the Python stacks of a hang; and what it is asked for.

    progress.py BIN_DIR [CASE...]     runs every case, each with a ddp-run of its own
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

LIMIT_S = 240
BIN = sys.argv[1]
PROGRAM = str(Path(__file__).with_name("progress_program.py"))


class Job:
    def __init__(self, folder, what, *flags, workers=1, standalone=True, **variables):
        self.folder = Path(folder)
        start = ["--standalone"] if standalone else []
        program = variables.pop("program", [PROGRAM, what])
        environment = {"OUT": folder, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "USE_LIBUV": "0", **variables}
        self.node = jobs.Node([f"{BIN}/ddp-run", *start, "--nproc-per-node", str(workers), *flags, *program], f"{folder}/log", environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.node.process.poll() is None:
            self.node.kill()

    @property
    def log(self):
        return self.node.log_path.read_text(errors="replace")

    def send(self, number):
        self.node.process.send_signal(number)

    def go(self):
        (self.folder / "go").write_text("")

    def ends_with(self, *statuses):
        status = self.node.wait(LIMIT_S)
        assert status in statuses, f"status {status}, not {statuses}:\n{self.log[-5000:]}"
        return self.log

    def shows(self, *words):
        missing = [word for word in words if word not in self.log]
        assert not missing, f"lacks {missing}:\n{self.log[-6000:]}"


def lines_of_report(log):
    return log[log.rindex("Root Cause"):]


def status(where):
    asked = subprocess.run([f"{BIN}/ddp-run", "status", "--json", where], capture_output=True, text=True, timeout=LIMIT_S)
    try:
        return json.loads(asked.stdout)["jobs"][0]["nodes"][0]
    except (ValueError, LookupError):
        return {"step": -1}


def await_step(job, where, step):
    try:
        return jobs.wait_until(lambda: status(where)["step"] == step and status(where), LIMIT_S, f"step {step} in ddp-run status")
    except TimeoutError as error:
        raise AssertionError(f"{error}: {status(where)}\n{job.log[-5000:]}") from None


def steps_are_seen(folder):
    """By ddp-run status, /status and /metrics."""
    where = f"127.0.0.1:{jobs.free_port()}"
    with Job(folder, "tells", "--rdzv-endpoint", where, standalone=False) as job:
        node = await_step(job, where, 7)
        assert (node["step"], node["loss"], node["samples_per_second"]) == (7, 0.25, 1234.5), node
        table = subprocess.run([f"{BIN}/ddp-run", "status", where], capture_output=True, text=True, timeout=LIMIT_S).stdout
        assert re.search(r" 7 .* 1234.5 +0\.25 ", table) or "0.25" in table, table
        assert " 7/828 " in table, table
        page = urllib.request.urlopen(f"http://{where}/metrics", timeout=LIMIT_S).read().decode()
        assert re.search(r"^ddp_\w*step\w*\{[^}]*\} 7$", page, re.M) and re.search(r"^ddp_\w*loss\{[^}]*\} 0.25$", page, re.M), page
        job.go()
        job.ends_with(0)


def unknown_loss_is_none(folder):
    where = f"127.0.0.1:{jobs.free_port()}"
    with Job(folder, "tells_step_only", "--rdzv-endpoint", where, standalone=False) as job:
        node = await_step(job, where, 9)
        assert node.get("loss") is None and node.get("samples_per_second") is None, node
        job.go()
        job.ends_with(0)


def status_line(folder):
    """On a terminal: that of `script`."""
    command = f"{BIN}/ddp-run --standalone --nproc-per-node 1 {PROGRAM} tells"
    with open(f"{folder}/log", "wb") as log:
        screen = subprocess.Popen(["script", "-qec", command, "/dev/null"], stdout=log, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "OUT": folder, "TERM": "xterm", "COLUMNS": "120"})
        try:
            shown = Path(folder) / "log"
            jobs.wait_until(lambda: re.search(r"1 worker \| step 7/828 .*loss 0\.25", shown.read_text(errors="replace")), LIMIT_S, "the status line")
            (Path(folder) / "go").write_text("")
            assert screen.wait(LIMIT_S) == 0
        finally:
            screen.kill()
            screen.wait()


def misuse_is_refused(folder):
    with Job(folder, "misuses") as job:
        job.ends_with(0)


def nothing_without_agent(folder):
    environment = {**os.environ, "OUT": folder}
    script = "import ddp_run, signal; ddp_run.progress('x', loss=[]); assert not ddp_run.checkpoint_requested()"
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=LIMIT_S)
    subprocess.run([sys.executable, "-c", script], check=True, env={**environment, "DDP_CONTROL_FD": "77"}, timeout=LIMIT_S)
    subprocess.run([sys.executable, "-c", script], check=True, env={**environment, "DDP_CONTROL_FD": "2"}, timeout=LIMIT_S)


def nothing_in_children(folder):
    where = f"127.0.0.1:{jobs.free_port()}"
    with Job(folder, "children_tell", "--rdzv-endpoint", where, standalone=False) as job:
        await_step(job, where, 3)  # The largest of all that were told.
        job.go()
        job.ends_with(0)


def first_exception_is_named(folder):
    for backend, what in (("ddp", "raises"), ("ddp", "raises_before_backward"), ("gloo", "raises")):
        (Path(folder) / backend / what).mkdir(parents=True)
        with Job(f"{folder}/{backend}/{what}", what, workers=3, BACKEND=backend) as job:
            # A thread of gloo's that lets a tensor go at the very end wants the interpreter, which is gone, and aborts.
            job.ends_with(*((1, 128 + signal.SIGABRT) if backend == "gloo" else (1,)))
            report = lines_of_report(job.log)
            for words in ("rank      : 1 (", "message   : KeyError: ", "a sample that", "progress_program.py", f"in {what}\n", 'raise KeyError("a sample'):
                assert words in report, f"{backend}: lacks {words}:\n{report}"
            assert "the epoch is lost" not in report, report
            others = job.log[job.log.rindex("Failures:"):job.log.rindex("Root Cause")]
            assert others.count("rank") == others.count("a consequence of another failure"), others


def import_alone_tells_no_steps(folder):
    """Else the job would not be started again: workers that tell steps have failed before the first one."""
    with Job(folder, "raises_before_any_step", "--max-restarts", "1") as job:
        job.ends_with(0)
        job.shows("RuntimeError: only once")


def no_progress_ends_the_job(folder):
    with Job(folder, "comes_no_further", "--max-restarts", "9", "--max-no-progress", "2") as job:
        log = job.ends_with(128 + signal.SIGKILL)
        assert re.search(r"^round 2 of 1 worker .*; 2 of 9 restarts used", log, re.M), log


def childs_exception_is_not_reported(folder):
    with Job(folder, "children_raise") as job:
        job.ends_with(3)
        assert "of the child" in job.log
        report = lines_of_report(job.log)
        assert "callstack" not in report, report


def under_torchrun(folder):
    path = Path(folder) / "error.json"
    ended = subprocess.run([sys.executable, PROGRAM, "raises_before_any_step"], stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
                           env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path), "TORCHELASTIC_RESTART_COUNT": "0"})
    assert ended.returncode == 1 and "RuntimeError: only once" in ended.stderr, ended
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    assert failure.message["message"] == "RuntimeError: only once" and "in raises_before_any_step" in path.read_text(), failure


def own_hook_is_kept(folder):
    script = """
import sys
sys.excepthook = lambda kind, error, trace: print("mine:", error)
import ddp_run
raise RuntimeError("x")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.stdout == "mine: x\n" and not ended.stderr, ended


def hang_shows_python_frames(folder):
    cases = {
        "hangs_without_gil": ("in blocks_in_c", "in hangs_without_gil", "in waits_for"),
        "hangs_with_gil": ("in holds_the_lock", "in hangs_with_gil"),
    }
    for what, frames in cases.items():
        (Path(folder) / what).mkdir()
        with Job(f"{folder}/{what}", what, "--progress-timeout", "1", "--log-dir", f"{folder}/{what}/logs") as job:
            job.ends_with(128 + signal.SIGKILL)
            begin, asked, read, end = "by its interpreter ---", "(most recent call first)", "--- stacks of process", "--- end of stacks ---"
            log = next(Path(f"{folder}/{what}/logs").rglob("rank_0.*.err")).read_text()
            said = log[log.index(begin):log.index(end)]
            python, c = said.split(read)
            missing = [frame for frame in frames if not re.search(rf'  File ".*/progress_program.py", line \d+ {frame}$', python, re.M)]
            assert not missing and asked in python, f"{what}: lacks {missing}:\n{said}"
            assert re.search(r"^thread \d+ \(", c, re.M), said
            job.shows("no progress for 1 s", *frames)


def hang_below_a_shell(folder):
    program = ["--no-python", "sh", "-c", f"{sys.executable} {PROGRAM} hangs_below_a_shell; true"]
    with Job(folder, "", "--progress-timeout", "1", program=program) as job:
        job.ends_with(128 + signal.SIGKILL)
        job.shows("in blocks_in_c")


def no_signal_to_another_program(folder):
    with Job(folder, "replaced_by_another_program", "--progress-timeout", "1") as job:
        log = job.ends_with(128 + signal.SIGKILL)
        assert "DIED" not in log and "SIGRT" not in log and "by its interpreter" in log, log


def request(folder, job, act, number):
    before = len(list(Path(folder).glob("checkpoint.*")))
    act(number)
    jobs.wait_until(lambda: len(list(Path(folder).glob("checkpoint.*"))) > before, LIMIT_S, f"the checkpoint that {number!r} asks for")


def requests_are_answered(folder):
    for backend in ("ddp", "gloo"):
        (Path(folder) / backend).mkdir()
        with Job(f"{folder}/{backend}", "serves_requests", "--log-dir", f"{folder}/{backend}/logs", workers=2, BACKEND=backend) as job:
            # A program catches the signals from its first call on.
            def are_ready(job=job):
                workers = job.node.workers()
                return len(workers) == 2 and all(catches(pid, signal.SIGTERM) for pid in workers)
            jobs.wait_until(are_ready, LIMIT_S, "handlers")
            request(job.folder, job, job.send, signal.SIGUSR1)
            request(job.folder, job, lambda number: os.kill(job.node.workers()[1], number), signal.SIGUSR1)
            request(job.folder, job, job.send, signal.SIGTERM)
            job.ends_with(143)
            job.shows("ddp_run: SIGTERM has asked for a checkpoint and the end")


def loaders_outlive_requests(folder):
    """The signals reach the whole process group: a worker needs its loader's processes until the step boundary."""
    # Before Python 3.14, the process that forks them does not import the program.
    ways = ("fork", "spawn", "forkserver") if sys.version_info >= (3, 14) else ("fork", "spawn")
    for way in ways:
        (Path(folder) / way).mkdir()
        with Job(f"{folder}/{way}", "serves_requests", LOADER=way) as job:
            jobs.wait_until(lambda: any(catches(pid, signal.SIGTERM) for pid in job.node.workers()), LIMIT_S, "the handler")
            request(job.folder, job, lambda number: os.killpg(job.node.workers()[0], number), signal.SIGUSR1)
            request(job.folder, job, job.send, signal.SIGTERM)
            job.ends_with(143)
            job.shows("ddp_run: SIGTERM has asked for a checkpoint and the end")
            assert "DataLoader worker" not in job.log, job.log


def catches(pid, number):
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(found[1], 16) >> (number - 1) & 1)


def requests_without_launcher(folder):
    alone = subprocess.Popen([sys.executable, PROGRAM, "serves_requests"], stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "OUT": folder, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "RANK": "0",
                                  "WORLD_SIZE": "1", "USE_LIBUV": "0"})
    try:
        jobs.wait_until(lambda: catches(alone.pid, signal.SIGTERM), LIMIT_S, "the handler")
        request(folder, None, alone.send_signal, signal.SIGUSR1)
        request(folder, None, alone.send_signal, signal.SIGTERM)
        assert alone.wait(LIMIT_S) == 143, alone.stderr.read()
    finally:
        alone.kill()
        alone.wait()


def own_handler_is_kept(folder):
    with Job(folder, "has_own_handler") as job:
        jobs.wait_until(lambda: any(catches(pid, signal.SIGUSR1) for pid in job.node.workers()), LIMIT_S, "the handler")
        os.kill(job.node.workers()[0], signal.SIGTERM)
        job.ends_with(77)


def failed_round_ends_at_once(folder):
    """SIGTERM then means what it always has: nobody waits for a step boundary that does not come."""
    with Job(folder, "blocks_after_request", "--shutdown-timeout", str(2 * LIMIT_S), workers=2) as job:
        job.ends_with(128 + signal.SIGKILL)


def sigterm_acts_when_the_round_fails(folder):
    with Job(folder, "loses_rank_1_after_request", "--shutdown-timeout", str(2 * LIMIT_S), workers=2) as job:
        jobs.wait_until(lambda: len(list(Path(folder).glob("waits.*"))) == 2, LIMIT_S, "the ranks")
        job.send(signal.SIGTERM)
        job.ends_with(143)
        assert not (Path(folder) / "goes_on").exists(), job.log


def a_trace_says_who_is_late(folder):
    file = Path(folder) / "trace.json"
    with Job(folder, "trains", "--trace", str(file), workers=2) as job:
        job.ends_with(0)
    events = json.loads(file.read_text())
    for rank in (0, 1):
        own = [event for event in events if event.get("args", {}).get("rank") == rank]
        assert [event["args"]["step"] for event in own if event["cat"] == "step"] == list(range(1, 31)), own
        inputs = [event for event in own if event["cat"] == "input"]
        assert [event["args"]["index"] for event in inputs] == list(range(1, 31)), inputs
        assert len([event for event in own if event["cat"] == "collective" and event["name"] == "all_reduce"]) >= 30, own
    summary = subprocess.run([f"{BIN}/ddp-run", "trace", str(file), "--summary"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    assert "The others wait for rank 1" in summary, summary


CASES = [steps_are_seen, a_trace_says_who_is_late, unknown_loss_is_none, status_line, misuse_is_refused, nothing_without_agent, nothing_in_children, first_exception_is_named,
         import_alone_tells_no_steps, no_progress_ends_the_job, childs_exception_is_not_reported, under_torchrun, own_hook_is_kept, hang_shows_python_frames,
         hang_below_a_shell, no_signal_to_another_program, requests_are_answered, loaders_outlive_requests, requests_without_launcher, own_handler_is_kept,
         failed_round_ends_at_once, sigterm_acts_when_the_round_fails]


def main():
    wanted = sys.argv[2:]
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="progress.") as folder:
            begin = time.monotonic()
            case(folder)
            print(f"ok: {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
