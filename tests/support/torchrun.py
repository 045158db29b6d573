"""Debian's torchrun (torch 1.13) as a peer, with its one fault under Python 3.11 mended: that no longer iterates a Flag's zero and
composite members, so torchrun's parser of --redirects and --tee gives None for 0 and 3."""
import subprocess

PYTHON = "/usr/bin/python3"  # Debian's, which has python3-torch.
PROGRAM = """
import sys
from torch.distributed.elastic.multiprocessing import api
api.Std.from_str = classmethod(lambda cls, text: api.Std(int(text)))
from torch.distributed.run import main
main()
"""
COMMAND = [PYTHON, "-c", PROGRAM, "--monitor_interval=0.1"]


def is_there():
    return subprocess.run([PYTHON, "-c", "import torch.distributed.run"], capture_output=True).returncode == 0
