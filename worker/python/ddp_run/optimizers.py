"""An optimizer's state by the names of its parameters, as worker/checkpoint/FORMAT.md has it.

PyTorch's own state_dict() numbers the parameters. By name, a checkpoint of Python is one of C++, too: options and state have
the same names there, except that C++ keeps `step` as a number.
"""
import torch

from ddp_run import shards, values


class OptimizerState:
    """Describes one optimizer, and puts a description back.

    names() -> the names of all parameters that may be in the optimizer, by id().
    """

    def __init__(self, name, optimizer, names):
        self._name = name
        self._optimizer = optimizer
        self._names = names
        self._counts_in_tensors = type(optimizer).__module__.startswith("torch.optim.") and counts_in_tensors(type(optimizer).__name__)
        self._named_groups()

    def describe(self):
        """Returns the description, and the tensors as shards.tell() has them."""
        tensors, state, groups = [], {}, []
        for group, params in self._named_groups():
            where = f"the optimizer \"{self._name}\""
            options = {key: _encode(each, f"{where}'s option {key}") for key, each in group.items() if key != "params"}
            options = {key: each["$tuple"] if isinstance(each, dict) and "$tuple" in each else each for key, each in options.items()}
            groups.append({"params": list(params), "options": options})
            for name, parameter in params.items():
                if parameter not in self._optimizer.state:
                    continue
                scalars = state[name] = {}
                for key, each in self._optimizer.state[parameter].items():
                    if self._is_count(key) and isinstance(each, torch.Tensor):
                        scalars[key] = int(each.item())
                    elif isinstance(each, torch.Tensor):
                        tensors.append(shards.tell(f"{name}/{key}", each))
                    else:
                        scalars[key] = _encode(each, f"{where}'s {key} of {name}")
        return {"type": type(self._optimizer).__name__, "groups": groups, "state": state}, tensors

    def stage(self, description, sizes, read):
        """Returns a function that puts the description into the optimizer. It does not fail.

        sizes: by name, of the tensors there are. read: as read_like() takes it. Tensors that the optimizer has already get their
        values in place. Raises ValueError, which says what differs, for the description of another optimizer.
        """
        kind = type(self._optimizer).__name__
        if description["type"] != kind:
            raise ValueError(f"the saved optimizer is of type {description['type']}, the program's of type {kind}")
        groups = self._named_groups()
        if len(description["groups"]) != len(groups):
            raise ValueError(f"there are {len(description['groups'])} saved parameter groups, the program has {len(groups)}")
        tensors = {}
        for name in sizes:
            parameter, _, key = name.rpartition("/")
            tensors.setdefault(parameter, {})[key] = name

        def read_one(name, like):
            return shards.read_like(like, name, sizes[name], read)

        changes, known = [], set()
        for number, ((group, params), saved) in enumerate(zip(groups, description["groups"])):
            if list(params) != saved["params"]:
                raise ValueError(f"group {number} has other parameters than the saved one")
            changes.append(_stage_options(group, saved["options"]))
            for name, parameter in params.items():
                known.add(name)
                changes.append(self._stage_parameter(group, parameter, name, description["state"].get(name), tensors.get(name, {}), read_one))
        for name in description["state"]:
            if name not in known:
                raise ValueError(f"no parameter is called \"{name}\"")
        return lambda: [change() for change in changes]

    def _stage_parameter(self, group, parameter, name, scalars, tensors, read):
        state = self._optimizer.state
        if scalars is None:
            return lambda: state.pop(parameter, None)
        present = state.get(parameter, {})
        moves, made = [], {}
        for key, full_name in tensors.items():
            own = present.get(key)
            saved = read(full_name, own if isinstance(own, torch.Tensor) else parameter)
            if isinstance(own, torch.Tensor) and own.shape == saved.shape and own.dtype == saved.dtype:
                moves.append((own, saved))
                made[key] = own
            else:
                made[key] = saved.to(parameter.device)
        for key, saved in scalars.items():
            own = present.get(key)
            if not self._is_count(key):
                made[key] = values.decode(saved, device=parameter.device)
            elif isinstance(own, torch.Tensor):
                moves.append((own, torch.tensor(float(saved))))
                made[key] = own
            else:
                made[key] = _step(group, parameter, saved)

        def apply():
            _copy(moves)
            state[parameter] = made
        return apply

    def named_groups(self):
        """The names of the parameters of each group, in order."""
        return [list(params) for _, params in self._named_groups()]

    def _is_count(self, key):
        return key == "step" and self._counts_in_tensors

    def _named_groups(self):
        """The groups, each with its parameters by name."""
        names = self._names()
        groups = []
        for number, group in enumerate(self._optimizer.param_groups):
            named = {}
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    raise ValueError(f"parameter {place} of group {number} of the optimizer \"{self._name}\" belongs to no module that is "
                                     "registered; register its module, too")
                named[names[id(parameter)]] = parameter
            groups.append((group, named))
        return groups


def check(name, optimizer):
    """Raises TypeError for one whose state is that of another optimizer inside, which each rank has a part of."""
    inner = getattr(optimizer, "optim", None)
    if isinstance(inner, torch.optim.Optimizer) and inner.state is not optimizer.state:
        raise TypeError(f"{name} is a {type(optimizer).__qualname__}, whose state is divided among the ranks in a way that only it knows; take "
                        "fully_shard(), whose optimizers can be kept, or save what consolidate_state_dict() gives")


def counts_in_tensors(kind):
    """Whether the optimizer of this type in torch.optim keeps its count of steps as a tensor. C++'s are numbers, and so is a checkpoint's."""
    return hasattr(torch.optim, kind) and kind != "SparseAdam"


def _encode(value, where):
    """numpy's float64, which is a float, as one that C++ can read."""
    return values.encode(float(value) if isinstance(value, float) else value, where)


def _stage_options(group, saved):
    """The change that puts the saved options into the group, in the types that it has. What it lacks stays as it is."""
    options, moves = {}, []
    for key, each in saved.items():
        own, value = group.get(key), values.decode(each)
        if isinstance(own, torch.Tensor):
            moves.append((own, value if isinstance(value, torch.Tensor) else torch.tensor(value)))
        else:
            options[key] = tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value

    def apply():
        _copy(moves)
        group.update(options)
    return apply


def _copy(moves):
    with torch.no_grad():
        for own, saved in moves:
            own.copy_(saved)


def _step(group, parameter, step):
    """A count of steps as PyTorch's optimizers keep it: on the host, except where kernels of the device read it."""
    on_device = group.get("capturable") or group.get("fused")
    return torch.tensor(float(step), dtype=torch.float32, device=parameter.device if on_device else "cpu")
