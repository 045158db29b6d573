"""Curves for TensorBoard that stay exact when a training is interrupted."""
import operator
import os
import threading
from typing import TYPE_CHECKING

import torch

from ddp_run import _native

if TYPE_CHECKING:
    from ddp_run.checkpoint import Checkpointer


class SummaryWriter:
    """Scalars for TensorBoard, as torch.utils.tensorboard.SummaryWriter writes them, and without the package tensorboard.

        with ddp_run.SummaryWriter("board", purge_step=step + 1) as writer:   # The training goes on after `step`.
            writer.add_scalar("loss", loss, step)

    PyTorch's hides the steps from purge_step on, and then TensorBoard has to see it. This one drops them: with the step at which the
    training goes on, each step is in the file once, and none is missing, also after SIGKILL. What the step before purge_step has already is
    not written again, so a training may repeat what follows its checkpoint. purge_step=0 empties the file. None keeps all.

    Only one rank may write to a folder, usually the one with rank 0; each training needs a folder of its own. A file that is damaged or no
    event file raises RuntimeError and is left as it is. Every call writes at once. Any thread.

    checkpoints: a Checkpointer, whose checkpoints then have a point each in two more curves, at their step: "checkpoint_seconds", how long
    save() has held the training up, and "checkpoint_write_seconds", how long it took until the checkpoint was on the disk. The latter comes
    with a later save or wait(), also after close(). Only rank 0 knows them. Make the writer after load_latest() has loaded.
    """

    def __init__(self, log_dir: str | os.PathLike[str], purge_step: int | None = None, *, checkpoints: "Checkpointer | None" = None) -> None:
        self.log_dir = os.fspath(log_dir)
        last = None if purge_step is None else _step("purge_step", purge_step) - 1
        self._file = _native.EventFile(self.log_dir, last)
        self._lock = threading.Lock()
        if checkpoints is not None:
            checkpoints._write_times_to(self._file, max(last or 0, 0))

    def add_scalar(self, tag: str, scalar_value: float | torch.Tensor, global_step: int) -> None:
        """One point of the curve `tag`. A tensor must have one element; it is read, which waits for its device."""
        self.add_values(global_step, {tag: scalar_value})

    def add_values(self, global_step: int, values: dict[str, float | torch.Tensor]) -> None:
        """A point of each of these curves, in one record."""
        step = _step("global_step", global_step)
        numbers = {}
        for tag, value in values.items():
            if not isinstance(tag, str) or not tag:
                raise TypeError(f"SummaryWriter: the tag {tag!r} is no text; give the name of the curve")
            numbers[tag] = _number(tag, value)
        with self._lock:
            if self._file is None:
                raise RuntimeError(f"SummaryWriter: {self.log_dir} is closed")
            self._file.add(step, numbers)

    def flush(self) -> None:
        """Nothing is waiting."""

    def close(self) -> None:
        with self._lock:
            self._file = None

    def __enter__(self) -> "SummaryWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _step(name, value):
    try:
        step = operator.index(value)
    except TypeError:
        raise TypeError(f"SummaryWriter: {name} must be a whole number, not {type(value).__name__}") from None
    if not 0 <= step < 2**63:
        raise ValueError(f"SummaryWriter: {name} is {step}; give a step from 0 to 2**63 - 1")
    return step


def _number(tag, value):
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
        raise TypeError(f"SummaryWriter: {tag!r} must be one number, not {type(value).__name__}{shape}; give its mean, for example") from None
