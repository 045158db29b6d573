"""Training that goes on in the same processes when ranks come and go."""
import datetime
import os
import sys
import traceback
from typing import Callable

import torch.distributed as dist

from ddp_run import _backend, _native, imports, worker_process
from ddp_run.state import Registry

# How long a rank that a backend of another kind has lost may take to be found dead.
_NOTICE = datetime.timedelta(seconds=2)
_current = None  # The round that this process is in.


class ElasticState:
    """The state of a training that continues while processes come and go.

        state = ddp_run.ElasticState(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, step=0)

    Each keyword names one piece of state: a torch.nn.Module, an optimizer of its parameters, anything with state_dict() and
    load_state_dict(), or a value of numbers, str, lists, dicts, bytes and tensors. Values are attributes: `state.step += 1`.
    The random generators of torch, CUDA, numpy and `random` are state of each rank, unless rng=False; with a LogicalWorld they are rank
    0's on all. Everything else is the same on all ranks after each step; where it differs, rank 0's counts. Register the same names in
    the same order on all ranks.

    commit_every: commit_if_due() commits every so many steps. 0: so rarely that commits take commit_share of the time.

    Make it once per process, before run_elastic(). In a program without run_elastic(), make it after init_process_group(): then it is for
    a Checkpointer alone, and may hold modules of FSDP2. The last two commits are kept in the memory of the processes. What is
    registered is referenced. Parameters, buffers and tensors of optimizers get their values in place. Lives as long as the process.
    """

    def __init__(self, *, rng: bool = True, commit_every: int = 0, commit_share: float = 0.01, **items):
        object.__setattr__(self, "_registry", Registry(rng))
        object.__setattr__(self, "_checkpointers", [])
        for name, item in items.items():
            self.add(name, item)
        # With a default group of its own the program is not called by run_elastic(), and ends with any of its ranks.
        object.__setattr__(self, "_goes_on", not dist.is_initialized())
        if worker_process.has_agent and self._goes_on:
            _native.goes_on_from_round_to_round()  # From now on the agent knows that.
        native = _native.State()
        native.set_commit_pace(commit_every, commit_share)
        object.__setattr__(self, "_native", native)
        object.__setattr__(self, "_is_registered", False)

    def add(self, name: str, item, per_rank: bool = False) -> None:
        """Adds a piece of state, before run_elastic(). per_rank: a value that each rank has of its own."""
        if getattr(self, "_is_registered", False):
            raise RuntimeError(f"\"{name}\" comes too late: add state before run_elastic()")
        if hasattr(type(self), name):
            raise ValueError(f"\"{name}\" cannot name state: ElasticState has an attribute of this name")
        self._registry.add(name, item, per_rank)

    def load_from(self, path, *, strict: bool = True, module: str | None = None) -> dict:
        """Begins with what another program has saved. Call it on all ranks, before run_elastic().

            state.load_from("pretrained.safetensors")
            checkpoints.load_latest()                 # A checkpoint of this training, if there is one, counts more.

        path: a file of torch.save or, if its name ends in .safetensors, of safetensors; Hugging Face's folder with model.safetensors or
        pytorch_model.bin, or with the .index.json of either; a folder of torch.distributed.checkpoint; a folder of checkpoints of
        ddp_run, or one of them. No code of it is run: what would need pickle is refused.

        What is in there goes to the state of the same name: {"model": ..., "optimizer": ..., "step": 7}. Optimizers are taken by numbers,
        as their state_dict() gives them, or by names, as get_state_dict() of torch.distributed.checkpoint.state_dict does. Tensors alone
        are those of the only module, or of the one that `module` names. One name is enough for tensors that the module shares. Tensors
        are converted to the types that the program has.

        strict: as for load_state_dict(). With False, tensors that only one side has are left out; other shapes are an error anyway.

        Returns a dict: loaded (names), notes (lines on what only one side has and what was converted). Raises ValueError, which says what
        does not fit or is damaged, and nothing is changed then; OSError if it cannot be read. Takes the memory of a copy of the state.
        """
        if self._is_registered:
            raise RuntimeError("load_from() comes too late: call it before run_elastic()")
        return imports.load(self._registry, path, strict, module)

    def commit(self, step: int | None = None) -> None:
        """Commits the current state: training steps back to it if a rank is lost. Collective.

        Returns when the state is safe from the loss of this process. step is for reports; without it, the value "step" counts, or
        else the number of commits. Costs a copy of the state. Raises torch.distributed.DistBackendError if a rank is lost.
        """
        self._need_round("commit()")
        self._native.commit(self._step_or(step))

    def commit_if_due(self, step: int | None = None) -> bool:
        """Commits if it is time to. Call it on all ranks after each step. Returns whether it has committed."""
        self._need_round("commit_if_due()")
        if not self._native.is_commit_due():
            return False
        self._native.commit(self._step_or(step))
        return True

    def restore(self) -> None:
        """Steps back to the last commit on this rank alone."""
        self._need_round("restore()")
        self._native.restore()

    @property
    def resumed(self) -> bool:
        """Whether this round began with the commit of a training, not with the state the program has made."""
        return self._native.resumed

    def _need_round(self, call):
        if _current is None or _current.state is not self:
            raise RuntimeError(f"{call} belongs in the function that run_elastic() calls with this state")

    def _step_or(self, step):
        own = self._registry.values.get("step")
        return step if step is not None else own if isinstance(own, int) else None

    def _register(self):
        if not self._is_registered:
            self._registry.register(self._native)
            object.__setattr__(self, "_is_registered", True)

    def __getattr__(self, name):
        registry = self.__dict__["_registry"]
        if name in registry.values:
            return registry.values[name]
        if name in registry.items:
            return registry.items[name]
        raise AttributeError(f"no state is called \"{name}\"; there are {', '.join([*registry.items, *registry.values])}")

    def __setattr__(self, name, value):
        if name in self._registry.values:
            self._registry.values[name] = value
        elif name in self._registry.items:
            raise AttributeError(f"\"{name}\" is a {type(self._registry.items[name]).__name__} and stays the same object")
        else:
            raise AttributeError(f"no state is called \"{name}\"; name it when you make the ElasticState, or add() it")


