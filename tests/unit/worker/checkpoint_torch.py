"""PyTorch's side of the tests of ddp-checkpoint export and import: `read FILE...` prints one line per tensor of a file for
torch.load(weights_only=True) (name, type, shape, bytes in hexadecimal) in the order of the dict; `state FILE` writes the state
dict of a small module with safetensors' layout, and prints the same lines."""
import json
import struct
import sys
import zipfile

import torch

NAMES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
         torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}


def content(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def show(state):
    for name, tensor in state.items():
        shape = "".join(f"{size}," for size in tensor.shape)
        print(f"{name} {NAMES[tensor.dtype]} [{shape}] {content(tensor).hex() or '-'}")


def read(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None, "a checksum of the zip does not hold"
        for item in archive.infolist():
            with open(path, "rb") as file:
                file.seek(item.header_offset + 26)
                name, extra = struct.unpack("<HH", file.read(4))
            assert (item.header_offset + 30 + name + extra) % 64 == 0, item.filename + " is not aligned"
    state = torch.load(path, weights_only=True)
    assert type(state) is dict, type(state)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in state.values())
    show(state)


def state(path):
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm2d(3))
    module(torch.randn(4, 2, 5, 5))
    header, body = {"__metadata__": {"format": "pt"}}, b""
    values = module.state_dict()
    for name, tensor in values.items():
        data = content(tensor)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    show(values)


for argument in sys.argv[2:]:
    {"read": read, "state": state}[sys.argv[1]](argument)
