"""What this rank does when, for whoever asks ddp-run for a trace."""
import time
from contextlib import contextmanager
from typing import Iterator

from ddp_run import _native


@contextmanager
def trace_scope(lane: str, name: str, index: int = -1) -> Iterator[None]:
    """Adds the time of the block to the trace that somebody asks ddp-run for (--trace FILE, SIGUSR2, `ddp-run trace HOST`).

        with ddp_run.trace_scope("input", "next batch"):
            batch = next(batches)

    Operations of the backend "ddp", waits, the batches of ddp_run.DataLoader and the steps between two calls of progress() are there
    without it. `lane` is the row; time in "input" and in "checkpoint" counts as such in the summary. Spans of one row nest or follow
    one another. Both texts are cut after 32 bytes. `index`: of the step, for example; -1: none. Any thread. While nobody asks, it costs a microsecond.
    """
    if not _native.is_traced():
        yield
        return
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        _native.trace_span(lane, name, begin, time.monotonic_ns(), index)
