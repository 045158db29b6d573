"""Checkpoints of modules whose parameters are divided among the ranks. They are written by 4 ranks, then loaded and written again by 3
ranks, by a process that divides nothing, and by 4 ranks that each have half: always the same whole tensors.

    shards.py BIN_DIR                    runs all of it
    shards.py --rank R N FILE            is one rank. The folder above has the checkpoints, and a file `stage` with its name.
"""
import faulthandler
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import ddp_run
import jobs
import ranks
from ddp_run import shards
from raising import raises

STAGES = [("rows", 4), ("columns", 3), ("plain", 1), ("halves", 4), ("fsdp", 2), ("fsdp", 3), ("misuse", 3)]
HAS_FSDP = hasattr(torch.cpu.Stream, "record_event")


class Net(nn.Module):
    """Rows and columns that no number of ranks divides evenly, some empty parts, a tied weight and a buffer."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(7, 10)
        self.second = nn.Linear(10, 7)
        self.tied = nn.Linear(7, 10, bias=False)
        self.tied.weight = self.first.weight
        self.few = nn.Parameter(torch.randn(2, 5, 3))
        self.scale = nn.Parameter(torch.randn(()))
        self.register_buffer("seen", torch.randn(3))

    def forward(self, x):
        return self.tied(self.second(self.first(x))).sum() * self.scale + self.few.sum() ** 2


def divide(model, mesh, placements_of):
    """Makes DTensors of the parameters, as distribute_module() does, which knows no tied ones."""
    from torch.distributed.tensor import distribute_tensor
    made = {}
    for part in model.modules():
        for name, each in list(part._parameters.items()):
            if each is not None:
                made.setdefault(each, nn.Parameter(distribute_tensor(each.detach(), mesh, placements_of(each))))
                part._parameters[name] = made[each]


def built(stage, seed):
    model = Net(seed)
    if stage in ("rows", "columns", "halves"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        if stage == "halves":
            mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
            divide(model, mesh, lambda each: [Replicate(), Shard(each.dim() - 1) if each.dim() else Replicate()])
        else:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            dim = {"rows": 0, "columns": 1}[stage]
            divide(model, mesh, lambda each: [Shard(dim) if each.dim() > dim else Replicate()])
    elif stage == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        del model.scale  # FSDP2 wants no tensor without dimensions.
        model.scale = 1.0
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer, number):
    """The same change of each element, however it is divided."""
    for place, parameter in enumerate(optimizer.param_groups[0]["params"]):
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * number + place))
        if shards.is_divided(parameter):
            from torch.distributed.tensor import distribute_tensor
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        parameter.grad = whole
    optimizer.step()
    with torch.no_grad():
        model.seen += 1


def wholes(model, optimizer):
    """Everything there is, by name. Collective."""
    names = {parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)}
    found = {name: shards.whole(tensor).detach().clone() for name, tensor in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        found |= {f"{names[parameter]}/{key}": shards.whole(each).detach().clone() for key, each in state.items()}
    return found


def same(found, expected):
    assert sorted(found) == sorted(expected), (sorted(found), sorted(expected))
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), (name, tensor, expected[name])


def is_kept(stage, folder):
    """One stage: loads what the one before has left, if it has, makes two steps, and saves after each."""
    rank = dist.get_rank()
    expected = folder / f"{'fsdp' if stage == 'fsdp' else 'any'}.pt"
    checkpoints_folder = expected.with_suffix("")
    model, optimizer = built(stage, seed=dist.get_world_size())
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, rng=False, step=0)
    checkpoints = ddp_run.Checkpointer(checkpoints_folder, state, every=1)
    report = checkpoints.load_latest()
    if report["step"] >= 0:
        same(wholes(model, optimizer), torch.load(expected))
        # Once more, now into an optimizer that has tensors already, and keeps them.
        own = {key: each for key, each in optimizer.state[optimizer.param_groups[0]["params"][0]].items()}
        step(model, optimizer, 99)
        assert checkpoints.load_latest()["step"] == report["step"]
        same(wholes(model, optimizer), torch.load(expected))
        assert all(optimizer.state[optimizer.param_groups[0]["params"][0]][key] is each for key, each in own.items())
    if stage == "fsdp":
        with torch.no_grad():
            model(torch.randn(2, 7))  # FSDP2 keeps whole parameters after it.
    for _ in range(2):
        step(model, optimizer, state.step)
        state.step += 1
        assert checkpoints.save_if_due()
    assert checkpoints.wait()["state"] == "durable"
    found = wholes(model, optimizer)
    weights = ddp_run.weights_sha256(model)
    dist.barrier()
    if rank == 0:
        torch.save(found, expected)
        plain, _ = built("plain", 1)
        if stage == "fsdp":
            del plain.scale
        plain.load_state_dict({name: found[name] for name in plain.state_dict()})
        assert ddp_run.weights_sha256(plain) == weights
        ddp_run.export_checkpoint(checkpoints_folder, folder / "exported.pt")
    dist.barrier()
    again, fresh = built(stage, seed=0)
    ddp_run.ElasticState(model=again, optimizer=fresh, step=0).load_from(folder / "exported.pt")
    same(wholes(again, fresh), found)


def misuse_is_refused(folder):
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (3,))

    def state_of(tensor):
        module = nn.Module()
        module.weight = nn.Parameter(tensor)
        return ddp_run.ElasticState(model=module, step=0)
    raises(TypeError, ["weight", "Partial", "one Shard"], lambda: state_of(DTensor.from_local(torch.ones(3, 3), mesh, [Partial()])))
    backwards = DeviceMesh("cpu", [2, 1, 0])
    raises(TypeError, ["weight", "[2, 1, 0]", "ascending"], lambda: state_of(distribute_tensor(torch.ones(3, 3), backwards, [Shard(0)])))
    pair = DeviceMesh("cpu", [0, 1])
    if dist.get_rank() < 2:
        part = DTensor.from_local(torch.ones(3, 3), pair, [Shard(0)])
        raises(TypeError, ["weight", "2 ranks of 3"], lambda: state_of(part))
        raises(TypeError, ["value is a DTensor"], lambda: ddp_run.ElasticState(value=part))
    state = state_of(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    raises(RuntimeError, ["commit()", "run_elastic()"], state.commit)
    checkpoints = ddp_run.Checkpointer(folder / "misuse", state)
    checkpoints.save(1)
    other = state_of(distribute_tensor(torch.ones(5, 4), mesh, [Shard(0)]))
    raises(ValueError, ["weight", "[4, 4]", "[5, 4]"], ddp_run.Checkpointer(folder / "misuse", other).load_latest)
    dist.barrier()


def commits_refuse_parts(rank, size, store):
    """run_elastic() keeps whole tensors: a module that is divided before it, or in train(), is refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    module = nn.Module()

    def divide_module():
        module.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (size,)), [Shard(0)]))

    def train(_group):
        divide_module()
        raises(RuntimeError, ["module/model/weight", "divided", "without run_elastic"], state.commit)
        return "trained"

    divide_module()
    dist.destroy_process_group()
    raises(TypeError, ["weight", "after init_process_group()", "without run_elastic()"], lambda: ddp_run.ElasticState(model=module))
    module.weight = nn.Parameter(torch.ones(4, 4))
    state = ddp_run.ElasticState(model=module, step=0)
    if rank == 0:
        store.set("port", str(jobs.free_port()))
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.get("port").decode(),
                   "USE_LIBUV": "0"}
    assert ddp_run.run_elastic(state, train) == "trained"


