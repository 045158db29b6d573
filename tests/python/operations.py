"""Every operation of the backend "ddp" against gloo's results: operation x type x shape. One process a rank.

    operations.py BIN_DIR          starts 3 ranks
    operations.py --rank R N FILE  is one of them
"""
import faulthandler
import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import ranks
from raising import raises

RANKS = 3
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
# Types that no reduction knows.
MOVED = [torch.bool, torch.int16]
SHAPES = {"scalar": (), "one": (1,), "odd": (7, 13), "empty": (0, 4), "large": (300, 1001)}


def make(shape, dtype, seed, layout="plain"):
    generator = torch.Generator().manual_seed(seed)
    # Small whole numbers: their sums and products are exact in every type, so all orders give the same.
    numbers = torch.randint(0, 4, shape, generator=generator)
    tensor = numbers.to(dtype)
    if dtype.is_complex:
        tensor = tensor + 1j * torch.randint(0, 4, shape, generator=generator).to(dtype)
    if layout == "strided" and tensor.dim() > 0:
        spread = torch.empty((*shape, 2), dtype=dtype)
        spread[..., 0] = tensor
        tensor = spread[..., 0]
    return tensor


def run_by_the_group(work):
    """Not by the caller, as wait() has it."""
    work.get_future()
    deadline = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < deadline, "the operation is not completed"


