"""The peer of question_checkpoint.py: checkpoints as PyTorch programs usually write them.

usage: checkpoint_python.py FILE ROUNDS < SHAPES

Saves a state dict of float32 tensors of these shapes with torch.save, with and without fsync, and loads it from the page cache and
from the disk. Prints a JSON line a round.
"""
import json
import os
import sys
import time

import torch

torch.set_num_threads(1)


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def save(state, path, sync):
    with open(path, "wb") as file:
        torch.save(state, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def main():
    path, rounds = sys.argv[1], int(sys.argv[2])
    state = {f"tensor{number}": torch.randn(shape) for number, shape in enumerate(json.load(sys.stdin))}

    def load():
        # Into the existing tensors, as a program that resumes does.
        with torch.no_grad():
            for name, tensor in torch.load(path).items():
                state[name].copy_(tensor)
    for number in range(-1, rounds):
        taken = {"save_s": timed(lambda: save(state, path, False)), "save_fsync_s": timed(lambda: save(state, path, True))}
        taken["load_s"] = timed(load)  # Saving has left the file in the page cache.
        print(json.dumps({"round": number, **taken}), flush=True)
    for number in range(rounds):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        print(json.dumps({"round": number, "load_cold_s": timed(load)}), flush=True)


main()
