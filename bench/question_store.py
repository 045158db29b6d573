"""How fast is the TCP store, against PyTorch's own server, redis-server and a bare echo server?

One load generator (bench-store) for all. PyTorch's server and ours get the same bytes, in the dialect of that server: the legacy
one for 1.13, the newest one for 2. Against redis-server, ours speaks the newest one. A c10d SET has no answer, so it is sent
together with a CHECK of its key.

Every client sends its next request when it has the answer to the last one. All clients share one thread, so client and server have
a core each. Values have 32 bytes; every client has a key of its own. Ours handles two requests for a SET, redis-server one. The echo
server shows the least that a round trip can take.

  time for each   1 / rate
  median latency  of a single round trip
  idle            connections that have sent their greeting and are silent (redis-server --maxclients 10000)
  barrier         from the first client's request until the last client is released: by ADD and WAIT on both servers (the last client
                  sets the flag that the others wait for), by the newest dialect's BARRIER on ours
  memory          growth of the daemon's anonymous memory over 9,000 connections, divided by them
  churn           a process that connects, sends random bytes and resets, without a pause, beside a client's adds: three busy
                  processes on two cores, so part of what it costs is the core

BENCH_PARTS=trips,idle,barrier,memory,churn chooses.
"""
import os
import resource
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack

import harness
import jobs
import paired
from paired import QUICK

STORE = str(harness.BIN / "bench-store")
DAEMON = str(harness.BIN / "ddp-rendezvous")
PYTORCH = [harness.PYTHON, str(harness.ROOT / "bench" / "store_python.py")]
OPS = ["get", "set", "add"]
GOALS = {1: 1.0, 8: 1.3, 64: 2.0}  # Goals against PyTorch's server, by the number of clients.
REDIS_OPS = {"get": "GET", "set": "SET", "add": "INCR"}
SECONDS = 0.1 if QUICK else 0.3
IDLE = [1000] if QUICK else [4000, 9000]
IDLE_GOALS = {9000: 20.0}
BARRIER = [200] if QUICK else [1000, 8000]
LARGE_BARRIER = 2000  # PyTorch's server takes half a minute for 8,000.
CHURN = 2000 if QUICK else 20000
MEMORY_LIMIT = 4096
DESCRIPTORS = 20000


def allow_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS // 2:
        sys.exit(f"bench: this process may open {hard} files, but store needs {DESCRIPTORS // 2}; raise the hard limit (ulimit -Hn)")


