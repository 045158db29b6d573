"""What other programs have saved, read without running code of theirs."""
import copy
import json
from pathlib import Path

import torch

from ddp_run import _native, torch_files
from ddp_run.contents import Checkpoint

# The weights in a folder of Hugging Face, new and old. With .index.json after the name: which file has which tensor.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
          "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32,
          "F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64}


def read(path) -> tuple[dict, list[str]]:
    """What the file or folder holds, as a dict, and notes. Tensors are on the CPU; those of modules are only to be copied from.

    Raises ValueError, which names the file, for what is damaged, of no known kind or needs pickle; OSError for what cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return _read_file(path), []
    if (path / ".metadata").exists():
        from ddp_run import dcp_folders  # Not before: its imports take long.
        return dcp_folders.read(path), []
    for name in _WEIGHTS:
        if (path / f"{name}.index.json").exists():
            return _read_sharded(path / f"{name}.index.json"), []
        if (path / name).exists():
            return _read_file(path / name), []
    try:
        checkpoint = Checkpoint(path)
    except ValueError as error:
        raise ValueError(f"{path} has neither .metadata (of torch.distributed.checkpoint) nor {' or '.join(_WEIGHTS)} (of Hugging Face, "
                         f"with or without .index.json), and of ddp_run: {error}") from None
    # Optimizers keep the tensors that they are given.
    content = checkpoint.everything()
    content |= copy.deepcopy({name: content[name] for name in checkpoint.optimizer_names()})
    return content, [*checkpoint.skipped, *checkpoint.left_out()]


def _read_file(path):
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _read_torch(path):
    with open(path, "rb") as file:
        content = torch_files.read(file, path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of state")
    return content


def _read_safetensors(path):
    try:
        found = _native.read_safetensors(str(path))
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return {name: _tensor(*each) for name, each in found.items()}


def _tensor(kind, shape, data):
    dtype = _TYPES[kind]
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()  # Others' files need not align what they hold.
    return data.view(dtype).reshape(shape)


def _read_sharded(index):
    folder = index.parent
    try:
        places = json.loads(index.read_text())["weight_map"].items()
        if not all(isinstance(file, str) and Path(file).name == file for _, file in places):
            raise ValueError("a file that is not in the folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is damaged: {error}") from None
    shards = {file: _read_file(folder / file) for file in sorted({file for _, file in places})}
    for name, file in places:
        if name not in shards[file]:
            raise ValueError(f"{folder / file} has no tensor \"{name}\", which {index.name} says to be there")
    return {name: tensor for shard in shards.values() for name, tensor in shard.items()}
