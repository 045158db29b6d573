"""What a worker tells its agent after a step, and what it is asked for."""
import math
import operator
import os
import signal
import sys
import time
import weakref

import torch
import torch.distributed as dist

from ddp_run import _native, worker_process
from ddp_run.summary_writer import SummaryWriter

_PERIOD_S = 0.101  # A little more than the channel's own, within which it drops messages.
_MAX_STEP = 2**63 - 1
_due = 0.0  # time.monotonic() of the next message.


def progress(step: int, loss: float | torch.Tensor | None = None, samples_per_second: float | torch.Tensor | None = None, *,
             total_steps: int | None = None, writer: SummaryWriter | None = None) -> None:
    """Tells the agent that `step` is done. Call it after each step, on every rank, from any thread.

    The status line, `ddp-run status`, /metrics, --progress-timeout and --max-no-progress live on it. With --progress-timeout, a worker that
    has called it once and then makes no call for that long counts as hung, so call it in long evaluations, too: the same step will do.

    Does nothing where ddp-run has not started this process: under other launchers, in data-loader workers. At most ten messages a second
    are sent, the others are dropped. The loss is a number or a tensor with one element. Reading a tensor on a CUDA device waits for the
    device. So a tensor is read only when a message is due, and a loss that stays a tensor does not slow down a loop of short steps.
    total_steps: the step with which the whole training ends, so that people see what is done and how long the rest takes (ETA).
    writer: also gets the loss and the rate of every call, for TensorBoard, and beside them "restarts", how often the job has started workers
    again so far. Give it on one rank.
    """
    global _due
    if writer is not None:
        given = {"loss": loss, "samples_per_second": samples_per_second}
        known = {tag: value for tag, value in given.items() if value is not None}
        if known:
            writer.add_values(step, {**known, "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))})
    if not worker_process.has_agent or not worker_process.is_worker():
        return
    now = time.monotonic()
    is_due = now >= _due
    is_traced = _native.is_traced()
    step = _steps_of("step", step, 0, "that are done", is_due or is_traced)
    loss = _number_of("loss", loss, 0.0, is_due)
    rate = _number_of("samples_per_second", samples_per_second, math.nan, is_due)
    if rate < 0 or math.isinf(rate):
        raise ValueError(f"progress(): samples_per_second is {rate}; give a rate of 0 or more, or None if it is not known")
    total = 0 if total_steps is None else _steps_of("total_steps", total_steps, 1, "of the whole training", is_due)
    if is_due:
        _due = now + _PERIOD_S
        _native.progress(step, loss, rate, total)
    elif is_traced:
        _native.step_ended(step)


def _steps_of(name, value, least, meaning, is_due):
    if isinstance(value, torch.Tensor) and not is_due and value.numel() == 1:
        return least
    try:
        if isinstance(value, bool) or isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            raise TypeError
        number = operator.index(value)
    except (TypeError, RuntimeError):
        raise TypeError(f"progress(): {name} must be a whole number, not {_kind(value)}") from None
    if not least <= number <= _MAX_STEP:
        raise ValueError(f"progress(): {name} is {number}; give the number of steps {meaning}, from {least} to 2**63 - 1")
    return number


def _number_of(name, value, unknown, is_due):
    if value is None:
        return unknown
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise TypeError(f"progress(): {name} must be one number, not {_kind(value)}; give its mean, for example")
        return float(value.detach()) if is_due else unknown
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise TypeError(f"progress(): {name} must be a number or a tensor with one element, not {_kind(value)}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # A numpy array of several numbers, for example.
        raise TypeError(f"progress(): {name} must be one number, not {_kind(value)}") from None


def _kind(value):
    shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
    return f"{type(value).__name__}{shape}"


def checkpoint_requested(group: dist.ProcessGroup | None = None) -> bool:
    """Whether somebody has asked for a checkpoint at this step boundary: SIGUSR1, SLURM's limit, or SIGTERM.

        for step in range(...):
            train()
            if ddp_run.checkpoint_requested():
                save()

    Call it after each step, on all ranks of the group, from one thread: it is collective. All ranks get the same answer at the same call,
    so save() may be collective, too. Four times a second the ranks exchange, in one small all_reduce of the group, whether any of them was
    asked; the calls between cost nothing and return False. Without `group` it is the default one, and if there is none, this process
    decides alone.

    Asked is whoever gets SIGUSR1 itself, or whose ddp-run gets it or SLURM's signal before the limit. SIGTERM asks for a checkpoint and the
    end: the call returns True on all ranks, and the next call of a rank that got the signal raises SystemExit(143), when save() is done.
    Ranks without the signal go on, and the job with them if it allows fewer workers. A second SIGTERM ends the process at once, and so does
    the one by which an agent ends a round that has failed. So from its first call on, a program must go on calling this.

    It works without ddp-run, too. A signal for which the program has a handler of its own is left to that handler. The processes of a
    torch DataLoader go on reading meanwhile. In them and in other children the answer is always False.
    """
    if not worker_process.is_worker():
        return False
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    return _requests.after_step(group)


class _Requests:
    """The ranks' agreement. What it counts begins anew with each group, because new ranks know nothing of earlier calls."""

    NOTHING, CHECKPOINT, CHECKPOINT_AND_STOP = range(3)
    PERIOD_S = 0.25
    MOST_CALLS = 1000

    def __init__(self):
        self.group = None
        self.kept = self.NOTHING  # Asked, but not told to the others yet.
        self.stops = False
        self.begin()

    def begin(self):
        self.calls = 0
        self.next_call = 1
        self.interval = 1
        self.last = None  # The call and the time of the last exchange.

    def after_step(self, group):
        if self.stops:
            print("ddp_run: SIGTERM has asked for a checkpoint and the end; the program ends now", file=sys.stderr, flush=True)
            raise SystemExit(128 + signal.SIGTERM)
        if (self.group and self.group()) is not group:
            self.group = weakref.ref(group) if group is not None else None
            self.begin()
        self.calls += 1
        if self.calls < self.next_call:
            return False
        asked = max(self.kept, _native.own_request(_is_ours(signal.SIGUSR1), _is_ours(signal.SIGTERM)))
        if group is not None and group.size() > 1:
            self.kept = asked  # If the exchange fails.
            numbers = torch.tensor([asked, self.calls_of_a_period() if group.rank() == 0 else 0], device=_device_of(group))
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=group)
            asked, self.interval = numbers.tolist()
        self.next_call = self.calls + self.interval
        self.kept = self.NOTHING
        self.stops = asked == self.CHECKPOINT_AND_STOP and _native.take_stop_request()
        return asked != self.NOTHING

    def calls_of_a_period(self):
        """By those since the last exchange. Grows slowly, because steps may become longer."""
        now = time.monotonic()
        chosen = 1
        if self.last:
            calls, then = self.last
            chosen = int(min(self.PERIOD_S * (self.calls - calls) / max(now - then, 1e-6), self.MOST_CALLS))
        self.last = self.calls, now
        return max(1, min(chosen, 2 * self.interval))


_requests = _Requests()
_ours = {}


def _is_ours(number):
    """Whether the program had no handler of its own for the signal when this was asked first."""
    return _ours.setdefault(number, signal.getsignal(number) == signal.SIG_DFL)


def _device_of(group):
    kinds = [each.type for each in group._device_types]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], getattr(torch, kinds[0]).current_device())
