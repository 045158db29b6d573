"""The names and signatures of PyTorch Lightning 2.6 that ddp_run.lightning builds on, for where the package is missing."""
import abc
import sys
import types


class ClusterEnvironment(abc.ABC):
    creates_processes_externally = main_address = main_port = property(abc.abstractmethod(lambda self: ...))

    @staticmethod
    @abc.abstractmethod
    def detect(): ...

    @abc.abstractmethod
    def world_size(self): ...

    @abc.abstractmethod
    def set_world_size(self, size): ...

    @abc.abstractmethod
    def global_rank(self): ...

    @abc.abstractmethod
    def set_global_rank(self, rank): ...

    @abc.abstractmethod
    def local_rank(self): ...

    @abc.abstractmethod
    def node_rank(self): ...

    def validate_settings(self, num_devices, num_nodes): ...

    def teardown(self): ...


class DDPStrategy:
    lightning_module = None

    def __init__(self, accelerator=None, parallel_devices=None, cluster_environment=None, checkpoint_io=None, precision_plugin=None,
                 ddp_comm_state=None, ddp_comm_hook=None, ddp_comm_wrapper=None, model_averaging_period=None, process_group_backend=None,
                 timeout=None, start_method="popen", **kwargs):
        self.cluster_environment, self.process_group_backend = cluster_environment, process_group_backend

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        return optimizer.step(closure)

    def validation_step(self, *args, **kwargs): ...

    def test_step(self, *args, **kwargs): ...

    def predict_step(self, *args, **kwargs): ...


def provide() -> bool:
    """Has `import lightning.pytorch...` find these where there is no package. Returns whether there is one."""
    try:
        import lightning.pytorch  # noqa: F401
        return True
    except ModuleNotFoundError:
        names = {"lightning": {}, "lightning.pytorch": {}, "lightning.pytorch.plugins": {},
                 "lightning.pytorch.plugins.environments": {"ClusterEnvironment": ClusterEnvironment},
                 "lightning.pytorch.strategies": {"DDPStrategy": DDPStrategy}}
        for name, contents in names.items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(contents)
        return False
