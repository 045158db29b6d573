"""The backend "ddp" with tensors on CUDA devices, over real NCCL. Skipped where PyTorch sees no device.

    cuda_tensors.py BIN_DIR [CASE...]      runs every case, one after the other, with ranks of its own
    cuda_tensors.py --rank R N FILE CASE   is a rank

Ranks share a device if there are fewer than ranks. NCCL allows that if it takes them for ranks of different machines, which
NCCL_HOSTID makes it believe; then they talk over the loopback interface.
"""
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int32, torch.int64]
OPS = {dist.ReduceOp.SUM: torch.sum, dist.ReduceOp.PRODUCT: torch.prod, dist.ReduceOp.MIN: torch.amin, dist.ReduceOp.MAX: torch.amax}


def values(rank, shape=(7, 13), dtype=torch.float32, layout="plain"):
    """Small whole numbers, so that every order of additions gives the same."""
    numbers = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
    if layout == "strided":
        spread = torch.empty((*shape, 2), dtype=dtype)
        spread[..., 0] = numbers
        return spread.cuda()[..., 0]
    return numbers.cuda()


def expect(what, ours, expected):
    if ours.dtype != expected.dtype or not torch.equal(ours.cpu(), expected.cpu()):
        raise AssertionError(f"{what}: got {ours}, expected {expected}")


def reductions(rank, size):
    for dtype in DTYPES:
        for layout in ("plain", "strided"):
            everyone = torch.stack([values(each, dtype=dtype).to(torch.float64) for each in range(size)])
            for op, combine in OPS.items():
                tensor = values(rank, dtype=dtype, layout=layout)
                dist.all_reduce(tensor, op)
                expect(f"all_reduce {op} {dtype} {layout}", tensor, combine(everyone, dim=0).to(dtype))
            tensor = values(rank, dtype=dtype, layout=layout)
            dist.reduce(tensor, size - 1)
            if rank == size - 1:
                expect(f"reduce {dtype}", tensor, everyone.sum(0).to(dtype))
            output = torch.empty(13, dtype=dtype, device="cuda")
            dist.reduce_scatter(output, [values(10 * rank + to, (13,), dtype, layout) for to in range(size)])
            expected = sum(values(10 * each + rank, (13,)) for each in range(size))
            expect(f"reduce_scatter {dtype}", output, expected.to(dtype))
            output = torch.empty(13, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(output, torch.cat([values(10 * rank + to, (13,), dtype) for to in range(size)]))
            expect(f"reduce_scatter_tensor {dtype}", output, expected.to(dtype))
    tensor = values(rank)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor, sum(values(each) for each in range(size)) / size)
    tensor = torch.tensor([rank == 0, True, False], device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.BAND)
    expect("and", tensor, torch.tensor([size == 1, True, False]))
    tensors = [values(rank), values(rank + 5, (3,))]
    dist.all_reduce_coalesced(tensors)
    expect("coalesced", tensors[1], sum(values(each + 5, (3,)) for each in range(size)))


