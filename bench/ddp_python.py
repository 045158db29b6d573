#!/usr/bin/python3
"""bench-ddp's MLP and resnet18 with Python's DistributedDataParallel over gloo: ddp_python.py MODEL STEPS ROUNDS

Prints {"mode", "model", "steps_per_second": [one a round]} from rank 0. The mnist network has its own program among the
peers (PEERS/ddp_mnist.py, bench/harness.py).
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from python_models import task

name, steps, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
net, loss_of, x, y = task(name, dist.get_rank())
model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
set_to_none = os.environ.get("SET_TO_NONE") == "1"  # bench/ddp_task.h
rates = []
for _ in range(rounds + 1):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model(x), y).backward()
        optimizer.step()
    rates.append(steps / (time.perf_counter() - begin))
if os.environ["RANK"] == "0":
    print(json.dumps({"mode": "python", "model": name, "steps_per_second": rates[1:]}), flush=True)
dist.destroy_process_group()
