"""Ranks for a notebook."""
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def spawn(function: Callable, nproc: int, *args: Any, backend: str = "ddp") -> list[Any]:
    """Calls function(rank, *args) in nproc new processes that have a default group of torch.distributed. Returns the results by rank.

    For notebooks and for trying things out; `ddp-run` starts programs. The processes are forked, so the function may be one of the
    notebook, and needs no module. Each computes with one thread. What the notebook has on a CUDA device cannot be used in them, so nothing may have been there before.
    Results are pickled. If a rank raises, the others are ended, and torch.multiprocessing.ProcessRaisedException has its traceback.
    """
    if nproc < 1:
        raise ValueError(f"spawn() cannot start {nproc} processes; give 1 or more")
    if torch.cuda.is_initialized():
        raise RuntimeError("spawn() forks, and this process has used CUDA already, which a forked process cannot: restart the notebook, and "
                           "call spawn() before anything touches a CUDA device")
    if dist.is_initialized():
        raise RuntimeError("spawn() makes a default group in each process, and this one has a group already: destroy_process_group() first")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_run_rank, (nproc, folder, backend, function, args), nproc, start_method="fork")
        return [torch.load(f"{folder}/result{rank}", weights_only=False) for rank in range(nproc)]


def _run_rank(rank, nproc, folder, backend, function, args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc))
    torch.set_num_threads(1)  # OpenMP's threads do not survive fork().
    dist.init_process_group(backend, store=dist.FileStore(f"{folder}/store", nproc), rank=rank, world_size=nproc)
    torch.save(function(rank, *args), f"{folder}/result{rank}")
    dist.destroy_process_group()
