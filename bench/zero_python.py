#!/usr/bin/python3
"""bench-zero's models with Python's ZeroRedundancyOptimizer over gloo: zero_python.py MODEL STEPS ROUNDS

Prints {"mode", "model", "steps_per_second": [one a round]} from rank 0.
"""
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from python_models import task

name, steps, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
net, loss_of, x, y = task(name, dist.get_rank())
model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, parameters_as_bucket_view=True)
rates = []
for _ in range(rounds + 1):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        model.zero_grad(set_to_none=False)
        loss_of(model(x), y).backward()
        optimizer.step()
    rates.append(steps / (time.perf_counter() - begin))
if dist.get_rank() == 0:
    print(json.dumps({"mode": "python", "model": name, "steps_per_second": rates[1:]}), flush=True)
dist.destroy_process_group()
