"""A training of 4 logical ranks ends with the same bytes on any number of workers, however they come and go: logical.py BIN_DIR [CASE...]"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import ddp_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

BIN = Path(sys.argv[1]).resolve()
PROGRAM = str(Path(__file__).with_name("logical_program.py"))
STEPS = 14  # An epoch has 10; its last step has smaller batches.
LIMIT_S = 240
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def on(workers):
    return [BIN / "ddp-run", "--standalone", "--nproc-per-node", str(workers), "--max-restarts", "3"]


def run(command, folder, *settings, steps=STEPS, code=0, more=None):
    done = subprocess.run([*command, PROGRAM, folder, str(steps), *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, timeout=LIMIT_S, env={**os.environ, **ENVIRONMENT, **(more or {})})
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def lines(folder, what):
    log = Path(folder) / "log"
    return [line.split()[1:] for line in log.read_text().splitlines() if line.split()[0] == what] if log.exists() else []


def end_of(folder):
    """The weights, and the sums of losses and of what the program has drawn itself: the same on all workers."""
    ends = {tuple(end) for step, *end in lines(folder, "end") if step == str(STEPS)}
    assert len(ends) == 1, ends
    return ends.pop()


def trained(command, *settings, more=None):
    with tempfile.TemporaryDirectory() as folder:
        run(command, folder, *settings, more=more)
        return end_of(folder)


def expected(known=[]):
    if not known:
        known.append(trained([sys.executable]))
    return known[0]


def any_number_of_workers_ends_the_same():
    for workers, *settings in ((1,), (2, "workers=2"), (3, "backend=gloo", "leave=3"), (4,)):
        assert trained(on(workers), *settings) == expected(), (workers, settings)
    command = [*torchrun.COMMAND, "--standalone", "--nproc-per-node", "2"]
    assert trained(command, more=torchrun.RANK_0_STORE) == expected(), "torchrun"


def as_many_workers_without_logical_ranks_end_the_same():
    assert trained(on(4), "plain=1") == expected()


def another_number_goes_on_from_a_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        for workers, steps, *settings in ((2, 3), (3, 9, "workers=2"), (1, STEPS)):
            run(on(workers), folder, *settings, steps=steps)
        assert [end[0] for end in lines(folder, "end")] == ["3"] * 2 + ["9"] * 3 + [str(STEPS)]
        assert end_of(folder) == expected()


def a_killed_worker_is_replaced():
    with tempfile.TemporaryDirectory() as folder:
        run(on(2), folder, "kill=5", "workers=2")
        assert len({tuple(each) for each in lines(folder, "round") if each[3] == "True"}) == 2, lines(folder, "round")
        assert end_of(folder) == expected()


def nodes_come_and_go():
    """One worker, then two, then three, then two, because a node is killed as a whole."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BIN / "ddp-run", "--nnodes", "1:3", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{jobs.free_port()}",
                   "--rdzv-id", "logical", "--last-call", "0.2", "--max-restarts", "10", PROGRAM, folder, str(STEPS), "worlds=4:3,9:2"]
        nodes = []

        def start():
            nodes.append(jobs.Node(command, f"{folder}/node{len(nodes)}", ENVIRONMENT))

        def sizes():
            return [int(size) for _, _, size, _ in lines(folder, "round")]

        def wait_until(condition, what):
            def is_so():
                for node in nodes:
                    assert node.process.poll() is None, f"ended with {node.process.returncode}:\n{node.tail()}"
                    node.processes()
                return condition()
            jobs.wait_until(is_so, LIMIT_S, what)

        def wait_for(step, workers):
            wait_until(lambda: [str(step), str(workers)] in lines(folder, "waits"), f"step {step}, which waits for {workers} workers")
        try:
            start()
            wait_for(4, 3)
            start()
            wait_until(lambda: 2 in sizes(), "a round of two workers")
            start()
            wait_for(9, 2)
            nodes.pop().kill()
            for node in nodes:
                assert node.wait(LIMIT_S) == 0, node.tail()
        finally:
            for node in nodes:
                node.kill()
        assert sizes()[0] == 1 and 3 in sizes() and sizes()[-1] == 2, sizes()
        assert end_of(folder) == expected()


