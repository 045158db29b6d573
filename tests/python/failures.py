"""How a group of the backend "ddp" ends: each rank that is left raises DistBackendError, at once, and the text names the cause.

    failures.py BIN_DIR [CASE...]     runs every case with ranks of its own
"""
import faulthandler
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ddp_run
from raising import raises

RANKS = 3


# Nothing but a hang takes as long, also where each rank has a fraction of a core. How quick it is, bench/run backend measures.
LIMIT_S = 60
STALL_MS = 3000


def expect_failure(call, *words):
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        took = time.monotonic() - begin
        missing = [word for word in words if word not in str(error)]
        if missing or took > LIMIT_S:
            raise AssertionError(f"after {took:.3f} s: {error}: lacks {missing}") from error
        print(f"rank {dist.get_rank()}: {took:.3f} s: {str(error).splitlines()[0]}", flush=True)
        return str(error)
    raise AssertionError("did not fail")


def tell(what, rank):
    """Through the store, which outlives the group."""
    dist.distributed_c10d._get_default_store().set(f"{what}/{rank}", "")


def wait_for(what, *ranks):
    dist.distributed_c10d._get_default_store().wait([f"{what}/{rank}" for rank in ranks], timedelta(seconds=30))


def process_of(rank):
    return int(dist.distributed_c10d._get_default_store().get(f"process/{rank}"))


def reduce():
    dist.all_reduce(torch.ones(100_000))


def killed(rank):
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect_failure(reduce, f"rank 1 died (pid {pids[1]} on {socket.gethostname()}, after all_gather #")


def killed_while_waited_for(rank):
    """Whoever waits in another way is told the same."""
    if rank == 1:
        wait_for("waits", 0, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)]
    future = works[2].get_future()
    tell("waits", rank)
    text = f"rank 1 died (pid {process_of(1)} on {socket.gethostname()}, after all_reduce #"
    for wait in (lambda: works[1].wait(timedelta(seconds=30)), works[0].wait, future.wait, future.value, lambda: works[2].wait(timedelta(seconds=30))):
        expect_failure(wait, text)
    assert all(work.is_completed() and not work.is_success() for work in works)


def exception(rank):
    """The commonest death: Python ends in order, and the others still learn of it."""
    if rank == 1:
        raise RuntimeError("out of luck")
    expect_failure(reduce, "rank 1 has left the group")


def exception_before_message(rank):
    if rank == 1:
        raise RuntimeError("out of luck")
    if rank == 0:
        expect_failure(lambda: dist.recv(torch.empty(4), 1), "rank 1 has left the group")


def orderly(rank):
    """A rank that is done may end while the others go on among themselves."""
    others = dist.new_group([0, 2])
    reduce()
    if rank == 1:
        return
    # Its parent collects it last, so the number stays its own.
    end = os.pidfd_open(process_of(1))
    assert select.select([end], [], [], 30)[0], "rank 1 has not ended"
    # Many: the group's watch has the time to learn of the end.
    for _ in range(1000):
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=others)
        assert tensor.tolist() == [2.0] * 5


def stopped(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    text = expect_failure(reduce, "rank 1 has not run for")
    assert int(re.search(r"has not run for (\d+) ms", text)[1]) >= STALL_MS, text


def mismatch_of_shape(rank):
    expect_failure(lambda: dist.all_reduce(torch.ones(10 + (rank == 2))), "the ranks disagree", "rank 2", "11", "10")


def mismatch_of_operation(rank):
    expect_failure(lambda: dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(3)), "the ranks disagree", "all_reduce", "barrier")


def mismatch_of_type(rank):
    expect_failure(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64 if rank == 1 else torch.float32)), "the ranks disagree", "f64", "f32")


def time_out(rank):
    group = dist.new_group(timeout=timedelta(seconds=5))  # All ranks make it in this time, too.
    if rank == 1:
        wait_for("has failed", 0, 2)
        return
    expect_failure(lambda: dist.all_reduce(torch.ones(3), group=group), "timed out after 5000 ms", "rank 1")
    tell("has failed", rank)


