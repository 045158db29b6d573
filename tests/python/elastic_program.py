"""A small training for tests: elastic_program.py FOLDER STEPS BACKEND OPTIMIZER [FAULT...]

FAULT is RANK:STEP:HOW: when the rank has done that many steps for the first time, HOW is a signal's number to itself, or `raise`.
RANK:0:more registers more state on the rank than the others have.
Every process appends lines to FOLDER/log: what, pid, rank, round and step. The end has the weights' hash.
"""
import os
import random
import sys
import time
import weakref

import torch

import ddp_run


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                                        torch.nn.Linear(16, 2))
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        return self.body(x)


def main():
    folder, steps, backend, kind, *faults = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    model = Net()
    optimizer = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if kind == "sgd" else
                 torch.optim.AdamW(model.parameters(), lr=0.01))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, scheduler=scheduler, step=0, seen=[], commit_every=2)
    if f"{os.environ.get('RANK')}:0:more" in faults:
        state.add("more", 1)
    checkpoints = ddp_run.Checkpointer(f"{folder}/checkpoints", state, every=5)
    checkpoints.load_latest()

    earlier = []  # Weak references to the DistributedDataParallel of each round.

    def log(what, group, **more):
        line = " ".join([what, str(os.getpid()), str(group.rank()), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), str(state.step),
                         *(f"{key}={value}" for key, value in more.items())])
        with open(f"{folder}/log", "a") as file:
            file.write(f"{time.monotonic_ns()} {line}\n")

    def train(group):
        log("round", group, size=group.size(), resumed=state.resumed)
        assert not any(each() for each in earlier), "the DistributedDataParallel of an earlier round is still there"
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        earlier.append(weakref.ref(ddp))
        while state.step < int(steps):
            generator = torch.Generator().manual_seed(1000 * state.step + group.rank())
            x = torch.randn(16, 8, generator=generator) + random.random()
            loss = torch.nn.functional.cross_entropy(ddp(x), (x.sum(1) > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            model.mean = model.mean * 0.9 + 0.1  # A buffer that is another tensor from step to step.
            state.step += 1
            state.seen = (state.seen + [state.step])[-3:]
            log("step", group)
            for fault in faults:
                rank, step, how = fault.split(":")
                mark = f"{folder}/{fault}"
                if group.rank() == int(rank) and state.step == int(step) and not os.path.exists(mark):
                    open(mark, "w").close()
                    if how == "raise":
                        raise ValueError("the fault of the test")
                    os.kill(os.getpid(), int(how))
            state.commit_if_due()
            checkpoints.save_if_due()
        assert state.seen == list(range(state.step - 2, state.step + 1)), state.seen
        log("end", group, weights=ddp_run.weights_sha256(model), lr=optimizer.param_groups[0]["lr"])
        return "done"

    assert ddp_run.run_elastic(state, train, backend) == "done"


main()
