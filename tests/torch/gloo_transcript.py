#!/usr/bin/env python3
"""Prints the results of torch.distributed's functions over gloo; gloo_transcript_test.cc runs this.

Each line: size of the world, rank, function, the elements of the result.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing


def numbers(rank, rows, salt=0):
    return ((torch.arange(rows * 5) * 7 + rank * 3 + salt) % 5).view(rows, 5).float()


def parcel(sender, receiver):
    return numbers(sender, (sender + 2 * receiver) % 4, receiver)


def exercise(rank, size, record):
    ranks = range(size)
    tensor = numbers(rank, 2)
    dist.all_reduce(tensor)
    record("all_reduce", tensor)
    tensor = numbers(rank, 2)
    dist.broadcast(tensor, 1)
    record("broadcast", tensor)
    tensor = numbers(rank, 2)
    dist.reduce(tensor, 1)
    if rank == 1:
        record("reduce", tensor)
    tensors = [torch.zeros(2, 5) for _ in ranks]
    dist.all_gather(tensors, numbers(rank, 2))
    record("all_gather", torch.cat(tensors))
    dist.gather(numbers(rank, 2), tensors if rank == 1 else None, dst=1)
    if rank == 1:
        record("gather", torch.cat(tensors))
    tensor = torch.zeros(2, 5)
    dist.scatter(tensor, [numbers(other, 2, 1) for other in ranks] if rank == 1 else None, src=1)
    record("scatter", tensor)
    sent = [parcel(rank, other) for other in ranks]
    received = [parcel(other, rank) for other in ranks]
    output = torch.zeros_like(torch.cat(received))
    dist.all_to_all_single(output, torch.cat(sent), [part.size(0) for part in received],
                           [part.size(0) for part in sent])
    record("all_to_all_single", output)
    output = torch.zeros(2 * size, 5)
    dist.all_to_all_single(output, numbers(rank, 2 * size))
    record("all_to_all_single_equal", output)


def run(rank, exercises, size, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size)
    with open(f"{folder}/{size}.{rank}", "w", encoding="ascii") as file:
        def record(function, tensor, form="{:g}"):
            values = " ".join(form.format(value) for value in tensor.reshape(-1).tolist())
            file.write(f"{size} {rank} {function} {values}\n")
        exercises(rank, size, record)
    dist.barrier()


def transcribe(exercises, worlds):
    """Prints what exercises(rank, size, record) records on every rank of worlds of these sizes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as temporary:
        for world in worlds:
            # Forked, so that they need not import torch again.
            torch.multiprocessing.start_processes(run, (exercises, world, temporary), world, start_method="fork")
            for number in range(world):
                with open(f"{temporary}/{world}.{number}", encoding="ascii") as lines:
                    sys.stdout.write(lines.read())


if __name__ == "__main__":
    transcribe(exercise, (2, 3))
