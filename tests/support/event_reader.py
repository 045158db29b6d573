"""Reads TensorBoard's event files with Google's protobuf, as TensorBoard does, and not with our own code.

    event_reader.py FILE      prints what read_scalars() gives, as JSON
"""
import json
import struct
import subprocess
import sys
from pathlib import Path

# tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto, as far as scalars need them.
MESSAGES = {
    "Event": [("wall_time", 1, "DOUBLE", None), ("step", 2, "INT64", None), ("file_version", 3, "STRING", None),
              ("summary", 5, "MESSAGE", "Summary")],
    "Summary": [("value", 1, "MESSAGE", "Value")],
    "Value": [("tag", 1, "STRING", None), ("simple_value", 2, "FLOAT", None)],
}
# Debian's, which has python3-protobuf. The interpreter of a test may be another one.
PYTHON = "/usr/bin/python3"


def read_scalars(path):
    """{tag: [[step, value], ...]}, as TensorBoard would draw them. ValueError if the file does not end with a whole record, a checksum
    does not fit, or an event has no wall time."""
    done = subprocess.run([PYTHON, __file__, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


def event_class():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tensorflow", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of in fields:
            label = kinds.LABEL_REPEATED if field_name == "value" else kinds.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=label)
            if of:
                field.type_name = f".tensorflow.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("tensorflow.Event")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def crc32c(data):
    """Bit by bit (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def events_of(path):
    event, data, at = event_class(), path.read_bytes(), 0
    while at < len(data):
        try:
            length, length_sum = struct.unpack_from("<QI", data, at)
            content = data[at + 12:at + 12 + length]
            (content_sum,) = struct.unpack_from("<I", data, at + 12 + length)
        except struct.error:
            raise ValueError(f"{path}: half a record at byte {at}") from None
        if masked(data[at:at + 8]) != length_sum or masked(content) != content_sum:
            raise ValueError(f"{path}: a checksum at byte {at} does not fit")
        yield event.FromString(content)
        at += 16 + length


def main():
    path = Path(sys.argv[1])
    events = list(events_of(path))
    if not events or events[0].file_version != "brain.Event:2" or min(event.wall_time for event in events) < 1.7e9:
        raise ValueError(f"{path}: no event file")
    curves = {}
    for event in events[1:]:
        for value in event.summary.value:
            curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    print(json.dumps(curves))


if __name__ == "__main__":
    main()
