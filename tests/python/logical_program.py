"""A small training of 4 logical ranks, for logical.py: logical_program.py FOLDER STEPS [key=value...]

    backend=gloo     of torch.distributed
    workers=2        processes that load data
    worlds=A:N,B:M   after A steps, goes on when there are N workers; after B steps, when there are M
    kill=K           after K steps, worker 0 kills itself once
    leave=K          leaves a loop of logical ranks early, after K steps
    plain=1          trains with DistributedDataParallel, on 4 workers
Appends lines to FOLDER/log. The last of each worker has the weights' hash, and the sums of the losses and of what the program draws.
"""
import os
import random
import signal
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import ddp_run
from ddp_run import randomness

try:
    import numpy
except ImportError:
    numpy = None

RANKS = 4
LIMIT_S = 240
folder, steps, *settings = sys.argv[1:]
settings = dict(each.split("=") for each in settings)


class Augmented(torch.utils.data.Dataset):
    """Images of 8 x 8 with noise of all generators."""

    def __len__(self):
        return 150

    def __getitem__(self, index):
        image = torch.full((1, 8, 8), index % 3 / 3.0) + torch.rand(1, 8, 8) * random.random()
        return image + (numpy.random.rand() if numpy else 0), index % 3


class Net(torch.nn.Module):
    """Draws numbers of all generators, and has a buffer that is another tensor from step to step, but for DistributedDataParallel."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
                                        torch.nn.Dropout(0.3), torch.nn.Linear(144, 3))
        self.unused = torch.nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        mean = self.mean * 0.9 + x.mean()
        if "plain" in settings:
            self.mean.copy_(mean)
        else:
            self.mean = mean
        return self.body(x) * (1 + 0.1 * random.random() + (0.1 * numpy.random.rand() if numpy else 0)) + self.mean


def log(what, *more):
    with open(f"{folder}/log", "a") as file:
        file.write(" ".join([what, str(state.step), *map(str, more)]) + "\n")


torch.set_num_threads(1)
torch.manual_seed(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
logical = ddp_run.LogicalWorld(model, RANKS, seed=5)
dataset = Augmented()
sampler = ddp_run.DistributedSampler(dataset, seed=3, logical=None if "plain" in settings else logical)
workers = int(settings.get("workers", 0))
# Python 3.14's own way imports PyTorch, and runs this program, in each of them.
loader = ddp_run.DataLoader(dataset, 4, sampler=sampler, num_workers=workers, multiprocessing_context="fork" if workers else None)
state = ddp_run.ElasticState(model=model, optimizer=optimizer, sampler=sampler, logical=logical, step=0, drawn=0.0, losses=0.0,
                             commit_every=2)
checkpoints = ddp_run.Checkpointer(f"{folder}/checkpoints", state)
checkpoints.load_latest()
worlds = dict(map(int, each.split(":")) for each in settings.get("worlds", "").split(",") if each)


def once(name):
    mark = f"{folder}/{name}"
    if os.path.exists(mark):
        return False
    open(mark, "w").close()
    return True


def wait_for_world(group):
    deadline = time.monotonic() + LIMIT_S
    while group.size() != worlds.get(state.step, group.size()):
        if group.rank() == 0:
            log("waits", worlds[state.step])
        assert time.monotonic() < deadline, f"{group.size()} workers at step {state.step}"
        time.sleep(0.02)
        state.commit()  # A round ends after a commit if nodes have come.


def disturb(group):
    if state.step == int(settings.get("leave", -1)):
        before = ddp_run.weights_sha256(model), torch.get_rng_state().tolist()
        for _ in logical.each(logical.own):
            model(torch.randn(4, 1, 8, 8)).sum().backward()
            break
        assert before == (ddp_run.weights_sha256(model), torch.get_rng_state().tolist())
    if state.step == int(settings.get("kill", -1)) and group.rank() == 0 and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def logical_losses(batches):
    losses = []
    for inputs, labels in logical.each(batches):
        losses.append(torch.nn.functional.cross_entropy(model(inputs), labels))
        losses[-1].backward()
    return logical.mean(losses)


def plain_losses(ddp, group, batch):
    inputs, labels = batch
    ddp.zero_grad()
    with randomness.kept():
        randomness.seed(randomness.mix(5, state.step, group.rank()))
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
    losses = torch.zeros(RANKS, dtype=torch.float64)
    losses[group.rank()] = loss.detach()
    torch.distributed.all_reduce(losses)
    return ((losses[0] + losses[1]) + (losses[2] + losses[3])).item() / RANKS


def train(group):
    log("round", group.rank(), group.size(), state.resumed)
    ddp = DistributedDataParallel(model, find_unused_parameters=True) if "plain" in settings else None
    wait_for_world(group)  # Nodes that start together may come one after the other.
    while state.step < int(steps):
        for batches in loader:
            loss = plain_losses(ddp, group, batches) if ddp else logical_losses(batches)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            assert model.unused.weight.grad is None, "no logical rank has used it"
            state.drawn += random.random() + torch.rand(1).item()  # What the program draws itself.
            state.losses += loss
            state.step += 1
            state.commit_if_due()
            wait_for_world(group)
            disturb(group)
            if state.step == int(steps):
                break
    checkpoints.save()
    if group.rank() == 0 or "plain" not in settings:  # DistributedDataParallel leaves each rank buffers of its own.
        log("end", ddp_run.weights_sha256(model), state.losses.hex(), state.drawn.hex())


random.seed(1)
ddp_run.run_elastic(state, train, settings.get("backend", "ddp"))
