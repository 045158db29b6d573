"""Checkpoints as other programs have them, and the other way: convert.py BIN_DIR

One process without a launcher. The peers are PyTorch itself and Hugging Face's package safetensors.
"""
import contextlib
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ddp_run
from raising import raises

BIN = Path(sys.argv[1]).resolve()
torch.set_num_threads(1)  # With one thread, the order of sums is fixed.
warnings.filterwarnings("ignore", message="torch.distributed is")  # DCP, of a process without a group.
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "AdamW": {"amsgrad": True}, "Adafactor": {}, "Rprop": {},
    "LBFGS": {"lr": 0.05, "history_size": 3}, "Adam": {"lr": torch.tensor(0.01)},
}


class Net(torch.nn.Module):
    """Shared weights, buffers, two types, a tensor without dimensions and one without elements."""

    def __init__(self, words=11):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, words)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.small = torch.nn.Parameter(torch.ones(6, dtype=torch.bfloat16))
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.embed(x)) * self.small.float()) * self.scale + self.empty.sum()


def made(kind="SGD", words=11):
    torch.manual_seed(1)
    model = Net(words)
    groups = [{"params": [*model.embed.parameters(), *model.norm.parameters()]},
              {"params": [model.head.bias, model.scale, model.small], "lr": OPTIMIZERS[kind].get("lr", 0.02)}]
    if kind != "Adafactor":  # It divides by the number of elements.
        groups[1]["params"].append(model.empty)
    return model, getattr(torch.optim, kind)(list(model.parameters()) if kind == "LBFGS" else groups, **OPTIMIZERS[kind])


def train(model, optimizer, first, last):
    for step in range(first, last):
        x = torch.randint(11, (8,), generator=torch.Generator().manual_seed(step))

        def loss():
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(model(x), x)
            value.backward()
            assert value.isfinite()
            return value
        optimizer.step(loss)


def trained(kind="SGD", steps=6):
    pair = made(kind)
    train(*pair, 0, steps)
    return pair


def saved(folder, kind="SGD", steps=3, **values):
    """Trains under ddp_run, and saves the checkpoint. Returns model and optimizer as they were."""
    model, optimizer = made(kind)
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, **values)
    checkpoints = ddp_run.Checkpointer(f"{folder}/run", state, asynchronous=False)

    def body(group):
        train(model, optimizer, 0, steps)
        state.step = steps
        checkpoints.save()
    ddp_run.run_elastic(state, body)
    return model, optimizer


def continued(path, kind, **items):
    """Goes on under ddp_run from what was imported, to step 6. Returns the weights' hash and load_from()'s report."""
    model, optimizer = made(kind)
    state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0, **items)
    report = state.load_from(path)

    def body(group):
        train(model, optimizer, 3, 6)
    ddp_run.run_elastic(state, body)
    return ddp_run.weights_sha256(model), report


def same(one, other, where="state"):
    assert type(one) is type(other), f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {list(one)} and {list(other)}"
        for key in one:
            same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other)):
            same(a, b, f"{where}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), f"{where}: {one} and {other}"
    else:
        assert one == other, f"{where}: {one} and {other}"


def in_order(tensors):
    """A state_dict() as a plain dict in the order of names."""
    return {key: tensors[key].detach() for key in sorted(tensors)}


def plain_pytorch_goes_on_from_an_export():
    for kind in OPTIMIZERS:
        whole = ddp_run.weights_sha256(trained(kind)[0])
        with tempfile.TemporaryDirectory() as folder:
            average = torch.arange(3.0)
            first = saved(folder, kind, best=0.5, seen=[1, (2, "three")], average=average, big=2**80, raw=b"\0\1")
            report = ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/model.pt")
            assert report == {"step": 3, "path": f"{folder}/run/step-0000000003", "skipped": [], "notes": []}, report
            content = torch.load(f"{folder}/model.pt", weights_only=True)
            same({**content, "model": in_order(content["model"])},
                 {"model": in_order(first[0].state_dict()), "optimizer": first[1].state_dict(), "step": 3, "best": 0.5,
                  "seen": [1, (2, "three")], "average": average, "big": 2**80, "raw": b"\0\1"})
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
            saved(folder, kind, best=0.5)
            ddp_run.export_checkpoint(f"{folder}/run", f"{folder}/dcp")
            model, optimizer = made(kind)
            weights, moments = get_state_dict(model, optimizer)
            content = {"model": weights, "optimizer": moments, "step": 0, "best": 0.0}
            dcp.load(content, checkpoint_id=f"{folder}/dcp")
            set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
            assert (content["step"], content["best"]) == (3, 0.5)
            train(model, optimizer, 3, 6)
            assert ddp_run.weights_sha256(model) == ddp_run.weights_sha256(trained(kind)[0]), kind


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
        for source in ("ours.safetensors", "theirs.safetensors", "hub"):
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


for case in (plain_pytorch_goes_on_from_an_export, distributed_checkpoints_are_those_of_get_state_dict, every_form_is_imported,
             safetensors_are_those_of_hugging_face, a_checkpoint_counts_more_than_an_import, several_modules_keep_their_names,
             what_does_not_fit_changes_nothing, wrapped_modules_and_other_types_are_noted,
             options_that_an_older_file_lacks_stay, folders_of_several_ranks_are_read_whole, damage_is_refused, no_code_is_run,
             an_interrupted_export_leaves_nothing, a_checkpoint_of_cpp_is_exported, the_command_does_the_same):
    case()
    print(case.__name__, flush=True)
