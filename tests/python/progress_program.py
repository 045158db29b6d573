"""The workers of progress.py, which starts each under ddp-run: progress_program.py WHAT"""
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ddp_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs

LIMIT_S = 240
RANK, SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


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


def raises_before_backward():
    """The others wait for futures, in DistributedDataParallel's backward(). They end before rank 1 does, which takes long."""
    dist.init_process_group(os.environ["BACKEND"])
    processes = [None] * SIZE
    dist.all_gather_object(processes, os.getpid())
    others = [os.pidfd_open(process) for rank, process in enumerate(processes) if rank != 1]
    report = sys.excepthook

    def report_and_linger(*raised):
        report(*raised)
        ddp_run.abort()
        for other in others:
            select.select([other], [], [], LIMIT_S)

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if RANK == 1:
        sys.excepthook = report_and_linger
        raise KeyError("a sample that\nno one has")
    loss.backward()


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


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return index


def batches():
    way = os.environ.get("LOADER")  # Of multiprocessing.
    return torch.utils.data.DataLoader(Numbers(), num_workers=2, multiprocessing_context=way, timeout=LIMIT_S) if way else range(10**9)


def serves_requests():
    dist.init_process_group("ddp" if os.environ.get("BACKEND") is None else os.environ["BACKEND"])
    for step, _ in enumerate(batches()):
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


def trains():
    """Thirty steps. Rank 1 has its batch only when rank 0 is about to reduce its gradients, so it is late on any machine."""
    dist.init_process_group("ddp")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    step = 0
    for number, parameter in enumerate(model.parameters()):
        if RANK == 0:
            parameter.register_hook(lambda _, number=number: out(f"gradient.{step}.{number}").touch())
    for step in range(1, 31):
        with ddp_run.trace_scope("input", "batch", step):
            if RANK == 1 and step > 2:  # The second forward is collective, too: it makes the buckets anew.
                until(lambda: all(out(f"gradient.{step}.{number}").exists() for number in (0, 1)), "rank 0's gradients")
                time.sleep(0.1)  # sleep: stands for a slow disk
        model(torch.ones(4, 64)).sum().backward()
        ddp_run.progress(step)
    dist.destroy_process_group()


def loses_rank_1_after_request():
    """Its round fails between the signal and the step boundary that would see to it."""
    def train(group):
        ddp_run.checkpoint_requested(group)
        child = subprocess.Popen(["sleep", "1000"])
        out(f"waits.{RANK}").write_text("")
        child.wait()  # The signal reaches the whole process group.
        if RANK == 1:
            os._exit(1)
        dist.all_reduce(torch.ones(3), group=group)

    try:
        ddp_run.run_elastic(ddp_run.ElasticState(step=0), train, backend="ddp")
    finally:
        out("goes_on").write_text("")


def blocks_after_request():
    """The others wait in a way that only a signal ends."""
    ddp_run.checkpoint_requested()
    ddp_run.progress(1)
    out(f"waits.{RANK}").write_text("")
    if RANK == 1:
        until(lambda: out("waits.0").exists(), "rank 0")
        os.kill(os.getpid(), signal.SIGKILL)
    blocks_in_c()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
