"""FSDP2 (on CPUs from PyTorch 2.7 on): each rank keeps a part of the parameters and of the optimizer. Any number of ranks can go on.

    ddp-run --standalone --nproc-per-node 2 --max-restarts 10 fully_sharded.py --checkpoints run1 [--data FOLDER_OF_MNIST]
"""
import argparse

import images
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import ddp_run

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--checkpoints", default="run1")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--every", type=int, default=20)
options = parser.parse_args()


def main():
    torch.set_num_threads(1)  # With one thread, the order of sums is fixed.
    dist.init_process_group("ddp")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = images.network()
    for layer in model:
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    dataset = images.digits(options.data)
    sampler = ddp_run.DistributedSampler(dataset, seed=1)
    loader = ddp_run.DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)

    state = ddp_run.ElasticState(model=model, optimizer=optimizer, sampler=sampler, step=0)
    checkpoints = ddp_run.Checkpointer(options.checkpoints, state, every=options.every)
    checkpoints.load_latest()
    while state.step < options.steps:
        for inputs, labels in loader:  # An epoch, or what is left of it.
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            ddp_run.progress(state.step, loss=loss)
            checkpoints.save_if_due()
            if state.step == options.steps:
                break
    checkpoints.wait()
    weights = ddp_run.weights_sha256(model)
    if dist.get_rank() == 0:
        print(f"weights {weights} after {state.step} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