class _Round:
    """One round in this process: the default group of torch.distributed, and what was raised in it."""

    def __init__(self, state, train, backend, native_group):
        self.state = state
        self._train = train
        self._backend = backend
        self.group = native_group
        self.result = None
        self.error = None  # What is to be raised again: not that a rank was lost.
        self.trace = ""  # Of what a lost rank has caused.
        self._excepthook = sys.excepthook

    def run(self):
        """Trains. Returns None, or the text of what was raised and the cause, for C++: "lost", "failed", "ends"."""
        global _current
        _current = self
        try:
            try:
                self._begin()
                self.result = self._train(dist.group.WORLD)
                for checkpointer in self.state._checkpointers:
                    checkpointer._end_round()
                return None
            except BaseException as error:  # noqa: BLE001: it is raised again, or a lost rank's.
                return self._judge(error)
        finally:
            _current = None
            for each in [*self.state._checkpointers, *self.state._registry.logical_worlds()]:
                each._forget_round()
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = self._excepthook  # init_process_group() wraps it each time.

    def _begin(self):
        if self._backend is not None:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                         "TORCHELASTIC_RESTART_COUNT"):
                value = _native.round_variable(name)
                if value is not None:
                    os.environ[name] = value
            with _backend.over(self.group):
                dist.init_process_group(self._backend, store=_store_of(self.group), rank=self.group.rank, world_size=self.group.size)
        for each in [*self.state._registry.logical_worlds(), *self.state._checkpointers]:
            each._begin_round(self.group)

    def _judge(self, error):
        if _is_of_a_group(error, self.group):
            # The frames hold what belongs to the round: the DistributedDataParallel and its group.
            self.trace = "".join(traceback.format_exception(error))
            traceback.clear_frames(error.__traceback__)
            return str(error), "lost"
        self.error = error
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return "", "ends"
        # The traceback gets into the report when the exception ends the process (failures.py).
        return "".join(traceback.format_exception_only(error)).strip(), "failed"


