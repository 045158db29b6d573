"""ddp_run.lightning: against the interface of PyTorch Lightning (lightning_interface.py), and where the package is installed, real fits.

    lightning_programs.py BIN_DIR
    lightning_programs.py --worker WHAT [ARGUMENT...]    is a worker
"""
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

import ddp_run

import lightning_interface
from raising import raises

IS_REAL = lightning_interface.provide()
from ddp_run.lightning import DdpRunEnvironment, DdpRunStrategy  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker/python/examples"))
import images  # noqa: E402

LIMIT_S = 240
SAMPLES, BATCH, EPOCHS = 320, 32, 3
STEPS = SAMPLES // BATCH // 2  # Of an epoch, on each of two ranks.


# ---- workers ----

def has_its_place():
    environment = DdpRunEnvironment()
    assert DdpRunEnvironment.detect() and environment.creates_processes_externally
    assert (environment.main_address, environment.main_port) == (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    ranks = (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank())
    environment.set_world_size(7)
    environment.set_global_rank(7)
    assert ranks == (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank())
    environment.validate_settings(num_devices=2, num_nodes=1)
    for settings in ((1, 1), (2, 2), (1, 2)):
        raises(ValueError, [f"devices={settings[0]}, num_nodes={settings[1]}", "2 workers", "LOCAL_WORLD_SIZE"],
               lambda: environment.validate_settings(*settings))
    environment.teardown()
    print("ranks", *ranks, flush=True)


def tells_steps():
    told = []
    ddp_run.progress = lambda *arguments, **more: told.append((*arguments, more))
    strategy = DdpRunStrategy()
    assert isinstance(strategy.cluster_environment, DdpRunEnvironment) and strategy.process_group_backend == "ddp"
    own = DdpRunEnvironment()
    assert DdpRunStrategy(cluster_environment=own, process_group_backend="gloo").cluster_environment is own
    if IS_REAL:
        return  # The fit below has real parts.
    trainer = SimpleNamespace(global_step=4, estimated_stepping_batches=20)
    strategy.lightning_module = SimpleNamespace(trainer=trainer)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    loss = torch.tensor(0.5)
    assert strategy.optimizer_step(optimizer, lambda: loss) is loss
    assert told == [(5, loss, {"total_steps": 20})], told
    for unknown in (float("inf"), -1):
        trainer.estimated_stepping_batches = unknown
        strategy.optimizer_step(optimizer, lambda: None)  # As in manual optimization.
        assert told[-1] == (5, None, {"total_steps": None}), told
        for evaluate in (strategy.validation_step, strategy.test_step, strategy.predict_step):
            told.clear()
            evaluate()
            assert told == [(4, {"total_steps": None})], told


def fits(backend, folder, *dies):
    """Real Lightning. With `dies`, rank 1 ends in the middle of the second epoch of the first round."""
    import lightning.pytorch as pl

    class Digits(pl.LightningModule):
        def __init__(self):
            super().__init__()
            # Without Dropout: Lightning's checkpoints hold no random generators.
            self.network = torch.nn.Sequential(*(layer for layer in images.network() if not isinstance(layer, torch.nn.Dropout)))

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, _):
            self.log("validation", torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    tell, told = ddp_run.progress, []

    def progress(step, loss=None, **more):
        if loss is not None:
            told.append(step)
        assert more == {"total_steps": STEPS * EPOCHS if told else None}, more
        if dies and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" and step == STEPS + 3:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(step, loss, **more)
    ddp_run.progress = progress
    pl.seed_everything(1)
    trainer = pl.Trainer(strategy=DdpRunStrategy(process_group_backend=backend), accelerator="cpu", max_epochs=EPOCHS,
                         devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
                         callbacks=[pl.callbacks.ModelCheckpoint(folder, save_last=True)], default_root_dir=folder, logger=False,
                         enable_progress_bar=False, enable_model_summary=False)
    data, module = images.digits(None, SAMPLES), Digits()
    loader = torch.utils.data.DataLoader
    saved = Path(folder, "last.ckpt")
    trainer.fit(module, loader(data, BATCH, shuffle=True), loader(data, BATCH), ckpt_path=saved if saved.exists() else None)
    print(f"steps {told[0]} to {told[-1]}, backend {torch.distributed.get_backend()}, weights {ddp_run.weights_sha256(module)}", flush=True)


# ---- cases ----

def run(*worker, flags=()):
    command = [f"{sys.argv[1]}/ddp-run", "--standalone", "--nproc-per-node", "2", *flags, __file__, "--worker", *worker]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def members_fit_their_bases():
    """Making one raises TypeError if an abstract member is missing."""
    DdpRunEnvironment()
    for ours in (DdpRunEnvironment, DdpRunStrategy):
        theirs = ours.__bases__[0]
        for name in set(vars(ours)) & {name for name in dir(theirs) if not name.startswith("_")}:
            member = inspect.getattr_static(theirs, name)
            assert isinstance(vars(ours)[name], type(member)), name
            if callable(member):
                parameters = [list(inspect.signature(getattr(each, name)).parameters) for each in (ours, theirs)]
                assert parameters[0] == parameters[1], (name, parameters)


def without_a_launcher():
    assert not DdpRunEnvironment.detect()
    for call in ("world_size", "global_rank", "local_rank", "node_rank"):
        raises(RuntimeError, ["is not set", "ddp-run --standalone"], getattr(DdpRunEnvironment(), call))


def ddp_run_alone_needs_no_lightning():
    script = "import sys, ddp_run; assert not {'lightning', 'ddp_run.lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT_S)


def workers_have_their_places():
    assert sorted(re.findall(r"ranks (.*)", run("has_its_place"))) == ["2 0 0 0", "2 1 1 0"]


def steps_are_told():
    run("tells_steps")


def real_fits_are_equal():
    if not IS_REAL:
        print("  lightning is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        def fit(backend, *dies):
            said = run("fits", backend, f"{folder}/{backend}{len(dies)}", *dies, flags=["--max-restarts", "1"])
            found = re.findall(r"steps (\d+) to (\d+), backend (\w+), weights (\w+)", said)
            assert len(found) == 2 and found[0] == found[1], said[-5000:]
            return found[0]
        gloo, ddp, resumed = fit("gloo"), fit("ddp"), fit("ddp", "dies")
        last = str(STEPS * EPOCHS)
        assert gloo == ("1", last, "gloo", ddp[3]) and ddp[:3] == ("1", last, "ddp"), (gloo, ddp)
        assert resumed == (str(STEPS + 1), *ddp[1:]), (resumed, ddp)


if sys.argv[1] == "--worker":
    {"has_its_place": has_its_place, "tells_steps": tells_steps, "fits": fits}[sys.argv[2]](*sys.argv[3:])
else:
    for case in (members_fit_their_bases, without_a_launcher, ddp_run_alone_needs_no_lightning, workers_have_their_places, steps_are_told,
                 real_fits_are_equal):
        case()
        print(f"{case.__name__}: ok", flush=True)
