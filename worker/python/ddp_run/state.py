"""What a program registers once, for commits in memory and checkpoints on disk."""
import torch

from ddp_run import generators, modules, optimizers, values
from ddp_run.logical import LogicalWorld

_PLAIN = (type(None), bool, int, float, str, list, dict, tuple, set, bytes, torch.Tensor)


class Registry:
    """Names and objects. `register(keeper)` tells a native State or Checkpointer of all of them.

    Modules, optimizers and whatever has state_dict() and load_state_dict() are referenced. Other values live here, and are
    attributes of the ElasticState.
    """

    def __init__(self, rng):
        self._rng = rng
        self.items = {}  # By name: objects with a state of their own.
        self.values = {}
        self._places = {}
        self.per_rank = set()

    def add(self, name, item, per_rank):
        if not name or "/" in name or name.startswith("_"):
            raise ValueError(f"\"{name}\" cannot name state: a name is not empty, begins with no '_' and contains no '/'")
        if name in self.items or name in self.values or name == generators.NAME:
            raise ValueError(f"\"{name}\" is registered already")
        for other, known in self.items.items():
            if known is item:
                raise ValueError(f"\"{name}\" and \"{other}\" are the same {type(item).__name__}; register it once")
        if isinstance(item, (torch.nn.Module, torch.optim.Optimizer)) and per_rank:
            raise ValueError(f"\"{name}\" is a {type(item).__name__}, which all ranks have alike; per_rank is for values")
        if isinstance(item, _PLAIN) and not isinstance(item, torch.nn.Parameter):
            values.encode(item, name)
            self.values[name] = item
            self._places[name] = values.Places(item)
        else:
            self._check(name, item)
            self.items[name] = item
        if per_rank:
            self.per_rank.add(name)

    def _check(self, name, item):
        if isinstance(item, torch.nn.Module):
            modules.tensors_of(item)
            values.encode(modules.extra_state(item), f"get_extra_state() of {name}")
        elif isinstance(item, torch.optim.Optimizer):
            optimizers.check(name, item)  # Its module may come later.
        elif not (callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None))):
            raise TypeError(f"{name} is a {type(item).__qualname__}; state is a module, an optimizer, a number, str, list or dict, or has "
                            "state_dict() and load_state_dict()")
        else:
            values.encode(item.state_dict(), f"{name}.state_dict()")

    def register(self, keeper):
        """keeper: a native State or Checkpointer. In the same order for every one."""
        for name, item in self.items.items():
            if isinstance(item, torch.nn.Module):
                keeper.add_module(name, lambda item=item: modules.tensors_of(item))
        for name, item in self.items.items():
            if isinstance(item, torch.optim.Optimizer):
                state = optimizers.OptimizerState(name, item, self.parameter_names)
                keeper.add_optimizer(name, state.describe, state.stage)
        for name, item in self.modules().items():
            if modules.extra_state(item):
                keeper.add_value(modules.EXTRA_STATE + name,
                                 lambda name=name, item=item: values.encode(modules.extra_state(item), f"get_extra_state() of {name}"),
                                 lambda saved, item=item: modules.load_extra_state(item, values.decode(saved)), False)
        if self._rng and self.logical_worlds():
            # A rank's own numbers would depend on how many workers there are.
            keeper.add_value(generators.NAME, generators.save_with_cpu, generators.load, False)
        elif self._rng:
            keeper.add_rng()
            keeper.add_value(generators.NAME, generators.save, generators.load, True)
        for name, item in self.items.items():
            if not isinstance(item, (torch.nn.Module, torch.optim.Optimizer)):
                keeper.add_value(name, lambda name=name, item=item: values.encode(item.state_dict(), f"{name}.state_dict()"),
                                 lambda saved, item=item: item.load_state_dict(values.decode(saved)), name in self.per_rank)
        for name in self.values:
            keeper.add_value(name, lambda name=name: values.encode(self.values[name], name),
                             lambda saved, name=name: self.put(name, saved), name in self.per_rank)

    def put(self, name, saved):
        """Gives a value back. In place are tensors that the value had when it was registered, or that an earlier call has made: any other
        one that is there now may be the program's data, a parameter, or another value's.
        """
        self.values[name] = values.decode(saved, self.values[name], places=self._places[name])
        self._places[name] = values.Places(self.values[name])

    def logical_worlds(self):
        """Those that are registered; they have to be told of each round."""
        return [item for item in self.items.values() if isinstance(item, LogicalWorld)]

    def modules(self):
        """By name."""
        return {name: item for name, item in self.items.items() if isinstance(item, torch.nn.Module)}

    def parameter_names(self):
        """By id(): the name in the module. With several modules, the module's name comes first."""
        all_modules = self.modules()
        names = {}
        for module_name, module in all_modules.items():
            prefix = f"{module_name}." if len(all_modules) > 1 else ""
            for name, parameter in modules.named_tensors(module)[0]:
                names.setdefault(id(parameter), prefix + name)
        return names