def time_out_of_a_wait(rank):
    """A wait that ends early leaves the operation as it is."""
    tensor = torch.ones(3)
    if rank == 1:
        wait_for("has timed out", 0, 2)
    work = dist.all_reduce(tensor, async_op=True)
    if rank != 1:
        try:
            work.wait(timedelta(milliseconds=200))
            raise AssertionError("did not time out")
        except RuntimeError as error:
            assert "imed out" in str(error), error
        tell("has timed out", rank)
    work.wait()
    assert tensor.tolist() == [3.0] * 3


def expect_interrupt(call):
    try:
        os.kill(os.getppid(), signal.SIGUSR1)  # Tells the test that the call begins.
        call()
    except KeyboardInterrupt:
        return
    raise AssertionError("was not interrupted")


def interrupted(rank, call=reduce):
    if rank == 1:
        wait_for("is over", 0, 2)
        try:
            call()
        except dist.DistBackendError:
            return
        raise AssertionError("did not fail")
    if rank == 0:
        expect_interrupt(call)
    else:
        expect_failure(call, "rank 0 was interrupted")
    tell("is over", rank)


def interrupted_in_a_sparse_reduction(rank):
    interrupted(rank, lambda: dist.all_reduce(torch.eye(3).to_sparse()))


def interrupted_in_a_limited_wait(rank):
    """As if it had timed out: the operation goes on."""
    if rank == 1:
        wait_for("is over", 0)
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        expect_interrupt(lambda: work.wait(timedelta(seconds=60)))
        tell("is over", rank)
    work.wait()
    assert tensor.tolist() == [3.0] * 3


def interrupted_too_late(rank):
    """The operation is done before anybody has heard of the interrupt."""
    if rank == 1:
        wait_for("is interrupted", 0)
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank != 0:
        work.wait()
        tell("is done", rank)
        return

    def finish_and_raise(*_):
        tell("is interrupted", rank)
        wait_for("is done", 1, 2)
        deadline = time.monotonic() + 30
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, finish_and_raise)
    work.get_future()
    # So this thread does not run the operation itself. Which one of the group's does is not certain.
    wait_until_blocked(os.getpid(), lambda: [thread for thread in os.listdir("/proc/self/task") if name_of_thread(thread) == "ddp-comm"])
    expect_interrupt(work.wait)
    assert work.is_success() and tensor.tolist() == [3.0] * 3


def aborted(rank):
    if rank == 1:
        ddp_run.abort()
        return
    expect_failure(reduce, "rank 1 aborted the group")


def name_of_thread(thread):
    return open(f"/proc/self/task/{thread}/comm").read().strip()


def threads():
    return [name_of_thread(thread) for thread in os.listdir("/proc/self/task")]


def destroyed(rank):
    """A rank that has destroyed its groups is gone for the others, though its process goes on, and not dead."""
    pair = dist.new_group([0, 2])
    reduce()
    if rank == 1:
        store = dist.distributed_c10d._get_default_store()
        del pair
        dist.destroy_process_group()
        assert "ddp-comm" not in threads() and "ddp-watch" not in threads(), threads()
        store.set("destroyed/1", "")
        return
    wait_for("destroyed", 1)
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=pair)
    assert tensor.tolist() == [2.0] * 5


def broadcast_of_a_second_tensor():
    options = dist.BroadcastOptions()
    options.rootTensor = 1
    dist.distributed_c10d._get_default_group().broadcast([torch.ones(3)], options)


def wrong_arguments(rank):
    for call, kind, words in ((lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), TypeError, "Float"),
                              (lambda: dist.broadcast(torch.ones(3).expand(4, 3), 0) if rank else dist.broadcast(torch.ones(4, 3), 0), ValueError, "share memory"),
                              (lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)), ValueError, "need 6"),
                              (broadcast_of_a_second_tensor, ValueError, "invalid root tensor 1")):
        try:
            call()
            assert rank == 0 and words == "share memory", words
        except kind as error:
            assert words in str(error), error
            if words == "share memory":
                dist.broadcast(torch.empty(4, 3), 0)
    dist.barrier()


