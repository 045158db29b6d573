"""recovery_python.py with ddp_run.run_elastic(), which needs no checkpoint: recovery_elastic.py EVENTS IGNORED STEPS

recovery_elastic.py --start prints the time at which it would begin to train.
"""
import json
import os
import sys
import time

import torch

import ddp_run

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                            torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0)
if sys.argv[1] == "--start":
    print(time.time())
    sys.exit()
EVENTS, STEPS = sys.argv[1], int(sys.argv[3])
events = os.open(EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event, rank, step=-1):
    line = {"event": event, "time": time.time(), "pid": os.getpid(), "rank": rank,
            "round": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), "step": step}
    os.write(events, (json.dumps(line) + "\n").encode())


note("start", int(os.environ.get("RANK", -1)))


def train(group):
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    try:
        while state.step < STEPS:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(torch.randn(32, 64)), torch.randn(32, 8)).backward()
            optimizer.step()
            state.step += 1
            note("step", group.rank(), state.step)
            state.commit_if_due()
    except RuntimeError:
        note("error", group.rank())
        raise


ddp_run.run_elastic(state, train)
