"""Batches whose order and look do not depend on when, where and by which process they are read."""
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from ddp_run import randomness
from ddp_run.sampler import Batch, Deal, DistributedSampler
from ddp_run.trace import trace_scope

_END = object()
_REFUSED = {
    "batch_sampler": "it has no position to go on from: give batch_size, sampler and drop_last",
    "generator": "the order and the look of samples come from the sampler's seed: give DistributedSampler(dataset, seed=...)",
    "in_order": "batches that come as they are ready come otherwise the next time: leave it out",
}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A torch.utils.data.DataLoader that goes on exactly where training was, to the last bit of the last sample.

        sampler = ddp_run.DistributedSampler(dataset, seed=7)
        loader = ddp_run.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
        for epoch in range(sampler.epoch, epochs):
            for inputs, labels in loader: ...

    The position is the sampler's, and the states of both are the same: register one of them in an ElasticState. The position counts
    the batches that the training loop was given, and not those that worker processes have read ahead. So a state taken after
    a batch has been processed is followed by the next batch, with any number of workers, ranks, and another batch size. Whatever
    reads ahead of the training loop behind the loader, say to copy batches to a device early, takes that away.

    A loop over the loader begins at the sampler's position, also after a loop that was left by `break`. It ends with the epoch, and
    the next loop is the next epoch; see DistributedSampler.set_epoch. Only one loop goes on: if another one begins, the sampler is
    set or restored, or the group gets other members, the next batch of the earlier one raises RuntimeError. An exception of the
    data set or the death of a worker leaves the position in front of the batch that failed; another loop begins with that.

    Random augmentation: before the data set gives a sample, the generators of torch for the CPU, of random and of numpy are seeded
    with a function of (seed, epoch, place in the permutation). `collate_fn` goes on with the last sample's numbers. So a sample
    looks the same whoever reads it. With num_workers=0 the generators are then put back, and the program's own random numbers
    do not depend on the loader. A data set that has __getitems__ (torch's Subset, Hugging Face's) gives a batch in one call
    and is seeded once for it. Generators that the data set owns are its own matter: seed them in __getitem__ with
    torch.initial_seed(), which is another number for each sample.

    With a LogicalWorld (DistributedSampler(..., logical=...)), the loop gives lists: a batch for each of this worker's logical ranks.

    dataset: has __len__ and __getitem__. An IterableDataset is refused, because it has no places to go on from.
    batch_size: samples of one rank, or of one logical rank, 1 or more.
    sampler: a DistributedSampler of the same data set. None: DistributedSampler(dataset, shuffle=shuffle).
    drop_last: leaves an incomplete joint batch out, so every step has batch_size samples of each rank. False: the last batch may be
      smaller; on all ranks alike, unless the sampler has drop_last=False.
    options: what torch.utils.data.DataLoader takes, but for batch_sampler, generator and in_order. With persistent_workers
      the processes are kept from loop to loop, also if a loop is abandoned, and replaced after an error.

    len(loader) is the number of this rank's steps in a whole epoch, also while it is in the middle of one; see steps_left().
    """

    sampler: DistributedSampler

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool | None = None, sampler: DistributedSampler | None = None,
                 *, drop_last: bool = False, **options: Any) -> None:
        for name in options.keys() & _REFUSED.keys():
            if options[name] is not None and not (name == "in_order" and options[name]):
                raise ValueError(f"DataLoader({name}={options[name]!r}) would not resume exactly: {_REFUSED[name]}")
            del options[name]
        if isinstance(dataset, IterableDataset):
            raise TypeError(f"{type(dataset).__name__} is an IterableDataset, which has no places to go on from: give a data set with "
                            "__len__ and __getitem__")
        if batch_size is None or batch_size < 1:
            raise ValueError(f"batch_size={batch_size} is no number of samples: give 1 or more")
        if sampler is None:
            sampler = DistributedSampler(dataset, shuffle=bool(shuffle))
        elif not isinstance(sampler, DistributedSampler):
            raise TypeError(f"a {type(sampler).__name__} has no position to go on from: give a ddp_run.DistributedSampler")
        elif shuffle:
            raise ValueError(f"shuffle={shuffle} is for a loader without a sampler: give DistributedSampler(dataset, shuffle={shuffle})")
        if len(dataset) != sampler.length:
            raise ValueError(f"the sampler deals {sampler.length} samples, and the data set has {len(dataset)}: make the sampler for this "
                             "data set")
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, **options)
        self._options = options
        self._batches = _Batches()
        self._seeds = torch.Generator(torch.get_default_device())  # PyTorch wants it on the device that tensors are made on.
        self._reader: torch.utils.data.DataLoader[Any] | None = None
        self._loop: weakref.ref[_Loop] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        before = self._loop and self._loop()
        if before:
            before.close()  # Whoever holds it still.
        deal = self.sampler._begin(self.batch_size, self.drop_last)
        if deal.end == 0:
            raise ValueError(f"an epoch of {self.sampler.length} samples has no step for {deal.world} ranks with batches of "
                             f"{deal.batch_size}: use fewer ranks or smaller batches, or drop_last=False for the sampler and the loader")
        self._batches.deal = deal
        # What PyTorch seeds the workers with, before worker_init_fn. It would take it from the program's generator.
        self._seeds.manual_seed(randomness.mix(deal.key, deal.begin + deal.ranks.start))
        loop = _Loop(self, deal, self._read())
        self._loop = weakref.ref(loop)
        return loop

    def _read(self) -> Iterator[Any]:
        if self._reader is not None:
            try:
                return iter(self._reader)
            except RuntimeError:  # A process that was kept has died.
                _end_workers(self._reader._iterator)
        self._reader = torch.utils.data.DataLoader(_Seeded(self.dataset), batch_sampler=self._batches, generator=self._seeds,
                                                   **self._options)
        return iter(self._reader)

    def __len__(self) -> int:
        return len(self.sampler.deal(self.batch_size, self.drop_last, position=0))

    def steps_left(self) -> int:
        """The number of steps that a loop has for this rank if it begins now."""
        return len(self.sampler.deal(self.batch_size, self.drop_last))

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the sampler."""
        self.sampler.load_state_dict(state)


