"""What other programs have saved, and what is refused of it: imports.py BIN_DIR

One process without a launcher. The peers are PyTorch itself and Hugging Face's package safetensors.
"""
import json
import os
import pickle
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ddp_run
from conversion import OPTIMIZERS, Net, continued, in_order, made, run, same, saved, train, trained
from raising import raises


def every_form_is_imported():
    for kind in OPTIMIZERS:
        whole = ddp_run.weights_sha256(trained(kind)[0])
        with tempfile.TemporaryDirectory() as folder:
            model, optimizer = saved(folder, kind, best=0.5)
            ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/ours.pt")
            ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/ours")
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "best": 0.5}
            torch.save(content, f"{folder}/theirs.pt")
            dcp.save(content, checkpoint_id=f"{folder}/numbers")
            sources = ["run", "ours.pt", "ours", "theirs.pt", "numbers"]
            if kind in ("SGD", "AdamW"):
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({**content, "model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/names")
                sources.append("names")
            for source in sources:
                weights, report = continued(f"{folder}/{source}", kind, best=0.0)
                assert weights == whole, (kind, source)
                assert report == {"loaded": ["model", "optimizer", "step", "best"], "notes": []}, (source, report)


def a_checkpoint_counts_more_than_an_import():
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"model": trained(steps=1)[0].state_dict(), "step": 1}, f"{folder}/begin.pt")
        for expected in (1, 8):
            model, optimizer = made()
            state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0)
            state.load_from(f"{folder}/begin.pt")
            checkpoints = ddp_run.Checkpointer(f"{folder}/run", state)
            checkpoints.load_latest()

            def body(group):
                assert state.step == expected, state.step
                state.step = 8
                train(model, optimizer, 0, 1)
                checkpoints.save()
            ddp_run.run_elastic(state, body)
        raises(RuntimeError, "comes too late", lambda: state.load_from(f"{folder}/begin.pt"))


def what_does_not_fit_changes_nothing():
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer = trained()
        file = f"{folder}/file.pt"

        def refused(texts, content, kind="AdamW", words=11, load=lambda state: state.load_from(file), **items):
            torch.save(content, file)
            own, own_optimizer = made(kind, words)
            train(own, own_optimizer, 0, 1 if words == 11 else 0)
            before = ddp_run.weights_sha256(own), own_optimizer.state_dict()
            state = ddp_run.ElasticState(**{"model": own, "optimizer": own_optimizer, "step": 5, **items})
            raises(ValueError, texts, lambda: load(state))
            assert ddp_run.weights_sha256(own) == before[0] and state.step == 5
            same(own_optimizer.state_dict(), before[1])
        whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
        refused(["\"model\" of", "size mismatch for embed.weight", "[11, 6]", "[12, 6]"], whole, words=12)
        refused(["Missing key(s)", "norm.weight", "Unexpected key(s)", "other"],
                {"model": {**{key: each for key, each in model.state_dict().items() if key != "norm.weight"}, "other": torch.ones(1)}})
        refused(["\"optimizer\" of", "another type of optimizer", "only the saved one has dampening, momentum, nesterov",
                 "only the program's has amsgrad, betas, eps"], whole)
        refused("there are 1 saved parameter groups, the program has 2",
                {**whole, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict()}, kind="SGD")
        swapped = optimizer.state_dict()
        swapped["state"] = {**swapped["state"], 0: swapped["state"][1]}
        refused("momentum_buffer of embed.weight is [6] in the file, and the parameter is [11, 6] here", {**whole, "optimizer": swapped},
                kind="SGD")
        refused("\"step\" is a str in the file and a int here", {**whole, "step": "7"}, kind="SGD")
        refused(["has \"weights\", and the state has \"model\", \"optimizer\", \"step\"", "nothing has the same name"],
                {"weights": {"a": 1}})
        refused("holds a list, not a dict", [1])

        class Fussy:
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                if state:
                    raise KeyError("of the test")
        refused("\"fussy\" of", {**whole, "fussy": {"a": 1}}, kind="SGD", fussy=Fussy())
        # Not strict.
        weights = {**model.state_dict(), "other": torch.ones(1)}
        del weights["scale"]
        torch.save({"model": weights, "epoch": 1}, file)
        own = Net()
        state = ddp_run.ElasticState(model=own)
        report = state.load_from(file, strict=False)
        assert report == {"loaded": ["model"], "notes": ["the file has \"epoch\", which is not registered and left out",
                                                         "the file has no \"scale\" of \"model\", which stays as it is",
                                                         "the file has \"other\", which \"model\" lacks"]}, report
        assert own.scale.item() == 1.5 and torch.equal(own.norm.weight, model.norm.weight)


