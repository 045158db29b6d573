"""What Python programs keep: values, optimizers, checkpoints that C++ reads and writes, and each refused misuse. state.py BIN_DIR

One process without a launcher.
"""
import collections
import enum
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

import ddp_run
from ddp_run import optimizers, values
from raising import raises

BIN = Path(sys.argv[1]).resolve()


Place = collections.namedtuple("Place", "row column")


class Toy(torch.nn.Module):
    """ddp-train's model "toy"."""

    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Linear(10, 10)
        self.net2 = torch.nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


class Words(torch.nn.Module):
    """For SparseAdam, which takes sparse gradients alone."""

    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Embedding(6, 3, sparse=True)
        self.net2 = torch.nn.Embedding(6, 3, sparse=True)

    def forward(self, x):
        words = x[0].abs().long() % 6
        return self.net1(words) * self.net2(words)


def steps(model, optimizer, count, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(4, 10, generator=generator)

        def loss():
            optimizer.zero_grad()
            value = model(x).square().mean()
            value.backward()
            return value
        optimizer.step(loss)


def run(folder, model, optimizer, body, strict=True, **items):
    """One run of a program: loads the folder's newest checkpoint, and calls body(state, checkpoints)."""
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, **items)
    checkpoints = ddp_run.Checkpointer(folder, state)
    checkpoints.load_latest(strict)
    ddp_run.run_elastic(state, lambda group: body(state, checkpoints))
    return checkpoints


def values_come_back():
    original = {
        "plain": [None, True, 1, -1.5, "text", {"a": []}], "nan": [math.inf, -math.inf], "large": 2**100, "tuple": (1, (2, [3])),
        "set": {3, 1}, "bytes": b"\0\xff", "keys": {1: "one", (2, 3): "pair", "$x": 0}, "order": collections.OrderedDict(b=1, a=2),
        "empty": {}, "none": (),
    }
    assert values.decode(values.encode(original)) == original
    for tensor in (torch.arange(6).reshape(2, 3).t(), torch.tensor(3.5, dtype=torch.bfloat16), torch.zeros(0, 2), torch.tensor(1 + 2j)):
        back = values.decode(values.encode(tensor))
        assert back.dtype == tensor.dtype and torch.equal(back, tensor), tensor
    assert math.isnan(values.decode(values.encode(math.nan)))
    types_come_back()
    raises(TypeError, "the value['a'][1] is a builtins.object", lambda: values.encode({"a": [0, object()]}))
    raises(TypeError, "layout torch.sparse_coo", lambda: values.encode(torch.zeros(2, 2).to_sparse()))


class Phase(enum.IntEnum):
    WARM_UP = 1


def types_come_back():
    """A value is of its own type again, or is refused: nobody would expect a defaultdict to come back as a dict that raises KeyError."""
    for value in (collections.OrderedDict(b=[1], a=2), collections.Counter({3: 2, 1: 1}), frozenset({1, 2}), bytearray(b"\0"), {frozenset({1}): 1},
                  torch.Size([2, 3]), numpy.float64(0.5), numpy.int64(2), numpy.str_("x")):
        back = values.decode(json.loads(json.dumps(values.encode(value), sort_keys=True)))
        assert back == value and type(back) is type(value), (back, value)
        assert all(type(own) is type(other) for own, other in zip(back, value)) if isinstance(value, dict) else True, back
    assert list(values.decode(values.encode(collections.OrderedDict(b=1, a=2)))) == ["b", "a"]
    for value, *words in ((collections.defaultdict(list), "collections.defaultdict, which", "make it of type dict"), (Place(1, 2), "Place", "make it of type tuple"),
                          (Phase.WARM_UP, "Phase", "make it of type int")):
        raises(TypeError, ["the value[0] is a ", *words], lambda value=value: values.encode([value]))
    class Named(torch.Tensor):
        pass
    raises(TypeError, "Named, which would come back as a Tensor", lambda: values.encode(torch.zeros(1).as_subclass(Named)))
    raises(TypeError, "would come back as a plain array", lambda: values.encode(numpy.zeros(2, [("x", "f4")])))
    raises(TypeError, "the value is a matrix", lambda: values.encode(numpy.matrix([1])))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=numpy.float64(0.5))
    for scheduler in (torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 5]), torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 10),
                      torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)):
        saved = scheduler.state_dict()
        back = values.decode(values.encode(saved))
        assert back == saved and {key: type(each) for key, each in back.items()} == {key: type(each) for key, each in saved.items()}, (back, saved)
    # As before there was a "$type".
    assert values.decode({"$dict": [[3, 2], [1, 1]]}) == {3: 2, 1: 1}


