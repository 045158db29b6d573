#!/usr/bin/env python3
"""Records all packets of jobs on two nodes, and looks for what nobody may read: recording.py BIN_DIR. Needs root, else skips (77).

What the workers say to the store, and what libddp's ranks say to each other. Three times the same job: without a secret, with a token, with a token and TLS. Everything that the job tells another machine is found
in the recording of the first, so the search works. Of the last one nothing is found.
"""
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import certificates
import jobs
import netns

SKIPPED = 77
PORT = 29400
LIMIT_S = 240
HALF = 1 << 31  # Of the sequence numbers.
TOKEN = "the token of this test, and of no other"
WINDOW = 64
SYSTEM_PYTHON = "/usr/bin/python3"  # The one that has Debian's PyTorch.
bin_dir = Path(sys.argv[1])
test_bin = bin_dir.parent / "test-bin"
base = Path(tempfile.mkdtemp(prefix="ddp_recording."))

RECORDER = """
import os, socket, struct, sys, time
recorder = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS = 33, 263, 6
recorder.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 512 << 20)
recorder.bind((sys.argv[1], 0))
recorder.settimeout(0.2)
with open(sys.argv[2], "wb") as out:
    print("recording", flush=True)
    while True:
        try:
            packet = recorder.recv(1 << 17)
        except TimeoutError:
            if os.path.exists(sys.argv[3]):
                break
            continue
        out.write(struct.pack("<I", len(packet)) + packet)
packets, lost = struct.unpack("II", recorder.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
print(f"lost {lost}", flush=True)
"""


# With Debian's PyTorch 2.x, MASTER_ADDR is a store that rank 0 makes, which is not the job's.
JOB_STORE = """
import os


def job_store():
    kind = "DDP_STORE" if "DDP_STORE_ADDR" in os.environ else "MASTER"
    return os.environ[kind + "_ADDR"], int(os.environ[kind + "_PORT"])


"""

# Writes and reads as PyTorch's client does, without PyTorch.
RAW = JOB_STORE + """
import socket, struct
rank = int(os.environ["RANK"])
store = socket.create_connection(job_store(), 60)


def text(body):
    return struct.pack("<Q", len(body)) + body


def receive(count):
    got = b""
    while len(got) < count:
        piece = store.recv(count - len(got))
        assert piece, "the store has closed"
        got += piece
    return got


SET, GET, WAIT = b"\\x00", b"\\x02", b"\\x05"
value = "".join(f"value-of-a-script {line:08} " for line in range(40000)).encode()
store.sendall(SET + text(f"/key-of-a-script-{rank}".encode()) + text(value))
other = text(f"/key-of-a-script-{1 - rank}".encode())
store.sendall(WAIT + struct.pack("<Q", 1) + other)
receive(1)
store.sendall(GET + other)
assert receive(*struct.unpack("<Q", receive(8))) == value
print("everything has arrived", flush=True)
"""


def has_pytorch():
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import torch.distributed as d; print(d.is_available())"], capture_output=True,
                           text=True, timeout=LIMIT_S)
    return probe.stdout.strip() == "True"


PYTORCH = JOB_STORE + """
import datetime
import torch.distributed as dist
rank = int(os.environ["RANK"])
store = dist.TCPStore(*job_store(), 2, False, datetime.timedelta(seconds=60),
                      **({"use_libuv": False} if "DDP_STORE_ADDR" in os.environ else {}))
value = "".join(f"value-of-a-script {line:08} " for line in range(40000))
store.set(f"key-of-a-script-{rank}", value)
assert store.get(f"key-of-a-script-{1 - rank}").decode() == value
print("everything has arrived", flush=True)
"""


def conversations(path):
    """What each end of each TCP connection has said, from a recording."""
    flows = {}
    data = path.read_bytes()
    at = 0
    while at + 4 <= len(data):
        size, = struct.unpack_from("<I", data, at)
        packet = data[at + 4:at + 4 + size]
        at += 4 + size
        if packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
            continue
        start = 14 + (packet[14] & 15) * 4
        total, = struct.unpack_from(">H", packet, 16)
        end = 14 + total if total else len(packet)
        body = packet[start + (packet[start + 12] >> 4) * 4:end]
        number, = struct.unpack_from(">I", packet, start + 4)
        if body:
            flows.setdefault(packet[26:34] + packet[start:start + 4], []).append((number, body))
    return {flow: in_order(segments) for flow, segments in flows.items()}


