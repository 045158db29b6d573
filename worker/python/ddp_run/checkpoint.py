"""Checkpoints on disk, in libddp's format (worker/checkpoint/FORMAT.md)."""
import functools
import multiprocessing.util
import sys

from ddp_run import _backend, _native
from ddp_run.progress import checkpoint_requested


@functools.cache
def _finish_at_exit():
    multiprocessing.util.Finalize(None, _native.finish_checkpoints, exitpriority=1)


class Checkpointer:
    """Saves and restores the state of an ElasticState, together with the other ranks.

        checkpoints = ddp_run.Checkpointer("run1", state, every=100, keep=3)
        checkpoints.load_latest()
        ddp_run.run_elastic(state, train)              # In train(): checkpoints.save_if_due() after each step.

    A program without run_elastic() makes both after init_process_group(), over any backend. Then load_latest() loads at once. At the
    end it calls wait(). If a rank is lost there, all processes start anew, and load. A module may be divided by FSDP2 (fully_shard): each
    rank writes a share of the whole tensors, and any number of ranks can load them.

    directory: a folder that all nodes share; made if it is missing. every: save_if_due() saves when the value "step" is divisible
    by it. keep: how many checkpoints stay, 0 keeps all; those of steps divisible by keep_every stay for ever. asynchronous:
    save() returns when the state is copied. The agent's process writes it, and finishes though this process dies.

    Make it once per process. One job uses a folder at a time.
    """

    def __init__(self, directory: str, state, *, every: int = 0, keep: int = 3, keep_every: int = 0, asynchronous: bool = True):
        if every < 0 or keep < 0 or keep_every < 0:
            raise ValueError(f"every={every}, keep={keep}, keep_every={keep_every}: none may be negative")
        if every and not isinstance(state._registry.values.get("step"), int):
            raise ValueError("every=... counts the value \"step\" of the state, which has none: ElasticState(..., step=0)")
        self._settings = (str(directory), keep, keep_every, asynchronous)
        self._state = state
        self._every = every
        self._loads = None  # Whether strictly, if at all.
        self._native = None  # Of this round, or of the default group.
        self._round = None  # That group's, in a program without run_elastic().
        self._rank = 0
        self._curves = None  # The file of a SummaryWriter, and the step after which it goes on.
        self.loaded = None  # What load_latest() has found, as a dict; None before.
        state._checkpointers.append(self)
        _finish_at_exit()

    def load_latest(self, strict: bool = True) -> dict | None:
        """Loads the newest checkpoint that is whole, if there is one.

        Before run_elastic(), it is loaded when the first round begins, unless the state is that of a training already. Returns
        None then; `loaded` has the report: step (-1: there was none), epoch, world_size, path, skipped and notes.
        Within the function that run_elastic() calls, or in a program without it, it is collective, loads at once and returns the report.

        strict=False takes what both the checkpoint and the program have. Raises ValueError if the checkpoint belongs to another
        program, RuntimeError if the folder cannot be read. Nothing is changed then.
        """
        if not self._is_ready():
            self._loads = strict
            return None
        self.loaded = self._native.load_latest(strict)
        return self.loaded

    def save(self, step: int | None = None, epoch: int = -1) -> dict:
        """Saves the state as it is. Collective; returns when the state is copied, or with asynchronous=False when it is on the disk.

        Returns a dict: state ("writing" or "durable"), step, path, note. step: without it, the value "step" counts. The next save
        waits for this one. Raises RuntimeError if this save or the one before failed; training can go on.
        """
        self._need_group("save()")
        step = self._state._step_or(step)
        if step is None:
            raise ValueError("save() needs a step: the state has no value \"step\"")
        report = self._native.save(step, epoch)
        self._say([report["note"]] if report["note"] else [])
        return report

    def save_if_due(self, epoch: int = -1) -> bool:
        """Saves if the value "step" is divisible by `every`, or if a checkpoint was asked for (checkpoint_requested).

        Call it on all ranks after each step. Returns whether it has saved. After SIGTERM it saves, and the next call of the ranks that got
        the signal raises SystemExit(143).
        """
        step = self._state._step_or(None)
        if not checkpoint_requested() and (not self._every or step % self._every):
            return False
        self.save(step, epoch)
        return True

    def wait(self) -> dict:
        """Returns when the last save is on the disk. Collective. Raises RuntimeError if it failed. run_elastic() does it at the end."""
        self._need_group("wait()")
        return self._native.wait()

    def _is_ready(self):
        if not self._state._goes_on and (now := _backend.world_round()) is not self._round:
            self._round, self._native = now, None
            if now is not None:
                self._begin_round(now)
        return self._native is not None

    def _need_group(self, call):
        if not self._is_ready():
            raise RuntimeError(f"{call} belongs in the function that run_elastic() calls; in a program without it, call init_process_group() "
                               "before you make the ElasticState")

    def _begin_round(self, group):
        self._rank = group.rank
        self._native = _native.Checkpointer(*self._settings, group)
        self._state._registry.register(self._native)
        self._native.prepare()
        self._say([])
        self._tell_times()
        if self._loads is not None and not self._state.resumed:
            self.load_latest(self._loads)
            self._say([*self.loaded["skipped"], *self.loaded["notes"]])

    def _write_times_to(self, file, last_step):
        self._curves = file, last_step
        self._tell_times()

    def _tell_times(self):
        if self._native is not None and self._curves is not None:
            self._native.tell_times(*self._curves)

    def _say(self, lines):
        """Lines that are the same on all ranks, and what rank 0 alone has to say."""
        for line in [*(lines if self._rank == 0 else []), *self._native.warnings]:
            print(f"ddp_run: {line}", file=sys.stderr, flush=True)

    def _end_round(self):
        self._native.wait()
        self._say([])

    def _forget_round(self):
        self._native = self._curves = None