class Server:
    """A server process on this machine, with its port and its memory. It ends with the `with` block."""

    def __init__(self, command, port=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # The first line shows that the server listens. If no port was given, it is the last number of that line.
        line = self.process.stdout.readline()
        self.port = port or int(line.strip().rsplit(":", 1)[-1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(30)

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def pytorch_server():
    return f"PyTorch {harness.pytorch_version()}'s server"


def pytorch_dialect():
    return "c10d-legacy" if harness.pytorch_version().startswith("1.") else "c10d-newest"


def redis():
    port = jobs.free_port()
    server = Server(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                     "--maxclients", str(DESCRIPTORS // 2), "--loglevel", "notice", "--daemonize", "no"], port)
    for line in server.process.stdout:
        if "Ready to accept" in line:
            return server
    sys.exit("bench: redis-server did not start")


def load(server, protocol, clients, ops=None, idle=0, seconds=SECONDS):
    """A contender: {op: line}."""
    command = [STORE, "--protocol", protocol, "--port", str(server.port), "--clients", str(clients), "--op", ",".join(ops or OPS),
               "--idle", str(idle), "--seconds", str(seconds)]
    return lambda: {line["op"]: line for line in paired.run_all([(command, {})])}


def barrier(server, protocol, clients, by_counter):
    turns = 1 if clients > LARGE_BARRIER else 3
    command = [STORE, "--protocol", protocol, "--port", str(server.port), "--barrier", str(clients), "--turns", str(turns)]
    command += ["--counter"] if by_counter else []
    return lambda: {line["op"]: line for line in paired.run_all([(command, {})])}


def round_trips(servers, clients):
    rounds = paired.Rounds(f"{clients} clients", {
        "ours": load(servers["ours"], pytorch_dialect(), clients),
        "ours, newest": load(servers["ours"], "c10d-newest", clients),
        "pytorch": load(servers["pytorch"], pytorch_dialect(), clients),
        "redis": load(servers["redis"], "redis", clients),
        "echo": load(servers["echo"], "echo", clients),
    })
    for op in OPS:
        name = f"{op}, {clients} clients"
        for statistic, what in (("seconds_each", "time for each"), ("median_s", "median latency")):
            rate = statistic == "seconds_each"
            yield rounds.figure(f"{name}, {what}", ("ours", op), ("pytorch", op), pytorch_server(),
                                GOALS[clients] if rate else None, statistic)
            yield rounds.figure(f"{name}, {what}", ("ours, newest", op), ("redis", op), f"redis-server, {REDIS_OPS[op]}",
                                1.0 if rate else None, statistic)
            yield rounds.figure(f"{name}, {what}", ("ours, newest", op), ("echo", op), "an echo server (the floor)", None, statistic)


def beside_idle(servers):
    for idle in IDLE:
        rounds = paired.Rounds(f"{idle} idle connections", {
            "ours": load(servers["ours"], pytorch_dialect(), 1, ["add"], idle),
            "ours, alone": load(servers["ours"], pytorch_dialect(), 1, ["add"]),
            "pytorch": load(servers["pytorch"], pytorch_dialect(), 1, ["add"], idle),
            "redis": load(servers["redis"], "redis", 1, ["add"], idle),
        }, rounds=3 if QUICK else 6)
        name, mine = f"add beside {idle} idle connections, median latency", ("ours", "add")
        yield rounds.figure(name, mine, ("pytorch", "add"), pytorch_server(), IDLE_GOALS.get(idle))
        yield rounds.figure(name, mine, ("redis", "add"), "redis-server, INCR", 1.0)
        yield rounds.figure(name, mine, ("ours, alone", "add"), "ours, without them", round(1 / 1.2, 3))


def barriers(servers):
    for clients in BARRIER:
        rounds = paired.Rounds(f"barrier of {clients}", {
            "ours": barrier(servers["ours"], pytorch_dialect(), clients, True),
            "ours, BARRIER": barrier(servers["ours"], "c10d-newest", clients, False),
            "pytorch": barrier(servers["pytorch"], pytorch_dialect(), clients, True),
        }, rounds=3 if QUICK or clients > LARGE_BARRIER else 5)
        yield rounds.figure(f"barrier of {clients} connections by ADD and WAIT", ("ours", "barrier"), ("pytorch", "barrier"),
                            pytorch_server(), 1.0)
        yield rounds.figure(f"barrier of {clients} connections by BARRIER", ("ours, BARRIER", "barrier"), ("pytorch", "barrier"),
                            f"{pytorch_server()}, ADD and WAIT", 1.0)


def memory():
    """User-space memory of the daemon for each silent connection after its greeting."""
    count = IDLE[-1]
    hello = bytes.fromhex("00cef7853c0d39300000")  # VALIDATE, PING.
    with Server([DAEMON, "--port", "0", "--bind", "127.0.0.1"]) as server, ExitStack() as stack:
        before = server.resident_bytes()
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(hello)
            if client.recv(4) != hello[6:]:
                sys.exit("bench: the daemon did not answer PING")
        each = (server.resident_bytes() - before) / count
    return harness.figure(f"memory of an idle connection, {count} of them", each, MEMORY_LIMIT, "limit", "bytes", 1.0)


def beside_churn(servers):
    """One client's adds while another process connects, sends random bytes and resets, without a pause."""
    server, took = servers["ours"], {"alone": [], "beside": []}
    quiet = load(server, "c10d-newest", 1, ["add"])
    before = server.resident_bytes()
    for turn in range(5):
        took["alone"].append(quiet()["add"]["median_s"])
        churn = subprocess.Popen([STORE, "--port", str(server.port), "--churn", str(CHURN), "--seed", str(turn + 1)])
        beside = load(server, "c10d-newest", 1, ["add"], seconds=SECONDS / 2)()["add"]["median_s"]
        if churn.poll() is not None:
            sys.exit("bench: the hostile load ended before the other one")
        took["beside"].append(beside)
        if churn.wait(120) != 0:
            sys.exit("bench: the hostile load failed")
    print(f"store: anonymous memory of the daemon grew by {server.resident_bytes() - before} bytes over {5 * CHURN} resets", file=sys.stderr)
    return harness.figure("add beside connects, random bytes and resets, median latency", statistics.median(took["beside"]),
                          statistics.median(took["alone"]), "ours, without them", "s", 0.5, digits=9)


def figures():
    harness.require(STORE, DAEMON, "redis-server", PYTORCH[0])
    allow_descriptors()
    wanted = os.environ.get("BENCH_PARTS", "trips,idle,barrier,memory,churn").split(",")
    with ExitStack() as stack:
        servers = {"ours": Server([DAEMON, "--port", "0", "--bind", "127.0.0.1"]), "pytorch": Server(PYTORCH), "redis": redis(),
                   "echo": Server([STORE, "--echo"])}
        for server in servers.values():
            stack.enter_context(server)
        if "trips" in wanted:
            for clients in GOALS:
                yield from round_trips(servers, clients)
        if "idle" in wanted:
            yield from beside_idle(servers)
        if "barrier" in wanted:
            yield from barriers(servers)
        if "memory" in wanted:
            yield memory()
        if "churn" in wanted:
            yield beside_churn(servers)
