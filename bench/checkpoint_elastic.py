"""How long a step waits for ddp_run.Checkpointer, torch.save and torch.distributed.checkpoint.async_save, in turns in one process.

usage (under ddp-run): checkpoint_elastic.py FOLDER MIB ROUNDS

Prints a JSON line a round with the seconds of each, and of a copy of the state into memory that is there already. Each save is on the
disk before the next turn. async_save does not copy tensors on the CPU: what the next step changes gets into the checkpoint
("async_save_tears"). So it is given a copy, as a program has to.
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

import ddp_run

FOLDER, MIB, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TENSORS = 64

torch.set_num_threads(1)
model = torch.nn.ParameterDict({f"weight{i}": torch.nn.Parameter(torch.randn(MIB * 2**18 // TENSORS)) for i in range(TENSORS)})
state = ddp_run.ElasticState(model=model, step=0)
checkpoints = ddp_run.Checkpointer(f"{FOLDER}/ours", state, keep=1)
copy = [each.detach().clone() for each in model.values()]


def timed(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def memcpy():
    with torch.no_grad():
        for to, each in zip(copy, model.values()):
            to.copy_(each)


def clones():
    return {name: each.detach().clone() for name, each in model.items()}


def async_save_tears():
    """Whether a change right after async_save gets into the checkpoint."""
    future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{FOLDER}/dcp")
    with torch.no_grad():
        for each in model.values():
            each.fill_(7)
    future.result()
    saved = {"model": clones()}
    dcp.load(saved, checkpoint_id=f"{FOLDER}/dcp")
    shutil.rmtree(f"{FOLDER}/dcp")
    return any(bool((each == 7).any()) for each in saved["model"].values())


def train(group):
    for number in range(-1, ROUNDS):
        taken = {"memcpy_s": timed(memcpy)[0]}
        taken["blocked_s"] = timed(lambda: checkpoints.save(number + 1))[0]
        checkpoints.wait()
        taken["torch_save_s"] = timed(lambda: torch.save(model.state_dict(), f"{FOLDER}/python.pt"))[0]
        taken["async_save_s"], future = timed(lambda: dcp.async_save({"model": clones()}, checkpoint_id=f"{FOLDER}/dcp"))
        future.result()
        shutil.rmtree(f"{FOLDER}/dcp")
        os.remove(f"{FOLDER}/python.pt")
        print(json.dumps({"round": number, **taken}), flush=True)
    print(json.dumps({"round": -1, "async_save_tears": async_save_tears()}), flush=True)


ddp_run.run_elastic(state, train)
