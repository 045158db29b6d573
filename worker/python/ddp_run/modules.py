"""A module's tensors, by name."""
import torch

from ddp_run import _native, shards

EXTRA_STATE = "_extra_state."  # The name of such state begins with it, and no name of a program with "_".
NamedTensors = list[tuple[str, torch.Tensor]]


def named_tensors(module: torch.nn.Module) -> tuple[NamedTensors, NamedTensors]:
    """Parameters, and buffers that state_dict() has, each under all of its names. In the order of definition."""
    shards.reshard(module)
    parameters, buffers = [], []
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        parameters += [(prefix + name, each) for name, each in part._parameters.items() if each is not None]
        buffers += [(prefix + name, each) for name, each in part._buffers.items()
                    if each is not None and name not in part._non_persistent_buffers_set]
    for name, tensor in parameters + buffers:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not shards.is_divided(tensor):
            raise TypeError(f"{name} is a {type(tensor).__qualname__}; tensors and DTensors can be kept, and none that are not made yet")
    return parameters, buffers


def tensors_of(module: torch.nn.Module) -> tuple[list[tuple], list[tuple]]:
    """The same as native code takes them (shards.tell)."""
    return tuple([shards.tell(name, tensor) for name, tensor in tensors] for tensors in named_tensors(module))


def extra_state(module: torch.nn.Module) -> dict:
    """What its parts give PyTorch's state_dict() besides tensors, by the part's name; empty if none does."""
    return {path: part.get_extra_state() for path, part in module.named_modules()
            if type(part).get_extra_state is not torch.nn.Module.get_extra_state}


def load_extra_state(module: torch.nn.Module, saved: dict) -> None:
    for path, state in saved.items():
        module.get_submodule(path).set_extra_state(state)


def weights_sha256(module: torch.nn.Module) -> str:
    """The SHA-256 over names, types, shapes and bytes of all parameters and buffers that state_dict() has, in the order of names.

    The same function as ddp-train's `weights_sha256`. Hexadecimal. Tensors on devices are copied to the host one by one. A module of
    FSDP2 is gathered: collective, and each rank needs memory for the whole.
    """
    return _native.weights_sha256(
        lambda: tuple([(name, shards.whole(tensor)) for name, tensor in tensors] for tensors in named_tensors(module)))
