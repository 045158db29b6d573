"""The tutorial's demo of a model on two devices in each process. Both are the CPU here, so DDP gets no device_ids."""
import argparse
import hashlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyMpModel(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.net1 = nn.Linear(10, 10).to(first)
        self.net2 = nn.Linear(10, 5).to(second)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x.to(self.first))).to(self.second))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    model = DDP(ToyMpModel("cpu", "cpu"), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"rank {rank} of {dist.get_world_size()} has {hashlib.sha256(weights).hexdigest()}.", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