def every_optimizer_goes_on_exactly():
    made = {
        "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "Adagrad": {}, "RMSprop": {"centered": True, "momentum": 0.5},
        "Adadelta": {}, "Adamax": {}, "Adafactor": {}, "SparseAdam": {}, "LBFGS": {"history_size": 3}, "NAdam": {}, "RAdam": {}, "Rprop": {}, "ASGD": {},
    }
    for name, options in made.items():
        for fused in ({}, {"fused": True}) if name in ("SGD", "Adam", "AdamW") else ({},):
            with tempfile.TemporaryDirectory() as folder:
                def new():
                    torch.manual_seed(1)
                    model = Words() if name == "SparseAdam" else Toy()
                    groups = [{"params": model.net1.parameters()}, {"params": model.net2.parameters(), "lr": 0.02}]
                    if name == "LBFGS":  # Takes one group alone.
                        groups = model.parameters()
                    return model, getattr(torch.optim, name)(groups, **options, **fused)

                whole = new()
                steps(*whole, 3, 1)
                steps(*whole, 3, 2)
                first = new()

                def save(state, checkpoints):
                    steps(*first, 3, 1)
                    checkpoints.save(3)
                run(folder, *first, save)
                second = new()
                kept = [id(parameter) for parameter in second[0].parameters()]

                def go_on(state, checkpoints):
                    steps(*second, 3, 2)
                assert run(folder, *second, go_on).loaded["step"] == 3
                assert ddp_run.weights_sha256(second[0]) == ddp_run.weights_sha256(whole[0]), (name, fused)
                assert [id(parameter) for parameter in second[0].parameters()] == kept


def a_commit_restores_in_place():
    model = Toy()
    optimizer = torch.optim.Adam(model.parameters())

    def body(group):
        steps(model, optimizer, 2, 1)
        moments = [optimizer.state[each]["exp_avg"] for each in model.parameters()]
        drawn = torch.rand(1).item(), random.random()
        state.commit()
        before = ddp_run.weights_sha256(model), torch.rand(1).item(), random.random()
        state.step, state.where = 7, (1, 2)
        state.average.add_(1)
        optimizer.param_groups[0]["growth"] = 0
        steps(model, optimizer, 2, 2)
        state.restore()
        assert (ddp_run.weights_sha256(model), torch.rand(1).item(), random.random()) == before != drawn
        assert state.step == 0 and state.where is None
        assert state.average is average and average.tolist() == [0, 0] and list(state.losses) == ["b", "a"]
        assert optimizer.param_groups[0]["growth"] == math.inf
        assert all(optimizer.state[each]["exp_avg"] is own for each, own in zip(model.parameters(), moments))
        assert {int(each["step"]) for each in optimizer.state.values()} == {2}
        return "result"
    average = torch.zeros(2)
    optimizer.param_groups[0]["growth"] = math.inf
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, where=None, average=average, losses={"b": 1, "a": 2})
    assert ddp_run.run_elastic(state, body) == "result"


