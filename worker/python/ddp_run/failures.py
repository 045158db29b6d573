"""The exception that ends a worker, for the launcher's report."""
import contextlib
import sys
import traceback

import torch.distributed as dist

from ddp_run import _native, worker_process

_MOST_MESSAGE = 16 << 10
_MOST_CALLSTACK = 32 << 10  # What the agent reads of it.
# What backends of PyTorch say on a rank that had to do with one that died. They have no class or code for it.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited", "communicator was aborted")


def install() -> None:
    """Has an exception that ends this process reported; what handled it before still does. `import ddp_run` calls it.

    The report goes where torch's @record puts it, into the file that TORCHELASTIC_ERROR_FILE names, so torchrun shows it, too. No message
    is sent to the agent: a program that only imports the package must not count as one that tells its steps. Exceptions of threads end no
    process, and are not reported. Ctrl-C is none of the program's faults.
    """
    previous = sys.excepthook

    def report_and_chain(kind, error, trace):
        # First: whoever handles it next may take long, and the time of the file says which rank failed first.
        with contextlib.suppress(Exception):
            if worker_process.is_worker() and not isinstance(error, KeyboardInterrupt):
                _report(kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = report_and_chain


def _report(kind, error, trace):
    # torchrun within a worker: @record has copied the file of its own worker that failed.
    if kind.__name__ == "ChildFailedError":
        return
    callstack = "".join(traceback.format_exception(kind, error, trace))
    _native.write_error_file(f"{kind.__name__}: {error}"[:_MOST_MESSAGE], callstack[-_MOST_CALLSTACK:], _is_consequence(error))


def _is_consequence(error):
    """Whether the cause lies with another rank: this exception, or one that it was raised from or while handling."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        if _native.is_consequence(text):
            return True
        of_a_backend = isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in text
        if of_a_backend and any(words in text for words in _LOST_PEER):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
