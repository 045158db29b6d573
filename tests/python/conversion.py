"""What the tests of exports and imports share: a model, its training, and a checkpoint of it."""
import warnings

import torch

import ddp_run

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "AdamW": {"amsgrad": True}, "Adafactor": {}, "Rprop": {},
    "LBFGS": {"lr": 0.05, "history_size": 3}, "Adam": {"lr": torch.tensor(0.01)},
}


class Net(torch.nn.Module):
    """Shared weights, buffers, two types, a tensor without dimensions and one without elements."""

    def __init__(self, words=11):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, words)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.small = torch.nn.Parameter(torch.ones(6, dtype=torch.bfloat16))
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.embed(x)) * self.small.float()) * self.scale + self.empty.sum()


def made(kind="SGD", words=11):
    torch.manual_seed(1)
    model = Net(words)
    groups = [{"params": [*model.embed.parameters(), *model.norm.parameters()]},
              {"params": [model.head.bias, model.scale, model.small], "lr": OPTIMIZERS[kind].get("lr", 0.02)}]
    if kind != "Adafactor":  # It divides by the number of elements.
        groups[1]["params"].append(model.empty)
    return model, getattr(torch.optim, kind)(list(model.parameters()) if kind == "LBFGS" else groups, **OPTIMIZERS[kind])


def train(model, optimizer, first, last):
    for step in range(first, last):
        x = torch.randint(11, (8,), generator=torch.Generator().manual_seed(step))

        def loss():
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(model(x), x)
            value.backward()
            assert value.isfinite()
            return value
        optimizer.step(loss)


def trained(kind="SGD", steps=6):
    pair = made(kind)
    train(*pair, 0, steps)
    return pair


def saved(folder, kind="SGD", steps=3, **values):
    """Trains under ddp_run, and saves the checkpoint. Returns model and optimizer as they were."""
    model, optimizer = made(kind)
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, **values)
    checkpoints = ddp_run.Checkpointer(f"{folder}/run", state, asynchronous=False)

    def body(group):
        train(model, optimizer, 0, steps)
        state.step = steps
        checkpoints.save()
    ddp_run.run_elastic(state, body)
    return model, optimizer


def continued(path, kind, **items):
    """Goes on under ddp_run from what was imported, to step 6. Returns the weights' hash and load_from()'s report."""
    model, optimizer = made(kind)
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, **items)
    report = state.load_from(path)

    def body(group):
        train(model, optimizer, 3, 6)
    ddp_run.run_elastic(state, body)
    return ddp_run.weights_sha256(model), report


def same(one, other, where="state"):
    assert type(one) is type(other), f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {list(one)} and {list(other)}"
        for key in one:
            same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other)):
            same(a, b, f"{where}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), f"{where}: {one} and {other}"
    else:
        assert one == other, f"{where}: {one} and {other}"


def in_order(tensors):
    """A state_dict() as a plain dict in the order of names."""
    return {key: tensors[key].detach() for key in sorted(tensors)}


def run(cases):
    torch.set_num_threads(1)  # With one thread, the order of sums is fixed.
    warnings.filterwarnings("ignore", message="torch.distributed is")  # DCP, of a process without a group.
    for case in cases:
        case()
        print(case.__name__, flush=True)
