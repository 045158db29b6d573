"""Checkpoints as files for PyTorch and Hugging Face."""
import contextlib
import errno
import os
import shutil
from pathlib import Path

import torch

from ddp_run import _native
from ddp_run.contents import Checkpoint

_BY_SUFFIX = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".safetensors": "safetensors"}


def export_checkpoint(source, target, *, format: str | None = None, module: str | None = None) -> dict:
    """Writes a checkpoint in the form that programs without ddp_run read.

        ddp_run.export_checkpoint("run1", "model.pt")
        saved = torch.load("model.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    source: a folder of checkpoints, of which the newest valid one counts, or one checkpoint's folder. All of it is checked against
    its checksums.
    target: its name says what is written, unless `format` does.

    * "torch" (.pt, .pth, .bin): a file of torch.save. Each module and optimizer under its name, as its state_dict() gives it, and each
      value. Tensors that modules share stay shared.
    * "safetensors" (.safetensors): the tensors of one module, under their names in it; shared ones under each name. `module` says
      which, if there are several.
    * "dcp" (any other name): a new folder of torch.distributed.checkpoint, with the content of "torch". Optimizers are as
      torch.distributed.checkpoint.state_dict.get_state_dict() gives them, by the names of parameters, for set_state_dict().

    Random generators and other state of single ranks are left out.

    A file at the target is replaced in one step; a folder must be empty or missing. If the process is killed meanwhile, only a hidden
    file or folder with ".exporting" in its name can be left.

    Returns a dict: path and step of the checkpoint, skipped (a line for each newer one that is damaged), notes (what was left out).
    Raises ValueError if there is no valid checkpoint, with the damaged file's name, or for an unsuitable argument; OSError if the
    target cannot be written.
    """
    target = Path(target)
    kind = format or _BY_SUFFIX.get(target.suffix, "dcp")
    if kind not in _WRITERS:
        raise ValueError(f"format is \"{format}\"; there are {', '.join(_WRITERS)}")
    if module is not None and kind != "safetensors":
        raise ValueError(f"module=\"{module}\" is for safetensors; {target} gets all modules")
    _check(target, kind)
    checkpoint = Checkpoint(source)
    try:
        with _replacing(target) as temporary:
            notes = _WRITERS[kind](checkpoint, temporary, module)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"{target} cannot be written: {error.strerror or error}") from error
    return {"path": checkpoint.path, "step": checkpoint.step, "skipped": checkpoint.skipped, "notes": notes}


def _write_torch(checkpoint, path, module):
    content = checkpoint.everything()
    with _written(), open(path, "xb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    return checkpoint.left_out()


def _write_dcp(checkpoint, path, module):
    from ddp_run import dcp_folders  # Not before: its imports take long.
    dcp_folders.write(checkpoint.everything(by_name=True), path)
    _sync_folder(path)
    return checkpoint.left_out()


def _write_safetensors(checkpoint, path, module):
    modules = checkpoint.modules()
    if module is None and len(modules) != 1:
        raise ValueError(f"{checkpoint.path} has {len(modules)} modules ({', '.join(sorted(modules))}), and a safetensors file has one: "
                         "module=... says which")
    if module is not None and module not in modules:
        raise ValueError(f"{checkpoint.path} has no module \"{module}\"; it has {', '.join(modules)}")
    chosen = module if module is not None else next(iter(modules))
    with _written():
        _native.write_safetensors(str(path), list(modules[chosen].items()), {"format": "pt"})
    others = [name for name in [*modules, *checkpoint.optimizer_names(), *checkpoint.values()] if name != chosen]
    return [*(f"\"{name}\" is left out" for name in others), *checkpoint.left_out()]


_WRITERS = {"torch": _write_torch, "safetensors": _write_safetensors, "dcp": _write_dcp}


def _check(target, kind):
    """What would only be found out when everything is written."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be made: the folder {target.parent} does not exist")
    if kind != "dcp" and target.is_dir():
        raise IsADirectoryError(f"{target} is a folder, and a file is to be written there; choose another name")
    if kind == "dcp" and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} exists, and a new folder is to be made there; remove it or choose another name")


@contextlib.contextmanager
def _written():
    """PyTorch's writer and ours raise RuntimeError where the system fails."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error).splitlines()[0]) from error


@contextlib.contextmanager
def _replacing(target):
    """Gives a name beside the target. What is there in the end becomes the target, durably; after an exception it is removed."""
    temporary = target.with_name(f".{target.name}.exporting-{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