def misuse_is_refused():
    def refuses(kind, words, call):
        try:
            call()
        except kind as error:
            for word in words:
                assert word in str(error), f"'{word}' is not in: {error}"
            return
        raise AssertionError(f"no {kind.__name__} with {words}")
    model = torch.nn.Linear(2, 2)
    logical = ddp_run.LogicalWorld(model, 3)
    loader = ddp_run.DataLoader(list(range(20)), 2, sampler=ddp_run.DistributedSampler(20, seed=7, logical=logical))
    for kind, words, call in (
            (ValueError, ["size=0", "1 or more"], lambda: ddp_run.LogicalWorld(model, 0)),
            (ValueError, ["seed -1"], lambda: ddp_run.LogicalWorld(model, 2, seed=-1)),
            (TypeError, ["int", "LogicalWorld"], lambda: ddp_run.DistributedSampler(9, logical=4)),
            (ValueError, ["num_replicas=2", "logical"], lambda: ddp_run.DistributedSampler(9, 2, 0, logical=logical)),
            (ValueError, ["drop_last=False"], lambda: ddp_run.DistributedSampler(9, drop_last=False, logical=logical)),
            (RuntimeError, ["run_elastic", "ElasticState(..., logical=logical)"], lambda: logical.own),
            (RuntimeError, ["run_elastic"], lambda: iter(loader)),
            (RuntimeError, ["run_elastic"], lambda: logical.each([1])),
            (ValueError, ["size 2, and here it is 3"], lambda: logical.load_state_dict(ddp_run.LogicalWorld(model, 2).state_dict())),
            (ValueError, ["seed None"], lambda: logical.load_state_dict({}))):
        refuses(kind, words, call)

    def train(group):
        # Parameters may be frozen at any step, and gradients may be there from elsewhere.
        for frozen in (model.bias, model.weight, None):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
                parameter.requires_grad_(parameter is not frozen)
            for rank in logical.each(logical.own):
                model(torch.full((1, 2), float(rank))).sum().backward()
            assert frozen is model.weight or model.weight.grad.tolist() == [[1, 1], [1, 1]], model.weight.grad
            assert frozen is model.bias or model.bias.grad.tolist() == [1, 1], model.bias.grad
        assert logical.own == range(3) and logical.mean([1, 2, 6]) == 3
        refuses(ValueError, ["2 items", "3 logical ranks", "DataLoader"], lambda: logical.each([1, 2]))
        refuses(ValueError, ["4 values", "3 logical ranks"], lambda: logical.mean([1, 2, 3, 4]))
        # The batches are those of ranks of their own.
        dealt = [list(ddp_run.DataLoader(list(range(20)), 2, sampler=ddp_run.DistributedSampler(20, 3, rank, seed=7))) for rank in range(3)]
        assert len(loader) == loader.steps_left() == len(dealt[0]) == 3 and len(loader.sampler) == 18
        for step, batches in enumerate(loader):
            assert [batch.tolist() for batch in batches] == [of_rank[step].tolist() for of_rank in dealt], step
            assert loader.sampler.position == min(6 * step + 6, 18) and loader.steps_left() == 2 - step
        return "trained"
    assert ddp_run.run_elastic(ddp_run.ElasticState(model=model, logical=logical), train) == "trained"
    with tempfile.TemporaryDirectory() as folder:
        report = run([BIN / "ddp-run", "--standalone", "--nproc-per-node", "5", "--max-restarts", "0"], folder, code=1)
        assert "a logical world of 4 ranks cannot be dealt to 5 workers" in report and "at most 4 workers" in report, report


for case in (misuse_is_refused, any_number_of_workers_ends_the_same, as_many_workers_without_logical_ranks_end_the_same,
             another_number_goes_on_from_a_checkpoint, a_killed_worker_is_replaced, nodes_come_and_go):
    if len(sys.argv) > 2 and case.__name__ not in sys.argv[2:]:
        continue
    begun = time.monotonic()
    case()
    print(f"{case.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
