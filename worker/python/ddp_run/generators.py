"""The random generators of a process besides PyTorch's for the CPU, which libddp keeps itself."""
import random
import sys

import torch

from ddp_run import values

NAME = "generators"  # Of their state, among the registered values.

def save():
    """The states of Python's `random`, and of numpy and CUDA where the program uses them."""
    version, numbers, gauss = random.getstate()
    state = {"random": [version, values.encode(b"".join(each.to_bytes(4, "little") for each in numbers)), gauss]}
    if "numpy" in sys.modules:
        state["numpy"] = values.encode(sys.modules["numpy"].random.get_state())
    if torch.cuda.is_initialized():
        state["cuda"] = [values.encode(each) for each in torch.cuda.get_rng_state_all()]
    return state


def save_with_cpu():
    """What save() returns, and PyTorch's for the CPU: of programs whose ranks have the same numbers, as logical ranks have them."""
    return {**save(), "torch": values.encode(torch.get_rng_state())}


def load(state):
    """Puts back what save() or save_with_cpu() has returned."""
    version, packed, gauss = state["random"]
    packed = values.decode(packed)
    numbers = tuple(int.from_bytes(packed[i:i + 4], "little") for i in range(0, len(packed), 4))
    random.setstate((version, numbers, gauss))
    if "numpy" in state:
        import numpy
        numpy.random.set_state(values.decode(state["numpy"]))
    if "torch" in state:
        torch.set_rng_state(values.decode(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([values.decode(each) for each in state["cuda"]][:torch.cuda.device_count()])
