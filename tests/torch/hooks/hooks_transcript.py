#!/usr/bin/env python3
"""Prints the results of PyTorch's communication hooks on a small model over gloo; hooks_transcript_test.cc runs this.

A list of runs in JSON: the hook as make_comm_hook_from_text takes it, the number of ranks and steps, the names of the
parameters in the order of their bucket, and each rank's parameters at the end, in the order of definition.

PyTorch's own code runs, with these changes: PowerSGD's random Q is drawn per parameter from a seed of the step and the
name, as ours is; batched PowerSGD's orthogonalisation gets the third dimension it insists on; for the quantization hooks
.cuda() does nothing and all_gather's future looks like NCCL's; 16-bit numbers are added up here, because not every gloo
supports them; subgroups are made without CUDA.
"""
import contextlib
import functools
import json
import math
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer

with contextlib.suppress(ImportError):
    import torch._dynamo  # 2.x's DistributedDataParallel does so, in each process.

RUNS = [  # hook, ranks, steps
    ("allreduce", 2, 8), ("allreduce", 4, 8), ("fp16", 2, 8), ("bf16", 2, 8),
    ("powersgd:rank=1,start_iter=2", 2, 10), ("powersgd:rank=2,start_iter=2", 2, 10),
    ("powersgd:rank=4,start_iter=2,min_rate=0.5", 2, 10), ("powersgd:rank=1,start_iter=3", 4, 10),
    ("powersgd:rank=1,start_iter=2,error_feedback=false", 2, 10),
    ("powersgd:rank=2,start_iter=2,warm_start=false", 2, 10),
    ("powersgd:rank=4,start_iter=0,min_rate=0.5,error_feedback=false,warm_start=false", 2, 6),
    ("powersgd:rank=2,start_iter=2,min_rate=0.1,batch_same_shape=true,seed=7", 2, 10),
    ("powersgd:rank=1,start_iter=2,min_rate=2.6,epsilon=1e-8", 2, 10),
    ("batched_powersgd:rank=1,start_iter=2", 2, 10),
    ("batched_powersgd:rank=3,start_iter=2,error_feedback=false", 2, 10),
    ("quantize_per_tensor", 2, 8), ("quantize_per_tensor", 4, 8), ("quantize_per_channel:bucket_size=50", 2, 8),
    ("post_localsgd:start_iter=3,subgroup_size=1,period=2", 2, 8),
    ("post_localsgd:start_iter=2,subgroup_size=2,hierarchy=2x2/4x4", 4, 7),
    ("post_localsgd:start_iter=2,gradient_allreduce=false,period=3", 2, 7),
]
SIZES = [(12, 8), (12,), (12, 12), (12,), (6, 12), (6,)]


def parse(text):
    name, _, items = text.partition(":")
    return name, dict(item.split("=") for item in items.split(",") if item)


def formula(shape, salt, scale):
    """Numbers that both languages make alike."""
    count = math.prod(shape)
    return (((torch.arange(count) * 37 + salt * 11) % 101 - 50).float() / scale).view(shape)


def make_model():
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 12), torch.nn.Tanh(),
                                torch.nn.Linear(12, 6))
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters()):
            parameter.copy_(formula(parameter.shape, salt, 128))
    return model


def loss_of(model, step, rank):
    images = formula((4, 8), 1000 + step * 17 + rank * 5, 32)
    targets = formula((4, 6), 2000 + step * 13 + rank * 7, 64)
    return torch.nn.functional.mse_loss(model(images), targets)


def seed_of(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001b3) % 2 ** 64
    return value


class Draws:
    """Stands in for torch.randn in the hook: Q by the names of what is about to be drawn."""

    def __init__(self, seed):
        self.seed, self.pending, self.step = seed, [], 0

    def draw(self, shape, dtype):
        value = seed_of(f"{self.seed}/{self.step}/{self.pending.pop(0)}")
        generator = torch.Generator().manual_seed((value ^ value >> 32) & 0xffffffff)
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def __call__(self, *shape, device=None, dtype=None):
        if len(shape) == 2:  # Batched.
            return self.draw(shape, dtype)
        return torch.stack([self.draw(shape[1:], dtype) for _ in range(shape[0])])


def power_sgd(options, batched, names_of):
    state = powerSGD_hook.PowerSGDState(
        None, int(options.get("rank", 1)), int(options["start_iter"]), float(options.get("min_rate", 2)),
        options.get("error_feedback") != "false", options.get("warm_start") != "false",
        float(options.get("epsilon", 0)), batch_tensors_with_same_shape=options.get("batch_same_shape") == "true")
    draws = Draws(options.get("seed", "0"))

    class Torch:
        """The hook's torch, with our draws."""
        randn = draws

        def __getattr__(self, name):
            return getattr(torch, name)

    powerSGD_hook.torch = Torch()
    plain = powerSGD_hook._orthogonalize

    def orthogonalize(matrices, epsilon=0):
        if matrices.dim() == 3:
            plain(matrices, epsilon)
        else:
            plain(matrices.unsqueeze(0), epsilon)

    powerSGD_hook._orthogonalize = orthogonalize

    def hook(state, bucket):
        names = names_of(bucket)
        draws.step = state.iter
        if batched:
            key = seed_of("".join(name + "\n" for name in names))
            draws.pending = [f"{names[0]}..{names[-1]}#{key:016x}"]
            return powerSGD_hook.batched_powerSGD_hook(state, bucket)
        shapes = {}
        for name, parameter in zip(names, bucket.parameters()):
            rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
            rank = min(rows, columns, state.matrix_approximation_rank)
            if powerSGD_hook._should_compress(rows, columns, rank, state.min_compression_rate)[0]:
                shapes.setdefault((rows, columns), []).append(name)
        draws.pending = [name for same in shapes.values() for name in same]
        return powerSGD_hook.powerSGD_hook(state, bucket)

    return state, hook


