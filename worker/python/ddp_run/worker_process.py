"""Whether this process is the one that a launcher has started as a worker, and not one that the worker has started."""
import multiprocessing
import os
import stat

def _has_channel():
    """The variable alone says little: a program that the worker starts inherits it, but not the descriptor."""
    try:
        return stat.S_ISSOCK(os.fstat(int(os.environ["DDP_CONTROL_FD"])).st_mode)
    except (KeyError, ValueError, OSError):
        return False


# Asked now, before another file can get the descriptor's number.
has_agent = _has_channel() and multiprocessing.parent_process() is None
_process = os.getpid() if multiprocessing.parent_process() is None and has_agent == ("DDP_CONTROL_FD" in os.environ) else None


def is_importing_program() -> bool:
    """Whether multiprocessing's spawn or forkserver (the default from Python 3.14 on) runs the program, to find its functions there."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def is_worker() -> bool:
    """False in data-loader workers and other children: a launcher's variables and descriptors are not theirs. Any thread."""
    return os.getpid() == _process
