"""What a Python worker tells its agent: steps, the exception that ends it, the Python stacks of a hang; and what it is asked for.

    progress.py BIN_DIR [CASE...]     runs every case, each with a ddp-run of its own
    progress.py --worker WHAT         is a worker
"""
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist

import ddp_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

LIMIT_S = 60
BIN = sys.argv[1]
RANK, SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


# ---- workers ----

def out(name):
    return Path(os.environ["OUT"]) / name


def until(condition, what):
    jobs.wait_until(condition, LIMIT_S, what)


def tell_on(step, **more):
    """Tells the step for as long as nobody has read it: most calls fall between two messages."""
    until(lambda: ddp_run.progress(step, **more) or time.sleep(0.01) or out("go").exists(), "go")


def tells():
    tell_on(7, loss=torch.tensor(0.25), samples_per_second=1234.5, total_steps=828)


def tells_step_only():
    tell_on(torch.tensor(9))


def refuses(*words, **arguments):
    try:
        ddp_run.progress(**{"step": 1, **arguments})
    except (TypeError, ValueError) as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error}: lacks {missing}"
    else:
        raise AssertionError(f"{arguments} was not refused")


class Unreadable(torch.Tensor):
    """Stands for a tensor on a device, on which every read waits."""
    reads = 0

    def __float__(self):
        Unreadable.reads += 1
        return 0.5


def misuses():
    refuses("step must be a whole number, not float", step=1.5)
    refuses("step must be a whole number, not bool", step=True)
    refuses("step must be a whole number, not str", step="7")
    refuses("step is -1", "from 0", step=-1)
    refuses("step is 9223372036854775808", step=2**63)
    refuses("total_steps must be a whole number, not float", total_steps=1e3)
    refuses("total_steps is 0", "whole training", "from 1", total_steps=0)
    refuses("loss must be one number, not Tensor of shape [2]", "mean", loss=torch.ones(2))
    refuses("loss must be a number or a tensor with one element, not str", loss="0.5")
    refuses("samples_per_second must be a number", "not list", samples_per_second=[1])
    refuses("samples_per_second is -1.0", samples_per_second=-1)
    refuses("samples_per_second is inf", samples_per_second=float("inf"))
    begin = time.monotonic()
    loss = torch.tensor(0.5).as_subclass(Unreadable)
    for step in range(2000):
        ddp_run.progress(step, loss=loss, samples_per_second=None)
    periods = (time.monotonic() - begin) / 0.1
    assert 1 <= Unreadable.reads <= periods + 2, (Unreadable.reads, periods)


class Telling(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        ddp_run.progress(100 + index)
        assert not ddp_run.checkpoint_requested()
        return index


def children_tell():
    """By fork and by spawn, and while a thread of the parent is in the middle of it."""
    ddp_run.progress(1)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: [ddp_run.progress(2) for _ in iter(ended.is_set, True)])
    thread.start()
    try:
        for way, times in {"fork": 5, "spawn": 1}.items():
            for _ in range(times):
                loader = torch.utils.data.DataLoader(Telling(), num_workers=2, multiprocessing_context=way, timeout=LIMIT_S)
                assert sorted(int(each) for each in loader) == [0, 1, 2, 3]
    finally:
        ended.set()
        thread.join()
    subprocess.run([sys.executable, "-c", "import ddp_run; ddp_run.progress(5000)"], check=True, timeout=LIMIT_S)
    tell_on(3)


def raises():
    dist.init_process_group(os.environ["BACKEND"])
    dist.all_reduce(torch.ones(3))
    if RANK == 1:
        raise KeyError("a sample that\nno one has")
    try:
        for _ in range(10):
            dist.all_reduce(torch.ones(3))
    except RuntimeError:
        raise ValueError("the epoch is lost")  # As a program does that cleans up.


def raises_before_any_step():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("only once")


def comes_no_further():
    tell_until_seen = time.monotonic() + 0.3
    while time.monotonic() < tell_until_seen:
        ddp_run.progress(3)
    os.kill(os.getpid(), signal.SIGKILL)


def children_raise():
    child = os.fork()
    if child == 0:
        raise RuntimeError("of the child")
    os.waitpid(child, 0)
    os._exit(3)


def waits_for(lock):
    with lock:
        raise AssertionError


def hangs_without_gil():
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=waits_for, args=(lock,), daemon=True).start()
    ddp_run.progress(1)
    blocks_in_c()


