"""A module's tensors, by name."""
import torch

from ddp_run import _native


def tensors_of(module: torch.nn.Module) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Parameters, and buffers that state_dict() has, each under all of its names. In the order of definition."""
    parameters, buffers = [], []
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        parameters += [(prefix + name, each) for name, each in part._parameters.items() if each is not None]
        buffers += [(prefix + name, each) for name, each in part._buffers.items()
                    if each is not None and name not in part._non_persistent_buffers_set]
    for name, tensor in parameters + buffers:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"{name} is a {type(tensor).__qualname__}; only whole tensors can be kept, no shards and none that are not made yet")
    return parameters, buffers


def weights_sha256(module: torch.nn.Module) -> str:
    """The SHA-256 over names, types, shapes and bytes of all parameters and buffers that state_dict() has, in the order of names.

    The same function as ddp-train's `weights_sha256`. Hexadecimal. Tensors on devices are copied to the host one by one.
    """
    return _native.weights_sha256(lambda: tensors_of(module))
