"""The Python stacks of a worker that hangs."""
import faulthandler

from ddp_run import _native, worker_process

_STANDARD_ERROR = 2


def install() -> None:
    """Has this process write the Python stacks of all its threads when its agent asks. `import ddp_run` calls it.

    Only under ddp-run. The agent learns of the signal by the first progress(), without which nobody can tell that the process hangs. It is
    one of the real-time signals that nothing else handles. faulthandler writes in the signal's handler, so no thread needs the
    interpreter's lock: not one that computes in C++ with it, nor one that waits in C++ without it.
    """
    if not worker_process.has_agent:
        return
    number = _native.unused_signal()
    if number == 0:
        return
    faulthandler.register(number, file=_STANDARD_ERROR, all_threads=True, chain=False)
    _native.set_stack_signal(number)
