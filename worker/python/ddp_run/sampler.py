"""Which samples of a data set a rank takes, and how far all ranks together are."""
import dataclasses
import os
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ddp_run import randomness, worker_process
from ddp_run.logical import LogicalWorld


class Batch(NamedTuple):
    """A rank's share of a joint batch. What a process that loads data needs to know, so it is small."""
    key: int  # Of the epoch.
    place: int  # Of the first sample in the permutation.
    stride: int  # From there to the next sample's place: the number of ranks.
    indices: list[int]  # In the data set.

    def seeds(self) -> Iterator[int]:
        """For each sample a seed, which is a function of the sampler's seed, the epoch and the place."""
        for i in range(len(self.indices)):
            yield randomness.mix(self.key, self.place + i * self.stride)


@dataclasses.dataclass(frozen=True, eq=False)
class Deal:
    """What this process takes of an epoch from a position on, as long as the ranks stay the same: in each step one batch per rank."""
    key: int
    order: torch.Tensor | None  # The epoch's permutation; None: 0, 1, 2 ...
    begin: int  # The places that are dealt.
    end: int
    batch_size: int  # Of one rank.
    ranks: range  # One; with a LogicalWorld, this worker's logical ranks.
    world: int

    @property
    def joint(self) -> int:
        return self.batch_size * self.world

    def __iter__(self) -> Iterator[Batch]:
        for begin in range(self.begin, self.end, self.joint):
            for rank in self.ranks:
                places = range(begin + rank, min(begin + self.joint, self.end), self.world)
                if places:
                    indices = list(places) if self.order is None else self.order[places.start:places.stop:places.step].tolist()
                    yield Batch(self.key, places.start, self.world, indices)

    def __len__(self) -> int:
        """The number of steps."""
        return max(0, -((self.begin + self.ranks.start - self.end) // self.joint))

    def after(self, steps: int) -> int:
        """The position after so many steps."""
        return min(self.begin + steps * self.joint, self.end)


class DistributedSampler(Sampler[int]):
    """Deals the indices of a data set to the ranks, and knows the position in the epoch at which training goes on.

        sampler = ddp_run.DistributedSampler(dataset)
        loader = ddp_run.DataLoader(dataset, batch_size=32, sampler=sampler)
        state = ddp_run.ElasticState(model=model, optimizer=optimizer, sampler=sampler)

    Every epoch has one permutation of the data set, a function of (seed, epoch) alone. Rank r of W takes its elements r, r + W,
    r + 2W ... The position is the number of elements that all ranks together have used. The elements behind it are dealt to the
    ranks that are there when an iteration begins. So no sample is lost and none comes twice, also if the number of ranks changes
    in the middle of an epoch. The position moves when ddp_run.DataLoader hands a batch to the training loop, and not when a
    process of the loader reads ahead. All ranks have the same state.

    It takes the place of torch.utils.data.DistributedSampler, with these differences:

    * Nothing is repeated to fill up the last batch. By default, the fewer than W samples at the end that cannot be dealt evenly
      are left out, so all ranks make the same number of steps. `drop_last=False` deals them: some ranks have a sample more than
      others, and perhaps a step more. That is for evaluation, and for training under DistributedDataParallel.join().
    * An epoch that has been iterated to its end is followed by the next one; see set_epoch.
    * The order is another one.

    dataset: the data set, or its length (greater than 0), which must not change.
    num_replicas, rank: W and r; both or none. None: those of torch.distributed's default group when an iteration begins, so one
      sampler serves all groups that a process has one after another. Without a group: 1 and 0.
    shuffle: False: every epoch is 0, 1, 2 ...
    seed: the same on all ranks.
    logical: a LogicalWorld, whose ranks take the samples then: W is its size, and this process has the samples of those in logical.own.
      It goes without num_replicas, rank, and drop_last=False.
    """

    def __init__(self, dataset: Sized | int, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = True, logical: LogicalWorld | None = None) -> None:
        super().__init__()
        self.length = dataset if isinstance(dataset, int) else _length_of(dataset)
        if self.length <= 0:
            raise ValueError(f"a data set of {self.length} samples cannot be dealt: it needs at least one")
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"num_replicas={num_replicas} and rank={rank}: give both, or none for those of the default group")
        if num_replicas is not None and rank is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas} does not exist: ranks are 0 to num_replicas - 1")
        if logical is not None and not isinstance(logical, LogicalWorld):
            raise TypeError(f"logical is a {type(logical).__name__}: give a ddp_run.LogicalWorld")
        if logical is not None and num_replicas is not None:
            raise ValueError(f"num_replicas={num_replicas} does not go with logical: its ranks are the LogicalWorld's")
        if logical is not None and not drop_last:
            raise ValueError("drop_last=False does not go with logical: every logical rank makes the same number of steps")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {seed} is not from 0 to 2**64 - 1")
        self.shuffle = bool(shuffle)
        self.seed = int(seed)
        self.drop_last = bool(drop_last)
        self.logical = logical
        self._ranks = None if num_replicas is None or rank is None else (range(rank, rank + 1), num_replicas)
        self._epoch = 0
        self._position = 0
        self._is_over = False  # The epoch has been iterated to its end, so the next iteration is of the next epoch.
        self._order: tuple[int, torch.Tensor] | None = None  # An epoch and its permutation.
        self._deal: Deal | None = None  # Of the loader's iteration that moves the position.
        self._is_read_by_others = False  # And therefore nobody has moved the position.

    @property
    def epoch(self) -> int:
        """The epoch of the batch that was delivered last. Once the epoch's iteration has come to its end: the next epoch."""
        return self._epoch + self._is_over

    @property
    def position(self) -> int:
        """Elements of the epoch's permutation that all ranks together have used, from 0 to the length of the data set."""
        return 0 if self._is_over else self._position

    @property
    def num_replicas(self) -> int:
        """The number of ranks that an iteration would deal to if it began now."""
        return self._ranks_now()[1]

    @property
    def rank(self) -> int:
        """The rank that an iteration would deal to if it began now; the first one, with a LogicalWorld."""
        return self._ranks_now()[0].start

    def set_epoch(self, epoch: int, position: int | None = None) -> None:
        """Goes to a position of an epoch. Ends an iteration of a loader that is under way: its next batch raises RuntimeError.

        Without a position: where training is in that epoch, or 0 in another epoch. In an epoch that is through, that is the end,
        so the loop has no step. All these loops go on rightly, wherever they were interrupted and restored:

            for epoch in range(sampler.epoch, epochs):
                sampler.set_epoch(epoch)                # Not needed: each loop over the loader is an epoch.
                for batch in loader: ...

            while state.epoch < epochs:
                sampler.set_epoch(state.epoch)          # Not needed.
                for batch in loader: ...
                state.epoch += 1

        Call set_epoch(epoch, 0) to do the present epoch again.
        """
        if epoch < 0 or not 0 <= (position or 0) <= self.length:
            raise ValueError(f"epoch {epoch}, position {position} does not exist: epochs begin with 0, and positions of this data "
                             f"set are 0 to {self.length}")
        if position is not None:
            self._position = int(position)
        elif epoch != self._epoch:
            self._position = 0
        self._epoch = int(epoch)
        self._is_over = False
        self._deal = None
        self._is_read_by_others = False

    def __len__(self) -> int:
        """The number of this process's samples in a whole epoch."""
        ranks, world = self._ranks_now()
        return sum(self.length // world if self.drop_last else -((rank - self.length) // world) for rank in ranks)

    def __iter__(self) -> Iterator[int]:
        """This process's indices of the epoch, from the position on.

        Does not move the position, because whoever iterates may read ahead. ddp_run.DataLoader moves it. Other loaders may be
        used, but state_dict() then wants to be told the position after each batch, by set_epoch(epoch, position).
        """
        for batch in self.deal(batch_size=1024):
            for index in batch.indices:
                self._is_read_by_others = True
                yield index

    def state_dict(self) -> dict[str, Any]:
        """The state: numbers, the same on all ranks. Call it when the batch that was delivered last has been processed.

        RuntimeError: another loader than ddp_run.DataLoader has read from the sampler, so the position is not known.
        """
        if self._is_read_by_others:
            raise RuntimeError("the sampler's position is not known, because it was not ddp_run.DataLoader that read from it: use that, "
                               "or call set_epoch(epoch, position) after each batch, with the number of samples that all ranks have used")
        return {**self._identity(), "epoch": self._epoch, "position": self._position, "is_over": self._is_over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where state_dict() was called, with any number of ranks. The next iteration begins there.

        Ends an iteration of a loader that is under way: its next batch raises RuntimeError.
        ValueError: the state is none, or one of other data; the sampler is as it was.
        """
        identity = self._identity()
        missing = (identity.keys() | {"epoch", "position", "is_over"}) - state.keys()
        if missing:
            raise ValueError(f"this is no state of a DistributedSampler, because it has no {', '.join(sorted(missing))}; it has "
                             f"{', '.join(map(str, state)) or 'nothing'}")
        differences = [f"{name} {state[name]}, and here it is {value}" for name, value in identity.items() if state[name] != value]
        if differences:
            raise ValueError(f"the sampler's state is of {'; '.join(differences)}: a position in one order means nothing in another. "
                             "Make the sampler as it was, or begin with a new one at set_epoch(EPOCH)")
        epoch, position = state["epoch"], state["position"]
        if not (isinstance(epoch, int) and isinstance(position, int) and 0 <= epoch and 0 <= position <= self.length):
            raise ValueError(f"the sampler's state has epoch {epoch!r}, position {position!r}, which {self.length} samples do not have: "
                             "it is damaged")
        self.set_epoch(epoch, position)
        self._is_over = bool(state["is_over"])

    def deal(self, batch_size: int, drop_last: bool = False, position: int | None = None) -> Deal:
        """What this process takes, from the present position on or from another one.

        drop_last: leaves an incomplete joint batch out, on all ranks.
        """
        ranks, world = self._ranks_now()
        position = self.position if position is None else position
        unit = world * batch_size if drop_last else world if self.drop_last else 1
        end = self.length - (self.length - position) % unit
        return Deal(randomness.mix(self.seed, self.epoch), self._permutation(self.epoch), position, end, batch_size, ranks, world)

    # For ddp_run.DataLoader.

    def _begin(self, batch_size: int, drop_last: bool) -> Deal:
        """Begins the iteration that moves the position, at the present one, or in the next epoch if this one is over."""
        self.set_epoch(self.epoch, self.position)
        self._deal = self.deal(batch_size, drop_last)
        return self._deal

    def _check(self, deal: Deal) -> None:
        """Whether the iteration of this deal may go on."""
        if self._deal is not deal:
            raise RuntimeError("this iteration of the loader has ended, because set_epoch(), load_state_dict() or another iteration came "
                               "after it began: begin another, `for batch in loader`, which goes on where the sampler is now")
        ranks, world = self._ranks_now()
        if (ranks, world) != (deal.ranks, deal.world):
            raise RuntimeError(f"this iteration of the loader is one of {_named(deal.ranks)} of {deal.world}, and now this is "
                               f"{_named(ranks)} of {world}: begin another, `for batch in loader`, which deals what is left to the "
                               "present ranks")

    def _move(self, position: int, is_over: bool = False) -> None:
        self._position = position
        self._is_over = is_over
        self._is_read_by_others = False

    def _identity(self) -> dict[str, Any]:
        """What a position means nothing without."""
        return {"version": 1, "length": self.length, "shuffle": self.shuffle, "seed": self.seed}

    def _permutation(self, epoch: int) -> torch.Tensor | None:
        if not self.shuffle:
            return None
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, randomness.permutation(randomness.mix(self.seed, epoch), self.length)
        return self._order[1]

    def _ranks_now(self) -> tuple[range, int]:
        if self._ranks:
            return self._ranks
        if self.logical is not None:
            return self.logical.own, self.logical.size
        if dist.is_available() and dist.is_initialized():
            return range(dist.get_rank(), dist.get_rank() + 1), dist.get_world_size()
        if worker_process.has_agent or os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError("torch.distributed has no group yet, so the number of ranks is not known: ask in the function that run_elastic() "
                               "calls, or after init_process_group(), or give num_replicas and rank")
        return range(1), 1


def _named(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"


def _length_of(dataset: Sized) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise TypeError(f"{type(dataset).__name__} has no len(), so its samples have no places to go on from: give a data set with "
                        "__len__ and __getitem__, or a length") from None
