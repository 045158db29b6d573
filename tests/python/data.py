"""The data of a training: which samples each rank gets, where it goes on after an interruption, and how the samples look.

    data.py BIN_DIR          runs the cases, and starts 3 ranks that make one group after another
    data.py --rank R N FILE  is one of them
"""
import copy
import faulthandler
import json
import multiprocessing
import random
import signal
import sys
import warnings

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Subset

import ranks
from ddp_run import randomness
from ddp_run.loader import DataLoader
from ddp_run.sampler import DistributedSampler
from raising import raises

try:
    import numpy
except ImportError:
    numpy = None

RANKS = 3
SAMPLES = 23
FORK = {"multiprocessing_context": "fork"}  # Python 3.14's own way imports PyTorch in each worker.
warnings.filterwarnings("ignore", message=".*worker processes in total.*")
warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)


class Augmented(Dataset):
    """Sample i is i and random numbers of all generators."""

    def __init__(self, length=SAMPLES):
        self.length = length
        self.fails_at = None
        self.opened_by = -1

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.fails_at:
            raise OSError(f"sample {index} cannot be read")
        noise = [float(index), torch.rand(1).item(), random.random()]
        return torch.tensor(noise + ([numpy.random.rand()] if numpy else []), dtype=torch.float64)


class InBatches(Augmented):
    def __getitems__(self, indices):
        assert type(indices) is list
        return [self[index] for index in indices]


def mixed_up(samples):
    """A collate_fn that draws numbers itself."""
    return torch.stack(samples) * random.random() + torch.rand(1).item()


def opened(worker):
    torch.utils.data.get_worker_info().dataset.opened_by = worker


class Opened(Augmented):
    def __getitem__(self, index):
        return torch.tensor([index, self.opened_by])


def as_json(state):
    return json.loads(json.dumps(state))


def indices_of(batch):
    return [int(row[0]) for row in batch]


def bytes_of(batch):
    return batch.numpy().tobytes() if numpy else bytes(batch.contiguous().view(torch.uint8).flatten().tolist())


def loader_of(world=1, rank=0, dataset=None, batch_size=2, workers=0, seed=7, drop_last=False, sampler_drops=True, **options):
    dataset = dataset or Augmented()
    sampler = DistributedSampler(dataset, world, rank, seed=seed, drop_last=sampler_drops)
    options |= FORK if workers else {}
    return DataLoader(dataset, batch_size, sampler=sampler, drop_last=drop_last, num_workers=workers, **options)


def order_is_fixed():
    """Positions in checkpoints mean this order, so it must never change."""
    assert list(DistributedSampler(12, 1, 0, seed=7)) == [2, 7, 0, 11, 3, 4, 10, 9, 1, 8, 6, 5]
    mask = (1 << 64) - 1

    def by_integers(key, index):
        value = (key + index * 0x9e3779b97f4a7c15) & mask
        value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 & mask
        value = (value ^ value >> 27) * 0x94d049bb133111eb & mask
        value ^= value >> 31
        return value - (1 << 64) if value >> 63 else value
    for key in (0, 1, 1 << 63, mask):
        assert randomness.permutation(key, 1000).tolist() == sorted(range(1000), key=lambda index, key=key: by_integers(key, index)), key
    orders = {tuple(DistributedSampler(50, 1, 0, seed=seed)) for seed in range(20)}
    sampler = DistributedSampler(50, 1, 0, seed=0)
    for epoch in range(1, 20):
        sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
    assert len(orders) == 39 and all(sorted(order) == list(range(50)) for order in orders)
    assert list(DistributedSampler(5, 1, 0, shuffle=False)) == [0, 1, 2, 3, 4]


def ranks_share_an_epoch():
    for length in (1, 2, 3, 7, 12, 23):
        whole = list(DistributedSampler(length, 1, 0, seed=7))
        for world in (1, 2, 3, 4):
            for batch_size in (1, 2, 5):
                for sampler_drops, drops in ((True, False), (True, True), (False, False), (False, True)):
                    name = f"{length} samples, {world} ranks, batches of {batch_size}, drop_last {sampler_drops} {drops}"
                    unit = world * batch_size if drops else world if sampler_drops else 1
                    loaders = [loader_of(world, rank, Augmented(length), batch_size, drop_last=drops, sampler_drops=sampler_drops)
                               for rank in range(world)]
                    if length < unit:
                        for loader in loaders:
                            raises(ValueError, [f"{length} samples", f"{world} ranks", "drop_last=False"], loader.__iter__)
                        continue
                    taken = [[indices_of(batch) for batch in loader] for loader in loaders]
                    assert [len(batches) for batches in taken] == [len(loader) for loader in loaders], name
                    if sampler_drops or drops:
                        assert len({tuple(map(len, batches)) for batches in taken}) == 1, name
                    # Joint batch k is the next part of the permutation, and rank r has every world-th of it.
                    for rank, batches in enumerate(taken):
                        for k, batch in enumerate(batches):
                            joint = whole[:length - length % unit][k * world * batch_size:(k + 1) * world * batch_size]
                            assert batch == joint[rank::world], (name, rank, k)
                    assert sum(len(batch) for batches in taken for batch in batches) == length - length % unit, name
                    assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1, name
        for drops in (True, False):
            for rank in range(3):
                sampler = DistributedSampler(length, 3, rank, drop_last=drops)
                assert len(sampler) == len(list(sampler)), (length, rank, drops)


