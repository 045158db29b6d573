"""Uses what scripts that train over gloo use of torch.distributed. In the first attempt the last rank stops at its third step and
waits to be killed; in the next attempt all ranks continue from what rank 0 has saved.

usage: gloo_job.py FOLDER [undisturbed]
"""
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def exchanges(rank, size):
    """Groups, and objects of any kind."""
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "pid": os.getpid()})
    check([one["rank"] for one in everybody] == list(range(size)), everybody)
    evens = dist.new_group(list(range(0, size, 2)))
    if rank % 2 == 0:
        total = torch.tensor([rank])
        dist.all_reduce(total, group=evens)
        check(total.item() == sum(range(0, size, 2)), total)


def main():
    folder = sys.argv[1]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    # Newer releases put no number of the attempt before their keys.
    came = dist.distributed_c10d._get_default_store().add(f"came/{rank}", 1)
    check(came == 1, f"rank {rank} finds the store of an earlier attempt")
    exchanges(rank, size)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    saved, first = os.path.join(folder, "model.pt"), 0
    if attempt > 0:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first = state["step"]
    print(f"rank {rank} begins at step {first}, agent's store {os.environ['TORCHELASTIC_USE_AGENT_STORE']}, "
          f"port {os.environ['MASTER_PORT']}.", flush=True)
    for step in range(first, STEPS):
        if step == 3 and attempt == 0 and rank == size - 1 and "undisturbed" not in sys.argv:
            with open(os.path.join(folder, "pid.new"), "w") as file:
                file.write(str(os.getpid()))
            os.rename(os.path.join(folder, "pid.new"), os.path.join(folder, "pid"))
            time.sleep(1000)
        torch.manual_seed(100 * step + rank)
        model.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        with torch.no_grad():  # Since PyTorch 2, the first optimizer of a process imports for a second.
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step + 1}, saved + ".new")
            os.rename(saved + ".new", saved)
        dist.barrier()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"rank {rank} of {size} has {hashlib.sha256(weights).hexdigest()}.", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