def blocks_in_c():
    """Without the interpreter's lock, and so that no signal's handler ends it."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def hangs_with_gil():
    ddp_run.progress(1)
    holds_the_lock()


def holds_the_lock():
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def hangs_below_a_shell():
    hangs_without_gil()


def replaced_by_another_program():
    """It has told a signal, and then it is a program that would die of it."""
    os.set_inheritable(int(os.environ["DDP_CONTROL_FD"]), True)
    ddp_run.progress(1)
    os.execvp("sh", ["sh", "-c", "trap 'echo DIED >&2' EXIT; while :; do sleep 1; done"])


def serves_requests():
    dist.init_process_group("ddp" if os.environ.get("BACKEND") is None else os.environ["BACKEND"])
    for step in range(10**9):
        dist.all_reduce(torch.ones(3))
        ddp_run.progress(step)
        if ddp_run.checkpoint_requested():
            steps = [None] * SIZE
            dist.all_gather_object(steps, step)
            assert len(set(steps)) == 1, steps
            if RANK == 0:
                out(f"checkpoint.{len(list(Path(os.environ['OUT']).glob('checkpoint.*')))}").write_text(str(step))


def has_own_handler():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(77))
    while True:
        assert not ddp_run.checkpoint_requested()
        ddp_run.progress(1)
        time.sleep(0.001)


def blocks_after_request():
    """The others wait in a way that only a signal ends."""
    ddp_run.checkpoint_requested()
    ddp_run.progress(1)
    out(f"waits.{RANK}").write_text("")
    if RANK == 1:
        until(lambda: out("waits.0").exists(), "rank 0")
        os.kill(os.getpid(), signal.SIGKILL)
    blocks_in_c()


# ---- cases ----

class Job:
    def __init__(self, folder, what, *flags, workers=1, standalone=True, **variables):
        self.folder = Path(folder)
        start = ["--standalone"] if standalone else []
        program = variables.pop("program", [__file__, "--worker", what])
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
    command = f"{BIN}/ddp-run --standalone --nproc-per-node 1 {__file__} --worker tells"
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
    for backend in ("ddp", "gloo"):
        (Path(folder) / backend).mkdir()
        with Job(f"{folder}/{backend}", "raises", workers=3, BACKEND=backend) as job:
            job.ends_with(1)
            report = lines_of_report(job.log)
            for words in ("rank      : 1 (", "message   : KeyError: ", "a sample that", "progress.py", "in raises", 'raise KeyError("a sample'):
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
    ended = subprocess.run([sys.executable, __file__, "--worker", "raises_before_any_step"], stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
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
            missing = [frame for frame in frames if not re.search(rf'  File ".*/progress.py", line \d+ {frame}$', python, re.M)]
            assert not missing and asked in python, f"{what}: lacks {missing}:\n{said}"
            assert re.search(r"^thread \d+ \(", c, re.M), said
            job.shows("no progress for 1 s", *frames)


def hang_below_a_shell(folder):
    program = ["--no-python", "sh", "-c", f"{sys.executable} {__file__} --worker hangs_below_a_shell; true"]
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
            jobs.wait_until(lambda: all(catches(pid, signal.SIGTERM) for pid in job.node.workers()) and len(job.node.workers()) == 2, LIMIT_S,
                            "handlers")
            request(job.folder, job, job.send, signal.SIGUSR1)
            request(job.folder, job, lambda number: os.kill(job.node.workers()[1], number), signal.SIGUSR1)
            request(job.folder, job, job.send, signal.SIGTERM)
            job.ends_with(143)
            job.shows("ddp_run: SIGTERM has asked for a checkpoint and the end")


def catches(pid, number):
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(found[1], 16) >> (number - 1) & 1)


def requests_without_launcher(folder):
    alone = subprocess.Popen([sys.executable, __file__, "--worker", "serves_requests"], stderr=subprocess.PIPE, text=True,
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
    with Job(folder, "blocks_after_request", "--shutdown-timeout", "50", workers=2) as job:
        jobs.wait_until(lambda: (Path(folder) / "waits.0").exists(), LIMIT_S, "rank 0")
        begin = time.monotonic()
        job.ends_with(128 + signal.SIGKILL)
        assert time.monotonic() - begin < 30, job.log


CASES = [steps_are_seen, unknown_loss_is_none, status_line, misuse_is_refused, nothing_without_agent, nothing_in_children, first_exception_is_named,
         import_alone_tells_no_steps, no_progress_ends_the_job, childs_exception_is_not_reported, under_torchrun, own_hook_is_kept, hang_shows_python_frames,
         hang_below_a_shell, no_signal_to_another_program, requests_are_answered, requests_without_launcher, own_handler_is_kept,
         failed_round_ends_at_once]


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
    if sys.argv[1] == "--worker":
        globals()[sys.argv[2]]()
    else:
        main()
