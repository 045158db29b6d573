"""Random numbers that depend only on what they are for: the order of an epoch, the look of a sample."""
import contextlib
import random
from collections.abc import Iterator

import torch

try:
    import numpy.random as numpy_random
except ImportError:
    numpy_random = None  # type: ignore[assignment]

# SplitMix64.
_MASK = (1 << 64) - 1
_STEP = 0x9e3779b97f4a7c15
_ROUNDS = ((30, 0xbf58476d1ce4e5b9), (27, 0x94d049bb133111eb), (31, 1))


def mix(*parts: int) -> int:
    """64 bits, a function of the integers given. The same everywhere and for ever: checkpoints rely on it."""
    value = 0x243f6a8885a308d3
    for part in parts:
        value = ((value ^ part) + _STEP) & _MASK
        for shift, factor in _ROUNDS:
            value = (value ^ (value >> shift)) * factor & _MASK
    return value


def permutation(key: int, length: int) -> torch.Tensor:
    """0 .. length - 1 in an order that is a function of the key alone: sorted by the numbers that SplitMix64 gives from there.

    Not torch.randperm, because PyTorch may change what that returns, and a position in another order means nothing.
    """
    values = torch.arange(length, dtype=torch.int64, device="cpu").mul_(_signed(_STEP)).add_(_signed(key))
    for shift, factor in _ROUNDS:
        values ^= (values >> shift) & (_MASK >> shift)
        values *= _signed(factor)
    return torch.argsort(values, stable=True)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def seed(value: int) -> None:
    """Seeds the process's generators on the CPU: torch's, random's, and numpy's if there is numpy. 0 <= value < 2**64.

    Not torch.manual_seed, which seeds the generators of devices as well.
    """
    torch.default_generator.manual_seed(value)
    random.seed(value)
    if numpy_random:
        numpy_random.seed([value & 0xffffffff, value >> 32])


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts the generators that `seed` seeds back to where they were."""
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), numpy_random and numpy_random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        if numpy_random:
            numpy_random.set_state(of_numpy)
