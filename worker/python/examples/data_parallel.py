"""A program for PyTorch's DistributedDataParallel in which only the backend's name is another.

    ddp-run --standalone --nproc-per-node 2 data_parallel.py        # or torchrun
"""
import images
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ddp_run

dist.init_process_group("ddp")
torch.set_num_threads(1)
model = DistributedDataParallel(images.network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
dataset = images.digits(None)
sampler = DistributedSampler(dataset)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(dataset, batch_size=64, sampler=sampler):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f}, {ddp_run.nodes()} node, weights {ddp_run.weights_sha256(model.module)}")
dist.destroy_process_group()
