"""Folders of torch.distributed.checkpoint (DCP), written and read by one process.

Such a folder is made of pickles, and DCP's own reader runs what they ask for. Here nothing is read but DCP's records of what lies
where, tensors and plain values.
"""
import contextlib
import pickle
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as records

from ddp_run import torch_files

_RECORDS = "torch.distributed.checkpoint.metadata"
_NAMES = {
    _RECORDS: {"Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
               "StorageMeta", "_MEM_FORMAT_ENCODING"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}


def write(state: dict, path) -> None:
    """Makes the folder, with everything on the disk but its name. Raises OSError."""
    try:
        with _alone():
            dcp.save(state, storage_writer=dcp.FileSystemWriter(path))
    except dcp.CheckpointException as error:
        raise OSError(_cause(error)) from error


def read(path) -> dict:
    """All that the folder holds, whole tensors on the CPU. Keys of dicts are str. Runs no code of the folder.

    Raises ValueError for a folder that needs more than that, or is damaged.
    """
    try:
        reader = _Reader(path)
        metadata = reader.read_metadata()
        flat = {name: _room_for(record) for name, record in metadata.state_dict_metadata.items()}
        planner = _Planner()
        with _alone():
            dcp.load(flat, storage_reader=reader, planner=planner)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is damaged: {error.filename} is missing") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, RuntimeError, dcp.CheckpointException) as error:
        raise ValueError(f"{path} is damaged, or no folder of torch.distributed.checkpoint that can be read without running code of it: "
                         f"{_cause(error)}") from None
    return _nested({**flat, **planner.plain}, metadata.planner_data or {})


class _Records(pickle.Unpickler):
    """Of the file .metadata."""

    def find_class(self, module, name):
        if name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__):
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _Records(file).load()
        if not isinstance(metadata, records.Metadata):
            raise pickle.UnpicklingError(f".metadata is a {type(metadata).__name__}")
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or records.StorageMeta()
        return metadata


class _Planner(dcp.DefaultLoadPlanner):
    def __init__(self):
        super().__init__()
        self.plain = {}  # What is no tensor, by its flat name.

    def load_bytes(self, read_item, value):
        name = read_item.dest_index.fqn
        self.plain[name] = torch_files.read(value, name)


def _room_for(record):
    if isinstance(record, records.TensorStorageMetadata):
        return torch.empty(record.size, dtype=record.properties.dtype)
    return None


def _nested(flat, paths):
    """paths: of a flat name, the keys that lead to it; those of lists are int."""
    root = {}
    for name, value in flat.items():
        *way, last = paths.get(name, (name,))
        inner = root
        for key in way:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return _with_lists(root)


def _with_lists(value):
    if not isinstance(value, dict):
        return value
    if value and all(type(key) is int for key in value):
        return [_with_lists(value[key]) for key in sorted(value)]
    return {key: _with_lists(each) for key, each in value.items()}


def _cause(error):
    failures = list(getattr(error, "failures", {}).values())  # Of CheckpointException: by rank.
    if failures:
        error = failures[0][0] if isinstance(failures[0], tuple) else failures[0]
    return str(error).strip().split("\n")[0]


@contextlib.contextmanager
def _alone():
    """DCP warns of a process without a group, and reads and writes together with all ranks of one that has a group."""
    if dist.is_initialized():
        raise RuntimeError("a folder of torch.distributed.checkpoint is written and read by one process: do it outside of run_elastic() "
                           "and before init_process_group()")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
