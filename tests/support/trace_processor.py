"""Perfetto's trace processor, as Debian's package chromium-shell has it: SQL over a trace.

Debian's package perfetto has the recorder only. Chromium's test library has the trace processor, as C++ objects; what it needs of them
here is that objects are passed by address, and how its standard library (libc++) lays out a vector and a string.
"""
import ctypes
from pathlib import Path

LIBRARY = Path("/usr/lib/chromium/libtest_trace_processor.so")
_CLASS = "_ZN4base4test22TestTraceProcessorImpl"
_QUERY = "_ZNK4base4test22TestTraceProcessorImpl12ExecuteQueryERKNSt3__112basic_stringIcNS2_11char_traitsIcEENS2_9allocatorIcEEEE"
_ROOM = 8192  # More than any of the objects needs.
_WORD = 8
_Words = ctypes.c_uint64 * 3  # A vector: begin, end, end of its memory. A long string: capacity, size, bytes.
_OK = 1  # What absl::Status holds then.


def is_there():
    return LIBRARY.exists()


def _text_at(address):
    if ctypes.c_uint8.from_address(address).value & 1:
        _, size, data = _Words.from_address(address)
        return ctypes.string_at(data, size).decode()
    return ctypes.string_at(address + 1, ctypes.c_uint8.from_address(address).value >> 1).decode()


class TraceProcessor:
    """One trace."""

    def __init__(self, path):
        self._library = ctypes.CDLL(str(LIBRARY))
        self._object = ctypes.create_string_buffer(_ROOM)
        getattr(self._library, _CLASS + "C1Ev")(self._object)
        data = Path(path).read_bytes()
        self._data = ctypes.create_string_buffer(data, len(data))
        begin = ctypes.addressof(self._data)
        status = _Words()
        parse = getattr(self._library, _CLASS + "10ParseTraceERKNSt3__16vectorIcNS2_9allocatorIcEEEE")
        parse(status, self._object, _Words(begin, begin + len(data), begin + len(data)))
        if status[0] != _OK:
            raise ValueError(f"the trace processor cannot read {path}")

    def query(self, sql):
        """The rows, as tuples of texts. Raises ValueError with the trace processor's words."""
        text = ctypes.create_string_buffer(sql.encode())
        size = len(sql.encode())
        result = ctypes.create_string_buffer(_ROOM)
        getattr(self._library, _QUERY)(result, self._object, _Words(size + 1 | 1, size, ctypes.addressof(text)))
        address = ctypes.addressof(result)
        error = _text_at(address + 3 * _WORD)
        if error:
            raise ValueError(error)
        begin, end, _ = _Words.from_address(address)
        rows = []
        for row in range(begin, end, 3 * _WORD):
            first, last, _ = _Words.from_address(row)
            rows.append(tuple(_text_at(cell) for cell in range(first, last, 3 * _WORD)))
        return rows[1:]  # The first one has the names.
