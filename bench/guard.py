"""Runs the questions below two guards, so that however bench/run ends, none of its processes survives.

  bench/run          the front: it forwards signals and waits
    the guard        in its own process group, so that it survives if the front's group is killed
      the questions  and everything that they start

Both adopt all orphans below them (PR_SET_CHILD_SUBREAPER), even those that left their process group or session. When the
questions have finished, a signal has come, or the process above is gone, they ask the remaining processes below to end, and
then kill them. Then they remove the folder of temporary files and the network namespaces. If the guard is killed, the
questions die with it, and the front cleans up.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jobs

ENDINGS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
GRACE_S = 5  # Before processes that were asked to end are killed. mpirun and ddp-run take about a second.
POLL_S = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NAMESPACES = Path("/run/netns")


def network_prefix():
    """Prefix of the names of this run's network namespaces."""
    return f"ddp-bench-{os.environ['BENCH_RUN']}"


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def collect(child=None):
    """Reaps all ended children; returns the status of `child` if it is among them. ChildProcessError: no children are left."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if found is None:
                raise
            return found
        if pid == 0:
            return found
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def ask_to_end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # A stopped process would not see the SIGTERM.


def end_all_below():
    """Ends every process below this one. Orphans become its children, so when no child is left, no process is."""
    deadline, asked = time.monotonic() + GRACE_S, set()
    with contextlib.suppress(ChildProcessError):
        while True:
            collect()
            if time.monotonic() < deadline:
                # Launchers end what they started; what they leave behind becomes a child and is asked then.
                children = set(jobs.children(os.getpid()))
                for pid in children - asked:
                    ask_to_end(pid)
                asked = children
            else:
                for pid in jobs.descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, POLL_S)


def clean_up(folder):
    end_all_below()
    shutil.rmtree(folder, ignore_errors=True)
    if NAMESPACES.is_dir():
        for path in NAMESPACES.glob(f"{network_prefix()}-*"):
            subprocess.run(["ip", "netns", "del", path.name], stderr=subprocess.DEVNULL)


def wait(child, endings, on_signal):
    """Returns the child's status, or 128 + the signal's number if on_signal(number) returns true."""
    while True:
        number = signal.sigwait(endings | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            if on_signal(number):
                return 128 + number
            continue
        status = collect(child)
        if status is not None:
            return status


def fork(death_signal):
    """Like os.fork(); the child gets the signal when this process dies."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os._exit(1)
    return child


def end_with(status, endings):
    """Exits with the status, or by the signal that ended the guard, as shells expect."""
    for number in endings:
        if status == 128 + number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, endings)
    os._exit(status)


def own_folder():
    parent = os.environ.get("BENCH_FOLDER") or tempfile.gettempdir()
    if not os.path.isdir(parent):
        sys.exit(f"bench: BENCH_FOLDER is {parent}, which is not a folder; name one for temporary files")
    return tempfile.mkdtemp(prefix="ddp-bench.", dir=parent)


def enter():
    """Returns in a process below the guards, with TMPDIR in this run's own folder; bench/run exits with its status."""
    # Signals that nohup or a shell's background ignores stay ignored. SIGTERM tells the guard that the front has ended.
    endings = {number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN} | {signal.SIGTERM}
    os.environ["BENCH_RUN"] = str(os.getpid())
    former = signal.pthread_sigmask(signal.SIG_BLOCK, endings | {signal.SIGCHLD})
    folder = own_folder()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = fork(signal.SIGTERM)
    if guard:
        status = wait(guard, endings, lambda number: os.kill(guard, number))
        clean_up(folder)
        end_with(status, endings)
    os.setpgid(0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    questions = fork(signal.SIGKILL)
    if questions:
        def end_questions(_):
            os.kill(questions, signal.SIGKILL)  # First, so that they start nothing more and report no failures.
            return True
        status = wait(questions, endings, end_questions)
        clean_up(folder)
        os._exit(status)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # So that a question finds daemons of its launchers below itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # A terminal would stop a background process that reads.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
