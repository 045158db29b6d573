#!/usr/bin/env python3
"""Prints the results of training with the options of PyTorch's DistributedDataParallel over gloo. options_transcript_test.cc
runs this, and makes the same models, batches and runs.

Each line, as of gloo_transcript.py: size of the world, rank, run, and the parameters and buffers at the end in the order of
definition. RUN/buckets: how many bytes each bucket has in the end. Runs with options that this release lacks are left out.
"""
import contextlib
import inspect
import math

import torch
import torch.distributed as dist
from torch import nn

import gloo_transcript

with contextlib.suppress(ImportError):
    import torch._dynamo  # 2.x's DistributedDataParallel does so, in each process.

STEPS = 6
RUNS = ["plain", "small_buckets", "views", "views_zeroed", "find_unused", "find_unused_views", "static_graph", "norm",
        "norm_no_broadcast", "no_sync", "join", "join_live", "two_forwards", "sparse", "sparse_bag", "frozen"]
# What came after 1.13, by the argument that it needs.
SINCE = {"norm_own_buffers": "delay_all_reduce_named_params", "no_init_sync": "init_sync", "delayed": "delay_all_reduce_named_params",
         "caps_list": "bucket_cap_mb_list", "batched": "batched_grad_copy", "batched_views": "batched_grad_copy",
         "skip_unused": "skip_all_reduce_unused_params", "norm_forward_sync_off": "forward_sync_buffers",
         "norm_join_sync_off": "forward_sync_buffers"}
OPTIONS = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
RUNS += [run for run, option in SINCE.items() if option in OPTIONS]


def formula(shape, salt, scale):
    """Numbers that both languages make alike."""
    count = math.prod(shape)
    return (((torch.arange(count) * 37 + salt * 11) % 101 - 50).float() / scale).view(shape)


class Net(nn.Module):
    def __init__(self, run, rank):
        super().__init__()
        self.run = run
        if run.startswith("sparse"):
            self.table = nn.EmbeddingBag(10, 8, mode="mean", sparse=True) if run == "sparse_bag" \
                else nn.Embedding(10, 8, sparse=True)
        self.first = nn.Linear(8, 12)
        if run.startswith("norm"):
            self.norm = nn.BatchNorm1d(12)
        self.left = nn.Linear(12, 12)
        self.right = nn.Linear(12, 12)
        self.last = nn.Linear(12, 6)
        with torch.no_grad():
            for salt, parameter in enumerate(self.parameters()):
                parameter.copy_(formula(parameter.shape, salt, 128))
            # Where ranks begin differently.
            if run in ("norm_own_buffers", "norm_forward_sync_off", "norm_join_sync_off"):
                self.norm.running_mean.fill_(rank + 1)
            if run == "no_init_sync":
                self.first.bias.add_(rank / 8)
        self.left.requires_grad_(run != "frozen")

    def forward(self, images, words, route):
        if self.run == "sparse_bag":
            images = images + self.table(words)
        elif self.run == "sparse":
            images = images + self.table(words).mean(1)
        hidden = torch.tanh(self.first(images))
        if self.run.startswith("norm"):
            hidden = self.norm(hidden)
        if self.run == "static_graph":  # One layer twice, another one never.
            hidden = torch.tanh(self.left(torch.tanh(self.left(hidden))))
        elif self.run == "skip_unused":  # The same one on all ranks.
            hidden = torch.tanh(self.right(hidden))
        elif self.run.startswith("find_unused"):
            if route == 0:
                hidden = torch.tanh(self.left(hidden))
            elif route == 1:
                hidden = torch.tanh(self.right(hidden))
        else:
            hidden = torch.tanh(self.right(torch.tanh(self.left(hidden))))
        return self.last(hidden)


def loss_of(model, step, rank):
    images = formula((4, 8), 1000 + step * 17 + rank * 5, 32)
    targets = formula((4, 6), 2000 + step * 13 + rank * 7, 64)
    words = ((torch.arange(12) * 7 + step * 3 + rank * 5) % 10).view(4, 3)
    return nn.functional.mse_loss(model(images, words, (step * 2 + rank) % 3), targets)


def backward(run, ddp, step, rank):
    if run == "no_sync":
        with ddp.no_sync():
            for part in range(2):
                loss_of(ddp, 3 * step + part, rank).backward()
        loss_of(ddp, 3 * step + 2, rank).backward()
    elif run == "two_forwards":
        (loss_of(ddp, 2 * step, rank) + loss_of(ddp, 2 * step + 1, rank)).backward()
    else:
        loss_of(ddp, step, rank).backward()


def options_of(run, model):
    options = {"find_unused_parameters": "unused" in run, "static_graph": run == "static_graph",
               "gradient_as_bucket_view": "views" in run}
    if run == "small_buckets":
        options["bucket_cap_mb"] = 300 / 2 ** 20
    if run in ("norm_no_broadcast", "norm_own_buffers"):
        options["broadcast_buffers"] = False
    if "sync_off" in run:
        options["forward_sync_buffers"] = False
    if run == "no_init_sync":
        options["init_sync"] = False
    if run == "caps_list":
        options["bucket_cap_mb_list"] = [300 / 2 ** 20, 700 / 2 ** 20]
    if run.startswith("batched"):
        options["batched_grad_copy"] = True
    if run == "skip_unused":
        options["skip_all_reduce_unused_params"] = True
    if run == "delayed":
        options["delay_all_reduce_named_params"] = [(f"last.{name}", part) for name, part in model.last.named_parameters()]
        options["param_to_hook_all_reduce"] = model.first.weight
    return options


def wait_for_delayed():
    """Makes dist.all_reduce keep what it begins; gives a function that waits for it, which DDP leaves out."""
    begun, all_reduce = [], dist.all_reduce

    def kept(*arguments, **options):
        work = all_reduce(*arguments, **options)
        begun.append(work)
        return work

    dist.all_reduce = kept
    return lambda: [begun.pop().wait() for _ in range(len(begun))]


def train(run, rank, record):
    model = Net(run, rank)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 300 if run == "small_buckets" else 1 << 20
    ddp = nn.parallel.DistributedDataParallel(model, **options_of(run, model))
    wait = wait_for_delayed() if run == "delayed" else lambda: None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0 if run.startswith("sparse") else 0.5)
    joins = "join" in run
    with ddp.join(divide_by_initial_world_size=run == "join") if joins else contextlib.nullcontext():
        for step in range(STEPS + (rank if joins else 0)):
            optimizer.zero_grad(set_to_none=run != "views_zeroed")
            backward(run, ddp, step, rank)
            wait()
            optimizer.step()
    if rank == 0 and run in ("small_buckets", "caps_list"):
        sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        record(f"{run}/buckets", torch.tensor([int(size) for size in sizes.split(",")]))
    state = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    return torch.cat([tensor.detach().reshape(-1) for tensor in state])


def exercises(rank, size, record):
    torch.set_num_threads(1)
    for run in RUNS:
        # More ranks where there is something to see.
        if size == 2 or run in ("small_buckets", "find_unused", "join_live", "sparse", "norm"):
            end = train(run, rank, record)
            # Only batch norm's statistics are each rank's own, and what was never made equal.
            if rank == 0 or run.startswith("norm") or run == "no_init_sync":
                record(run, end, "{:.7g}")


if __name__ == "__main__":
    gloo_transcript.transcribe(exercises, (2, 3))
