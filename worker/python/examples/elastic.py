"""Trains on digits, and goes on in the same processes when workers are lost. The weights are those of a run that lost none.

    ddp-run --standalone --nproc-per-node 2 --max-restarts 10 elastic.py --checkpoints run1 [--data FOLDER_OF_MNIST]
"""
import argparse
import time

import images
import torch
from torch.nn.parallel import DistributedDataParallel

import ddp_run

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--checkpoints", default="run1")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--every", type=int, default=20)
parser.add_argument("--workers", type=int, default=0, help="processes that load data")
parser.add_argument("--optimizer", choices=["SGD", "AdamW"], default="SGD")
parser.add_argument("--backend", default="ddp")
options = parser.parse_args()

torch.set_num_threads(1)  # With one thread, the order of sums is fixed.
model = images.network()
optimizer = (torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) if options.optimizer == "SGD" else
             torch.optim.AdamW(model.parameters()))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
dataset = images.digits(options.data)
sampler = ddp_run.DistributedSampler(dataset, seed=1)
loader = ddp_run.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=options.workers, drop_last=True)

state = ddp_run.ElasticState(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, step=0)
checkpoints = ddp_run.Checkpointer(options.checkpoints, state, every=options.every)
checkpoints.load_latest()


def train(group):
    """A round: called again with a new group after each loss of a worker."""
    ddp = DistributedDataParallel(model, process_group=group)
    while state.step < options.steps:
        for inputs, labels in loader:  # An epoch, or what is left of it.
            begun = time.monotonic()
            loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.step += 1
            ddp_run.progress(state.step, loss=loss, samples_per_second=len(inputs) * group.size() / (time.monotonic() - begun),
                             total_steps=options.steps)
            state.commit_if_due()
            checkpoints.save_if_due()
            if state.step == options.steps:
                break
    return group.rank()


# The processes of a data loader may run this file, too.
if __name__ == "__main__" and ddp_run.run_elastic(state, train, options.backend) == 0:
    print(f"weights {ddp_run.weights_sha256(model)} after {state.step} steps", flush=True)