def moves(rank, size):
    for dtype in [*DTYPES, torch.bool, torch.complex64, torch.int16]:
        for layout in ("plain", "strided"):
            parts = [values(each, dtype=dtype) for each in range(size)]
            own = values(rank, dtype=dtype, layout=layout)
            for root in range(size):
                tensor = values(rank, dtype=dtype, layout=layout)
                dist.broadcast(tensor, root)
                expect(f"broadcast {dtype} {layout}", tensor, parts[root])
            outputs = [values(90, dtype=dtype, layout=layout) for _ in range(size)]
            dist.all_gather(outputs, own)
            for output, part in zip(outputs, parts):
                expect(f"all_gather {dtype} {layout}", output, part)
            whole = torch.empty((7 * size, 13), dtype=dtype, device="cuda")
            dist.all_gather_into_tensor(whole, own)
            expect(f"all_gather_into_tensor {dtype} {layout}", whole, torch.cat(parts))
            outputs = [values(90, dtype=dtype, layout=layout) for _ in range(size)]
            dist.gather(own, outputs if rank == 0 else None)
            if rank == 0:
                for output, part in zip(outputs, parts):
                    expect(f"gather {dtype} {layout}", output, part)
            output = values(90, dtype=dtype, layout=layout)
            dist.scatter(output, parts if rank == 0 else None)
            expect(f"scatter {dtype} {layout}", output, parts[rank])
            outputs = [values(90, dtype=dtype, layout=layout) for _ in range(size)]
            dist.all_to_all(outputs, [values(100 * rank + to, dtype=dtype, layout=layout) for to in range(size)])
            for source, output in enumerate(outputs):
                expect(f"all_to_all {dtype} {layout}", output, values(100 * source + rank, dtype=dtype))
    counts = [2 + each for each in range(size)]
    outputs = [torch.empty(count, device="cuda") for count in counts]
    dist.all_gather(outputs, values(rank, (counts[rank],)))
    for each, output in enumerate(outputs):
        expect("all_gather of uneven parts", output, values(each, (counts[each],)))
    output = torch.empty(size, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(output, torch.arange(size, device="cuda") + 100 * rank)
    expect("all_to_all_single", output, torch.tensor([100 * each + rank for each in range(size)]))


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for elements in (1, 1000, 300_000):
        received = torch.empty(elements, device="cuda")
        sent = values(rank, (elements,))
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)]):
            work.wait()
        expect(f"message of {elements}", received, values(left, (elements,)))
    if size > 1 and rank == 0:
        dist.send(values(7), 1)
    if size > 1 and rank == 1:
        received = torch.empty(7, 13, device="cuda")
        dist.recv(received, 0)
        expect("message", received, values(7))
    try:
        dist.recv(torch.empty(3, device="cuda"))
        raise AssertionError("a receive from any rank is taken")
    except ValueError as error:
        assert "name the source" in str(error), error


def busy(milliseconds=20):
    """Keeps the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def streams(rank, size):
    """An operation waits for what is in the caller's stream, and wait() orders the caller's stream, without the host."""
    expected = torch.full((100_000,), float(size))
    dist.all_reduce(torch.zeros(3, device="cuda"))  # Makes the communicator.
    torch.cuda.synchronize()
    for _ in range(5):
        tensor = torch.zeros(100_000, device="cuda")
        busy()
        tensor += 1
        begin = time.monotonic()
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        result = tensor.clone()
        host = time.monotonic() - begin
        expect("default stream", result, expected)
        if size == 1:
            assert host < 0.015, f"the host has waited for {host} s"
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = torch.zeros(100_000, device="cuda")
            busy()
            other += 1
            dist.all_reduce(other)
            result = other * 2
        torch.cuda.current_stream().wait_stream(side)
        expect("side stream", result, 2 * expected)
    future = dist.all_reduce(torch.ones(10, device="cuda"), async_op=True).get_future()
    expect("future", future.then(lambda done: done.value()[0] * 2).wait(), torch.full((10,), 2.0 * size))
    # The memory of a tensor that Python drops is not given to another before the operation is done.
    busy(50)
    work = dist.all_reduce(torch.ones(1_000_000, device="cuda"), async_op=True)
    spoilt = [torch.full((1_000_000,), 7.0, device="cuda") for _ in range(4)]
    expect("dropped", work.get_future().wait()[0], torch.full((1_000_000,), float(size)))
    assert all(bool((each == 7).all()) for each in spoilt)
    work.wait(timedelta(seconds=30))
    torch.cuda.synchronize()
    deadline = time.monotonic() + 5
    while not work.is_completed():
        assert time.monotonic() < deadline


def model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).cuda()


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 32, generator=generator).cuda(), torch.randint(4, (16,), generator=generator).cuda()


def train(rank, size, group=None, steps=10, **options):
    net = torch.nn.parallel.DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()], process_group=group, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step * size + rank)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def training(rank, size):
    """DistributedDataParallel as it is: the same bytes as over PyTorch's own NCCL, with one bucket and with many."""
    nccl = dist.new_group(backend="nccl")
    for options in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True, "static_graph": True}):
        expect(f"DDP {options}", train(rank, size, **options), train(rank, size, nccl, **options))
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    net = torch.nn.parallel.DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()])
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    images, labels = batch(rank)
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in net.parameters())
    everyone = [None] * size
    dist.all_gather_object(everyone, rank)
    assert everyone == list(range(size))
    pair = dist.new_group(sorted({0, size - 1}))
    if rank in (0, size - 1):
        tensor = torch.ones(5, device="cuda")
        dist.all_reduce(tensor, group=pair)
        expect("group of two", tensor, torch.full((5,), float(len({0, size - 1}))))
    dist.barrier()


