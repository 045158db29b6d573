"""Python values as what a commit or a checkpoint can hold, and back.

A checkpoint holds JSON, so that loading one never runs code. None, bool, int, float, str, list and dict with keys of str are
themselves. Other values are an object with one key that begins with "$".
"""
import base64

import torch

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


def decode(value):
    """The inverse of encode()."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if not kind.startswith("$"):
        return {key: decode(each) for key, each in value.items()}
    return _DECODERS[kind](value[kind])


def _encode_dict(value, where):
    is_plain = type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value)
    if is_plain:
        return {key: encode(each, f"{where}[{key!r}]") for key, each in value.items()}
    return {"$dict": [[encode(key, f"a key of {where}"), encode(each, f"{where}[{key!r}]")] for key, each in value.items()]}


def _encode_tensor(tensor, where):
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
    "$tuple": lambda items: tuple(decode(each) for each in items),
    "$set": lambda items: {decode(each) for each in items},
    "$dict": lambda items: {decode(key): decode(each) for key, each in items},
    "$bytes": base64.b64decode,
    "$tensor": _decode_tensor,
    "$array": _decode_array,
}
