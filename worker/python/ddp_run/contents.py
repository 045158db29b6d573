"""A checkpoint of ours as the dict that a program with PyTorch alone would have saved."""
import torch

from ddp_run import _native, generators, modules, optimizer_dicts, values


class Checkpoint:
    """The newest valid checkpoint at a path: a folder of checkpoints, or one of them. Every byte has been checked.

    path, step and skipped (lines on newer ones that are damaged) are attributes. Tensors lie in the mapped files: they are only to be
    copied from. Raises ValueError, which names the damaged file, if there is none.
    """

    def __init__(self, path):
        try:
            read = _native.read_checkpoint(str(path))
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        self.path, self.step, self.skipped = read["path"], read["step"], read["skipped"]
        self._state = read["state"]
        first = self._state.get("shared", {})
        self._tensors = {name: read["tensors"][first.get(name, name)] for name in read["tensors"]}

    def everything(self, by_name: bool = False) -> dict:
        """What the following have, by name."""
        parts = [self.modules(), self.optimizers(by_name), self.values()]
        names = [name for part in parts for name in part]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.path} has two things called \"{twice[0]}\", and one dict cannot hold both")
        return {name: each for part in parts for name, each in part.items()}

    def modules(self) -> dict[str, dict[str, torch.Tensor]]:
        """By module: the tensors by their names in it. What was one tensor is one."""
        found = {}
        for full, tensor in self._tensors.items():
            kind, _, rest = full.partition("/")
            if kind == "module":
                module, _, name = rest.partition("/")
                found.setdefault(module, {})[name] = tensor
        return found

    def optimizers(self, by_name: bool = False) -> dict[str, dict]:
        """By optimizer: what PyTorch's state_dict() gives. by_name: torch.distributed.checkpoint.state_dict's form of it."""
        found = {}
        for optimizer, description in self._state["optimizers"].items():
            place = f"optimizer/{optimizer}/"
            tensors = {}
            for full, tensor in self._tensors.items():
                if full.startswith(place):
                    parameter, _, key = full.removeprefix(place).rpartition("/")
                    tensors.setdefault(parameter, {})[key] = tensor
            names = [name for group in description["groups"] for name in group["params"]]
            prefix = optimizer_dicts.prefix_of(names, self.modules())
            keys = {name: name.removeprefix(prefix) if by_name else number for number, name in enumerate(names)}
            found[optimizer] = optimizer_dicts.state_dict_of(description, tensors, keys)
        return found

    def optimizer_names(self) -> list[str]:
        return list(self._state["optimizers"])

    def values(self) -> dict:
        """By name: values, and what state_dict() of schedulers and the like has returned. numpy's arrays are tensors."""
        return {name: values.plain(values.decode(value)) for name, value in self._state["values"].items()
                if name != generators.NAME and not name.startswith(modules.EXTRA_STATE)}

    def left_out(self) -> list[str]:
        """Notes on what is not in the above."""
        return [*(f"the communication hook \"{name}\" is left out" for name in self._state.get("comm_hooks", {})),
                *(f"what get_extra_state() of \"{name.removeprefix(modules.EXTRA_STATE)}\" has given is left out"
                  for name in self._state["values"] if name.startswith(modules.EXTRA_STATE))]