def be_rank(rank, size, file):
    faulthandler.dump_traceback_later(240, exit=True)
    folder = Path(file).parent.parent
    stage = (folder / "stage").read_text()
    dist.init_process_group("ddp", store=dist.FileStore(file, size), rank=rank, world_size=size)
    if stage == "misuse":
        misuse_is_refused(folder)
        commits_refuse_parts(rank, size, dist.FileStore(f"{file}-port", size))
        return
    is_kept(stage, folder)
    dist.destroy_process_group()


def run(stage, size, folder, tool):
    """All ranks of a stage. Then our tool reads what they have written."""
    (folder / "stage").write_text(stage)
    ranks.run(__file__, size, 150, folder)
    for checkpoints in folder.glob("*/latest"):
        subprocess.run([tool, "verify", checkpoints.parent], check=True, stdout=subprocess.DEVNULL)


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    with tempfile.TemporaryDirectory() as folder:
        for stage, size in STAGES:
            if stage == "fsdp" and not HAS_FSDP:
                print(f"PyTorch {torch.__version__} has no FSDP2 on CPUs")
                continue
            run(stage, size, Path(folder), Path(sys.argv[1]) / "ddp-checkpoint")
            print(f"{stage} of {size} ranks: as it should be", flush=True)


if __name__ == "__main__":
    main()
