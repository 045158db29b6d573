"""Runs the questions below two guards, so that whatever ends bench/run, nothing of it goes on.

  bench/run          the front: it hands on signals and waits
    the guard        a process group of its own, so that what kills the front's group leaves it
      the questions  and all that they start

Both adopt the orphans of whatever is below them (PR_SET_CHILD_SUBREAPER), also those that left their process group or
session. When the questions are over, a signal has come, or the process above is gone, what is still below is asked to end,
then killed; then the folder that all took for temporary files is removed, and their network namespaces. A guard that is
killed takes the questions with it, and the front does the rest.
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
GRACE_S = 5  # For what is asked to end. mpirun and ddp-run take about a second.
POLL_S = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NAMESPACES = Path("/run/netns")


def network_prefix():
    """What the names of this run's network namespaces begin with."""
    return f"ddp-bench-{os.environ['BENCH_RUN']}"


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def collect(child=None):
    """Reaps all that have ended; gives the child's status if it is among them. ChildProcessError: there is none any more."""
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
        os.kill(pid, signal.SIGCONT)  # A stopped process would not hear of it.


def end_all_below():
    """Ends every process below this one. Whoever is orphaned meanwhile becomes its child, so no child is no process."""
    deadline, asked = time.monotonic() + GRACE_S, set()
    with contextlib.suppress(ChildProcessError):
        while True:
            collect()
            if time.monotonic() < deadline:
                # Launchers end what they have started; what they leave behind is asked when it has become a child.
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
    """The child's status, or 128 and the number of the signal if on_signal(number) says that this is the end."""
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
    """As os.fork(); the child gets the signal when this process is gone."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os._exit(1)
    return child


def end_with(status, endings):
    """Ends with the status, or by the signal that ended the guard, as a shell expects it."""
    for number in endings:
        if status == 128 + number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, endings)
    os._exit(status)


def own_folder():
    parent = os.environ.get("BENCH_FOLDER") or tempfile.gettempdir()
    if not os.path.isdir(parent):
        sys.exit(f"bench: BENCH_FOLDER is {parent}, which is no folder; temporary files go there")
    return tempfile.mkdtemp(prefix="ddp-bench.", dir=parent)


def enter():
    """Returns in a process below the guards, with TMPDIR in a folder of this run's; bench/run ends with its status."""
    # nohup's hang-ups and the interrupts of a shell's background are not ours. SIGTERM is what the guard has for the front's end.
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
            os.kill(questions, signal.SIGKILL)  # First, so that they start nothing and take no end for a failure.
            return True
        status = wait(questions, endings, end_questions)
        clean_up(folder)
        os._exit(status)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # A question finds daemons that a launcher has started below itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # Nobody reads; a terminal would stop whoever does in a group in the background.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
