"""ddp_run.SummaryWriter: what it writes, read by event_reader.py; exact when a training goes on; what is refused.

    summary_writer.py BIN_DIR
"""
import math
import os
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import torch

import ddp_run
from event_reader import read_scalars


def file_of(folder):
    return Path(folder) / "events.out.tfevents.ddp-run"


def train(folder, first, last):
    with ddp_run.SummaryWriter(folder, purge_step=first) as writer:
        for step in range(first, last + 1):
            writer.add_values(step, {"loss": torch.tensor(1 / step), "rate": 0.5})
            if step % 4 == 0:
                writer.add_scalar("accuracy", step / 100, step)


def values_are_read_back(folder):
    with ddp_run.SummaryWriter(Path(folder)) as writer:
        writer.add_scalar("whole", 7, 0)
        writer.add_scalar("tensor", torch.tensor([[0.25]], dtype=torch.float64), 2**62)
        writer.add_scalar("größe/µ", math.nan, torch.tensor(3))
        writer.flush()
    curves = read_scalars(file_of(folder))
    assert curves["whole"] == [[0, 7.0]] and curves["tensor"] == [[2**62, 0.25]], curves
    assert curves["größe/µ"][0][0] == 3 and math.isnan(curves["größe/µ"][0][1]), curves
    ddp_run.SummaryWriter(folder).add_scalar("whole", 8, 1)
    assert read_scalars(file_of(folder))["whole"] == [[0, 7.0], [1, 8.0]]


def a_training_that_goes_on_leaves_each_step_once(folder):
    train(folder, 1, 12)
    whole = read_scalars(file_of(folder))
    assert [step for step, _ in whole["loss"]] == list(range(1, 13)) and len(whole["accuracy"]) == 3
    for first in (13, 9, 4, 1):
        train(folder, first, 12)
        assert read_scalars(file_of(folder)) == whole, first
    with ddp_run.SummaryWriter(folder, purge_step=9) as writer:  # What followed the checkpoint of step 8 comes again.
        writer.add_scalar("accuracy", 0.08, 8)
    assert read_scalars(file_of(folder))["accuracy"] == whole["accuracy"][:2]
    ddp_run.SummaryWriter(folder, purge_step=0)
    assert read_scalars(file_of(folder)) == {}
    for first in (0, 1):  # Steps may be counted from 0.
        with ddp_run.SummaryWriter(folder, purge_step=first) as writer:
            for step in range(first, 3):
                writer.add_scalar("loss", 0.5, step)
    assert read_scalars(file_of(folder)) == {"loss": [[0, 0.5], [1, 0.5], [2, 0.5]]}


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def progress_writes_what_it_is_told(folder):
    with ddp_run.SummaryWriter(folder) as writer:
        for step in range(1, 4):
            ddp_run.progress(step, torch.tensor(0.5), writer=writer)
        ddp_run.progress(4, 0.25, 100, total_steps=4, writer=writer)
        ddp_run.progress(4, writer=writer)  # As in a long evaluation.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "2"
        ddp_run.progress(5, 0.25, writer=writer)
        del os.environ["TORCHELASTIC_RESTART_COUNT"]
    curves = read_scalars(file_of(folder))
    assert curves == {"loss": [[1, 0.5], [2, 0.5], [3, 0.5], [4, 0.25], [5, 0.25]], "samples_per_second": [[4, 100.0]],
                      "restarts": [[1, 0], [2, 0], [3, 0], [4, 0], [5, 2]]}, curves


def drop_last_record(path):
    data, begin, end = path.read_bytes(), 0, 0
    while end < len(data):
        begin, end = end, end + 16 + struct.unpack_from("<Q", data, end)[0]
    path.write_bytes(data[:begin])


def checkpoints_have_their_times(folder):
    # The second program is killed after its last checkpoint, just before it would have told how long that took.
    for last, saved in ((4, [2, 4]), (4, [2, 4]), (7, [2, 4, 6])):
        state = ddp_run.ElasticState(model=torch.nn.Linear(2, 2), step=0)
        checkpoints = ddp_run.Checkpointer(f"{folder}/run", state, every=2)
        checkpoints.load_latest()

        def train(group):
            with ddp_run.SummaryWriter(folder, purge_step=state.step + 1, checkpoints=checkpoints) as writer:
                while state.step < last:
                    state.step += 1
                    ddp_run.progress(state.step, 0.5, writer=writer)
                    checkpoints.save_if_due()

        ddp_run.run_elastic(state, train)
        curves = read_scalars(file_of(folder))
        for tag in ("checkpoint_seconds", "checkpoint_write_seconds"):
            assert [step for step, _ in curves[tag]] == saved and all(0 <= value < 100 for _, value in curves[tag]), curves
        assert [step for step, _ in curves["loss"]] == list(range(1, last + 1)), curves
        if last == 4:  # The time of step 4 is in the last record.
            drop_last_record(file_of(folder))
            assert [step for step, _ in read_scalars(file_of(folder))["checkpoint_write_seconds"]] == [2]


def what_is_wrong_is_named(folder):
    writer = ddp_run.SummaryWriter(folder)
    writer.add_scalar("loss", 1.0, 1)
    refused(TypeError, "'loss' must be one number, not Tensor of shape [2]", lambda: writer.add_scalar("loss", torch.ones(2), 1))
    refused(TypeError, "'loss' must be one number, not str", lambda: writer.add_scalar("loss", "much", 1))
    refused(TypeError, "global_step must be a whole number, not float", lambda: writer.add_scalar("loss", 1.0, 1.5))
    refused(ValueError, "global_step is -1", lambda: writer.add_scalar("loss", 1.0, -1))
    refused(ValueError, "purge_step is -3", lambda: ddp_run.SummaryWriter(folder, purge_step=-3))
    writer.close()
    refused(RuntimeError, "is closed", lambda: writer.add_scalar("loss", 1.0, 2))
    file_of(folder).write_bytes(b"This has been a diary, and it stays one.")
    refused(RuntimeError, "move the file away", lambda: ddp_run.SummaryWriter(folder, purge_step=5))
    refused(RuntimeError, "move the file away", lambda: ddp_run.SummaryWriter(folder))
    assert file_of(folder).read_bytes().startswith(b"This")
    refused(RuntimeError, "cannot make the folder", lambda: ddp_run.SummaryWriter(file_of(folder) / "below"))


for case in (values_are_read_back, a_training_that_goes_on_leaves_each_step_once, progress_writes_what_it_is_told,
             checkpoints_have_their_times, what_is_wrong_is_named):
    with tempfile.TemporaryDirectory(prefix="summary_writer.") as base:
        case(base)
    print(f"ok: {case.__name__}", flush=True)