class Counting(torch.nn.Module):
    """Has a state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.calls = {"forward": 0}

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = state


def a_restore_writes_into_nobody_elses_memory():
    data = torch.arange(4.0).reshape(2, 2)

    def body(group):
        state.best, state.pair, state.sample = state.current, [state.current, state.current], data[1]
        state.restore()
        assert state.current.tolist() == [1, 1] and state.best.tolist() == [2, 2] and state.sample.tolist() == [5, 5]
        assert [each.tolist() for each in state.pair] == [[3, 3], [4, 4]]
        assert data.tolist() == [[0, 1], [2, 3]]
        model.weight.data.fill_(6)
        with torch.inference_mode():
            state.best = torch.full((2,), 7.0)
        state.current, state.pair, state.sample = model.weight.detach(), [torch.zeros(1).expand(2)] * 2, torch.from_numpy(row)
        state.restore()
        assert state.current.tolist() == [1, 1] and state.best.tolist() == [2, 2] and state.sample.tolist() == [5, 5]
        assert [each.tolist() for each in state.pair] == [[3, 3], [4, 4]]
        assert row.tolist() == [8, 8] and model.weight.tolist() == [0, 0], "the module has its own values back"
        return "result"
    row, model = numpy.full(2, 8, numpy.float32), Counting()
    state = ddp_run.ElasticState(model=model, current=torch.ones(2), best=torch.full((2,), 2.0), pair=[torch.full((2,), 3.0), torch.full((2,), 4.0)],
                                 sample=torch.full((2,), 5.0))
    assert ddp_run.run_elastic(state, body) == "result"


def what_a_module_has_besides_tensors_comes_back():
    with tempfile.TemporaryDirectory() as folder:
        for saved, loaded in (({"forward": 3}, {"forward": 0}), ({"forward": 9}, {"forward": 3})):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), Counting())

            def body(group):
                assert model[1].calls == loaded
                model[1].calls = saved
                state.commit()
                model[1].calls = {"forward": 7}
                state.restore()
                assert model[1].calls == saved
                checkpoints.save(saved["forward"])
                return "result"
            state = ddp_run.ElasticState(model=model)
            checkpoints = ddp_run.Checkpointer(folder, state)
            checkpoints.load_latest()
            assert ddp_run.run_elastic(state, body) == "result"
        model[1].calls = object()
        raises(TypeError, "get_extra_state() of model['1'] is a builtins.object", lambda: ddp_run.ElasticState(model=model))


def cpp_reads_and_writes_the_same_checkpoints():
    if not (BIN / "ddp-train").exists():  # With sanitizers, only the module is built.
        return
    with tempfile.TemporaryDirectory() as folder:
        def train(count, name):
            subprocess.run([BIN / "ddp-train", "--model", "toy", "--checkpoint-dir", f"{folder}/cpp", "--max-steps", str(count), "--seed", "1",
                            "--momentum", "0.9", "--summary", f"{folder}/{name}"], check=True, capture_output=True)
            return json.loads(Path(f"{folder}/{name}").read_text())
        summary = train(5, "five")
        model = Toy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.1)

        def body(state, checkpoints):
            assert checkpoints.loaded["step"] == summary["steps"], checkpoints.loaded
            assert ddp_run.weights_sha256(model) == summary["weights_sha256"]
            assert optimizer.param_groups[0]["momentum"] == 0.9
            assert len(optimizer.state) == 4 and all("momentum_buffer" in each for each in optimizer.state.values())
            checkpoints.save(summary["steps"] + 1)
        run(f"{folder}/cpp", model, optimizer, body, strict=False)
        listed = subprocess.run([BIN / "ddp-checkpoint", "verify", f"{folder}/cpp"], check=True, capture_output=True, text=True).stdout
        assert f"step-{summary['steps'] + 1:010}" in listed, listed


def misuse_is_refused():
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = ddp_run.ElasticState
    raises(ValueError, "\"b\" and \"a\" are the same Toy; register it once", lambda: make(a=model, b=model))
    raises(ValueError, "ElasticState has an attribute of this name", lambda: make(commit=1))
    raises(ValueError, "contains no '/'", lambda: make(**{"a/b": 1}))
    raises(TypeError, "sampler is a object; state is a module", lambda: make(sampler=object()))

    class Sampler:
        def state_dict(self):
            return {"order": iter([])}

        def load_state_dict(self, state):
            pass
    raises(TypeError, "sampler.state_dict()['order'] is a builtins.list_iterator", lambda: make(sampler=Sampler()))
    raises(ValueError, "belongs to no module that is registered", lambda: ddp_run.run_elastic(make(optimizer=optimizer), print))
    state = make(model=model, step=0)
    raises(RuntimeError, "commit() belongs in the function that run_elastic() calls", state.commit)
    raises(AttributeError, "no state is called \"stpe\"", lambda: state.stpe)
    raises(AttributeError, "no state is called \"stpe\"", lambda: setattr(state, "stpe", 1))
    raises(AttributeError, "stays the same object", lambda: setattr(state, "model", Toy()))
    raises(ValueError, "counts the value \"step\"", lambda: ddp_run.Checkpointer("folder", make(model=model), every=5))
    raises(RuntimeError, "save() belongs in the function", ddp_run.Checkpointer("folder", make(model=model)).save)
    raises(TypeError, "train is a int", lambda: ddp_run.run_elastic(state, 1))

    def again(group):
        ddp_run.run_elastic(state, print)
    raises(RuntimeError, "must not be called in the function that it calls", lambda: ddp_run.run_elastic(state, again))

    def later(group):
        state.add("late", 1)
    raises(RuntimeError, "comes too late", lambda: ddp_run.run_elastic(state, later))

    def unstorable(group):
        state.step = object()
        state.commit()
    raises(RuntimeError, "step is a builtins.object, which no commit", lambda: ddp_run.run_elastic(state, unstorable))

    def fails(group):
        raise KeyError("of the program")
    raises(KeyError, "of the program", lambda: ddp_run.run_elastic(make(step=0), fails))

    def makes_shards(group):
        changed.body = torch.nn.UninitializedParameter()
        state.commit()
    changed = torch.nn.Linear(1, 1)
    state = make(model=changed)
    raises(RuntimeError, "body is a UninitializedParameter; tensors and DTensors", lambda: ddp_run.run_elastic(state, makes_shards))
    assert not torch.distributed.is_initialized()
    with tempfile.TemporaryDirectory() as folder:
        run(folder, model, optimizer, lambda state, checkpoints: checkpoints.save(1))
        other = torch.nn.Linear(3, 3)
        weights = ddp_run.weights_sha256(other)
        raises(ValueError, "module/model/weight", lambda: run(folder, other, torch.optim.SGD(other.parameters(), lr=0.1), print))
        raises(ValueError, "the saved optimizer is of type SGD, the program's of type Adam",
               lambda: run(folder, model, torch.optim.Adam(model.parameters()), print))
        assert ddp_run.weights_sha256(other) == weights


def an_optimizer_that_divides_its_state_is_refused():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = Toy()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    raises(TypeError, "optimizer is a ZeroRedundancyOptimizer, whose state is divided", lambda: ddp_run.ElasticState(model=model, optimizer=optimizer))
    torch.distributed.destroy_process_group()


def spawned_ranks_have_a_group():
    def total(rank, factor):
        values = torch.full((3,), float(rank * factor))
        torch.distributed.all_reduce(values)
        return rank, values.tolist()
    assert ddp_run.spawn(total, 3, 2) == [(rank, [6.0] * 3) for rank in range(3)]

    def fails(rank):
        raise KeyError(f"of rank {rank}")
    raises(torch.multiprocessing.ProcessRaisedException, "of rank ", lambda: ddp_run.spawn(fails, 2))
    raises(ValueError, "cannot start 0 processes", lambda: ddp_run.spawn(total, 0))


for case in (values_come_back, every_optimizer_goes_on_exactly, a_commit_restores_in_place, a_restore_writes_into_nobody_elses_memory,
             what_a_module_has_besides_tensors_comes_back, cpp_reads_and_writes_the_same_checkpoints,
             misuse_is_refused, an_optimizer_that_divides_its_state_is_refused, spawned_ranks_have_a_group):
    case()
    print(case.__name__, flush=True)
