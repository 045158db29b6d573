#!/usr/bin/python3
"""One rank of bench/run backend: backend_python.py ours|peer|about

Ours is the backend "ddp", the peer "gloo". Obeys commands (commands.py). "about" only says what is installed.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import commands
import python_models

SIDE = sys.argv[1]
WARM_UPS, LEAST_RUNS, SPOTS = 3, 5, 8


class Task:
    """A model in training on one batch: "ddp", "fsdp", "local", which communicates nothing, or "barrier", one barrier a step."""

    def __init__(self, model, how):
        self.net, self.loss_of, self.x, self.y = python_models.task(model, dist.get_rank())
        self.meets = how == "barrier"
        if how == "ddp":
            self.net = DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        elif how == "fsdp":
            self.shard()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.5)

    def shard(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (*self.net.blocks, self.net):
            fully_shard(part, mesh=mesh)
            # gloo cannot average in every release.
            if hasattr(part, "set_force_sum_reduction_for_comms"):
                part.set_force_sum_reduction_for_comms(True)

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        self.loss_of(self.net(self.x), self.y).backward()
        if self.meets:
            dist.all_reduce(torch.zeros(1))
        self.optimizer.step()

    def check(self, how):
        """After DDP's steps all ranks have the same weights."""
        total = sum(parameter.detach().double().sum() for parameter in self.net.parameters()) if how == "ddp" else torch.zeros(1)
        least, most = total.reshape(1).clone(), total.reshape(1).clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            raise RuntimeError("the ranks' weights differ, or are not numbers")


class Exercise:
    """An operation on buffers whose values differ by rank, place and run, as in mpi_collectives.c."""

    def __init__(self, op, size):
        self.op, self.rank, self.world = op, dist.get_rank(), dist.get_world_size()
        count = max(1, size // 4)
        part = count // self.world
        lengths = {"all_reduce": 0, "all_gather_into_tensor": count * self.world, "reduce_scatter_tensor": part,
                   "all_to_all_single": count, "send_recv": count}
        self.base = (torch.arange(8, dtype=torch.float32) + 1).repeat(count // 8 + 1)[:count]
        self.input, self.output = torch.empty(count), torch.empty(lengths[op])
        everyone, own = sum(range(self.world)), self.rank * part
        # Pieces of the result: (place, length, place of the base, factor, what is added).
        self.pieces = {
            "all_reduce": [(0, count, 0, self.world, everyone)],
            "all_gather_into_tensor": [(rank * count, count, 0, 1, rank) for rank in range(self.world)],
            "reduce_scatter_tensor": [(0, part, own, self.world, everyone)],
            "all_to_all_single": [(rank * part, part, own, 1, rank) for rank in range(self.world)],
            "send_recv": [(0, count, 0, 1, 0)],
        }[op]

    def rewrite(self, run):
        torch.add(self.base, self.rank + run % 4, out=self.input)
        self.output.zero_()

    def execute(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.input)
        elif self.op == "send_recv":
            self.send_recv()
        else:
            getattr(dist, self.op)(self.output, self.input)

    def send_recv(self):
        if self.rank == 0:
            dist.send(self.input, 1)
            dist.recv(self.output, 1)
        else:
            dist.recv(self.output, 0)
            dist.send(self.output, 0)

    def verify(self, run, everything):
        result = self.input if self.op == "all_reduce" else self.output
        for at, length, begin, factor, more in self.pieces:
            step = 1 if everything else max(1, length // SPOTS)
            expected = self.base[begin:begin + length:step] * factor + (factor * (run % 4) + more)
            if not torch.equal(result[at:at + length:step], expected):
                raise RuntimeError(f"{self.op}, run {run}: wrong result")


class Rank:
    def __init__(self):
        torch.set_num_threads(1)
        if SIDE == "ours":
            import ddp_run
        dist.init_process_group("ddp" if SIDE == "ours" else "gloo")
        if SIDE == "ours" and os.environ.get("DDP_VIRTUAL_NODE") and ddp_run.nodes() != dist.get_world_size():
            raise RuntimeError(f"{dist.get_world_size()} ranks are on {ddp_run.nodes()} nodes")
        self.tasks = {}

    def meet(self):
        dist.all_reduce(torch.zeros(1))

    def train(self, model, how, steps):
        """Steps a second, until all ranks have made them."""
        new = (model, how) not in self.tasks
        if new:
            self.tasks[model, how] = Task(model, how)
        task = self.tasks[model, how]
        self.meet()
        begin = time.perf_counter()
        for _ in range(steps):
            task.step()
        self.meet()
        took = time.perf_counter() - begin
        if new:
            task.check(how)
        return {"steps_per_second": steps / took}

    def forget(self):
        """Frees the models."""
        self.tasks.clear()
        return {}

    def operation(self, op, size, seconds):
        """The median of rank 0's times, as in bench/README.md. For send_recv: half of there and back."""
        exercise = Exercise(op, size)
        times, more, run = [], torch.ones(1), -WARM_UPS
        while more.item():
            exercise.rewrite(run + WARM_UPS)
            self.meet()
            begin = time.perf_counter()
            exercise.execute()
            now = time.perf_counter()
            exercise.verify(run + WARM_UPS, run == -WARM_UPS)
            run += 1
            if run <= 0:
                started = now
                continue
            times.append(now - begin)
            more.fill_(now - started < seconds or len(times) < LEAST_RUNS)
            dist.broadcast(more, 0)
        median = sorted(times)[len(times) // 2]
        return {"seconds": median / 2 if op == "send_recv" else median}


def about():
    import ddp_run
    return {"torch": torch.__version__, "ddp_run": os.path.dirname(ddp_run.__file__),
            "fsdp": hasattr(torch.cpu.Stream, "record_event")}


def main():
    if SIDE == "about":
        commands.answer(about())
    else:
        commands.serve(Rank)


main()
