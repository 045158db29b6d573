"""Checkpoints as other programs have them: exports.py BIN_DIR

One process without a launcher. The peers are PyTorch itself and Hugging Face's package safetensors.
"""
import contextlib
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import ddp_run
from conversion import OPTIMIZERS, Net, in_order, made, run, same, saved, train, trained
from raising import raises

BIN = Path(sys.argv[1]).resolve()


def plain_pytorch_goes_on_from_an_export():
    for kind in OPTIMIZERS:
        whole = ddp_run.weights_sha256(trained(kind)[0])
        with tempfile.TemporaryDirectory() as folder:
            average = torch.arange(3.0)
            first = saved(folder, kind, best=0.5, seen=[1, (2, "three")], average=average, big=2**80, raw=b"\0\1", counts=Counter({3: 2}))
            report = ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/model.pt")
            assert report == {"step": 3, "path": f"{folder}/run/step-0000000003", "skipped": [], "notes": []}, report
            content = torch.load(f"{folder}/model.pt", weights_only=True)
            same({**content, "model": in_order(content["model"])},
                 {"model": in_order(first[0].state_dict()), "optimizer": first[1].state_dict(), "step": 3, "best": 0.5,
                  "seen": [1, (2, "three")], "average": average, "big": 2**80, "raw": b"\0\1", "counts": Counter({3: 2})})
            assert type(content["counts"]) is Counter
            assert content["model"]["head.weight"].data_ptr() == content["model"]["embed.weight"].data_ptr()
            model, optimizer = made(kind)
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            train(model, optimizer, 3, 6)
            assert ddp_run.weights_sha256(model) == whole, kind
            assert not [name for name in os.listdir(folder) if name not in ("run", "model.pt")]


def distributed_checkpoints_are_those_of_get_state_dict():
    for kind in ("SGD", "AdamW", "Adafactor"):
        with tempfile.TemporaryDirectory() as folder:
            saved(folder, kind, best=0.5, counts=Counter({3: 2}))
            ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/dcp")
            model, optimizer = made(kind)
            weights, moments = get_state_dict(model, optimizer)
            content = {"model": weights, "optimizer": moments, "step": 0, "best": 0.0}
            dcp.load(content, checkpoint_id=f"{folder}/dcp")
            set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
            assert (content["step"], content["best"]) == (3, 0.5)
            train(model, optimizer, 3, 6)
            assert ddp_run.weights_sha256(model) == ddp_run.weights_sha256(trained(kind)[0]), kind


def a_module_without_tensors_changes_no_names():
    """As a loss. numpy's numbers are plain ones in the file, and generators are not in it."""
    def both():
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=numpy.float32(0.5), momentum=0.5)

    with tempfile.TemporaryDirectory() as folder:
        model, optimizer = both()
        logical = ddp_run.LogicalWorld(model, 1)
        state = ddp_run.ElasticState(model=model, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer, logical=logical)
        checkpoints = ddp_run.Checkpointer(f"{folder}/run", state)

        def body(group):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            checkpoints.save(1)
        ddp_run.run_elastic(state, body)
        ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/dcp")
        ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/m.pt")
        weights, moments = get_state_dict(*both())
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/dcp")
        assert moments["state"]["weight"]["momentum_buffer"].tolist() == [[1, 1], [1, 1]]
        content = torch.load(f"{folder}/m.pt", weights_only=True)
        assert content["optimizer"]["param_groups"][0]["lr"] == 0.5 and "generators" not in content, content


