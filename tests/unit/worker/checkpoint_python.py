"""Reads and writes safetensors, written from the format's specification alone: `read FILE` prints one line per tensor (name,
type, shape, bytes in hexadecimal), `write FILE` makes a file from such lines on standard input."""
import json
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    assert (8 + length) % 8 == 0, "the data is not aligned"
    body = data[8 + length :]
    end = 0
    for name, item in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
        assert item["data_offsets"][0] == end, "a hole before " + name
        end = item["data_offsets"][1]
    assert end == len(body), "bytes behind the last tensor"
    for name, item in sorted(header.items()):
        begin, end = item["data_offsets"]
        shape = "".join(f"{size}," for size in item["shape"])
        print(f"{name} {item['dtype']} [{shape}] {body[begin:end].hex() or '-'}")


def write(path):
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for line in sys.stdin:
        name, dtype, shape, digits = line.split()
        content = b"" if digits == "-" else bytes.fromhex(digits)
        sizes = [int(size) for size in shape[1:-1].split(",") if size]
        header[name] = {"dtype": dtype, "shape": sizes, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


{"read": read, "write": write}[sys.argv[1]](sys.argv[2])
