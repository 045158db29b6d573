"""The peer of bench-recovery: DistributedDataParallel over gloo that resumes from a checkpoint, as in torchrun's documentation.
Appends a JSON line to the events file when a worker starts and after every step.

usage (under torchrun): recovery_python.py EVENTS CHECKPOINT STEPS
"""
import json
import os
import sys
import time

import torch
import torch.distributed

EVENTS, CHECKPOINT, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SAVE_EVERY = 10
events = os.open(EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event, step):
    line = {"event": event, "time": time.time(), "pid": os.getpid(), "rank": rank,
            "round": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), "step": step}
    os.write(events, (json.dumps(line) + "\n").encode())


rank = int(os.environ["RANK"])
note("start", -1)
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                            torch.nn.Linear(256, 8))
first = 0
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    first = saved["step"]
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
if first > 0:
    optimizer.load_state_dict(saved["optimizer"])
torch.manual_seed(1000 + rank)
for step in range(first + 1, STEPS + 1):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(ddp(torch.randn(32, 64)), torch.randn(32, 8)).backward()
    optimizer.step()
    note("step", step)
    if rank == 0 and step % SAVE_EVERY == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, CHECKPOINT + ".new")
        os.replace(CHECKPOINT + ".new", CHECKPOINT)