class _Loop:
    """One loop over a loader. Moves the sampler's position."""

    def __init__(self, loader: DataLoader, deal: Deal, source: Iterator[Any]) -> None:
        self._loader = loader
        self._deal = deal
        self._source: Iterator[Any] | None = source
        self._delivered = 0  # Steps.
        self._has_ended = False

    def __iter__(self) -> "_Loop":
        return self

    def __next__(self) -> Any:
        if self._has_ended:
            raise StopIteration
        sampler = self._loader.sampler
        sampler._check(self._deal)
        if self._source is None:
            raise RuntimeError("this iteration of the loader has ended with an error: begin another, `for batch in loader`, which begins "
                               "with the batch that failed")
        try:
            with trace_scope("input", "batch"), contextlib.nullcontext() if self._loader.num_workers else randomness.kept():
                batches = [next(self._source, _END) for _ in self._deal.ranks]
        except BaseException:
            self.close(keeps_workers=False)
            raise
        if batches[0] is _END:
            self._has_ended = True
            self.close()
            sampler._move(self._deal.end, is_over=True)
            raise StopIteration
        self._delivered += 1
        sampler._move(self._deal.after(self._delivered))
        return batches[0] if sampler.logical is None else batches

    def close(self, keeps_workers: bool = True) -> None:
        """Ends the loop, and its worker processes, if they are not to be kept."""
        source, self._source = self._source, None
        if not keeps_workers:
            self._loader._reader = None
        if source is not None and not (keeps_workers and self._loader.persistent_workers):
            _end_workers(source)


def _end_workers(source: Any) -> None:
    """PyTorch does it when the iterator is deleted. If that is left to the garbage collection, which is so after an exception, their
    queues may be gone by then, and it waits 5 seconds for each."""
    if hasattr(source, "_shutdown_workers"):
        source._shutdown_workers()


class _Batches:
    """The batch sampler of PyTorch's loader."""
    deal: Deal

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.deal)

    def __len__(self) -> int:
        return len(self.deal) * len(self.deal.ranks)


class _Seeded:
    """A data set that is asked for a Batch and seeds the generators before each sample. Otherwise the same, for worker_init_fn."""

    def __init__(self, dataset: Any) -> None:
        vars(self)["_seeded"] = dataset

    def __getitems__(self, batch: Batch) -> list[Any]:
        seeds = batch.seeds()
        if getattr(self._seeded, "__getitems__", None):
            randomness.seed(next(seeds))
            return self._seeded.__getitems__(batch.indices)
        samples = []
        for index, seed in zip(batch.indices, seeds):
            randomness.seed(seed)
            samples.append(self._seeded[index])
        return samples

    def __getitem__(self, index: Any) -> Any:
        return self._seeded[index]

    def __len__(self) -> int:
        return len(self._seeded)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_seeded"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._seeded, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Seeded, (self._seeded,)