def _is_of_a_group(error, group):
    """Whether the exception comes from a group that has lost a rank. backward() makes a RuntimeError of DistBackendError."""
    if not isinstance(error, RuntimeError):
        return False
    if group.failure is not None and (isinstance(error, dist.DistError) or group.failure in str(error)):
        return True
    if isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "NCCL" in str(error):
        return group.fails_within(_NOTICE)
    return False


def run_elastic(state: ElasticState, train: Callable, backend: str = "ddp"):
    """Calls train(group) in each round of the job, in this same process, until it returns. Returns what it returns.

    group: the default group of torch.distributed, over `backend`: "ddp", also for tensors on CUDA devices, or "gloo". Before each call, all
    ranks have the state of the last commit. In the next round the group may have another size, and this process another rank.

    If a rank is lost, whatever operation train() is in raises on all others, at once. (With "gloo", one that waits for a node that stands still
    may take as long as gloo waits; such a process is started again.) train() must let it pass. What
    belongs to the round must not outlive train(): the DistributedDataParallel, the group. New processes get the state from the others.
    If nodes join, the round ends after the next commit.

    Without ddp-run, train() is called once: alone, or with the ranks that torchrun has started.

    Raises what train() raises; the report of ddp-run has its traceback. torch.distributed.DistBackendError if the job cannot go on.
    """
    if worker_process.is_importing_program():
        raise RuntimeError("run_elastic() was called in a process of multiprocessing's, such as a data loader's, while it imports the program: "
                           "put what trains under `if __name__ == \"__main__\":`")
    if _current is not None:
        raise RuntimeError("run_elastic() must not be called in the function that it calls")
    if dist.is_initialized():
        raise RuntimeError("run_elastic() makes the default group itself; do not call init_process_group() before it")
    if not callable(train):
        raise TypeError(f"train is a {type(train).__name__}, not a function of a group")
    if not worker_process.has_agent:
        return _run_once(state, train, backend)
    if not _native.goes_on_from_round_to_round():
        raise RuntimeError("the agent of ddp-run that has started this process is gone")
    return _run_rounds(state, lambda run: _native.run_elastic(state._native, run), train, backend)


def _run_rounds(state, run_native, train, backend):
    state._register()
    last = None

    def run(native_group):
        nonlocal last
        last = _Round(state, train, backend, native_group)
        return last.run()

    try:
        run_native(run)
    except RuntimeError as error:
        # C++ has only the text of what train() has raised.
        if last is None or last.error is None:
            if last is not None and last.trace:
                error.add_note(f"It came from:\n{last.trace}")
            raise
    if last.error is not None:
        raise last.error
    return last.result


def _run_once(state, train, backend):
    excepthook = sys.excepthook
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if os.environ.get("RANK", "0") == "0":
            print("ddp_run: no agent of ddp-run is there, so a lost rank ends this training", file=sys.stderr)
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    own = _backend.of_world()
    try:
        return _run_rounds(state, lambda run: _native.run_once(state._native, own, run), train, None)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = excepthook


def _store_of(group):
    """The store of the job, for this round alone. Without libuv, which some builds of PyTorch lack."""
    # The launcher's own, where MASTER_PORT is for a store of rank 0.
    address, port = (_native.round_variable(f"DDP_STORE_{part}") or _native.round_variable(f"MASTER_{part}") for part in ("ADDR", "PORT"))
    if group.size == 1 and not address:
        return dist.HashStore()
    store = dist.TCPStore(address, int(port), is_master=False, wait_for_workers=False, use_libuv=False, timeout=_backend.GROUP_TIMEOUT)
    return dist.PrefixStore(f"ddp_run/round{group.round}", store)
