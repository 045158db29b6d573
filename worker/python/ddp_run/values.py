"""Python values as what a commit or a checkpoint can hold, and back.

A checkpoint holds JSON, so that loading one never runs code. None, bool, int, float, str, list and dict with keys of str are
themselves. Other values are an object with one key that begins with "$", and "$type" beside a "$dict" that is no plain dict.
"""
import base64
import collections
import weakref

import torch

from ddp_run import shards

_INT_LIMIT = 2**63
_PLAIN = (type(None), bool, float, str)
_SEQUENCES = {tuple: "$tuple", torch.Size: "$size"}
_SETS = {set: "$set", frozenset: "$frozenset"}
_DICTS = {"OrderedDict": collections.OrderedDict, "Counter": collections.Counter}
_BYTES = {bytes: "$bytes", bytearray: "$bytearray"}
# What a value of another class might be taken for.
_BASES = (int, float, str, list, *_SEQUENCES, *_SETS, dict, *_BYTES)


def encode(value, where="the value"):
    """Returns the value as None, bool, int, float, str, list or dict. Tensors are copied.

    Takes besides those: tuples, torch.Size, sets, frozensets, bytes, bytearrays, ints of any size, dicts with other keys, OrderedDict,
    Counter, torch.Tensor, numpy's arrays and scalars. Raises TypeError, which names the place, for anything else, also for what is
    derived from one of these: it would come back as another type.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {"$int": str(value)}
    if kind is list:
        return [encode(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [encode(each, f"{where}[{i}]") for i, each in enumerate(value)]}
    if kind in _SETS:
        return {_SETS[kind]: [encode(each, f"{where}'s member {each!r}") for each in sorted(value)]}
    if kind is dict or kind in _DICTS.values():
        return _encode_dict(value, where)
    if kind in _BYTES:
        return {_BYTES[kind]: _text(value)}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, where)
    if kind.__module__ == "numpy" and hasattr(value, "dtype"):
        return _encode_array(value, where)
    base = next((base for base in _BASES if isinstance(value, base)), None)
    remedy = f"make it of type {base.__name__}" if base else "numbers, str, bytes, tensors, lists, tuples, sets and dicts of them can"
    raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which no commit or checkpoint can hold; {remedy}")


class Places:
    """The tensors in a value that are its own: they may be written to, each once."""

    def __init__(self, value):
        self._tensors = {}  # By id(). A program may let go of them.
        self._add(value)

    def take(self, tensor):
        """Whether it is one."""
        known = self._tensors.pop(id(tensor), None)
        return known is not None and known() is tensor

    def _add(self, value):
        if isinstance(value, torch.Tensor):
            overlaps = any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride()))
            if not value.is_inference() and not overlaps:
                self._tensors[id(value)] = weakref.ref(value)
        elif isinstance(value, (list, tuple, dict)):
            for each in value.values() if isinstance(value, dict) else value:
                self._add(each)


def decode(value, present=None, device="cpu", places=None):
    """The inverse of encode().

    present: what the result takes the place of. A tensor of the same type and shape there that is one of `places` gets the values and is
    the result; so are tensors in lists, tuples and dicts. Other tensors are made on the device of the one that they replace, or on `device`.
    """
    if isinstance(value, list):
        return _decode_items(value, present, device, places)
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if not kind.startswith("$"):
        return {key: decode(each, _item(present, key), device, places) for key, each in value.items()}
    for sequence, tag in _SEQUENCES.items():
        if kind == tag:
            return sequence(_decode_items(value[kind], present, device, places))
    if kind == "$dict":
        pairs = ((decode(key), each) for key, each in value[kind])
        decoded = {key: decode(each, _item(present, key), device, places) for key, each in pairs}
        return _DICTS[value["$type"]](decoded) if "$type" in value else decoded
    if kind == "$tensor":
        return _placed(_decode_tensor(value[kind]), present, device, places)
    return _DECODERS[kind](value[kind])


def plain(value):
    """The value in types that torch.load(weights_only=True) reads."""
    if isinstance(value, dict):
        return type(value)({plain(key): plain(each) for key, each in value.items()})
    if isinstance(value, frozenset):
        return set(value)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(each) for each in value)
    if type(value).__module__ != "numpy":
        return value
    if value.ndim == 0:
        return value.item()
    return torch.from_numpy(value) if value.dtype.kind in "biufc" else value.tolist()


def _decode_items(items, present, device, places):
    there = present if isinstance(present, (list, tuple)) else ()
    return [decode(each, there[i] if i < len(there) else None, device, places) for i, each in enumerate(items)]


def _item(present, key):
    return present.get(key) if isinstance(present, dict) else None


def _placed(tensor, present, device, places):
    if not isinstance(present, torch.Tensor):
        return tensor.to(device)
    fits = (present.dtype, present.shape) == (tensor.dtype, tensor.shape)
    if not fits or places is None or not places.take(present):
        return tensor.to(present.device)
    with torch.no_grad():
        return present.copy_(tensor)


def _encode_dict(value, where):
    # JSON's objects come back with their keys sorted.
    is_plain = type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value) and list(value) == sorted(value)
    if is_plain:
        return {key: encode(each, f"{where}[{key!r}]") for key, each in value.items()}
    kind = {"$type": type(value).__name__} if type(value) is not dict else {}
    return {"$dict": [[encode(key, f"a key of {where}"), encode(each, f"{where}[{key!r}]")] for key, each in value.items()], **kind}


def _encode_tensor(tensor, where):
    if shards.is_divided(tensor):
        raise TypeError(f"{where} is a DTensor; of those, parameters, buffers and tensors of optimizers can be kept")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{where} is a {type(tensor).__qualname__}, which would come back as a Tensor; keep what as_subclass(torch.Tensor) gives")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{where} is a tensor of layout {tensor.layout}, which no commit or checkpoint can hold; convert it")
    plain = tensor.detach().cpu().contiguous()
    return {"$tensor": {"dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape),
                        "bytes": _text(bytes(plain.reshape(-1).view(torch.uint8).numpy())) if plain.numel() else ""}}


def _encode_array(array, where):
    if array.dtype.hasobject:
        raise TypeError(f"{where} is an array of Python objects, which no commit or checkpoint can hold")
    if array.dtype.fields or type(array).__name__ in ("matrix", "memmap", "recarray", "MaskedArray"):
        raise TypeError(f"{where} is a {type(array).__name__} of {array.dtype}, which would come back as a plain array; keep plain arrays")
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
    "$frozenset": lambda items: frozenset(decode(each) for each in items),
    "$bytes": base64.b64decode,
    "$bytearray": lambda text: bytearray(base64.b64decode(text)),
    "$array": _decode_array,
}
