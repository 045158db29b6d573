"""ddp-run for Python: the backend "ddp" of torch.distributed, and programs that go on when workers are lost (run_elastic).

    import ddp_run                              # needed before PyTorch 2.14
    torch.distributed.init_process_group("ddp")

Ranks of one machine exchange data in shared memory, other ranks over TCP. All operations on CPU tensors have the meanings that
PyTorch's documentation gives them. Sums are the same to the last bit from run to run. If a rank dies, every operation of every
other rank raises torch.distributed.DistBackendError within milliseconds, and names it.
"""
from ddp_run._backend import abort, is_registered, nodes, register
from ddp_run.checkpoint import Checkpointer
from ddp_run.elastic import ElasticState, run_elastic
from ddp_run.exports import export_checkpoint
from ddp_run import failures as _failures
from ddp_run.loader import DataLoader
from ddp_run.logical import LogicalWorld
from ddp_run.modules import weights_sha256
from ddp_run.progress import checkpoint_requested, progress
from ddp_run.sampler import DistributedSampler
from ddp_run.spawn import spawn
from ddp_run.summary_writer import SummaryWriter
from ddp_run.trace import trace_scope
from ddp_run import loader_processes as _loader_processes
from ddp_run import stacks as _stacks

__all__ = ["Checkpointer", "DataLoader", "DistributedSampler", "ElasticState", "LogicalWorld", "SummaryWriter", "abort", "checkpoint_requested",
           "export_checkpoint", "is_registered", "nodes", "progress", "register", "run_elastic", "spawn", "trace_scope",
           "weights_sha256"]

register()
_failures.install()
_loader_processes.install()
_stacks.install()