def worlds_change():
    """From 2 to 3 ranks to 1, at all positions."""
    whole = list(DistributedSampler(SAMPLES, 1, 0, seed=7))
    for first in range(6):
        for second in range(4):
            seen, state = [], None
            for world, steps in ((2, first), (3, second), (1, 1000)):
                states = set()
                joint = []
                for rank in range(world):
                    loader = loader_of(world, rank)
                    if state:
                        loader.load_state_dict(state)
                    batches = [batch for _, batch in zip(range(min(steps, loader.steps_left())), loader)]
                    joint += [index for batch in batches for index in indices_of(batch)]
                    states.add(json.dumps(loader.state_dict()))
                state = json.loads(states.pop())
                assert not states
                place = len(seen)
                seen += joint
                assert sorted(seen) == sorted(whole[:len(seen)]), (first, second, world)
                assert state["position"] == len(seen), state
            assert sorted(seen) == list(range(SAMPLES)), (first, second)


def only_delivered_batches_count():
    for workers, options in ((0, {}), (1, {}), (2, {"prefetch_factor": 4}), (2, {"persistent_workers": True})):
        for world in (1, 2):
            loader = loader_of(world, 0, workers=workers, **options)
            sampler = loader.sampler
            for epoch in (0, 1):
                assert (sampler.epoch, sampler.position) == (epoch, 0)
                for k, _ in enumerate(loader):
                    position = min((k + 1) * 2 * world, SAMPLES - SAMPLES % world)
                    assert (sampler.epoch, sampler.position) == (epoch, position), (workers, k, sampler.position)
                    assert sampler.state_dict() == loader.state_dict() and sampler.state_dict()["position"] == position
                    assert loader.steps_left() == len(loader) - k - 1


def resumes_anywhere():
    """With random augmentation and collation, worker processes or none, in three epochs."""
    for world, rank in ((1, 0), (2, 1)):
        def run(steps, workers, state=None, world=world, rank=rank, **options):
            loader = loader_of(world, rank, workers=workers, collate_fn=mixed_up, **options)
            if state:
                loader.load_state_dict(state)
            batches = []
            # What the program draws is no matter of the data, and the other way round.
            random.seed(steps), torch.manual_seed(steps)
            while len(batches) < steps:
                for batch in loader:
                    batches.append(bytes_of(batch))
                    random.random(), torch.rand(1)
                    if len(batches) == steps:
                        break
            return batches, as_json(loader.state_dict())
        total = 2 * len(loader_of(world, rank)) + 3
        whole, end = run(total, 0)
        assert len(set(whole)) == total, "augmentation must differ"
        assert run(total, 2, persistent_workers=True) == (whole, end)
        for step in range(total + 1):
            before, after = ((0, 2), (2, 0), (2, 2), (0, 0))[step % 4]
            batches, state = run(step, before)
            assert batches == whole[:step], (step, before)
            rest, state = run(total - step, after, state)
            assert rest == whole[step:], (step, after)
            assert state == end


def looks_do_not_depend_on_the_ranks():
    def samples(world, dataset, **options):
        rows = {}
        for rank in range(world):
            for batch in loader_of(world, rank, dataset, sampler_drops=False, **options):
                rows |= {int(row[0]): row.tolist() for row in batch}
        return rows
    one = samples(1, Augmented())
    assert len(one) == SAMPLES and samples(3, Augmented()) == one and samples(2, Augmented(), batch_size=5) == one
    assert samples(1, Augmented(), seed=8) != one
    in_batches = samples(2, InBatches())
    assert samples(2, InBatches(), workers=2) == in_batches != one
    subset = Subset(Augmented(40), range(10, 10 + SAMPLES))
    assert samples(1, subset) == samples(1, subset, workers=2)


