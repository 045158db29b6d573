"""Processes of data loaders do not take the signals that ask their worker for a checkpoint.

SIGTERM reaches all processes of a worker: the agent sends it to the worker's process group, SLURM to every process of the step. The worker
goes on to the next step boundary, and needs its batches until then. PyTorch's data-loader processes would die of the signal, and their
worker of their death.

So they begin with these signals blocked, until they have handlers. Those of the start method "forkserver" are forked from a process that
gets its handlers when it imports the program. Before Python 3.14 it does not import it, and a signal to the process group ends it."""
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from ddp_run import _native, worker_process

_SIGNALS = {signal.SIGTERM, signal.SIGUSR1}


def install() -> None:
    """From now on, for all of PyTorch's DataLoaders in this process, and in the processes that they start."""
    set_handlers, get_iterator = signal_handling._set_worker_signal_handlers, DataLoader._get_iterator

    def set_worker_signal_handlers() -> None:
        set_handlers()
        worker = multiprocessing.parent_process()
        if worker is not None and worker.pid is not None:
            _native.leave_requests_to(worker.pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _get_iterator(loader: DataLoader[Any]) -> Any:
        context = loader.multiprocessing_context or multiprocessing
        with _blocked() if loader.num_workers > 0 and context.get_start_method() != "forkserver" else contextlib.nullcontext():
            return get_iterator(loader)

    signal_handling._set_worker_signal_handlers = set_worker_signal_handlers
    DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]
    if worker_process.is_importing_program() and multiprocessing.parent_process() is None:  # The forkserver, which the worker has started.
        _native.leave_requests_to(os.getppid())


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Processes that this thread starts meanwhile begin so. The worker's other threads take its signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
