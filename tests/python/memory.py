"""Registered memory: which tensors lie in it, and that these are like any others. Two ranks on one node.

    memory.py BIN_DIR          starts 2 ranks
    memory.py --rank R N FILE  is one of them
"""
import faulthandler
import io
import os
import resource
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddp_run
import ranks

RANKS = 2
warnings.filterwarnings("ignore")  # That a process with threads forks.
LEAST = 64 << 10  # Bytes that are worth it.


def ones(size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype)


def registered(size=1 << 18):
    """A tensor of ones in registered memory."""
    dist.all_reduce(ones(size))
    tensor = ones(size)
    assert ddp_run.is_registered(tensor)
    return tensor


def sizes_are_learned(rank):
    size = LEAST // 4
    before = ones(size)
    dist.all_reduce(before)
    assert not ddp_run.is_registered(before)
    after = ones(size)
    assert ddp_run.is_registered(after), "the same size"
    assert ddp_run.is_registered(after[3:].view(-1)), "a view"
    assert ddp_run.is_registered(torch.empty(size // 2, dtype=torch.float64)), "the same number of bytes"
    assert not ddp_run.is_registered(ones(size + 1)), "another size"
    dist.all_reduce(ones(size - 1))
    assert not ddp_run.is_registered(ones(size - 1)), "too small"
    whole = ones(4 * size)
    dist.all_reduce(whole[:2 * size])
    assert not ddp_run.is_registered(ones(2 * size)) and not ddp_run.is_registered(ones(4 * size)), "a part of a tensor"
    for tensor in (before, after):
        dist.all_reduce(tensor)
    assert (before == RANKS * RANKS).all() and (after == RANKS).all()


def buckets_are_registered(rank):
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(512, 512), gradient_as_bucket_view=True)
    seen = []

    def hook(group, bucket):
        seen.append(ddp_run.is_registered(bucket.buffer()))
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: bucket.buffer())

    model.register_comm_hook(None, hook)
    for _ in range(3):
        model(torch.ones(2, 512) * rank).sum().backward()
    assert seen[-1], seen


def memory_is_used_again(rank):
    # A tensor that is communicated may be released a moment after its result is there.
    assert len({registered().data_ptr() for _ in range(50)}) < 5


def nothing_is_lost_in_a_fork(rank):
    """The child has the tensors as they were, and neither process sees what the other writes."""
    tensor = registered()
    gone = registered()
    wrote, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.read(told[0], 1)  # Until the parent has changed its tensors.
            is_as_before = (tensor == 1).all() and (gone == 1).all()
            tensor.fill_(5)
            del gone
            os.write(wrote[1], b"x")
            if is_as_before and not ddp_run.is_registered(torch.empty_like(tensor)):
                status = 0
        finally:
            os._exit(status)
    tensor.fill_(3)
    del gone
    registered().fill_(7)
    os.write(told[1], b"x")
    os.read(wrote[0], 1)
    assert (tensor == 3).all()
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(tensor)
    assert (tensor == 3 * RANKS).all()
    for end in wrote + told:
        os.close(end)


def a_child_without_room_ends(rank):
    """It must not go on with its parent's memory."""
    tensor = registered(1 << 23)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    room = tensor.nbytes // 2  # For what a sanitizer or another thread maps, or gives back, until the copy is made.
    sys.stderr.flush()
    errors = tempfile.TemporaryFile()
    kept = os.dup(2)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, before[1]))
    os.dup2(errors.fileno(), 2)
    try:
        child = os.fork()
        if child == 0:
            os._exit(7)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        os.dup2(kept, 2)
        os.close(kept)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    errors.seek(0)
    text = errors.read().decode()
    assert status == 1 and f"no room for its copy of a tensor of {tensor.nbytes} bytes" in text, (status, text)
    assert (tensor == 1).all()


def they_can_be_shared(rank):
    tensor = registered()
    tensor.share_memory_()
    assert tensor.is_shared() and not ddp_run.is_registered(tensor)
    child = os.fork()
    if child == 0:
        tensor.fill_(4)
        os._exit(0)
    os.waitpid(child, 0)
    assert (tensor == 4).all()
    dist.all_reduce(tensor)
    assert (tensor == 4 * RANKS).all()


def they_are_like_others(rank):
    tensor = registered()
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    assert torch.equal(torch.load(file), tensor)
    array = tensor.numpy()
    array[:] = 2
    assert (tensor == 2).all()
    other = registered()
    other.resize_(2 * other.numel())
    assert (other[:1 << 18] == 1).all()
    zeros = torch.zeros(1 << 18)
    assert ddp_run.is_registered(zeros) and not zeros.any(), "memory that was used before"


def they_outlive_the_group(rank):
    tensor = registered()
    dist.destroy_process_group()
    assert (tensor == 1).all()
    init()
    dist.all_reduce(tensor)
    assert (tensor == RANKS).all()
    registered()


def they_can_be_asked_for(rank):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not hasattr(backend, "allocate_tensor"):
        return  # PyTorch 2.6.
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float64, device=torch.device("cpu"))
    assert tensor.shape == (1000,) and tensor.dtype == torch.float64 and ddp_run.is_registered(tensor)
    dist.all_reduce(tensor.fill_(1))
    assert (tensor == RANKS).all()
    assert backend.allocate_tensor(0, dtype=torch.float32, device=torch.device("cpu")).numel() == 0


CASES = [sizes_are_learned, buckets_are_registered, memory_is_used_again, nothing_is_lost_in_a_fork, a_child_without_room_ends,
         they_can_be_shared, they_are_like_others, they_outlive_the_group, they_can_be_asked_for]
meetings = 0


def init():
    global meetings
    meetings += 1
    _, _, rank, size, file = sys.argv
    store = dist.PrefixStore(str(meetings), dist.FileStore(file, int(size)))
    dist.init_process_group("ddp", store=store, rank=int(rank), world_size=int(size))


def be_rank(rank):
    faulthandler.dump_traceback_later(240, exit=True)
    init()
    for case in CASES:
        dist.barrier()
        case(rank)
        if rank == 0:
            print(f"{case.__name__}: as it should be", flush=True)
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "--rank":
        be_rank(int(sys.argv[2]))
        return
    ranks.run(__file__, RANKS, 400)


if __name__ == "__main__":
    main()
