"""What would make a training's data inexact is refused, in words that name it and the remedy."""
import json
import os

import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler

from ddp_run.loader import DataLoader
from ddp_run.sampler import DistributedSampler
from raising import raises

SAMPLES = 23


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Unsized(Dataset):
    pass


def main():
    data, sampler = range(SAMPLES), DistributedSampler(SAMPLES, 1, 0)
    for kind, words, call in (
            (ValueError, ["0 samples"], lambda: DistributedSampler(0)),
            (TypeError, ["Unsized", "__len__"], lambda: DistributedSampler(Unsized())),
            (ValueError, ["num_replicas=2", "rank=None", "both"], lambda: DistributedSampler(9, 2)),
            (ValueError, ["rank 2 of 2"], lambda: DistributedSampler(9, 2, 2)),
            (ValueError, ["seed -1"], lambda: DistributedSampler(9, seed=-1)),
            (ValueError, ["epoch -1"], lambda: sampler.set_epoch(-1)),
            (ValueError, ["position 24", "0 to 23"], lambda: sampler.set_epoch(0, 24)),
            (TypeError, ["Endless", "IterableDataset", "__getitem__"], lambda: DataLoader(Endless())),
            (ValueError, ["batch_sampler", "batch_size"], lambda: DataLoader(data, batch_sampler=[[0, 1]])),
            (ValueError, ["generator", "seed"], lambda: DataLoader(data, generator=torch.Generator())),
            (ValueError, ["in_order", "leave it out"], lambda: DataLoader(data, in_order=False)),
            (ValueError, ["batch_size=None"], lambda: DataLoader(data, None)),
            (ValueError, ["batch_size=0"], lambda: DataLoader(data, 0)),
            (TypeError, ["RandomSampler", "ddp_run.DistributedSampler"], lambda: DataLoader(data, sampler=RandomSampler(data))),
            (ValueError, ["shuffle=True"], lambda: DataLoader(data, sampler=sampler, shuffle=True)),
            (ValueError, ["23 samples", "has 9"], lambda: DataLoader(range(9), sampler=sampler)),
            (TypeError, ["no_such_option"], lambda: DataLoader(data, no_such_option=1))):
        raises(kind, words, call)
    DataLoader(data, batch_sampler=None, generator=None, in_order=True)
    sampler.set_epoch(2, 6)
    state = sampler.state_dict()
    assert json.loads(json.dumps(state)) == state
    for change, words in (({"length": 9}, ["length 9", "here it is 23"]), ({"seed": 1}, ["seed 1", "here it is 0"]),
                          ({"shuffle": False}, ["shuffle False"]), ({"version": 2}, ["version 2"]),
                          ({"position": 24}, ["position 24", "damaged"]), ({"epoch": -1}, ["epoch -1"]), ({"epoch": "2"}, ["epoch '2'"])):
        raises(ValueError, words, lambda change=change: sampler.load_state_dict({**state, **change}))
        assert sampler.state_dict() == state
    raises(ValueError, ["no epoch, is_over, length", "it has nothing"], lambda: sampler.load_state_dict({}))
    # PyTorch's loader reads ahead, and tells nobody how far the training is.
    list(torch.utils.data.DataLoader(data, sampler=sampler))
    raises(RuntimeError, ["ddp_run.DataLoader", "set_epoch(epoch, position)"], sampler.state_dict)
    sampler.set_epoch(2, 8)
    assert sampler.state_dict() == {**state, "position": 8}
    os.environ["WORLD_SIZE"] = "2"
    raises(RuntimeError, ["no group yet", "init_process_group"], lambda: iter(DataLoader(data)))
    del os.environ["WORLD_SIZE"]
    assert len(DataLoader(data)) == SAMPLES, "a process by itself"
    print("what is not exact is refused")


if __name__ == "__main__":
    main()
