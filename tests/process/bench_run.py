#!/usr/bin/env python3
"""However bench/run ends, it leaves no process, file or network namespace behind: bench_run.py BIN_DIR.

Its processes are found by the mark of this test in their environment. In place of cmake (bench/run builds before it measures), it
starts a script with a job of ddp-run, and with processes that left its group, lost their parents, are stopped or, if asked, ignore
SIGTERM."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import jobs  # noqa: E402
import netns  # noqa: E402

LIMIT_S = 240
# How many processes of it have been seen so far: from its own interpreter to those of the script, of which there are ten.
MOMENTS = range(1, 11)
SCRIPT = """#!/bin/sh
{namespace}
mktemp -d
{ddp_run} --standalone --nproc-per-node 2 --no-python sleep 600 &
sleep 600 &
setsid sleep 600 &
sh -c 'kill -STOP $$' &
setsid sh -c 'sleep 600 & sleep 600 & sleep 600 & sleep 600 & sleep 600 &'
{stubborn}
touch "$ALL_THERE"
exec sleep 600
"""
STUBBORN = """setsid sh -c 'trap "" TERM; while :; do sleep 600; done' &"""


class Bench:
    """A bench/run in folders of its own."""

    def __init__(self, folder, cmake="#!/bin/sh\n", recorder=""):
        folder, self.mark = Path(folder), f"BENCH_RUN_TEST={uuid.uuid4()}"
        self.build, self.temporary, self.all_there = folder / "build", folder / "tmp", folder / "all_there"
        for made in (self.build / "bin", folder / "tools", self.temporary):
            made.mkdir(parents=True)
        (self.build / "CMakeCache.txt").touch()
        script(folder / "tools" / "cmake", cmake)
        if recorder:
            script(self.build / "bin" / "bench-recorder", recorder)
        environment = {**os.environ, "DDP_BIN_DIR": str(self.build / "bin"), "TMPDIR": str(self.temporary),
                       "ALL_THERE": str(self.all_there), "PATH": f"{folder / 'tools'}:{os.environ['PATH']}",
                       **dict([self.mark.split("=")])}
        environment.pop("BENCH_FOLDER", None)
        self.process = subprocess.Popen([sys.executable, str(ROOT / "bench" / "run"), "recorder"], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.seen = set()

    def running(self):
        """All its processes, zombies not among them."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        self.seen.update(found)
        return found

    def await_processes(self, count):
        jobs.wait_until(lambda: self.running() and len(self.seen) >= count, LIMIT_S, f"{count} processes of bench/run")

    def await_all(self):
        jobs.wait_until(self.all_there.exists, LIMIT_S, "the script's processes")

    def below(self, levels):
        """The process so many levels below the front; all of these have one child."""
        pid = self.process.pid
        for _ in range(levels):
            pid = jobs.children(pid)[0]
        return pid

    def end(self):
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err

    def nothing_is_left(self, what):
        running = {pid: jobs.program_of(pid) for pid in self.running()}
        assert not running, f"{what}: these still run: {running}"
        files = list(self.temporary.iterdir())
        assert not files, f"{what}: left {files}"
        names = list(Path("/run/netns").glob(f"ddp-bench-{self.process.pid}-*"))
        assert not names, f"{what}: left the namespaces {names}"


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


@contextlib.contextmanager
def bench(binaries, stubborn=False):
    namespace = "" if netns.reason_to_skip() else "ip netns add ddp-bench-$BENCH_RUN-x"
    with tempfile.TemporaryDirectory() as folder:
        run = Bench(folder, SCRIPT.format(ddp_run=binaries / "ddp-run", namespace=namespace, stubborn=STUBBORN if stubborn else ""))
        try:
            yield run
        finally:
            for pid in run.running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.process.communicate()


def ended_by_sigterm_at_ten_moments(binaries):
    for count in MOMENTS:
        with bench(binaries) as run:
            run.await_processes(count)
            run.process.send_signal(signal.SIGTERM)
            status, _, err = run.end()
            assert status == -signal.SIGTERM, f"SIGTERM after {count} processes: {status}\n{err}"
            run.nothing_is_left(f"SIGTERM after {count} processes")


def ended_by_other_signals(binaries):
    for number in (signal.SIGINT, signal.SIGHUP):
        with bench(binaries) as run:
            run.await_all()
            run.process.send_signal(number)
            status, _, err = run.end()
            assert status == -number, f"{number!r}: {status}\n{err}"
            run.nothing_is_left(repr(number))


def killed(binaries):
    """SIGKILL for one of the three: the front, the guard, the questions."""
    for level, name in enumerate(("front", "guard", "questions")):
        with bench(binaries, stubborn=level == 0) as run:
            run.await_all()
            os.kill(run.below(level), signal.SIGKILL)
            status, _, err = run.end()
            assert status == (-signal.SIGKILL if level == 0 else 128 + signal.SIGKILL), f"{name} killed: {status}\n{err}"
            if level == 0:
                jobs.wait_until(lambda: not run.running(), LIMIT_S, "the end of all after SIGKILL of the front")
            run.nothing_is_left(f"{name} killed")


def builds_first_and_leaves_nothing(_):
    """Configures, since a peer may have been installed meanwhile, and builds, also where all programs are there."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        run = Bench(folder, f'#!/bin/sh\necho "$@" >>{log}\n',
                    '#!/bin/sh\necho \'{"ns": 50, "traced_ns": 70, "message_ns": 20, "clock_ns": 25}\'\n')
        status, out, err = run.end()
        assert status == 0, f"{status}\n{err}"
        assert [json.loads(line)["ours"] for line in out.splitlines()] == [50, 20, 70, 50], out
        steps = log.read_text().splitlines()
        assert steps == [f"--log-level=WARNING {run.build}", f"--build {run.build} --target bench"], steps
        assert all(f"{name} " in err for name in ("peers: PyTorch", "LibTorch", "gloo", "Open MPI")), err
        run.nothing_is_left("a run that came to its end")


def fails_with_the_questions(_):
    """A question that cannot be asked ends it with 1 and the reason."""
    with tempfile.TemporaryDirectory() as folder:
        run = Bench(folder)
        status, _, err = run.end()
        assert status == 1 and "bench-recorder is missing" in err, f"{status}\n{err}"
        run.nothing_is_left("a question that cannot be asked")


def main():
    binaries = Path(sys.argv[1]).resolve()
    for case in (builds_first_and_leaves_nothing, fails_with_the_questions, ended_by_sigterm_at_ten_moments, ended_by_other_signals,
                 killed):
        case(binaries)
        print(f"{case.__name__}: ok", flush=True)


main()
