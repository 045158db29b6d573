#!/usr/bin/env python3
"""Writes the corpus of checkpoint_fuzzer: make_checkpoint_corpus.py CORPUS_DIR."""
import json
import struct
import sys
from pathlib import Path

TYPES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4,
         "F32": 4, "F64": 8, "I64": 8, "U64": 8}


def file(tensors, metadata=None, padding=0, behind=b"", data=None):
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        size = TYPES[dtype]
        for count in shape:
            size *= count
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * padding
    return b"\0" + struct.pack("<Q", len(text)) + text + (bytes(at) if data is None else data) + behind


def manifest(**changes):
    sum_ = "0123456789abcdef0123456789abcdef"
    members = {
        "format": "ddp-checkpoint", "version": 1, "step": 3, "epoch": -1, "world_size": 2, "round": 0,
        "state": {"values": {"loss": {"$float": "7ff8000000000000"}, "lr": 0.1}, "optimizers": {}},
        "rank_state": [{"values": {}}, {"values": {"own": [1, None, True]}}],
        "files": [{"name": "s", "bytes": 9, "xxh3_128": sum_}],
        "tensors": [{"name": "a", "file": "s", "dtype": "F32", "shape": [2, 3], "xxh3_128": sum_},
                    {"name": "a", "file": "s", "dtype": "U8", "shape": [], "xxh3_128": sum_, "rank": 1}],
    }
    members.update(changes)
    lines = ",\n".join(f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in members.items())
    return b"\1{\n" + lines.encode() + b",\n"


def main():
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    inputs = {
        "file_empty": file([]), "file_metadata": file([], {"format": "pt"}, padding=3),
        "file_types": file([(name.lower(), name, [2]) for name in TYPES]),
        "file_shapes": file([("scalar", "F32", []), ("none", "I64", [4, 0, 2]), ("cube", "U8", [2, 2, 2])]),
        "file_behind": file([("a", "U8", [2])], behind=b"x"), "file_short": file([("a", "F64", [2])], data=b"1234567"),
        "file_huge": b"\0" + struct.pack("<Q", 1 << 62) + b"{}", "file_prefix": b"\0\2\0\0",
        "manifest": manifest(), "manifest_small": manifest(world_size=1, rank_state=[{}], files=[], tensors=[]),
        "manifest_save": manifest(save="word-7"), "manifest_version": manifest(version=2),
        "manifest_numbers": manifest(step=2 ** 63 - 1, state={"values": {"x": [1e308, 2 ** 64 - 1, -(2 ** 63)]}}),
        "manifest_huge": manifest(epoch=9.2e48, files=[{"name": "s", "bytes": -1.5, "xxh3_128": "0" * 32}]),
    }
    for name, data in inputs.items():
        (corpus / name).write_bytes(data)


main()
