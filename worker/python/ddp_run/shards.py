"""Tensors that are divided among the ranks: DTensors, such as the parameters of FSDP2.

A checkpoint holds them whole, each tensor in one piece, so any number of ranks can load it, with and without FSDP2.
"""
import functools
import math
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist


class Division(NamedTuple):
    """How a tensor is divided along one dimension. Ranks follow one another as their rows do."""
    dim: int
    begin: int  # This rank's first row.
    rows: list[int]  # By rank: how many it contributes. 0 if a lower rank has the same.
    sizes: list[int]  # Of the whole.


def is_divided(tensor) -> bool:
    # A program that has one has imported the module, which takes long.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def divide(length: int, parts: int) -> list[tuple[int, int]]:
    """The first row and the number of rows of each part, as torch.chunk has them. The last parts may be empty."""
    size = -(-length // parts)
    begins = [min(length, part * size) for part in range(parts + 1)]
    return [(begin, end - begin) for begin, end in zip(begins, begins[1:])]


def division_of(tensor, name: str) -> Division | None:
    """None if each rank has the whole. Raises TypeError, which names the tensor, for a division that a checkpoint cannot hold."""
    if not dist.is_initialized():
        raise TypeError(f"{name} is divided among ranks: make the ElasticState after init_process_group(), in a program without run_elastic()")
    mesh, placements = tensor.device_mesh, tensor.placements
    divided = [axis for axis, each in enumerate(placements) if not each.is_replicate() and (mesh.size(axis) > 1 or each.is_partial())]
    if not divided:
        return None
    kind = placements[divided[0]]
    if len(divided) > 1 or type(kind).__name__ != "Shard":
        raise TypeError(f"{name} has the placements {placements}, which cannot be kept: one Shard can, beside Replicate")
    ranks = tuple(mesh.mesh.flatten().tolist())
    if sorted(ranks) != list(range(dist.get_world_size())):
        raise TypeError(f"{name} is on {len(ranks)} ranks of {dist.get_world_size()}; only what all ranks divide can be kept")
    begins, rows = _rows_of(ranks, tuple(mesh.mesh.shape), divided[0], tensor.shape[kind.dim])
    if rows is None:
        raise TypeError(f"{name} is divided against the order of the ranks: {mesh.mesh.tolist()}; make the mesh with ascending ranks")
    return Division(kind.dim, begins[dist.get_rank()], rows, list(tensor.shape))


@functools.lru_cache(maxsize=256)
def _rows_of(ranks, shape, axis, length):
    """By rank: the first row, and how many it contributes; None if the ranks are in another order than the rows.

    A mesh of this shape has the ranks one after the other. Remembered, because every save asks it of every tensor.
    """
    below = math.prod(shape[axis + 1:])
    parts = divide(length, shape[axis])
    part_of_rank = {rank: place // below % shape[axis] for place, rank in enumerate(ranks)}
    first = {}  # Of each part: its lowest rank.
    for rank in sorted(ranks):
        first.setdefault(part_of_rank[rank], rank)
    begins = [parts[part_of_rank[rank]][0] for rank in sorted(ranks)]
    if list(first) != sorted(first):
        return begins, None
    return begins, [parts[part_of_rank[rank]][1] if first[part_of_rank[rank]] == rank else 0 for rank in sorted(ranks)]


def tell(name: str, tensor: torch.Tensor) -> tuple:
    """The tensor as native code takes it: (name, tensor), or (name, this rank's part, its Division)."""
    if not is_divided(tensor):
        return name, tensor
    division = division_of(tensor, name)
    with torch.no_grad():
        return (name, tensor.to_local()) if division is None else (name, tensor.to_local(), division)


def read_like(like, name: str, sizes: list[int], read) -> torch.Tensor:
    """What is saved under the name, divided like the tensor `like` if that has the same sizes.

    read(name) -> a new tensor. read(name, (dim, begin, count)) -> a new tensor of these rows.
    """
    if not is_divided(like) or list(like.shape) != list(sizes):
        return read(name)
    from torch.distributed.tensor import DTensor
    division = division_of(like, name)
    with torch.no_grad():
        local = read(name) if division is None else read(name, (division.dim, division.begin, like.to_local().shape[division.dim]))
        return DTensor.from_local(local.to(like.device), like.device_mesh, like.placements, run_check=False, shape=like.shape,
                                  stride=like.stride())


def part_of(tensor: torch.Tensor, like: torch.Tensor, name: str) -> torch.Tensor:
    """The whole tensor, divided like the tensor `like` if that has the same sizes."""
    return tensor if not is_divided(like) else read_like(
        like, name, list(tensor.shape), lambda _, rows=None: tensor if rows is None else tensor.narrow(*rows).clone())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Collective if the tensor is divided."""
    return tensor.full_tensor() if is_divided(tensor) else tensor


def reshard(module: torch.nn.Module) -> None:
    """Has FSDP2 let go the whole parameters, which it may keep after a forward without a backward: they are copies."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if fsdp is not None:
        for part in module.modules():
            if isinstance(part, fsdp):
                part.reshard()
