"""What is built on torch.distributed, unchanged, over the backend "ddp": DistributedDataParallel with its hooks, join,
ZeroRedundancyOptimizer, FSDP2, DTensor, functional collectives, also compiled, distributed checkpoints. Against the same over gloo.

    training.py BIN_DIR          starts 2 ranks
    training.py --rank R N FILE  is one of them
"""
import faulthandler
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ddp_run  # noqa: F401
import ranks

RANKS = 2
warnings.filterwarnings("ignore")


def net(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def batches(rank, count=6, rows=8):
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(rows, 20, generator=generator), torch.randint(0, 5, (rows,), generator=generator)) for _ in range(count)]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(group, rank, hook=None, optimizer=None, bucket_cap_mb=0.01, **options):
    torch.manual_seed(7)
    model = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=bucket_cap_mb, **options)
    if hook:
        hook(model, group)
    steps = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))(model.parameters())
    for inputs, labels in batches(rank):
        steps.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        steps.step()
    return weights(model)


HOOKS = {
    "all_reduce": lambda model, group: model.register_comm_hook(group, default_hooks.allreduce_hook),
    "fp16_compress": lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_hook),
    # By its own name PyTorch takes it on GPUs only.
    "bf16_compress": lambda model, group: model.register_comm_hook(group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)),
    "fp16 of all_reduce": lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "powerSGD": lambda model, group: model.register_comm_hook(
        powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5), powerSGD_hook.powerSGD_hook),
    "built in": lambda model, group: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "built in fp16": lambda model, group: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
}
# Left out: the hooks of quantization_hooks move the gradients to a GPU, and PyTorch's batched_powerSGD_hook fails by itself.


def gloo_takes(dtype):
    """Debian's PyTorch 2.14 is built with a gloo that has no 16-bit types."""
    try:
        dist.all_reduce(torch.ones(1, dtype=dtype), group=dist.new_group(backend="gloo"))
        return True
    except RuntimeError:
        return False


def data_parallel(rank, gloo):
    halves = {"fp16": gloo_takes(torch.float16), "bf16": gloo_takes(torch.bfloat16)}
    ours, theirs = train(None, rank), train(gloo, rank)
    # The sum of two has one order only.
    assert torch.equal(ours, theirs), (ours - theirs).abs().max()
    for name, options in (("bucket views", {"gradient_as_bucket_view": True}), ("static graph", {"static_graph": True}),
                          ("unused", {"find_unused_parameters": True}), ("no buffers", {"broadcast_buffers": False})):
        assert torch.equal(train(None, rank, **options), ours), name
    for name, hook in HOOKS.items():
        # PowerSGD's callbacks issue operations. With several buckets their order is up to chance, on gloo as well.
        cap = 25 if "powerSGD" in name else 0.01
        ours = train(None, rank, hook, bucket_cap_mb=cap)
        if any(half in name and not taken for half, taken in halves.items()):
            theirs, tolerance = train(gloo, rank), {"rtol": 1e-2, "atol": 1e-2}
        else:
            theirs, tolerance = train(gloo, rank, hook, bucket_cap_mb=cap), {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        print(f"rank {rank}: hook {name}: ok", flush=True)
    assert torch.equal(train(None, rank), train(None, rank)), "two runs differ"


def zero(rank, gloo):
    def optimizer(group):
        return lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, process_group=group, lr=0.01)
    ours = train(None, rank, optimizer=optimizer(dist.group.WORLD))
    assert torch.equal(ours, train(gloo, rank, optimizer=optimizer(gloo)))


def join(rank, gloo):
    def run(group):
        model = DistributedDataParallel(net(), process_group=group)
        steps = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for inputs, labels in batches(rank, count=3 + 2 * rank):
                steps.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                steps.step()
        return weights(model)
    assert torch.equal(run(None), run(gloo))


def sharded(rank, gloo):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    if not hasattr(torch.cpu.Stream, "record_event"):
        print(f"PyTorch {torch.__version__} has no FSDP2 on CPUs")
        return

    def run(mesh):
        model = net()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        steps = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in batches(rank):
            steps.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            steps.step()
        return torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()])
    ours = run(DeviceMesh("cpu", list(range(dist.get_world_size()))))
    # gloo cannot average in FSDP2 of every release, so compare with plain data parallel training, which has the same gradients.
    plain = DistributedDataParallel(net())
    steps = torch.optim.SGD(plain.parameters(), lr=0.1)
    for inputs, labels in batches(rank):
        steps.zero_grad()
        nn.functional.cross_entropy(plain(inputs), labels).backward()
        steps.step()
    torch.testing.assert_close(ours, weights(plain), rtol=1e-5, atol=1e-6)


def tensors_on_a_mesh(rank, _gloo):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(6, 4)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    assert split.to_local().shape == (3, 4)
    assert torch.equal(split.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    product = (split @ distribute_tensor(torch.ones(4, 2), mesh, [Replicate()])).full_tensor()
    assert torch.equal(product, whole @ torch.ones(4, 2))


def functional(rank, _gloo):
    import torch.distributed._functional_collectives as functions
    size = dist.get_world_size()
    ones = torch.ones(6)
    assert functions.all_reduce(ones, "sum", dist.group.WORLD).tolist() == [size] * 6
    assert functions.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert functions.reduce_scatter_tensor(torch.ones(4), "sum", 0, dist.group.WORLD).tolist() == [2.0, 2.0]
    # Each is used, because PyTorch warns at exit of an operation for which nobody has waited.
    coalesced = functions.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", dist.group.WORLD)
    assert [each.tolist() for each in coalesced] == [[2.0] * 2, [2.0] * 3]


def compiled(rank, _gloo):
    """torch.compile makes C++ of the function, with the collectives in it."""
    import torch.distributed._functional_collectives as functions

    def mixed(values):
        summed = functions.all_reduce(values * 2, "sum", dist.group.WORLD)
        gathered = functions.all_gather_tensor(values.sin() + summed, 0, dist.group.WORLD)
        return functions.reduce_scatter_tensor(gathered * gathered, "sum", 0, dist.group.WORLD) + 1
    values = torch.arange(24.0).reshape(6, 4) + rank
    fused = torch.compile(mixed, fullgraph=True)
    for scale in (1.0, 0.5):
        torch.testing.assert_close(fused(values * scale), mixed(values * scale))


def checkpoint(rank, _gloo, folder):
    import torch.distributed.checkpoint as saved
    model = net(seed=11)
    saved.save({"model": model.state_dict()}, checkpoint_id=folder)
    other = net(seed=12)
    state = {"model": other.state_dict()}
    saved.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    assert torch.equal(weights(model), weights(other))


def be_rank(rank, size, path):
    faulthandler.dump_traceback_later(float(os.environ.get("HANG_S", "400")), exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("ddp", init_method=f"file://{path}", rank=rank, world_size=size)
    gloo = dist.new_group(backend="gloo")
    for part in (data_parallel, zero, join, sharded, tensors_on_a_mesh, functional, compiled):
        part(rank, gloo)
        print(f"rank {rank}: {part.__name__}: ok", flush=True)
    checkpoint(rank, gloo, f"{path}.checkpoint")
    dist.destroy_process_group()


def main():
    if sys.argv[1] == "--rank":
        be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return 0
    return ranks.run(__file__, RANKS, 400)


if __name__ == "__main__":
    sys.exit(main())
