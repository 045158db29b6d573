"""Python values as what a commit or a checkpoint can hold, and back.

A checkpoint holds JSON, so that loading one never runs code. None, bool, int, float, str, list and dict with keys of str are
themselves. Other values are an object with one key that begins with "$".
"""
import base64

import torch

from ddp_run import shards

_INT_LIMIT = 2**63
_PLAIN = (type(None), bool, float, str)


def encode(value, where="the value"):
    """Returns the value as None, bool, int, float, str, list or dict. Tensors are copied.

    Takes besides those: tuples, sets, bytes, ints of any size, dicts with other keys, torch.Tensor, numpy's arrays and scalars.
    Raises TypeError, which names the place, for anything else.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, int):
        return int(value) if -_INT_LIMIT <= value < _INT_LIMIT else {"$int": str(value)}
    if isinstance(value, list):
        return [encode(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [encode(each, f"{where}[{i}]") for i, each in enumerate(value)]}
    if isinstance(value, (set, frozenset)):
        return {"$set": [encode(each, f"{where}'s member {each!r}") for each in sorted(value)]}
    if isinstance(value, dict):
        return _encode_dict(value, where)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": _text(value)}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, where)
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return _encode_array(value, where)
    raise TypeError(f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which no commit or checkpoint can hold; "
                    "numbers, str, bytes, tensors, lists, tuples, sets and dicts of them can")


def decode(value, present=None, device="cpu"):
    """The inverse of encode().

    present: what the result takes the place of. A tensor of the same type and shape there gets the values and is the result; so are
    tensors in lists, tuples and dicts. Other tensors are made on the device of the one that they replace, or on `device`.
    """
    if isinstance(value, list):
        return _decode_items(value, present, device)
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if not kind.startswith("$"):
        return {key: decode(each, _item(present, key), device) for key, each in value.items()}
    if kind == "$tuple":
        return tuple(_decode_items(value[kind], present, device))
    if kind == "$dict":
        pairs = ((decode(key), each) for key, each in value[kind])
        return {key: decode(each, _item(present, key), device) for key, each in pairs}
    if kind == "$tensor":
        return _placed(_decode_tensor(value[kind]), present, device)
    return _DECODERS[kind](value[kind])


def _decode_items(items, present, device):
    there = present if isinstance(present, (list, tuple)) else ()
    return [decode(each, there[i] if i < len(there) else None, device) for i, each in enumerate(items)]


def _item(present, key):
    return present.get(key) if isinstance(present, dict) else None


def _placed(tensor, present, device):
    if not isinstance(present, torch.Tensor):
        return tensor.to(device)
    if (present.dtype, present.shape) != (tensor.dtype, tensor.shape):
        return tensor.to(present.device)
    with torch.no_grad():
        return present.copy_(tensor)


def _encode_dict(value, where):
    # JSON's objects come back with their keys sorted.
    is_plain = type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value) and list(value) == sorted(value)
    if is_plain:
        return {key: encode(each, f"{where}[{key!r}]") for key, each in value.items()}
    return {"$dict": [[encode(key, f"a key of {where}"), encode(each, f"{where}[{key!r}]")] for key, each in value.items()]}


def _encode_tensor(tensor, where):
    if shards.is_divided(tensor):
        raise TypeError(f"{where} is a DTensor; of those, parameters, buffers and tensors of optimizers can be kept")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{where} is a tensor of layout {tensor.layout}, which no commit or checkpoint can hold; convert it")
    plain = tensor.detach().cpu().contiguous()
    return {"$tensor": {"dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape),
                        "bytes": _text(bytes(plain.reshape(-1).view(torch.uint8).numpy())) if plain.numel() else ""}}


def _encode_array(array, where):
    if array.dtype.hasobject:
        raise TypeError(f"{where} is an array of Python objects, which no commit or checkpoint can hold")
    return {"$array": {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": _text(array.tobytes())}}


def _text(data):
    return base64.b64encode(data).decode()


def _decode_tensor(saved):
    tensor = torch.empty(saved["shape"], dtype=getattr(torch, saved["dtype"]))
    if tensor.numel():
        data = torch.frombuffer(bytearray(base64.b64decode(saved["bytes"])), dtype=torch.uint8)
        tensor.reshape(-1).view(torch.uint8).copy_(data)
    return tensor


def _decode_array(saved):
    import numpy
    array = numpy.frombuffer(bytearray(base64.b64decode(saved["bytes"])), dtype=saved["dtype"]).reshape(saved["shape"])
    return array if saved["shape"] else array[()]


_DECODERS = {
    "$int": int,
    "$set": lambda items: {decode(each) for each in items},
    "$bytes": base64.b64decode,
    "$array": _decode_array,
}