def wrapped_modules_and_other_types_are_noted():
    with tempfile.TemporaryDirectory() as folder:
        model = trained()[0]
        torch.save({f"module.{key}": each.double() if each.dtype == torch.float32 else each for key, each in model.state_dict().items()},
                   f"{folder}/file.pt")
        own = Net()
        report = ddp_run.ElasticState(model=own).load_from(f"{folder}/file.pt")
        assert ddp_run.weights_sha256(own) == ddp_run.weights_sha256(model)
        assert report["notes"] == ["the names of \"model\" began with \"module.\", as those of DistributedDataParallel do",
                                   "9 tensors of \"model\" are torch.float64 in the file, and are now torch.float32"], report


def wrappers_in_wrappers_and_whole_floats_fit():
    with tempfile.TemporaryDirectory() as folder:
        model = trained()[0]
        for prefix in ("_orig_mod.module.", "module._orig_mod."):
            torch.save({"model": {prefix + key: each for key, each in model.state_dict().items()}, "step": torch.tensor(1000.0)}, f"{folder}/file.pt")
            own = Net()
            state = ddp_run.ElasticState(model=own, step=0)
            state.load_from(f"{folder}/file.pt")
            assert ddp_run.weights_sha256(own) == ddp_run.weights_sha256(model), prefix
            assert state.step == 1000 and type(state.step) is int, state.step
        torch.save({"step": 0.5}, f"{folder}/file.pt")
        raises(ValueError, "\"step\" is a float in the file and a int here", lambda: state.load_from(f"{folder}/file.pt"))


def options_that_an_older_file_lacks_stay():
    with tempfile.TemporaryDirectory() as folder:
        _, optimizer = trained()
        content = optimizer.state_dict()
        for group in content["param_groups"]:
            del group["dampening"]
            group["momentum"] = 0.25
        torch.save({"optimizer": content}, f"{folder}/file.pt")
        model, optimizer = made()
        ddp_run.ElasticState(model=model, optimizer=optimizer).load_from(f"{folder}/file.pt")
        assert [(each["dampening"], each["momentum"]) for each in optimizer.param_groups] == [(0, 0.25)] * 2
        train(model, optimizer, 0, 1)