def blocks_of_unequal_sizes(rank):
    """Only the root can know. The others wait for its next call."""
    def gather(sizes):
        dist.gather(torch.full((3,), float(rank)), outputs := [torch.empty(size) for size in sizes] if rank == 0 else None)
        assert rank != 0 or [output.tolist() for output in outputs] == [[float(source)] * 3 for source in range(RANKS)], outputs

    def scatter(sizes):
        output = torch.empty(3)
        dist.scatter(output, [torch.full((size,), float(to)) for to, size in enumerate(sizes)] if rank == 0 else None)
        assert output.tolist() == [float(rank)] * 3, output

    for call, text in ((gather, "gather: the output for rank 1 has 2 elements, the input of this rank 3"),
                       (scatter, "scatter: the input for rank 1 has 2 elements, the output of this rank 3")):
        if rank == 0:
            raises(ValueError, text, lambda call=call: call([3, 2, 4]))
        call([3, 3, 3])


CASES = {case.__name__: case for case in (killed, killed_while_waited_for, exception, exception_before_message, orderly, stopped,
                                          mismatch_of_shape, mismatch_of_operation, mismatch_of_type, time_out, time_out_of_a_wait, interrupted,
                                          interrupted_in_a_sparse_reduction, interrupted_in_a_limited_wait, interrupted_too_late,
                                          aborted, destroyed, wrong_arguments, blocks_of_unequal_sizes)}
# How ranks end that do not end with 0.
STATUSES = {"killed": {1: -signal.SIGKILL}, "killed_while_waited_for": {1: -signal.SIGKILL}, "exception": {1: 1}, "exception_before_message": {1: 1},
            "stopped": {1: -signal.SIGKILL}}


def be_rank(case, rank, size, path):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    # The shell may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(240, exit=True)
    if case == "stopped":
        os.environ["DDP_STALL_TIMEOUT_MS"] = str(STALL_MS)
    dist.init_process_group("ddp", init_method=f"file://{path}", rank=rank, world_size=size)
    dist.distributed_c10d._get_default_store().set(f"process/{rank}", str(os.getpid()))
    reduce()
    # Until all ranks are through, a failure may still meet this operation.
    tell("is through", rank)
    wait_for("is through", *range(size))
    CASES[case](rank)
    if case in ("time_out_of_a_wait", "wrong_arguments", "blocks_of_unequal_sizes"):
        dist.destroy_process_group()


def start_rank(case, rank, path):
    """Forks, which spares each rank the seconds that importing PyTorch takes. The child ends as every interpreter does."""
    child = os.fork()
    if child == 0:
        be_rank(case, rank, RANKS, path)
        sys.exit(0)
    return child


def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def naps(process, thread):
    """How often the thread has gone to sleep."""
    with open(f"/proc/{process}/task/{thread}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


def wait_until_blocked(process, threads):
    """Waits until one of `threads()` is in a call that waits: it sleeps again and again, and nothing that comes before it does."""
    deadline = time.monotonic() + 60
    first = {}
    while True:
        for thread in threads():
            seen = naps(process, thread)
            if seen >= first.setdefault(thread, seen) + 10:
                return
        assert time.monotonic() < deadline, "no call waits"
        time.sleep(0.01)


def run_case(case, folder):
    ranks = [start_rank(case, rank, f"{folder}/{case}") for rank in range(RANKS)]
    if case.startswith("interrupted"):
        assert signal.sigtimedwait({signal.SIGUSR1}, 60), "rank 0 has not begun"
        wait_until_blocked(ranks[0], lambda: [ranks[0]])
        os.kill(ranks[0], signal.SIGINT)
    statuses = {rank: end_of(ranks[rank]) for rank in (0, 2)}
    if case == "stopped":
        os.kill(ranks[1], signal.SIGKILL)
    statuses[1] = end_of(ranks[1])
    wrong = [f"rank {rank} ended with {status}" for rank, status in statuses.items() if status != STATUSES.get(case, {}).get(rank, 0)]
    print(f"{case}: {', '.join(wrong) or 'ok'}", flush=True)
    return not wrong


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    folder = tempfile.mkdtemp()
    good = [run_case(case, folder) for case in sys.argv[2:] or CASES]
    shutil.rmtree(folder)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
