"""The tutorial's demo of checkpoints: rank 0 saves, a barrier, all ranks load. usage: checkpoint_demo.py FILE"""
import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from elastic_ddp import ToyModel  # A module that lies beside the script.
from torch.nn.parallel import DistributedDataParallel as DDP


def digest(model):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def main(path):
    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(ToyModel())
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    other = DDP(ToyModel())
    other.load_state_dict(torch.load(path, map_location="cpu"))
    same = digest(model) == digest(other)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    nn.functional.mse_loss(other(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
    print(f"rank {rank} of {dist.get_world_size()} has {digest(other)}, loaded what was saved: {same}.", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
