"""One script that names the backend "ddp", however its ranks are started: the same weights each time, to the last bit.

    launched.py BIN_DIR      starts it from a shell, by torch.multiprocessing, by ddp-run on one node and on two, by torchrun, and kills it once
    launched.py --train      is a rank
"""
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

import ddp_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

RANKS = 3
STEPS = 30


def train():
    """Saves rank 0's weights as a checkpoint after each step, and goes on from there."""
    torch.set_num_threads(1)
    dist.init_process_group("ddp")
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = Path(os.environ["OUT"])
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 300), nn.ReLU(), nn.Linear(300, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = 0
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    for step in range(begin, STEPS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        loss = nn.functional.mse_loss(model(torch.randn(16, 30, generator=generator)), torch.randn(16, 3, generator=generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, folder / "state.new")
            os.replace(folder / "state.new", folder / "state.pt")
        dist.barrier()
        if step == 10 and rank == 1 and os.environ.get("DIE") and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        (folder / "result").write_text(f"{ddp_run.nodes()} {hashlib.sha256(weights).hexdigest()} {begin}")
    assert size == RANKS
    dist.destroy_process_group()


def spawned(rank, environment):
    os.environ.update(environment, RANK=str(rank))
    train()


def result_of(start, folder):
    """Runs start(environment), which returns exit statuses. Gives nodes, the weights' digest, the step at which it went on."""
    out = Path(folder)
    out.mkdir()
    # Debian's PyTorch has no libuv; a script has to say so where ddp-run does not.
    environment = {"OUT": folder, "USE_LIBUV": "0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    statuses = start(environment)
    assert statuses == [0] * len(statuses), statuses
    nodes, digest, begin = (out / "result").read_text().split()
    return int(nodes), digest, int(begin)


def statuses_of(commands):
    started = [subprocess.Popen(command, env={**os.environ, **environment}) for command, environment in commands]
    return [process.wait(timeout=240) for process in started]


def main():
    program = [sys.executable, __file__, "--train"]
    ddp_run_program = f"{sys.argv[1]}/ddp-run"

    def shell(environment):
        where = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "WORLD_SIZE": str(RANKS)}
        return statuses_of([(program, {**where, "RANK": str(rank)}) for rank in range(RANKS)])

    def spawn(environment):
        where = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()), "WORLD_SIZE": str(RANKS)}
        torch.multiprocessing.spawn(spawned, (where,), nprocs=RANKS)
        return [0]

    def one_node(environment):
        return statuses_of([([ddp_run_program, "--standalone", "--nproc-per-node", str(RANKS), __file__, "--train"], environment)])

    def killed(environment):
        return statuses_of([([ddp_run_program, "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "2", __file__, "--train"],
                             {**environment, "DIE": "1"})])

    def two_nodes(environment):
        port = jobs.free_port()
        return statuses_of([([ddp_run_program, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(RANKS - 1 - node), "--rdzv-endpoint",
                              f"127.0.0.1:{port}", "--rdzv-id", "two", __file__, "--train"], environment) for node in range(2)])

    def by_torchrun(environment):
        command = [*torchrun.COMMAND, "--standalone", "--nproc-per-node", str(RANKS), __file__, "--train"]
        return statuses_of([(command, {**environment, **torchrun.RANK_0_STORE})])

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for start in (shell, spawn, one_node, killed, two_nodes, by_torchrun):
            results[start.__name__] = result_of(start, f"{folder}/{start.__name__}")
            print(start.__name__, *results[start.__name__], flush=True)
    digests = {digest for _, digest, _ in results.values()}
    assert len(digests) == 1, results
    assert results["killed"][2] > 0, "was not killed"
    nodes = {name: count for name, (count, _, _) in results.items()}
    assert nodes == {"shell": 1, "spawn": 1, "one_node": 1, "killed": 1, "two_nodes": 2, "by_torchrun": 1}, nodes


if __name__ == "__main__":
    sys.exit(train() if sys.argv[1] == "--train" else main())
