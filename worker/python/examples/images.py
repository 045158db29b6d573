"""Digits for the examples: MNIST's files in a folder, or made-up ones."""
import gzip
from pathlib import Path

import torch
from torch.utils.data import TensorDataset


def digits(folder: str | None, limit: int = 4096) -> TensorDataset:
    """Images of 1 x 28 x 28 from 0 to 1, and their labels. Without a folder: ten random patterns, with noise."""
    if folder:
        images = _idx(Path(folder) / "train-images-idx3-ubyte.gz")[:limit].reshape(-1, 1, 28, 28).float() / 255
        return TensorDataset(images, _idx(Path(folder) / "train-labels-idx1-ubyte.gz")[:limit].long())
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (limit,), generator=generator)
    patterns = torch.rand(10, 1, 28, 28, generator=generator)
    return TensorDataset((patterns[labels] + 0.3 * torch.randn(limit, 1, 28, 28, generator=generator)).clamp(0, 1), labels)


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 5, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Dropout(0.25), torch.nn.Linear(512, 10))


def _idx(path: Path) -> torch.Tensor:
    data = bytearray(gzip.decompress(path.read_bytes()))
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * data[3]).reshape(shape)