def in_order(segments):
    """A busy machine sends some segments again, and records some after later ones."""
    first = segments[0][0]
    offsets = [(number - first + HALF) % (2 * HALF) - HALF for number, _ in segments]
    lowest, stream = min(offsets), bytearray()
    for offset, (_, body) in zip(offsets, segments):
        at = offset - lowest
        stream.extend(bytes(max(0, at + len(body) - len(stream))))
        stream[at:at + len(body)] = body
    return bytes(stream)


def record(net, name, program, flags, environment):
    """Runs the job on both nodes; returns everything that has crossed the network, connection by connection."""
    stop, packets = base / f"{name}.stop", base / f"{name}.packets"
    recorder = subprocess.Popen(netns.inside(net.switch, sys.executable, "-c", RECORDER, "port1", str(packets), str(stop)),
                                stdout=subprocess.PIPE, text=True)
    nodes = []
    try:
        assert recorder.stdout.readline() == "recording\n"
        for node in (0, 1):
            command = [str(bin_dir / "ddp-run"), "--nnodes", "2", "--rdzv-endpoint", f"{netns.address(0)}:{PORT}", "--rdzv-id",
                       "the-jobs-id", "--join-timeout", str(LIMIT_S), *flags, *program]
            nodes.append(jobs.Node(netns.inside(net.names[node], *command), base / f"{name}.{node}.log", environment))
        for node in nodes:
            status = node.wait(LIMIT_S)
            assert status == 0, f"{name}: status {status}\n{node.tail()}"
        stop.touch()
        lost = recorder.communicate(timeout=LIMIT_S)[0].strip()
        assert lost == "lost 0", f"{name}: the recorder has {lost} packets"
    finally:
        stop.touch()
        for node in nodes:
            node.kill()
        recorder.wait()
    return conversations(packets)


def found(flows, needle):
    return any(needle in flow for flow in flows.values())


def any_window(flows, body):
    """Whether any window of the body, at any of many places, was on the network."""
    step = max(WINDOW, len(body) // 500)
    return any(found(flows, body[at:at + WINDOW]) for at in range(0, len(body) - WINDOW, step))


def check(name, flows, secrets, readable):
    print(f"{name}: {len(flows)} ends of connections, {sum(map(len, flows.values()))} bytes", flush=True)
    for what, body in secrets.items():
        there = any_window(flows, body) if len(body) > WINDOW else found(flows, body)
        assert there == readable(what), f"{name}: {what} is {'' if there else 'not '}in the recording"


def run_jobs(net, kind, program, secrets, tls):
    token = {"DDP_RDZV_TOKEN": TOKEN}
    for mode, flags, more, readable in (
            ("open", [], {}, lambda what: what != "token"),
            # It proves who takes part, and hides nothing but itself.
            ("token", [], token, lambda what: what != "token"),
            ("tls", tls, token, lambda what: False)):
        name = f"{kind}-{mode}"
        flows = record(net, name, program, flags, more)
        check(name, flows, {**secrets, "token": TOKEN.encode()}, readable)


def main():
    reason = netns.reason_to_skip() or ("" if shutil.which("openssl") else "openssl is missing")
    if reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    for name in [name for name in os.environ if re.match("DDP_RDZV_TOKEN|PET_", name)]:
        del os.environ[name]
    with netns.network("ddp-rec", 2) as net:
        tls = certificates.flags_of_new(base, ["127.0.0.1", netns.address(0), netns.address(1)])
        value = "".join(f"value-of-a-script {line:08} " for line in range(40000)).encode()
        said = {"the job's name": b"the-jobs-id", "a value in the store": value, "a key in the store": b"key-of-a-script-",
                "the program": b"the-script"}
        script = base / "the-script.py"
        os.environ["PYTHON_EXEC"] = SYSTEM_PYTHON
        script.write_text(RAW)
        run_jobs(net, "raw", [str(script)], said, tls)
        if has_pytorch():
            script.write_text(PYTORCH)
            run_jobs(net, "pytorch", [str(script)], said, tls)
        else:
            print("no PyTorch here: without its store client")
        tensors = {what: "".join(f"{what}-of-rank-{rank} {line:08} " for line in range(20000)).encode()
                   for what, rank in (("a-broadcast", 0), ("a-tensor", 0), ("a-tensor", 1), ("a-message", 0), ("a-sub-group", 1))}
        run_jobs(net, "tensors", ["--no-python", str(test_bin / "tensor_worker")], {"the job's name": b"the-jobs-id", **tensors}, tls)
    shutil.rmtree(base)
    return 0


sys.exit(main())
