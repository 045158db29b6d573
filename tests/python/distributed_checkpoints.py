"""Programs that save with torch.distributed.checkpoint and begin again under ddp-run, over "ddp": DistributedDataParallel and FSDP2.

    distributed_checkpoints.py BIN_DIR                   runs each kind, whole, and with a rank killed while it saves
    distributed_checkpoints.py --worker KIND FOLDER DIES is a worker
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import ddp_run  # noqa: F401

LIMIT_S = 240
STEPS, EVERY, DIES_AT = 9, 3, 6


class DyingWriter(dcp.FileSystemWriter):
    """Writes a part of what it should."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_data(plan, planner)


def made(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(kind, folder, dies):
    torch.set_num_threads(1)
    dist.init_process_group("ddp")
    model = made(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = max((int(each.parent.name) for each in Path(folder).glob("*/.metadata")), default=0)
    if first:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=f"{folder}/{first}")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if dist.get_rank() == 0:
        print(f"begins after step {first}", flush=True)
    for step in range(first + 1, STEPS + 1):
        inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if step % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            is_last = dies and step == DIES_AT and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/{step}",
                     storage_writer=DyingWriter(f"{folder}/{step}") if is_last else None)
    trained = torch.cat([whole(parameter).detach().flatten() for parameter in model.parameters()])
    if dist.get_rank() == 0:
        torch.save(trained, f"{folder}/trained")
    dist.destroy_process_group()


def run(kind, folder, dies):
    os.mkdir(folder)
    command = [f"{sys.argv[1]}/ddp-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", __file__, "--worker", kind, folder,
               *(["dies"] if dies else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-5000:]
    begun = re.findall(r"begins after step (\d+)", done.stdout)
    assert begun == (["0", str(DIES_AT - EVERY)] if dies else ["0"]), done.stdout[-5000:]
    return torch.load(f"{folder}/trained")


def main():
    kinds = ["ddp"]
    if hasattr(torch.cpu.Stream, "record_event"):
        kinds.append("fsdp2")
    else:
        print(f"PyTorch {torch.__version__} has no FSDP2 on CPUs")
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            assert torch.equal(run(kind, f"{folder}/whole", False), run(kind, f"{folder}/killed", True)), f"{kind}: other weights"
        print(f"{kind}: ok", flush=True)


if sys.argv[1] == "--worker":
    train(sys.argv[2], sys.argv[3], len(sys.argv) > 4)
else:
    main()
