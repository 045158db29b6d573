"""A training that is defined for a number of ranks and runs on any number of workers, with the same bytes."""
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_run import _native, modules, randomness

_Item = TypeVar("_Item")


class LogicalWorld:
    """Trains as `size` ranks do, on any number of workers from 1 to size: the weights are the same to the last bit.

        logical = ddp_run.LogicalWorld(model, size=4)
        sampler = ddp_run.DistributedSampler(dataset, logical=logical)
        loader = ddp_run.DataLoader(dataset, batch_size=32, sampler=sampler)        # 32 for each of the 4.
        state = ddp_run.ElasticState(model=model, optimizer=optimizer, sampler=sampler, logical=logical, step=0)

        def train(group):                                                            # For run_elastic(). Without DistributedDataParallel.
            for batches in loader:                                                   # A list: a batch for each rank in logical.own.
                for inputs, labels in logical.each(batches):
                    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()                                                     # .grad is the average over all 4.
                state.step += 1
                state.commit_if_due()

    What depends on a rank depends on its logical rank: its part of the data, its random numbers, its batch statistics. Each worker
    has a contiguous block of logical ranks (`own`), as equal as possible, and computes them one after the other. So a step takes
    longer with fewer workers, and comes to the same, also if the number of workers changes in the middle, by losses, joins and
    resumes. Each worker has to compute with one thread (torch.set_num_threads(1)). With `size` workers, the gradients are those of
    DistributedDataParallel over the backend "ddp", if size is a power of 2; otherwise that one rounds each gradient before it adds.

    model: the module itself, with all parameters that are trained. They are in the memory of the host; not on a device, whose sums
      may have another order each time.
    size: how many logical ranks, 1 or more.
    seed: of the random numbers.

    Register it in the ElasticState: its rounds are those of run_elastic(), and its state is the number of its steps. A round with more
    workers than logical ranks raises ValueError.
    """

    def __init__(self, model: torch.nn.Module, size: int, seed: int = 0) -> None:
        if isinstance(model, DistributedDataParallel):
            raise TypeError("LogicalWorld takes the place of DistributedDataParallel: give the module that this one wraps")
        if size < 1:
            raise ValueError(f"size={size} is no number of logical ranks: give 1 or more")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {seed} is not from 0 to 2**64 - 1")
        modules.tensors_of(model)
        self.size = int(size)
        self.seed = int(seed)
        self._model = model
        self._steps = 0
        self._group: _native.RoundGroup | None = None  # Of this round.
        self._own = range(0)
        self._reducer: _native.LogicalReducer | None = None  # Of this round,
        self._trainable: list[int] = []  # and for these parameters.

    @property
    def own(self) -> range:
        """The logical ranks of this worker. Only within a round: RuntimeError otherwise."""
        self._round()
        return self._own

    def each(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields each item, with everything set for its logical rank. items: one for each of `own`, in this order.

            for inputs, labels in logical.each(batches): ...
            for rank in logical.each(logical.own): ...           # For data that come otherwise.

        The body computes the forward and the backward of one logical rank; several backwards, if it accumulates. Each begins without
        gradients, with the buffers as they were before the step, and with generators on the CPU (torch's, random's, numpy's) that
        are seeded by a function of (seed, step, logical rank). The body must not communicate, because workers may have different
        numbers of logical ranks.

        When the loop has ended, .grad is the average over all logical ranks, on all workers, until the next loop; a parameter that
        no logical rank has used has None. Buffers are those of logical rank 0, and the program's own random numbers go on from
        before the loop. What clips or scales gradients comes then. What the program draws outside of these loops, it draws alike
        on all workers.

        The end of the loop is collective. It raises torch.distributed.DistBackendError if a worker is lost. A loop that is left by
        an exception or `break` is no step, and puts the buffers back.

        ValueError: there are more or fewer items, the workers have different models, or a parameter cannot be averaged.
        """
        group = self._round()
        items = list(items)
        if len(items) != len(self._own):
            raise ValueError(f"{len(items)} items are not one for each of this worker's {len(self._own)} logical ranks: take them from a "
                             "ddp_run.DataLoader whose sampler is a DistributedSampler(..., logical=...), or give one for each of "
                             "logical.own")
        return self._each(self._reducer_over(group), items)

    def mean(self, values: Iterable[float | torch.Tensor]) -> float:
        """The mean of a number that each logical rank has, the same to the last bit on any number of workers. Collective.

        values: those of the ranks in `own`.

            ddp_run.progress(state.step, loss=logical.mean(losses))
        """
        group = self._round()
        own = [float(value) for value in values]
        if len(own) != len(self._own):
            raise ValueError(f"{len(own)} values are not one for each of this worker's {len(self._own)} logical ranks")
        return self._reducer_over(group).mean(torch.tensor(own, dtype=torch.float64, device="cpu").unsqueeze(1)).item()

    def state_dict(self) -> dict[str, int]:
        """The state: numbers, the same on all workers."""
        return {**self._identity(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where state_dict() was called, on any number of workers. ValueError: the state is of another LogicalWorld."""
        differences = [f"{name} {state.get(name)}, and here it is {value}" for name, value in self._identity().items()
                       if state.get(name) != value]
        if differences or "steps" not in state:
            raise ValueError(f"this is no state of this LogicalWorld: {'; '.join(differences) or 'it has no steps'}. Make it as it was")
        self._steps = state["steps"]

    def _identity(self) -> dict[str, int]:
        return {"version": 1, "size": self.size, "seed": self.seed}

    def _each(self, reducer: _native.LogicalReducer, items: list[_Item]) -> Iterator[_Item]:
        reducer.restart()  # The loop before may have been left early.
        self._model.zero_grad(set_to_none=True)
        before, kept = self._buffers(), None
        with randomness.kept():
            for rank, item in zip(self._own, items):
                if rank != self._own.start:
                    self._set_buffers(before)
                randomness.seed(randomness.mix(self.seed, self._steps, rank))
                try:
                    yield item
                except GeneratorExit:
                    self._set_buffers(before)
                    raise
                if rank == 0 and len(items) > 1:
                    kept = self._buffers()
                reducer.add()
        reducer.reduce()
        if kept is not None:
            self._set_buffers(kept)
        reducer.broadcast([buffer for _, buffer in self._model.named_buffers()])
        self._steps += 1

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self._model.named_buffers()}

    def _set_buffers(self, values: dict[str, torch.Tensor]) -> None:
        """By name, because a forward may put other tensors in the place of buffers."""
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(values[name])

    def _reducer_over(self, group: _native.RoundGroup) -> _native.LogicalReducer:
        """Of this round and the parameters that require a gradient now; the program may freeze some at any step."""
        trainable = [id(parameter) for parameter in self._model.parameters() if parameter.requires_grad]
        if self._reducer is None or trainable != self._trainable:
            self._reducer = _native.LogicalReducer(lambda: modules.tensors_of(self._model), group, self.size)
            self._trainable = trainable
        return self._reducer

    def _round(self) -> _native.RoundGroup:
        if self._group is None:
            raise RuntimeError("a LogicalWorld is of use in the function that run_elastic() calls, with a state in which it is registered: "
                               "ElasticState(..., logical=logical)")
        return self._group

    def _begin_round(self, group: _native.RoundGroup) -> None:
        self._own = range(*_native.logical_block(self.size, group.rank, group.size))
        self._group = group

    def _forget_round(self) -> None:
        self._group = self._reducer = None
