"""Makes the backend known to torch.distributed."""
import contextlib
import datetime
import multiprocessing.util
import os
import re
import weakref

import torch
import torch.distributed as dist

from ddp_run import _built_with

# Before the module is loaded: with another PyTorch's libraries it may do anything.
if re.match(r"[0-9]+\.[0-9]+(\.[0-9]+)?", torch.__version__)[0] != _built_with.TORCH:
    raise ImportError(f"ddp_run was built with PyTorch {_built_with.TORCH}, and this is {torch.__version__}: build and install it again")
from ddp_run import _native, worker_process  # noqa: E402

NAME = "ddp"
_round_group = None  # The native group that the next group of PyTorch's is made over.
_leaves_at_exit = None  # The process that does.
_world_rounds = weakref.WeakKeyDictionary()  # Of a default group: a native backend over its ranks, and its RoundGroup.
GROUP_TIMEOUT = datetime.timedelta(minutes=10)  # Of a group for state.


def register() -> None:
    """Registers the backend "ddp". Does nothing if it is registered already.

    `import ddp_run` calls it, and so does PyTorch 2.14 for a program that names the backend without the import.
    """
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])


def abort(group: dist.ProcessGroup | None = None) -> None:
    """Ends every operation of the group, here and on its other ranks: they raise torch.distributed.DistBackendError.

    The groups that share its ranks' memory fail with it. From any thread. Afterwards destroy the groups; new ones can be made.
    """
    _native.abort(_backend_of(group))


def nodes(group: dist.ProcessGroup | None = None) -> int:
    """The number of nodes that the group's ranks are on. Ranks of one node share memory; nodes are connected by TCP."""
    return _native.nodes(_backend_of(group))


def is_registered(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory that the node's other ranks can reach, so that it is reduced without a copy.

    Nobody has to ask for it: a tensor on the CPU of 64 KiB or more does, if a tensor of the same size has been communicated before.
    """
    return _native.is_registered(tensor)


def _backend_of(group):
    group = group or dist.distributed_c10d._get_default_group()
    device = next((each for each in group._device_types if each.type == "cpu"), torch.device("cuda"))
    return group._get_backend(device)


@contextlib.contextmanager
def over(round_group):
    """Within it, the first group of all ranks that PyTorch makes with this backend is the round's."""
    global _round_group
    _round_group = round_group
    try:
        yield
    finally:
        _round_group = None


def of_world():
    """A native backend over all ranks of the default group, beside it, for their state. Collective."""
    _leave_at_exit()
    store = dist.PrefixStore("ddp_run", dist.distributed_c10d._get_default_store())
    size = dist.get_world_size()
    return _native.make_backend(store, dist.get_rank(), size, GROUP_TIMEOUT, "state", list(range(size)), False)


def world_round():
    """All ranks of the default group as native code wants them for state. The first call for a group is collective. None: no group."""
    if not dist.is_initialized():
        return None
    world = dist.group.WORLD
    if world not in _world_rounds:
        own = of_world()
        _world_rounds[world] = own, _native.world_round(own, worker_process.has_agent)
    return _world_rounds[world][1]


def _make(options, _backend_options):
    global _round_group
    _leave_at_exit()
    round_group, _round_group = _round_group, None
    if round_group is not None:
        return _native.make_round_backend(options.store, round_group, options.timeout)
    return _native.make_backend(options.store, options.group_rank, options.group_size, options.timeout,
                                f"'{options.group_id}'", list(options.global_ranks_in_group),
                                getattr(options, "enable_reconfigure", False))


def _leave_at_exit() -> None:
    """A process that ends with its groups leaves them in order; otherwise the other ranks would take it for dead.

    A finalizer of multiprocessing, because its children do not run what atexit knows.
    """
    global _leaves_at_exit
    if _leaves_at_exit != os.getpid():
        _leaves_at_exit = os.getpid()
        multiprocessing.util.Finalize(None, _native.shut_down_all, exitpriority=0)
