"""Writes the ranks and roles in its environment into the file FOLDER/RANK. roles.py FOLDER"""
import json
import os
import sys
from pathlib import Path

names = ("RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE")
path = Path(sys.argv[1]) / os.environ["RANK"]
path.with_suffix(".new").write_text(json.dumps({name: os.environ[name] for name in names}))
path.with_suffix(".new").rename(path)
