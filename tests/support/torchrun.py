"""Debian's torchrun as a peer, with one bug fixed in each release. torch 1.13: Python 3.11 no longer iterates a Flag's zero and
composite members, so torchrun's parser of --redirects and --tee returns None for 0 and 3. torch 2: Debian builds without libuv, which
torchrun's own stores ask for; workers that open stores themselves still ask for it."""
import re
import subprocess

PYTHON = "/usr/bin/python3"  # Debian's, which has python3-torch.
PROGRAM = """
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import api
if torch.__version__.startswith("1."):
    api.Std.from_str = classmethod(lambda cls, text: api.Std(int(text)))
else:
    init = TCPStore.__init__
    TCPStore.__init__ = lambda self, *given, **named: init(self, *given[:8], **{**named, "use_libuv": False})
from torch.distributed.run import main
main()
"""
# For scripts under it: rank 0 opens the store, without libuv, because the launcher's own cannot be reached without.
RANK_0_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "USE_LIBUV": "0"}
COMMAND = [PYTHON, "-c", PROGRAM, "--monitor_interval=0.1"]


def is_there():
    return subprocess.run([PYTHON, "-c", "import torch.distributed.run"], capture_output=True).returncode == 0


def release():
    """(2, 14) for torch 2.14.1."""
    version = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.match(r"(\d+)\.(\d+)", version).groups())