class GatherAsNccl:
    """torch.distributed with NCCL's shape of all_gather's future: a list of one thing that has all tensors."""

    def __getattr__(self, name):
        return getattr(dist, name)

    @staticmethod
    def all_gather(tensors, tensor, group, async_op):
        dist.all_gather(tensors, tensor, group=group)
        future = torch.futures.Future()
        future.set_result([torch.stack(tensors)])
        return GatherAsNccl.Done(future)

    class Done:
        def __init__(self, future):
            self.get_future = lambda: future


class AddsSixteenBits:
    """torch.distributed with all_reduce of 16-bit numbers, of which not every gloo knows both types."""

    def __getattr__(self, name):
        return getattr(dist, name)

    @staticmethod
    def all_reduce(tensor, group, async_op):
        theirs = [torch.zeros(tensor.shape) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, tensor.float())
        tensor.copy_(functools.reduce(torch.add, [part.to(tensor.dtype) for part in theirs]))
        future = torch.futures.Future()
        future.set_result([tensor])
        return GatherAsNccl.Done(future)


def new_subgroups(group_size, group=None):
    """torch.distributed's, which insists on CUDA."""
    starts = range(0, dist.get_world_size(), group_size)
    groups = [dist.new_group(range(start, start + group_size)) for start in starts]
    return groups[dist.get_rank() // group_size], groups


def make_hook(text, names_of):
    """State and hook, and what makes the optimizer of another one."""
    name, options = parse(text)
    if name in ("powersgd", "batched_powersgd"):
        return (*power_sgd(options, name == "batched_powersgd", names_of), None)
    if name == "post_localsgd":
        start = int(options["start_iter"])
        subgroup = new_subgroups(int(options["subgroup_size"]))[0] if "subgroup_size" in options else None
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start,
                                                     options.get("gradient_allreduce") != "false")
        if "hierarchy" in options:
            dist.new_subgroups = new_subgroups
            pairs = [pair.split("x") for pair in options["hierarchy"].split("/")]
            averager = hierarchical_model_averager.HierarchicalModelAverager(
                {int(period): int(size) for period, size in pairs}, start)
        else:
            averager = averagers.PeriodicModelAverager(int(options["period"]), start)
        return (state, post_localSGD_hook.post_localSGD_hook,
                lambda optimizer: PostLocalSGDOptimizer(optimizer, averager))
    hooks = {"allreduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
             "bf16": default_hooks.bf16_compress_hook,
             "quantize_per_tensor": quantization_hooks.quantization_pertensor_hook,
             "quantize_per_channel": functools.partial(quantization_hooks.quantization_perchannel_hook,
                                                       bucket_size=int(options.get("bucket_size", 512)))}
    return None, hooks[name], None


def train(text, rank, steps):
    model = make_model()
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    order = []

    def names_of(bucket):
        return [names[id(parameter)] for parameter in bucket.parameters()]

    state, hook, wrap = make_hook(text, names_of)
    live = []

    def gate(state, bucket):  # Two backwards without the hook, so that buckets have been rebuilt.
        order[:] = names_of(bucket)
        return hook(state, bucket) if live else default_hooks.allreduce_hook(None, bucket)

    ddp.register_comm_hook(state, gate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    optimizer = wrap(optimizer) if wrap else optimizer
    for step in range(-2, steps):
        if step == 0:
            live.append(True)
            assert all(torch.equal(*pair) for pair in zip(initial, model.parameters()))
        optimizer.zero_grad()
        loss_of(ddp, max(step, 0), rank).backward()
        if step >= 0:
            optimizer.step()
    return order, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def run(rank, text, size, steps, folder):
    torch.set_num_threads(1)
    if text.startswith("quantize"):
        torch.Tensor.cuda = lambda self, *arguments: self
        torch.nn.Module.cuda = lambda self, *arguments: self
        quantization_hooks.dist = GatherAsNccl()
    elif text.endswith("16"):
        default_hooks.dist = AddsSixteenBits()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    order, parameters = train(text, rank, steps)
    with open(f"{folder}/{rank}", "w", encoding="ascii") as file:
        json.dump([order, [round(value, 7) for value in parameters.tolist()]], file)
    dist.barrier()


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    entries = []
    for text, size, steps in RUNS:
        if len(sys.argv) > 1 and sys.argv[1] not in text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            # Forked, so that they need not import torch again.
            torch.multiprocessing.start_processes(run, (text, size, steps, folder), size, start_method="fork")
            ranks = [json.load(open(f"{folder}/{rank}", encoding="ascii")) for rank in range(size)]
        ends = [rank[1] for rank in ranks]
        if all(end == ends[0] for end in ends):
            ends = ends[:1]
        entries.append(json.dumps({"hook": text, "ranks": size, "steps": steps, "order": ranks[0][0], "ends": ends}))
        print(text, size, file=sys.stderr)
    print("[" + ",\n".join(entries) + "]")


if __name__ == "__main__":
    main()
