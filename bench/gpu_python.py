#!/usr/bin/python3
"""One rank of bench/run gpu: gpu_python.py ours|peer|about cuda|cpu

Ours is the backend "ddp", the peer "nccl". Obeys commands (commands.py). "about" only says what is installed. With cpu the peer
is gloo and everything is tiny, to try the program where there is no GPU.
"""
import ctypes
import hashlib
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import commands
import python_models
from commands import answer

SIDE, DEVICE = sys.argv[1], sys.argv[2]
CUDA = DEVICE == "cuda"
BACKENDS = {("ours", "cuda"): "cpu:ddp,cuda:ddp", ("peer", "cuda"): "cpu:gloo,cuda:nccl",
            ("ours", "cpu"): "ddp", ("peer", "cpu"): "gloo"}
MIB, GIB = 1 << 20, 1 << 30
# GPT: layers, heads, width, context, vocabulary, and the sequences of a batch. ResNet50: images of a batch, and their side.
GPT = (12, 12, 768, 1024, 50304, 8) if CUDA else (2, 2, 32, 16, 64, 2)
SMALL_GPT = (4, 12, 768, 512, 50304, 4) if CUDA else (2, 2, 32, 16, 64, 2)
RESNET50 = (64, 224) if CUDA else (2, 32)
MATRIX = 8192 if CUDA else 128
LARGE_COPY, BUCKET = (GIB, 25 * MIB) if CUDA else (MIB, MIB)
WIDTH_IN_GRAPH = 1024


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def rates(work, operation, times):
    """How much work a second each of so many calls did."""
    found = []
    for _ in range(times):
        synchronize()
        begin = time.perf_counter()
        operation()
        synchronize()
        found.append(work / (time.perf_counter() - begin))
    return found


class Task:
    """A model in training on one batch. With ddp, in DistributedDataParallel; otherwise nothing is communicated."""

    def __init__(self, model, ddp):
        rank = dist.get_rank()
        torch.manual_seed(1)
        with torch.device(DEVICE):
            if model == "resnet50":
                batch, side = RESNET50
                self.net = python_models.ResNet50().to(memory_format=torch.channels_last)
                torch.manual_seed(100 + rank)
                self.x = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
                self.y = torch.randint(1000, (batch,))
                self.flop = 3 * 2 * 4.1e9 * batch
            else:
                *shape, batch = GPT if model == "gpt" else SMALL_GPT
                layers, _, width, context, vocabulary = shape
                self.net = python_models.Gpt(*shape)
                torch.manual_seed(100 + rank)
                self.x = torch.randint(vocabulary, (batch, context))
                self.y = torch.randint(vocabulary, (batch, context))
                # Half of the attention's scores are masked, and not computed.
                self.flop = 6 * (sum(p.numel() for p in self.net.parameters()) + layers * width * context) * batch * context
        if ddp:
            devices = [torch.cuda.current_device()] if CUDA else None
            self.net = torch.nn.parallel.DistributedDataParallel(self.net, device_ids=devices, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=CUDA):
            loss = F.cross_entropy(self.net(self.x).flatten(0, -2), self.y.flatten())
        loss.backward()
        self.optimizer.step()


