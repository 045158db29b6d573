"""Trains on digits with Hugging Face's accelerate. When a worker is lost, all start again and go on from the last whole epoch.

    ddp-run --standalone --nproc-per-node 2 --max-restarts 3 accelerate_images.py --checkpoints run1 [--data FOLDER_OF_MNIST]

On CPUs, accelerate knows gloo and MPI only, but it takes a group that is there already. On CUDA devices,
InitProcessGroupKwargs(backend="ddp") does it, too.
"""
import argparse
import os

import images
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs, set_seed

import ddp_run

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--checkpoints", default="run1")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--backend", choices=["ddp", "gloo"], default="ddp")
options = parser.parse_args()

handlers = []
if options.backend == "ddp":
    torch.distributed.init_process_group("ddp")
else:  # Debian's PyTorch has MPI, which accelerate would take, and which needs mpirun.
    handlers.append(InitProcessGroupKwargs(backend=options.backend))
accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=handlers,
                          dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
set_seed(1)
model = images.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(images.digits(options.data, options.samples), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

os.makedirs(options.checkpoints, exist_ok=True)
done = [int(name) for name in os.listdir(options.checkpoints) if name.isdigit()]  # Epochs of which there is a checkpoint.
if done:
    accelerator.load_state(f"{options.checkpoints}/{max(done)}")
for epoch in range(max(done, default=0), options.epochs):
    loader.set_epoch(epoch)
    for batch, (inputs, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        ddp_run.progress(epoch * len(loader) + batch + 1, loss=loss, total_steps=options.epochs * len(loader))
    accelerator.save_state(f"{options.checkpoints}/unfinished")
    accelerator.wait_for_everyone()  # So that it is whole before it gets its name.
    if accelerator.is_main_process:
        os.rename(f"{options.checkpoints}/unfinished", f"{options.checkpoints}/{epoch + 1}")
    accelerator.wait_for_everyone()
accelerator.print(f"weights {ddp_run.weights_sha256(accelerator.unwrap_model(model))} after {options.epochs} epochs, backend "
                  f"{torch.distributed.get_backend()}")
accelerator.end_training()
