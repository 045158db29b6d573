"""Follows the torchrun part of PyTorch's tutorial "Getting Started with Distributed Data Parallel": everything that it knows of
the job comes from the environment."""
import hashlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(ToyModel())  # Ranks begin with different weights and get rank 0's.
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5))
        loss.backward()
        optimizer.step()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"rank {rank} of {dist.get_world_size()} has {hashlib.sha256(weights).hexdigest()}.", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