class Checker:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.gloo = dist.new_group(backend="gloo")
        self.gloo_takes = {dtype: self.is_taken_by_gloo(dtype) for dtype in FLOATS + INTEGERS}
        self.count = 0

    def is_taken_by_gloo(self, dtype):
        """Debian's PyTorch 2.14 is built with a gloo that has no float16."""
        try:
            dist.all_reduce(torch.ones(1, dtype=dtype), group=dist.new_group(backend="gloo"))
            return True
        except RuntimeError:
            return False

    def reduction(self, op, shape, dtype):
        """The exact result, for types that gloo does not take."""
        parts = torch.stack([make(shape, torch.float64, self.seed(rank)) for rank in range(self.size)])
        results = {dist.ReduceOp.SUM: lambda: parts.sum(0), dist.ReduceOp.PRODUCT: lambda: parts.prod(0),
                   dist.ReduceOp.MIN: lambda: parts.amin(0), dist.ReduceOp.MAX: lambda: parts.amax(0)}
        return results[op]().to(dtype)

    def equal(self, what, ours, theirs):
        self.count += 1
        if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            raise AssertionError(f"{what}: rank {self.rank} has {ours}, gloo {theirs}")

    def both(self, what, run, layout="plain"):
        """run(group, layout) returns the tensors to compare. gloo takes the memory of a tensor that is not contiguous as it is."""
        for ours, theirs in zip(run(None, layout), run(self.gloo, "plain"), strict=True):
            self.equal(what, ours, theirs)

    def inputs(self, dtypes):
        for dtype in dtypes:
            for name, shape in SHAPES.items():
                for layout in ("plain", "strided"):
                    yield f"{dtype} {name} {layout}", shape, dtype, layout

    def seed(self, rank, step=0):
        return 1000 * step + rank

    def own(self, shape, dtype, layout="plain", step=0):
        return make(shape, dtype, self.seed(self.rank, step), layout)

    def all_reduce(self):
        ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        for what, shape, dtype, layout in self.inputs(FLOATS + INTEGERS):
            for op in ops + ([dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR] if dtype in INTEGERS else []):
                def run(group, layout):
                    tensor = self.own(shape, dtype, layout)
                    dist.all_reduce(tensor, op, group)
                    return [tensor]
                if self.gloo_takes[dtype]:
                    self.both(f"all_reduce {op} {what}", run, layout)
                else:
                    self.equal(f"all_reduce {op} {what}", run(None, layout)[0], self.reduction(op, shape, dtype))
        for what, shape, dtype, layout in self.inputs(COMPLEX):
            def run_complex(group, layout):
                tensor = self.own(shape, dtype, layout)
                dist.all_reduce(tensor, group=group)
                return [tensor]
            self.both(f"all_reduce {what}", run_complex, layout)

    def all_reduce_without_gloo(self):
        """What gloo cannot do: against a computation of our own."""
        for what, shape, dtype, layout in self.inputs(FLOATS):
            parts = [make(shape, dtype, self.seed(rank)).to(torch.float64) for rank in range(self.size)]
            tensor = self.own(shape, dtype, layout)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            torch.testing.assert_close(tensor.to(torch.float64), sum(parts) / self.size, rtol=1e-2, atol=1e-2)
            tensor = self.own(shape, dtype, layout)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
            torch.testing.assert_close(tensor.to(torch.float64), sum(parts) / 2, rtol=1e-2, atol=1e-2)
            self.count += 2
        for what, shape, dtype, layout in self.inputs(INTEGERS):
            parts = [make(shape, dtype, self.seed(rank)) - 3 for rank in range(self.size)]
            mean = sum(parts).div(self.size, rounding_mode="trunc")
            tensor = self.own(shape, dtype, layout).sub_(3)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            self.equal(f"all_reduce AVG {what}", tensor, mean)
            tensor = self.own(shape, dtype, layout).sub_(3)
            dist.reduce(tensor, 1, dist.ReduceOp.AVG)
            self.equal(f"reduce AVG {what}", tensor, mean if self.rank == 1 else parts[self.rank])
            tensor = torch.empty_like(mean)
            dist.reduce_scatter_tensor(tensor, torch.stack([parts[self.rank]] * self.size), dist.ReduceOp.AVG)
            self.equal(f"reduce_scatter AVG {what}", tensor, mean)
        for op, expected in ((dist.ReduceOp.SUM, any), (dist.ReduceOp.PRODUCT, all), (dist.ReduceOp.MAX, any), (dist.ReduceOp.MIN, all)):
            parts = [make((50,), torch.bool, self.seed(rank)) for rank in range(self.size)]
            tensor = self.own((50,), torch.bool)
            dist.all_reduce(tensor, op)
            assert tensor.tolist() == [expected(column) for column in zip(*(part.tolist() for part in parts))], op
            self.count += 1

    def sparse(self):
        for dtype in (torch.float32, torch.float64):
            def run(group, layout):
                dense = self.own((40, 6), dtype)
                dense[self.rank::2] = 0
                tensor = dense.to_sparse()
                dist.all_reduce(tensor, group=group)
                return [tensor.to_dense()]
            self.both(f"sparse {dtype}", run)

    def moves(self):
        for what, shape, dtype, layout in self.inputs(FLOATS + INTEGERS + COMPLEX + MOVED):
            for root in range(self.size):
                tensor = self.own(shape, dtype, layout)
                dist.broadcast(tensor, root)
                self.equal(f"broadcast {what}", tensor, make(shape, dtype, self.seed(root)))
            parts = [make(shape, dtype, self.seed(rank)) for rank in range(self.size)]
            outputs = [self.own(shape, dtype, layout, step=9) for _ in range(self.size)]
            dist.all_gather(outputs, self.own(shape, dtype, layout))
            for output, part in zip(outputs, parts, strict=True):
                self.equal(f"all_gather {what}", output, part)
            root = self.size - 1
            outputs = [self.own(shape, dtype, layout, step=9) for _ in range(self.size)]
            dist.gather(self.own(shape, dtype, layout), outputs if self.rank == root else None, dst=root)
            for output, part in zip(outputs, parts, strict=True):
                if self.rank == root:
                    self.equal(f"gather {what}", output, part)
            output = self.own(shape, dtype, layout, step=9)
            dist.scatter(output, parts if self.rank == root else None, src=root)
            self.equal(f"scatter {what}", output, parts[self.rank])
            outputs = [self.own(shape, dtype, layout, step=9) for _ in range(self.size)]
            dist.all_to_all(outputs, [make(shape, dtype, 100 * self.rank + to, layout) for to in range(self.size)])
            for source, output in enumerate(outputs):
                self.equal(f"all_to_all {what}", output, make(shape, dtype, 100 * source + self.rank))
            if len(shape) > 0:
                whole = torch.cat(parts)
                output = torch.empty_like(whole)
                dist.all_gather_into_tensor(output, self.own(shape, dtype, layout))
                self.equal(f"all_gather_into_tensor {what}", output, whole)

    def reductions_in_parts(self):
        for what, shape, dtype, layout in self.inputs(FLOATS + INTEGERS):
            for root in range(self.size):
                def reduce(group, layout):
                    tensor = self.own(shape, dtype, layout)
                    dist.reduce(tensor, root, group=group)
                    return [tensor] if self.rank == root else []
                if self.gloo_takes[dtype]:
                    self.both(f"reduce {what}", reduce, layout)
                else:
                    for tensor in reduce(None, layout):
                        self.equal(f"reduce {what}", tensor, self.reduction(dist.ReduceOp.SUM, shape, dtype))
            parts = lambda rank: [make(shape, dtype, 100 * rank + to, layout) for to in range(self.size)]
            expected = sum(make(shape, dtype, 100 * rank + self.rank) for rank in range(self.size))
            output = self.own(shape, dtype, layout, step=9)
            dist.reduce_scatter(output, parts(self.rank))
            self.equal(f"reduce_scatter {what}", output, expected.to(dtype))
            if len(shape) > 0:
                output = self.own(shape, dtype, layout, step=9)
                dist.reduce_scatter_tensor(output, torch.cat(parts(self.rank)))
                self.equal(f"reduce_scatter_tensor {what}", output, expected.to(dtype))

    def uneven(self):
        counts = [2 + rank for rank in range(self.size)]
        parts = [make((count, 3), torch.float32, 50 + rank) for rank, count in enumerate(counts)]
        outputs = [torch.empty(count, 3) for count in counts]
        dist.all_gather(outputs, parts[self.rank])
        for output, part in zip(outputs, parts, strict=True):
            self.equal("all_gather of uneven parts", output, part)
        output = torch.empty(counts[self.rank], 3)
        dist.reduce_scatter(output, [part.clone() for part in parts])
        self.equal("reduce_scatter of uneven parts", output, parts[self.rank] * self.size)
        for what, output in {"strided": torch.empty(counts[self.rank], 3, 2)[..., 0], "a leaf": torch.empty(counts[self.rank], 3, requires_grad=True),
                             "flat": torch.empty(counts[self.rank] * 3)}.items():
            dist.reduce_scatter(output, [part.clone() for part in parts])
            self.equal(f"reduce_scatter of uneven parts, the output is {what}", output, (parts[self.rank] * self.size).reshape(output.shape))

        def run(group, layout):
            source = torch.arange(6 * self.size) + 100 * self.rank
            sizes = [6 * self.size // self.size + (1 if to == 0 else -1 if to == 1 else 0) for to in range(self.size)]
            received = [sizes[self.rank]] * self.size
            output = torch.empty(sum(received), dtype=torch.int64)
            dist.all_to_all_single(output, source, received, sizes, group=group)
            return [output]
        self.both("all_to_all_single with split sizes", run)

        def even(group, _layout):
            source = torch.arange(4 * self.size) + 100 * self.rank
            output = torch.empty_like(source)
            dist.all_to_all_single(output, source, group=group)
            return [output]
        self.both("all_to_all_single", even)

    def messages(self):
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for elements in (0, 1, 1000, 300_000):
            payload = make((elements,), torch.float32, self.seed(self.rank))
            received = torch.empty(elements)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, payload, right), dist.P2POp(dist.irecv, received, left)]):
                work.wait()
            self.equal(f"message of {elements}", received, make((elements,), torch.float32, self.seed(left)))
        # Tags tell messages apart, in whatever order they come.
        tagged = [torch.full((3,), float(tag + 10 * self.rank)) for tag in range(3)]
        works = [dist.isend(tagged[tag], right, tag=tag) for tag in range(3)]
        for tag in (2, 0, 1):
            received = torch.empty(3)
            assert dist.recv(received, left, tag=tag) == left
            self.equal("tagged message", received, torch.full((3,), float(tag + 10 * left)))
        for work in works:
            work.wait()
        # From any rank.
        if self.rank == 0:
            seen = set()
            for _ in range(self.size - 1):
                received = torch.empty(2)
                source = dist.recv(received)
                self.equal("message from any rank", received, torch.full((2,), float(source)))
                seen.add(source)
            assert seen == set(range(1, self.size)), seen
        else:
            dist.send(torch.full((2,), float(self.rank)), 0)

    def works(self):
        tensor = torch.ones(1000)
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait() and work.is_completed() and work.is_success()
        self.equal("asynchronous", tensor, torch.full((1000,), float(self.size)))
        tensor = torch.ones(10)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2).wait()
        self.equal("future", doubled, torch.full((10,), 2.0 * self.size))
        # A callback that issues an operation and waits for it, as PowerSGD's hook does.
        def again(done):
            other = done.value()[0].clone()
            return dist.all_reduce(other, async_op=True).get_future().wait()[0]
        tensor = torch.ones(10)
        nested = dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()
        self.equal("operation in a callback", nested, torch.full((10,), float(self.size**2)))
        works = [dist.all_reduce(torch.ones(5) * step, async_op=True) for step in range(20)]
        del works  # The memory stays until the operations are done.
        dist.barrier()
        tensors = [torch.ones(5), torch.ones(3) * 2]
        dist.all_reduce_coalesced(tensors)
        self.equal("coalesced", torch.cat(tensors), torch.cat([torch.ones(5), torch.ones(3) * 2]) * self.size)
        with dist.distributed_c10d._coalescing_manager() as manager:
            outputs = [torch.empty(4 * self.size) for _ in range(2)]
            for step, output in enumerate(outputs):
                dist.all_gather_into_tensor(output, torch.full((4,), float(self.rank + 10 * step)))
        for step, output in enumerate(outputs):
            expected = torch.cat([torch.full((4,), float(rank + 10 * step)) for rank in range(self.size)])
            self.equal("coalesced all_gather_into_tensor", output, expected)

    def completion(self):
        """The result is in all tensors as soon as the operation is said to be completed."""
        outputs = [torch.full((4 << 20,), -1.0) for _ in range(self.size)]
        work = dist.all_gather(outputs, torch.full((4 << 20,), float(self.rank)), async_op=True)
        run_by_the_group(work)
        assert [output[-1].item() for output in outputs] == list(range(self.size)), f"rank {self.rank} has {[output[-1] for output in outputs]}"
        assert work.is_success()
        work.wait()

    def inference(self):
        """The group's own thread completes what was called in inference mode, or has tensors of it."""
        with torch.inference_mode():
            own, outputs, strided = torch.full((9,), float(self.rank)), [torch.empty(9) for _ in range(self.size)], torch.ones(9, 2)[:, 0]
            mean = torch.full((9,), 2 * self.rank)
        for mode in (True, False):
            with torch.inference_mode(mode):
                works = [dist.all_gather(outputs, own, async_op=True), dist.all_reduce(strided, async_op=True),
                         dist.all_reduce(mean, dist.ReduceOp.AVG, async_op=True)]
                for work in works:
                    run_by_the_group(work)
                    work.wait()
        for rank, output in enumerate(outputs):
            self.equal("all_gather of inference tensors", output, torch.full((9,), float(rank)))
        self.equal("all_reduce of a strided inference tensor", strided, torch.full((9,), float(self.size**2)))
        self.equal("all_reduce AVG of an inference tensor", mean, torch.full((9,), self.size - 1))

    def results_without_a_place(self):
        """What cannot be put into its tensor is a failure of this rank's call, and of nothing else."""
        outputs = [torch.empty(9) for _ in range(self.size)]
        if self.rank != 0:
            dist.barrier(self.gloo)
        work = dist.all_gather(outputs, torch.ones(9), async_op=True)
        if self.rank == 0:
            outputs[1].resize_(5)
            dist.barrier(self.gloo)
            for wait in (work.get_future().wait, work.wait, lambda: work.wait(timedelta(seconds=60))):
                raises(RuntimeError, "The size of tensor a (5) must match", wait)
            assert work.is_completed() and not work.is_success()
        else:
            work.wait()
        dist.barrier()

    def objects(self):
        everyone = [None] * self.size
        dist.all_gather_object(everyone, {"rank": self.rank})
        assert everyone == [{"rank": rank} for rank in range(self.size)], everyone
        shared = [f"from {self.rank}" if self.rank == 0 else None]
        dist.broadcast_object_list(shared, 0)
        assert shared == ["from 0"], shared

    def groups(self):
        # First, because PyTorch derives its name from how many groups a rank has.
        local = dist.new_group(list(range(self.size)), use_local_synchronization=True)
        pair = dist.new_group([0, self.size - 1])
        if self.rank in (0, self.size - 1):
            tensor = torch.full((6,), float(self.rank))
            dist.all_reduce(tensor, group=pair)
            self.equal("group of two", tensor, torch.full((6,), float(self.size - 1)))
        dist.barrier(local)
        dist.barrier()
        wide = torch.empty((1 << 20) + 3, dtype=torch.float32).fill_(self.rank)
        dist.all_reduce(wide)
        assert torch.all(wide == sum(range(self.size)))


def be_rank(rank, size, path):
    import ddp_run  # noqa: F401
    faulthandler.dump_traceback_later(float(os.environ.get("HANG_S", "400")), exit=True)
    dist.init_process_group("ddp", init_method=f"file://{path}", rank=rank, world_size=size)
    checker = Checker(rank, size)
    for part in (checker.all_reduce, checker.all_reduce_without_gloo, checker.sparse, checker.moves, checker.reductions_in_parts,
                 checker.uneven, checker.messages, checker.works, checker.completion, checker.inference,
                 checker.results_without_a_place, checker.objects, checker.groups):
        part()
    dist.barrier()
    print(f"rank {rank}: {checker.count} comparisons")
    dist.destroy_process_group()


def main():
    if sys.argv[1] == "--rank":
        try:
            be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        return 0
    return ranks.run(__file__, RANKS, 300)


if __name__ == "__main__":
    sys.exit(main())