class Rank:
    def __init__(self):
        if CUDA:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        else:
            torch.set_num_threads(1)
        if SIDE == "ours":
            import ddp_run  # noqa: F401
        dist.init_process_group(BACKENDS[SIDE, DEVICE])
        self.tasks = {}

    def meet(self):
        """A barrier that leaves the GPU idle."""
        synchronize()
        dist.all_reduce(torch.zeros(1))

    def train(self, model, ddp, steps):
        if (model, ddp) not in self.tasks:
            self.tasks[model, ddp] = Task(model, ddp)
        task = self.tasks[model, ddp]
        self.meet()
        begin = time.perf_counter()
        for _ in range(steps):
            task.step()
        synchronize()
        return {"steps_per_second": steps / (time.perf_counter() - begin), "flop": task.flop}

    def forget(self):
        """Frees the models."""
        self.tasks.clear()
        if CUDA:
            torch.cuda.empty_cache()
        return {"models": len(self.tasks)}

    def peaks(self):
        a, b = (torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        rates(1, lambda: a @ b, 3)
        # Ten products at once, so that launching them is not measured.
        products = rates(10 * 2 * MATRIX ** 3, lambda: [a @ b for _ in range(10)], 5)
        source, target = (torch.ones(LARGE_COPY, dtype=torch.uint8, device=DEVICE) for _ in range(2))
        pinned = torch.ones(LARGE_COPY, dtype=torch.uint8, pin_memory=CUDA)
        bucket = source[:BUCKET]
        bucket_rates = rates(BUCKET, lambda: pinned[:BUCKET].copy_(bucket, non_blocking=True), 20)
        return {"flop_per_second": statistics.median(products),
                "to_host": max(rates(LARGE_COPY, lambda: pinned.copy_(source, non_blocking=True), 5)),
                "bucket_to_host": statistics.median(bucket_rates),
                "on_device": max(rates(LARGE_COPY, lambda: target.copy_(source), 5))}

    def all_reduce(self, size):
        """Time of one all-reduce, and the host's time for issuing one of many."""
        world = dist.get_world_size()
        tensor = torch.full((size // 4,), dist.get_rank() + 1.0, device=DEVICE)
        dist.all_reduce(tensor)
        if not bool((tensor == world * (world + 1) / 2).all()):
            raise RuntimeError(f"an all_reduce of {size} B gave a wrong result")
        tensor.zero_()
        dist.all_reduce(tensor)
        times = []
        for _ in range(20 if size <= MIB else 3):
            self.meet()
            begin = time.perf_counter()
            dist.all_reduce(tensor, async_op=True).wait()
            synchronize()
            times.append(time.perf_counter() - begin)
        calls = min(200, GIB // 2 // size)
        self.meet()
        begin = time.perf_counter()
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(calls)]
        host = (time.perf_counter() - begin) / calls
        for work in works:
            work.wait()
        synchronize()
        return {"seconds": statistics.median(times), "host_seconds": host}

    def graph(self, replays):
        """Trains with and without a CUDA graph of the step, which has an all-reduce for each gradient."""
        if not CUDA:
            raise RuntimeError("there are no CUDA graphs without a GPU")
        warm_up = 3
        plain = ReducedByHand()
        for _ in range(warm_up + replays):
            plain.step()
        recorded = ReducedByHand()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                recorded.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded.step()
        self.meet()
        begin = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        synchronize()
        seconds = (time.perf_counter() - begin) / replays
        for expected, parameter in zip(plain.parameters, recorded.parameters):
            if not torch.allclose(expected, parameter, rtol=1e-3, atol=1e-5):
                difference = float((expected - parameter).abs().max())
                raise RuntimeError(f"replays trained something else: differences up to {difference}")
        return {"seconds": seconds}

    def fingerprint(self, steps):
        """SHA-256 of the parameters after deterministic steps."""
        torch.use_deterministic_algorithms(True)
        task = Task("small_gpt", True)
        for _ in range(steps):
            task.step()
        synchronize()
        torch.use_deterministic_algorithms(False)
        found = hashlib.sha256()
        for parameter in task.net.parameters():
            if not bool(parameter.isfinite().all()):
                raise RuntimeError("the training diverged")
            values = parameter.detach().contiguous().cpu()
            found.update(ctypes.string_at(values.data_ptr(), values.nbytes))  # NumPy may be missing.
        return {"sha256": found.hexdigest()}

    def outlive(self):
        """Waits in an all-reduce for a rank that is killed meanwhile; says when and how this rank learned of it."""
        tensor = torch.ones(MIB, device=DEVICE)
        synchronize()
        learned = {}
        done = threading.Event()

        def wait():
            how = "issuing it"
            try:
                work = dist.all_reduce(tensor, async_op=True)
                how = "wait() and synchronize()"
                work.wait()
                synchronize()
                how = "the next operation"
                dist.all_reduce(tensor)
                synchronize()
                learned.update(how="nothing: the operations seemed to succeed")
            except Exception as error:
                learned.update(at=time.monotonic(), how=how, text=str(error)[:300])
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        answer({"waiting": True})
        done.wait()
        return learned


class ReducedByHand:
    """A small network whose gradients are averaged by an all-reduce each, without DistributedDataParallel."""

    def __init__(self):
        torch.manual_seed(1)
        width = WIDTH_IN_GRAPH
        with torch.device(DEVICE):
            parts = [part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
            self.net = torch.nn.Sequential(*parts)
            torch.manual_seed(100 + dist.get_rank())
            self.x, self.y = torch.randn(64, width), torch.randn(64, width)
        self.parameters = list(self.net.parameters())

    def step(self):
        gradients = torch.autograd.grad(F.mse_loss(self.net(self.x), self.y), self.parameters)
        for gradient in gradients:
            dist.all_reduce(gradient)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients):
                parameter.sub_(gradient, alpha=0.5 / dist.get_world_size())


def about():
    return {"torch": torch.__version__, "gpus": torch.cuda.device_count() if CUDA else 0,
            "gpu": torch.cuda.get_device_name(0) if CUDA and torch.cuda.is_available() else None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if CUDA and dist.is_nccl_available() else None}


def main():
    if SIDE == "about":
        answer(about())
        return
    commands.serve(Rank)


main()