def folders_of_several_ranks_are_read_whole():
    with tempfile.TemporaryDirectory() as folder:
        whole = {"weight": torch.arange(15.0).reshape(5, 3), "bias": torch.arange(5.0)}

        def save(rank):
            mesh = init_device_mesh("cpu", (3,))
            dcp.save({"model": {name: distribute_tensor(each, mesh, [Shard(0)]) for name, each in whole.items()}, "step": 4},
                     checkpoint_id=f"{folder}/dcp")
        ddp_run.spawn(save, 3)
        assert len(list(Path(f"{folder}/dcp").glob("*.distcp"))) == 3
        state = ddp_run.ElasticState(model=torch.nn.Linear(3, 5), step=0)
        state.load_from(f"{folder}/dcp")
        assert state.step == 4
        same(in_order(state.model.state_dict()), in_order(whole))


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def damage_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        saved(folder, steps=3)
        saved(folder, steps=4)
        run = Path(f"{folder}/run")
        ddp_run.export_checkpoint(run, f"{folder}/good.pt")
        ddp_run.export_checkpoint(run, f"{folder}/good")
        ddp_run.export_checkpoint(run, f"{folder}/good.safetensors")
        flip(run / "step-0000000004/shard-00000.safetensors")
        report = ddp_run.export_checkpoint(run, f"{folder}/model.pt")
        assert report["step"] == 3 and "step-0000000004/shard-00000.safetensors" in report["skipped"][0], report
        os.unlink(f"{folder}/model.pt")
        model, optimizer = made()
        report = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0).load_from(run)
        assert report["loaded"] == ["model", "optimizer", "step"], report
        assert "step-0000000004/shard-00000.safetensors" in report["notes"][0], report
        name = "step-0000000004/shard-00000.safetensors"
        raises(ValueError, ["the checksum of", name], lambda: ddp_run.export_checkpoint(run / "step-0000000004", f"{folder}/model.pt"))
        flip(run / "step-0000000003/manifest.json", 100)
        raises(ValueError, ["no valid checkpoint", "step-0000000003/manifest.json", name],
               lambda: ddp_run.export_checkpoint(run, f"{folder}/model.pt"))
        raises(ValueError, "is no", lambda: ddp_run.export_checkpoint(folder, f"{folder}/model.pt"))
        assert not os.path.exists(f"{folder}/model.pt")
        state = ddp_run.ElasticState(model=Net(), step=0)
        before = ddp_run.weights_sha256(state.model)
        raises(ValueError, "neither .metadata", lambda: state.load_from(run))
        for name in ("good.pt", "good.safetensors"):
            cut = Path(f"{folder}/cut{Path(name).suffix}")
            data = Path(f"{folder}/{name}").read_bytes()
            for size in (len(data) - 1, len(data) // 2, 5, 0):
                cut.write_bytes(data[:size])
                raises(ValueError, str(cut), lambda: state.load_from(cut))
        shard = next(Path(f"{folder}/good").glob("*.distcp"))
        data = shard.read_bytes()
        shard.write_bytes(data[:len(data) // 2])
        raises(ValueError, [f"{folder}/good", "is damaged"], lambda: state.load_from(f"{folder}/good"))
        shard.unlink()
        raises(ValueError, [f"{folder}/good", shard.name], lambda: state.load_from(f"{folder}/good"))
        Path(f"{folder}/good/.metadata").write_bytes(b"\x80\x04")
        raises(ValueError, f"{folder}/good", lambda: state.load_from(f"{folder}/good"))
        raises(FileNotFoundError, "nothing.pt", lambda: state.load_from(f"{folder}/nothing.pt"))
        assert ddp_run.weights_sha256(state.model) == before and state.step == 0


class Evil:
    """A pickle of it makes a file when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def no_code_is_run():
    with tempfile.TemporaryDirectory() as folder:
        mark = f"{folder}/mark"
        model = Net()
        state = ddp_run.ElasticState(model=model, step=0)
        torch.save({"model": model.state_dict(), "step": Evil(mark)}, f"{folder}/file.pt")
        raises(ValueError, ["file.pt holds posix.mkdir, which only pickle can make", "weights_only=False"],
               lambda: state.load_from(f"{folder}/file.pt"))
        dcp.save({"model": model.state_dict(), "step": Evil(mark)}, checkpoint_id=f"{folder}/dcp")
        raises(ValueError, [f"{folder}/dcp", "without running code", "step holds posix.mkdir, which only pickle"],
               lambda: state.load_from(f"{folder}/dcp"))
        dcp.save({"model": model.state_dict(), "step": 1}, checkpoint_id=f"{folder}/metadata")
        assert state.load_from(f"{folder}/metadata")["loaded"] == ["model", "step"]
        Path(f"{folder}/metadata/.metadata").write_bytes(pickle.dumps(Evil(mark)))
        raises(ValueError, "it asks for posix.mkdir", lambda: state.load_from(f"{folder}/metadata"))
        assert not os.path.exists(mark)


run([every_form_is_imported, a_checkpoint_counts_more_than_an_import, what_does_not_fit_changes_nothing,
     wrapped_modules_and_other_types_are_noted, wrappers_in_wrappers_and_whole_floats_fit, options_that_an_older_file_lacks_stay,
     folders_of_several_ranks_are_read_whole, damage_is_refused, no_code_is_run])