def the_programs_numbers_are_its_own():
    def states():
        of_numpy = numpy and str(numpy.random.get_state(legacy=False)["state"]["key"].tolist()) + str(numpy.random.get_state()[2:])
        return [torch.get_rng_state().tolist(), random.getstate(), of_numpy]
    torch.manual_seed(3), random.seed(4)
    before = states()
    for options in ({}, {"workers": 2}, {"workers": 2, "persistent_workers": True}):
        loader = loader_of(collate_fn=mixed_up, **options)
        for _ in loader:
            assert states() == before, options
        iter(loader)
        len(loader), loader.state_dict()
        assert states() == before, options
    dataset = Augmented()
    dataset.fails_at = 3
    raises(OSError, ["sample 3"], lambda: list(loader_of(dataset=dataset)))
    assert states() == before


def loops_go_on():
    """Ways to write a training, each interrupted at each of its commits and begun again from that."""
    class Interrupted(Exception):
        pass

    class Program:
        def __init__(self, commits):
            self.loader = loader_of(dataset=Augmented(7))
            self.sampler = self.loader.sampler
            self.epoch = self.step = 0
            self.log = []
            self.commits_left = commits
            self.committed = self.state()

        def state(self):
            return as_json([self.sampler.state_dict(), self.epoch, self.step, self.log])

        def restore(self, state):
            sampler, self.epoch, self.step, self.log = copy.deepcopy(state)
            self.sampler.load_state_dict(sampler)

        def commit(self):
            self.committed = self.state()
            self.commits_left -= 1
            if self.commits_left < 0:
                raise Interrupted

        def an_epoch(self):
            for batch in self.loader:
                self.step += 1
                self.log.append([self.step, self.sampler.epoch, indices_of(batch)])
                self.commit()

    def counted_by_the_sampler(program):
        for epoch in range(program.sampler.epoch, 3):
            program.sampler.set_epoch(epoch)
            program.an_epoch()
            program.commit()

    def counted_by_the_sampler_alone(program):
        for _ in range(program.sampler.epoch, 3):
            program.an_epoch()
            program.commit()

    def counted_by_the_program(program):
        while program.epoch < 3:
            program.sampler.set_epoch(program.epoch)
            program.an_epoch()
            program.commit()
            program.epoch += 1
            program.commit()

    def counted_and_not_told(program):
        while program.epoch < 3:
            program.an_epoch()
            program.epoch += 1
            program.commit()

    def counted_in_steps(program):
        while program.step < 12:
            program.an_epoch()

    def counted_in_steps_and_left(program):
        while program.step < 12:
            for batch in program.loader:
                program.step += 1
                program.log.append([program.step, program.sampler.epoch, indices_of(batch)])
                program.commit()
                if program.step == 12 or program.step % 5 == 0:
                    break

    logs = []
    for train in (counted_by_the_sampler, counted_by_the_sampler_alone, counted_by_the_program, counted_and_not_told, counted_in_steps,
                  counted_in_steps_and_left):
        whole = Program(1000)
        train(whole)
        assert [epoch for _, epoch, _ in whole.log] == [0] * 4 + [1] * 4 + [2] * 4, train.__name__
        logs.append(whole.log)
        for commits in range(1000 - whole.commits_left):
            first = Program(commits)
            raises(Interrupted, [], lambda first=first, train=train: train(first))
            for program in (Program(1000), first):  # A new process, and the one that was interrupted.
                program.commits_left = 1000
                program.restore(first.committed)
                train(program)
                assert program.log == whole.log, (train.__name__, commits, program.log)
    assert all(log == logs[0] for log in logs)


def abandoned_loops_end():
    for options in ({}, {"workers": 2}, {"workers": 2, "persistent_workers": True}):
        loader = loader_of(**options)
        whole = [bytes_of(batch) for batch in loader]
        loader.sampler.set_epoch(0, 0)
        loop = iter(loader)
        next(loop), next(loop)
        state = loader.state_dict()
        next(loop), next(loop)
        for is_over in (lambda: loader.load_state_dict(state), lambda: iter(loader), lambda: loader.sampler.set_epoch(0)):
            is_over()
            position = loader.sampler.position
            raises(RuntimeError, ["has ended", "load_state_dict", "for batch in loader"], lambda loop=loop: next(loop))
            assert loader.sampler.position == position
            loop = iter(loader)
            next(loop)
        loader.load_state_dict(state)
        assert [bytes_of(batch) for batch in loader] == whole[2:], options
        assert (loader.sampler.epoch, loader.sampler.position) == (1, 0)
        loop = iter(loader)
        assert len(list(loop)) == len(loader) and list(loop) == [], "an iterator that is exhausted stays so"


def epochs_can_be_chosen():
    loader = loader_of(drop_last=True)
    first, second = ([bytes_of(batch) for batch in loader] for _ in range(2))
    assert first != second and loader.sampler.epoch == 2
    loader.sampler.set_epoch(0)
    assert [bytes_of(batch) for batch in loader] == first
    loader.sampler.set_epoch(0)
    assert list(loader) == [], "it is through"
    loader.sampler.set_epoch(0, 0)
    assert [bytes_of(batch) for batch in loader] == first
    loader.sampler.set_epoch(1, 4)
    assert [bytes_of(batch) for batch in loader] == second[2:]


