"""Groups whose members change: split_group, shrink_group and _reconfigure of PyTorch 2.14. PyTorch 2.6 has none for such a backend.

    members.py BIN_DIR [CASE...]            runs every case with ranks of its own
    members.py --rank CASE R N FILE [again] is one of them
"""
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

import ddp_run  # noqa: F401

RANKS = 3
LIMIT = timedelta(seconds=120)


def total(group=None):
    """The sum of 1 over the ranks of the group."""
    tensor = torch.ones(50_000)
    dist.all_reduce(tensor, group=group)
    assert tensor.min() == tensor.max()
    return int(tensor[0])


def init(rank, store, **options):
    dist.init_process_group("ddp", store=dist.PrefixStore("world", store), rank=rank, world_size=RANKS, timeout=LIMIT, **options)


def die(store, others):
    """Once the others have their results."""
    store.wait([f"done/{other}" for other in others], LIMIT)
    os.kill(os.getpid(), signal.SIGKILL)


def expect_failure(action, text):
    try:
        action()
    except dist.DistBackendError as error:
        assert text in str(error), error
        return
    raise AssertionError("nothing failed")


def expect_death(rank=1):
    expect_failure(total, f"rank {rank} died")


def split(rank, store, again):
    init(rank, store)
    part = dist.group.WORLD.split_group([2, 0], timeout=timedelta(seconds=20), group_name="part")
    if rank == 1:
        assert part is None
    else:
        assert part.size() == 2 and part.rank() == (0 if rank == 2 else 1)
        tensor = torch.tensor([float(rank)])
        part.broadcast(tensor, 0).wait()
        assert tensor.item() == 2
    assert total() == RANKS
    dist.destroy_process_group()


def shrink_after_a_death(rank, store, again):
    init(rank, store)
    assert total() == RANKS
    if rank == 1:
        die(store, [0, 2])
    store.set(f"done/{rank}", "")
    expect_death()
    dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    assert dist.get_world_size() == 2 and dist.get_rank() == rank // 2
    assert total() == 2
    dist.destroy_process_group()


def shrink_on_purpose(rank, store, again):
    """The excluded rank just goes. Afterwards the group shrinks once more."""
    init(rank, store)
    assert total() == RANKS
    if rank == 2:
        store.wait(["done/0", "done/1"], LIMIT)
        return
    store.set(f"done/{rank}", "")
    dist.shrink_group([2])
    assert total() == 2
    if rank == 1:
        store.wait(["two/0"], LIMIT)
        return
    store.set("two/0", "")
    dist.shrink_group([1])
    assert total() == 1
    dist.destroy_process_group()


def reconfigure(rank, store, again):
    """A group begins without members, loses one, goes on without it, and gets a new process in its place."""
    def handles(stage, ranks):
        store.set(f"{stage}/{rank}", dist.distributed_c10d._get_reconfigure_handle())
        return [store.get(f"{stage}/{other}").decode() for other in ranks]

    def meet(stage, ranks):
        dist.distributed_c10d._reconfigure(uuid=stage, handles=handles(stage, ranks)).wait()
        assert dist.get_world_size() == len(ranks) and dist.get_rank() == ranks.index(rank)
        assert total() == len(ranks)

    init(rank, store, enable_reconfigure=True)
    assert dist.distributed_c10d._supports_reconfigure()
    if not again:
        expect_failure(total, "has no members")
        own = dist.distributed_c10d._get_reconfigure_handle()
        expect_failure(lambda: dist.distributed_c10d._reconfigure(uuid=100 + rank, handles=[own, "ddp-nobody"], timeout=timedelta(seconds=1)),
                       "rank 1")
        expect_failure(total, "has no members")
        meet(1, [2, 0, 1])
        if rank == 1:
            die(store, [0, 2])
        store.set(f"done/{rank}", "")
        expect_death(2)  # Its number in the order above.
        meet(2, [0, 2])
        if rank == 0:
            store.set("room", "")
    else:
        store.wait(["room"], LIMIT)
    meet(3, [0, 1, 2])
    # As a set, the backend chooses the order.
    dist.distributed_c10d._reconfigure(uuid=4, handles=set(handles(4, range(RANKS)))).wait()
    assert total() == RANKS
    world = dist.group.WORLD
    dist.destroy_process_group()
    expect_failure(lambda: world.allreduce(torch.ones(1)).wait(), "has been destroyed")


CASES = {case.__name__: case for case in (split, shrink_after_a_death, shrink_on_purpose, reconfigure)}


def start(case, rank, file, *more):
    return subprocess.Popen([sys.executable, __file__, "--rank", case, str(rank), str(RANKS), file, *more])


def run(case):
    killed = {"shrink_after_a_death": 1, "reconfigure": 1}.get(case)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start(case, rank, f"{folder}/store") for rank in range(RANKS)]
        if case == "reconfigure":
            ranks[1].wait()
            ranks.append(start(case, 1, f"{folder}/store", "again"))
        codes = [rank.wait() for rank in ranks]
    expected = [-signal.SIGKILL if index == killed else 0 for index in range(len(codes))]
    if codes != expected:
        sys.exit(f"{case}: the ranks ended with {codes}, not with {expected}")
    print(f"{case}: ok", flush=True)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "--rank":
        faulthandler.dump_traceback_later(400, exit=True)
        _, _, case, rank, size, file, *again = sys.argv
        CASES[case](int(rank), dist.FileStore(file, int(size)), again)
        return
    if not hasattr(dist, "shrink_group"):
        print(f"PyTorch {torch.__version__} has no groups whose members change for backends of others")
        sys.exit(77)
    for case in sys.argv[2:] or CASES:
        run(case)


if __name__ == "__main__":
    main()