def graph(rank, size):
    """An operation in a graph runs again with each replay; others go on beside it."""
    tensor = torch.zeros(1000, device="cuda")
    dist.all_reduce(tensor)  # Makes the communicator, which cannot be captured.
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        tensor += 1
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        tensor *= 2
    expected = 0.0
    for turn in range(10):
        captured.replay()
        expected = (expected + 1) * size * size * 2
        other = torch.ones(3, device="cuda")
        dist.all_reduce(other)
        expect(f"between, turn {turn}", other, torch.full((3,), float(size)))
        if turn in (0, 3):
            expect(f"replay {turn}", tensor, torch.full((1000,), expected))
            tensor.zero_()
            expected = 0.0
    torch.cuda.synchronize()


def killed(rank, size):
    dist.all_reduce(torch.ones(10, device="cuda"))
    torch.cuda.synchronize()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["goes on"], timedelta(seconds=30))
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10, device="cuda"), async_op=True)
    if rank == 0:
        store.set("goes on", "")
    begin = time.monotonic()
    while not work.is_completed() and time.monotonic() < begin + 20:
        time.sleep(0.0005)
    took = time.monotonic() - begin
    try:
        work.wait()
        raise AssertionError("did not fail")
    except dist.DistBackendError as error:
        assert "rank 1 died" in str(error), error
        print(f"killed: rank {rank} knows after {1000 * took:.1f} ms: {str(error).splitlines()[0]}", flush=True)
    try:
        dist.all_reduce(torch.ones(10, device="cuda"))
        raise AssertionError("the next one did not fail")
    except dist.DistBackendError:
        pass
    # The context is sound, and the survivors go on.
    dist.destroy_process_group()
    expect("after the failure", torch.ones(5, device="cuda") * 3, torch.full((5,), 3.0))
    if size > 2:
        dist.init_process_group("ddp", store=dist.PrefixStore("next", store), rank=0 if rank == 0 else rank - 1, world_size=size - 1)
        tensor = torch.ones(5, device="cuda")
        dist.all_reduce(tensor)
        expect("the survivors", tensor, torch.full((5,), float(size - 1)))


def aborted(rank, size):
    """An operation that not all ranks reach ends with ddp_run.abort(), and another at its deadline."""
    import ddp_run
    dist.all_reduce(torch.ones(10, device="cuda"))
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(10, device="cuda"), group=group)
    torch.cuda.synchronize()
    if rank == 0:
        work = dist.all_reduce(torch.ones(10, device="cuda"), group=group, async_op=True)
        deadline = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < deadline
        try:
            work.wait()
            raise AssertionError("did not fail")
        except dist.DistBackendError as error:
            assert "all_reduce" in str(error) and "timed out after 2000 ms" in str(error), error
        ddp_run.abort()
    else:
        deadline = time.monotonic() + 20
        try:
            while time.monotonic() < deadline:
                dist.barrier()
            raise AssertionError("did not fail")
        except dist.DistBackendError:
            pass


CASES = {case.__name__: case for case in (reductions, moves, messages, streams, training, graph, killed, aborted)}
SIZES = {"reductions": (1, 3), "moves": (1, 3), "messages": (1, 2), "streams": (1, 2), "training": (1, 2), "graph": (1, 2),
         "killed": (3,), "aborted": (2,)}


def be_rank(rank, size, path, case):
    import ddp_run  # noqa: F401
    faulthandler.dump_traceback_later(float(os.environ.get("HANG_S", "80")), exit=True)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("ddp", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=40))
    CASES[case](rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()


def environment(rank, size):
    if size <= torch.cuda.device_count():
        return os.environ
    return {**os.environ, "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def run_case(case, size, folder):
    begin = time.monotonic()
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(size), f"{folder}/{case}{size}", case],
                              env=environment(rank, size)) for rank in range(size)]
    expected = [-signal.SIGKILL if case == "killed" and rank == 1 else 0 for rank in range(size)]
    statuses = [rank.wait(timeout=100) for rank in ranks]
    good = statuses == expected
    print(f"{case}, {size} ranks: {'ok' if good else f'ended with {statuses}'} ({time.monotonic() - begin:.1f} s)", flush=True)
    return good


def main():
    if sys.argv[1] == "--rank":
        try:
            be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        return 0
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no CUDA device")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        good = [run_case(case, size, folder) for case in sys.argv[2:] or CASES for size in SIZES[case]]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