def errors_leave_the_position():
    for options in ({}, {"workers": 2}, {"workers": 2, "persistent_workers": True}):
        dataset = Augmented()
        loader = loader_of(dataset=dataset, **options)
        whole = [bytes_of(batch) for batch in loader]
        loader.sampler.set_epoch(0, 0)
        dataset.fails_at = list(DistributedSampler(SAMPLES, 1, 0, seed=7))[9]
        iter(loader).close(keeps_workers=False)  # Theirs is the data set that does not fail.
        loop = iter(loader)
        seen = [bytes_of(next(loop)) for _ in range(4)]
        raises(OSError, [f"sample {dataset.fails_at} cannot be read"], lambda loop=loop: next(loop))
        assert loader.sampler.position == 8
        raises(RuntimeError, ["ended with an error", "the batch that failed"], lambda loop=loop: next(loop))
        dataset.fails_at = None
        assert seen + [bytes_of(batch) for batch in loader] == whole, options
        iter(loader).close(keeps_workers=False)  # Or the garbage collection does it, since the exception has a circle, in 10 seconds.


def kept_workers_may_die():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler raises in whatever runs.
    others = {worker.pid for worker in multiprocessing.active_children()}
    loader = loader_of(workers=2, persistent_workers=True)
    kept = []
    for _ in range(2):
        list(loader)
        kept.append([worker for worker in multiprocessing.active_children() if worker.pid not in others])
    assert {worker.pid for worker in kept[0]} == {worker.pid for worker in kept[1]} and len(kept[0]) == 2
    kept[0][0].kill()
    kept[0][0].join()
    loader.sampler.set_epoch(0, 0)
    assert [bytes_of(batch) for batch in loader] == [bytes_of(batch) for batch in loader_of()]


def workers_reach_the_data_set():
    loader = DataLoader(Opened(), 1, num_workers=2, worker_init_fn=opened, **FORK)
    assert {int(batch[0][1]) for batch in loader} == {0, 1}


def workers_start_as_python_wants():
    """By fork, or by a server to which the data set goes as a pickle."""
    loader = loader_of(dataset=Augmented(8), batch_size=4)
    other = DataLoader(Augmented(8), 4, sampler=DistributedSampler(8, 1, 0, seed=7), num_workers=1)
    assert [bytes_of(batch) for batch in loader] == [bytes_of(batch) for batch in other]


CASES = [order_is_fixed, ranks_share_an_epoch, worlds_change, only_delivered_batches_count, resumes_anywhere,
         looks_do_not_depend_on_the_ranks, the_programs_numbers_are_its_own, loops_go_on, abandoned_loops_end, epochs_can_be_chosen,
         errors_leave_the_position, kept_workers_may_die, workers_reach_the_data_set, workers_start_as_python_wants]


def be_rank(rank, size, file):
    """One sampler, in groups of 2, 3 and 1 ranks, each making two steps. Each has workers that have read ahead by then."""
    faulthandler.dump_traceback_later(240, exit=True)
    store = dist.FileStore(file, size)
    loader = DataLoader(Augmented(), 2, sampler=DistributedSampler(SAMPLES, seed=7), num_workers=1, **FORK)
    live = None
    for meeting, (world, steps) in enumerate(((2, 2), (3, 2), (1, 1000))):
        if rank >= world:
            continue
        dist.init_process_group("ddp", store=dist.PrefixStore(str(meeting), store), rank=rank, world_size=world)
        if live:
            raises(RuntimeError, [f"of {world}", "begin another"], lambda live=live: next(live))
        if rank == 2:
            loader.load_state_dict(json.loads(store.get(f"state {meeting}")))
        live = iter(loader)
        seen = [index for _, batch in zip(range(steps), live) for index in indices_of(batch)]
        store.set(f"seen {meeting} {rank}", json.dumps(seen))
        store.set(f"state {meeting + 1}", json.dumps(loader.state_dict()))
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        seen = [[json.loads(store.get(f"seen {meeting} {each}")) for each in range(world)] for meeting, world in enumerate((2, 3, 1))]
        assert [[len(of_rank) for of_rank in joint] for joint in seen] == [[4, 4], [4, 4, 4], [3]], seen
        assert sorted(index for joint in seen for of_rank in joint for index in of_rank) == list(range(SAMPLES)), seen


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    faulthandler.dump_traceback_later(400, exit=True)
    for case in CASES:
        case()
        print(f"{case.__name__}: as it should be", flush=True)
    ranks.run(__file__, RANKS, 120)
    print("groups of 2, 3 and 1 ranks: as it should be")


if __name__ == "__main__":
    main()
