"""PyTorch Lightning under ddp-run: what a Trainer has to know. Needs the package lightning; `import ddp_run` does not.

    import os
    from ddp_run.lightning import DdpRunStrategy
    trainer = lightning.Trainer(strategy=DdpRunStrategy(), devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                                num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), enable_progress_bar=False)
    trainer.fit(module, ckpt_path="last")

Lightning makes its group once in a process, so when a worker is lost, ddp-run starts all of them again (--max-restarts), and training
goes on from the checkpoint that fit() is given.
"""
import math
import os

import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy

import ddp_run
from ddp_run import worker_process


class DdpRunEnvironment(ClusterEnvironment):
    """The ranks that ddp-run, or another launcher with torchrun's variables, has given to this process.

    For strategies that are not a DdpRunStrategy: Trainer(plugins=[DdpRunEnvironment()], strategy="fsdp"). Calls raise RuntimeError where
    the variable that they read is missing.
    """

    @staticmethod
    def detect() -> bool:
        """Whether ddp-run has started this process as a worker."""
        return worker_process.has_agent

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return _variable("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        return int(_variable("MASTER_PORT"))

    def world_size(self) -> int:
        return int(_variable("WORLD_SIZE"))

    def set_world_size(self, size: int) -> None:
        """Does nothing: the launcher decides."""

    def global_rank(self) -> int:
        return int(_variable("RANK"))

    def set_global_rank(self, rank: int) -> None:
        """Does nothing: the launcher decides."""

    def local_rank(self) -> int:
        return int(_variable("LOCAL_RANK"))

    def node_rank(self) -> int:
        return int(_variable("GROUP_RANK"))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raises ValueError if the Trainer counts on other ranks than there are: it would give them the wrong samples."""
        local = int(_variable("LOCAL_WORLD_SIZE"))
        if num_devices != local or num_devices * num_nodes != self.world_size():
            raise ValueError(f"Trainer(devices={num_devices}, num_nodes={num_nodes}) does not fit the {self.world_size()} workers that "
                             f"were started, {local} of them on this node: give it devices=int(os.environ[\"LOCAL_WORLD_SIZE\"]) and "
                             "num_nodes=int(os.environ[\"GROUP_WORLD_SIZE\"]), and start as many workers on each node")


class DdpRunStrategy(DDPStrategy):
    """DistributedDataParallel over the backend "ddp", with ddp_run.progress() after each step of an optimizer and of an evaluation.

    The arguments are DDPStrategy's. The environment is a DdpRunEnvironment if there is no other, and process_group_backend is "ddp".
    """

    def __init__(self, *args, process_group_backend: str = "ddp", **kwargs):
        super().__init__(*args, process_group_backend=process_group_backend, **kwargs)
        if self.cluster_environment is None:
            self.cluster_environment = DdpRunEnvironment()
        self._total_steps = None

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        trainer = self.lightning_module.trainer
        total = trainer.estimated_stepping_batches
        self._total_steps = total if 0 < total < math.inf else None
        loss = output if isinstance(output, torch.Tensor) and output.numel() == 1 else None
        ddp_run.progress(trainer.global_step + 1, loss, total_steps=self._total_steps)
        return output

    def validation_step(self, *args, **kwargs):
        self._is_evaluating()
        return super().validation_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        self._is_evaluating()
        return super().test_step(*args, **kwargs)

    def predict_step(self, *args, **kwargs):
        self._is_evaluating()
        return super().predict_step(*args, **kwargs)

    def _is_evaluating(self):
        ddp_run.progress(self.lightning_module.trainer.global_step, total_steps=self._total_steps)


def _variable(name):
    try:
        return os.environ[name]
    except KeyError:
        raise RuntimeError(f"{name} is not set, so this process has no place among the ranks: start the program with ddp-run, for example "
                           "ddp-run --standalone --nproc-per-node 2 train.py") from None
