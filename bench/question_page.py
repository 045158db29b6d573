"""Is the page smooth with very many ranks, and does a training notice that people look at it?

  browser   Debian's Chromium, without a window, at the page of a ddp-rendezvous whose job has 1,000 agents (page_agents.py): frames a
            second while it is scrolled from end to end, memory of its JavaScript, and of the whole process that shows it (the peer: the
            same process with an empty page, plus 100 MB); memory of the daemon (the peer: before anybody looked, plus 20 MB)
  training  steps a second of two nodes while 100 readers have /live open, one of them without reading, against none

BENCH_PARTS=browser,training chooses. The browser is on Debian 13 and later; `tests/browser/browser.py` drives it.
"""
import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
import jobs
import training
from question_launch import pss_mb

sys.path.insert(0, str(harness.ROOT / "tests" / "browser"))
import browser  # noqa: E402

QUICK = bool(os.environ.get("BENCH_QUICK"))
PARTS = os.environ.get("BENCH_PARTS", "browser,training").split(",")
RANKS, READERS = 1000, 100
SECONDS = 4 if QUICK else 10  # For which the page is scrolled.
WINDOW_S, ROUNDS = 3, int(os.environ.get("BENCH_ROUNDS", 5 if QUICK else 60))
LIMIT_S = 120
DAEMON_MB, PAGE_MB, FRAMES = 20, 100, 50

# Scrolls for some seconds and gives the number of frames a second, and the longest time between two frames in ms.
SCROLL = """
const done = arguments[arguments.length - 1], seconds = arguments[0], begin = performance.now();
let last = begin, frames = 0, longest = 0;
const draw = now => {
  if (frames > 0) longest = Math.max(longest, now - last);
  last = now;
  ++frames;
  const part = ((now - begin) / 1000 / seconds * 2) % 2;
  scrollTo(0, (part < 1 ? part : 2 - part) * (document.documentElement.scrollHeight - innerHeight));
  if (now - begin < seconds * 1000) requestAnimationFrame(draw);
  else done([frames * 1000 / (now - begin), longest]);
};
requestAnimationFrame(draw);
"""


@contextlib.contextmanager
def started(command, **options):
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()
        process.terminate()
        process.wait()


def renderer_mb(window):
    """Memory of the browser's process that shows the page."""
    return max(map(pss_mb, window.renderers()))


def browser_figures():
    why = browser.missing()
    if why:
        print(f"page: skips the browser: {why}", file=sys.stderr)
        return
    port = jobs.free_port()
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(started([str(harness.BIN / "ddp-rendezvous"), "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.PIPE))
        daemon.stdout.readline()
        agents = stack.enter_context(started([sys.executable, str(harness.ROOT / "bench/page_agents.py"), str(port), str(RANKS)],
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if agents.stdout.readline() != "running\n":
            sys.exit("bench: the agents have not begun a round")
        time.sleep(SECONDS)  # The daemon is as large as it becomes.
        before = pss_mb(daemon.pid)
        window = stack.enter_context(browser.Browser(width=1280, height=900))
        empty = renderer_mb(window)
        window.get(f"http://127.0.0.1:{port}/")
        window.wait_for(f"document.querySelectorAll('#ranks button').length === {RANKS}")
        window.driver.set_script_timeout(LIMIT_S)
        window.driver.execute_async_script(SCROLL, 2)
        frames, longest = zip(*(window.driver.execute_async_script(SCROLL, SECONDS) for _ in range(3)))
        yield harness.figure(f"frames a second of the page with {RANKS} ranks", statistics.median(frames), FRAMES, "what is smooth", "frames/s", 1.0,
                             lower_is_better=False, digits=1)
        yield harness.figure("the longest time between two frames", statistics.median(longest), 1000 / FRAMES, "a frame", "ms", None, digits=1)
        script = window.script_bytes() / 1e6
        yield harness.figure("memory of the page's JavaScript", script, PAGE_MB, "the limit", "MB", 1.0, digits=1)
        yield harness.figure("memory of the process that shows the page", renderer_mb(window), empty + PAGE_MB,
                             f"an empty page ({empty:.0f} MB) and {PAGE_MB} MB", "MB", 1.0, digits=1)
        yield harness.figure(f"memory of the daemon with {RANKS} agents and a browser", pss_mb(daemon.pid), before + DAEMON_MB,
                             f"without a browser ({before:.1f} MB) and {DAEMON_MB} MB", "MB", 1.0, digits=1)


class Readers:
    """Connections to /live; all but the first are read."""

    def __init__(self, port, count):
        self.sockets = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            self.sockets.append(connection)
        self.events = 0
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        waiting = selectors.DefaultSelector()
        for connection in self.sockets[1:]:
            waiting.register(connection, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                try:
                    got = key.fileobj.recv(1 << 16)
                except ConnectionResetError:
                    got = b""
                self.events += got.count(b"event: ")
                if not got:
                    waiting.unregister(key.fileobj)

    def close(self):
        for connection in self.sockets:
            connection.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for connection in self.sockets:
            connection.close()


@contextlib.contextmanager
def watched(trained):
    readers = Readers(trained.port, READERS)
    yield
    readers.close()
    if readers.events < READERS * (WINDOW_S - 1):
        sys.exit(f"bench: {READERS} readers were told only {readers.events} times")


def training_figures():
    with training.running() as trained:
        rounds = trained.rounds(lambda: watched(trained), ROUNDS, WINDOW_S)
    yield training.figure(f"steps a second of a training with {READERS} pages open", rounds, "none open")


def figures():
    if "browser" in PARTS:
        yield from browser_figures()
    if "training" in PARTS:
        yield from training_figures()