def safetensors_are_those_of_hugging_face():
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer = saved(folder)
        report = ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/ours.safetensors")
        assert report["notes"] == ["\"optimizer\" is left out", "\"step\" is left out"], report
        content = safetensors.torch.load_file(f"{folder}/ours.safetensors")
        same(in_order(content), in_order(model.state_dict()))
        with safetensors.safe_open(f"{folder}/ours.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}
        # Their form has a shared tensor once.
        safetensors.torch.save_model(model, f"{folder}/theirs.safetensors")
        assert len(safetensors.torch.load_file(f"{folder}/theirs.safetensors")) == len(content) - 1
        os.mkdir(f"{folder}/hub")
        tensors = {name: each.contiguous().clone() for name, each in model.state_dict().items()}
        places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
        for file in set(places.values()):
            safetensors.torch.save_file({name: tensors[name] for name in tensors if places[name] == file}, f"{folder}/hub/{file}",
                                        {"format": "pt"})
        Path(f"{folder}/hub/model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
        os.mkdir(f"{folder}/older")
        places_before = {name: file.replace("model", "pytorch_model").replace("safetensors", "bin") for name, file in places.items()}
        for file in set(places_before.values()):
            torch.save({name: tensors[name] for name in tensors if places_before[name] == file}, f"{folder}/older/{file}")
        Path(f"{folder}/older/pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places_before}))
        os.mkdir(f"{folder}/oldest")
        torch.save(tensors, f"{folder}/oldest/pytorch_model.bin")
        for source in ("ours.safetensors", "theirs.safetensors", "hub", "older", "oldest"):
            fresh = Net()
            state = ddp_run.ElasticState(model=fresh, optimizer=torch.optim.SGD(fresh.parameters(), lr=0.5), step=0)
            report = state.load_from(f"{folder}/{source}")
            assert ddp_run.weights_sha256(fresh) == ddp_run.weights_sha256(model), source
            assert fresh.head.weight is fresh.embed.weight
            assert report["loaded"] == ["model"], report
            assert report["notes"] == [f"the file has no \"{name}\", which stays as it is" for name in ("optimizer", "step")], report
        index = Path(f"{folder}/hub/model.safetensors.index.json")
        index.write_text(json.dumps({"weight_map": {**places, "more": places["scale"]}}))
        raises(ValueError, [places["scale"], "has no tensor \"more\""], lambda: state.load_from(f"{folder}/hub"))
        index.write_text(json.dumps({"weight_map": {**places, "more": "../theirs.safetensors"}}))
        raises(ValueError, ["index.json is damaged", "not in the folder"], lambda: state.load_from(f"{folder}/hub"))
        index.write_text(json.dumps({"weight_map": places}))
        os.unlink(f"{folder}/hub/model-00002-of-00002.safetensors")
        raises((OSError, ValueError), "model-00002-of-00002.safetensors", lambda: state.load_from(f"{folder}/hub"))
        # Types that a checkpoint of ours cannot hold, and a header that does not align what follows.
        content = {"w": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)}
        safetensors.torch.save_file(content, f"{folder}/small.safetensors")
        header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        header += b" " * (1 - len(header) % 2)
        Path(f"{folder}/odd.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
        for source in ("small", "odd"):
            module = torch.nn.ParameterDict({"w": torch.zeros(2)})
            report = ddp_run.ElasticState(model=module).load_from(f"{folder}/{source}.safetensors")
            assert module["w"].tolist() == [1, 2]
        assert report["notes"] == []


def several_modules_keep_their_names():
    def both():
        torch.manual_seed(1)
        made, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        return made, judge, torch.optim.AdamW(made.parameters()), torch.optim.AdamW(judge.parameters())

    def go_on(maker, judge, *both_optimizers):
        for optimizer in both_optimizers:
            optimizer.zero_grad()
        judge(maker(torch.ones(2, 3))).sum().backward()
        for optimizer in both_optimizers:
            optimizer.step()

    def state_of(maker, judge, made_by, judged_by):
        return ddp_run.ElasticState(maker=maker, judge=judge, made_by=made_by, judged_by=judged_by)
    with tempfile.TemporaryDirectory() as folder:
        items = both()
        state = state_of(*items)
        checkpoints = ddp_run.Checkpointer(f"{folder}/run", state)

        def body(group):
            go_on(*items)
            checkpoints.save(1)
        ddp_run.run_elastic(state, body)
        go_on(*items)
        run = f"{folder}/run"
        raises(ValueError, "has 2 modules (judge, maker)", lambda: ddp_run.export_checkpoint(run, f"{folder}/m.safetensors"))
        raises(ValueError, "has no module \"x\"", lambda: ddp_run.export_checkpoint(run, f"{folder}/m.safetensors", module="x"))
        ddp_run.export_checkpoint(run, f"{folder}/m.safetensors", module="maker")
        ddp_run.export_checkpoint(run, f"{folder}/m.bin")
        ddp_run.export_checkpoint(run, f"{folder}/m")
        for source in ("m.bin", "m"):
            again = both()
            state_of(*again).load_from(f"{folder}/{source}")
            go_on(*again)
            assert [ddp_run.weights_sha256(each) for each in again[:2]] == [ddp_run.weights_sha256(each) for each in items[:2]], source
        maker, judge, made_by, _ = both()
        weights, moments = get_state_dict(judge, torch.optim.AdamW(judge.parameters()))
        dcp.load({"judge": weights, "judged_by": moments}, checkpoint_id=f"{folder}/m")
        assert moments["state"]["weight"]["step"] == 1
        state = ddp_run.ElasticState(maker=maker, judge=judge)
        raises(ValueError, "the state has 2 modules (maker, judge): module=... says whose",
               lambda: state.load_from(f"{folder}/m.safetensors"))
        raises(ValueError, "\"model\" is not registered", lambda: state.load_from(f"{folder}/m.safetensors", module="model"))
        assert state.load_from(f"{folder}/m.safetensors", module="maker")["loaded"] == ["maker"]


@contextlib.contextmanager
def no_file_larger_than(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def an_interrupted_export_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        saved(folder)
        Path(f"{folder}/old.pt").write_bytes(b"old")
        for name in ("old.pt", "new.pt", "new.safetensors", "new"):
            with no_file_larger_than(700):
                raises(OSError, name, lambda: ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/{name}"))
        assert sorted(os.listdir(folder)) == ["old.pt", "run"], os.listdir(folder)
        assert Path(f"{folder}/old.pt").read_bytes() == b"old"
        # Killed when everything but the name is there.
        code = "import os, sys, ddp_run\nos.replace = lambda *_: os.kill(os.getpid(), 9)\nddp_run.export_checkpoint(*sys.argv[1:])"
        for name in ("old.pt", "new"):
            assert subprocess.run([sys.executable, "-c", code, f"{folder}/run", f"{folder}/{name}"]).returncode == -9
        assert Path(f"{folder}/old.pt").read_bytes() == b"old" and not os.path.exists(f"{folder}/new")
        assert all(name in ("old.pt", "run") or name.startswith(".") and ".exporting-" in name for name in os.listdir(folder))
        ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/old.pt")
        assert "model" in torch.load(f"{folder}/old.pt", weights_only=True)
        raises(FileExistsError, "remove it or choose another name", lambda: ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/run"))
        raises(IsADirectoryError, "run is a folder", lambda: ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/run", format="torch"))
        raises(FileNotFoundError, "the folder", lambda: ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/none/model.pt"))
        raises(ValueError, "format is \"zip\"; there are torch, safetensors, dcp",
               lambda: ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/new", format="zip"))


def a_checkpoint_of_cpp_is_exported():
    if not (BIN / "ddp-train").exists():  # With sanitizers, only the module is built.
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([BIN / "ddp-train", "--model", "toy", "--checkpoint-dir", f"{folder}/run", "--max-steps", "5", "--momentum", "0.9",
                        "--summary", f"{folder}/summary"], check=True, capture_output=True)
        summary = json.loads(Path(f"{folder}/summary").read_text())
        ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/model.pth")
        content = torch.load(f"{folder}/model.pth", weights_only=True)
        toy = torch.nn.ModuleDict({"net1": torch.nn.Linear(10, 10), "net2": torch.nn.Linear(10, 5)})
        optimizer = torch.optim.SGD(toy.parameters(), lr=0.5)
        modules = [each for each in content.values() if isinstance(each, dict) and "net1.weight" in each]
        toy.load_state_dict(modules[0])
        assert ddp_run.weights_sha256(toy) == summary["weights_sha256"]
        optimizer.load_state_dict(content["optimizer"])
        assert optimizer.param_groups[0]["momentum"] == 0.9 and optimizer.state[toy.net1.weight]["momentum_buffer"].shape == (10, 10)
        toy.net2(toy.net1(torch.ones(1, 10))).sum().backward()
        optimizer.step()


def the_command_does_the_same():
    with tempfile.TemporaryDirectory() as folder:
        model, _ = saved(folder)

        def export(*arguments):
            return subprocess.run([sys.executable, "-m", "ddp_run", "export", f"{folder}/run", *arguments], capture_output=True, text=True)
        done = export(f"{folder}/model.safetensors")
        assert done.returncode == 0 and "step 3 of" in done.stdout and "\"optimizer\" is left out" in done.stderr, done
        same(in_order(safetensors.torch.load_file(f"{folder}/model.safetensors")), in_order(model.state_dict()))
        done = export(f"{folder}/model.safetensors", "--module", "x")
        assert done.returncode == 1 and "has no module \"x\"" in done.stderr and "Traceback" not in done.stderr, done


run([plain_pytorch_goes_on_from_an_export, distributed_checkpoints_are_those_of_get_state_dict, a_module_without_tensors_changes_no_names,
     safetensors_are_those_of_hugging_face, several_modules_keep_their_names, an_interrupted_export_leaves_nothing, a_checkpoint_of_cpp_is_exported, the_command_does_the_same])
