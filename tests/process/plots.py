#!/usr/bin/env python3
"""bench/plot.py draws every figure that it is given, and what ddp-train --rates has written.

usage: plots.py BIN_DIR
"""
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

BIN, ROOT = Path(sys.argv[1]), Path(__file__).resolve().parents[2]
PLOT = ["/usr/bin/python3", str(ROOT / "bench" / "plot.py")]  # Debian's, which has matplotlib.


def figure(bench, name, ratio, goal, **more):
    return {"bench": bench, "figure": name, "ours": 1, "peer": ratio, "peer_name": f"peer of {name}", "ratio": ratio, "unit": "s", "goal": goal,
            **more}


def words_of(path):
    return " ".join(text for element in xml.parse(path).iter() for text in element.itertext())


def markers_of(path):
    """How many diamonds there are: goals that are missed."""
    return Path(path).read_text().count('fill: #b3541e')


with tempfile.TemporaryDirectory(prefix="plots.") as folder:
    lines = [figure("launch", "one node", 174.2, 50), figure("store", "get", 1.44, 1), figure("store", "add", 0.9, 1),
             figure("store", "noisy", 1.1, 1, low=0.95), figure("scale", "no goal", 0.5, None)]
    subprocess.run([*PLOT, "ratios", f"{folder}/r.svg"], input="".join(json.dumps(line) + "\n" for line in lines), text=True, check=True)
    words = words_of(f"{folder}/r.svg")
    for line in lines:
        for word in (f"{line['bench']}: {line['figure']}", line["peer_name"]):
            assert word in words, f"{word} is not in the picture: {words}"
    assert "174×" in words and "0.90×" in words, words
    assert markers_of(f"{folder}/r.svg") == 2, markers_of(f"{folder}/r.svg")

    subprocess.run([BIN / "ddp-train", "--model", "toy", "--epochs", "2", "--log-every", "1", "--rates", f"{folder}/rates"], check=True,
                   stdout=subprocess.DEVNULL, timeout=240)
    subprocess.run([*PLOT, "rates", f"{folder}/s.svg", f"{folder}/rates", f"{folder}/rates"], check=True)
    words = words_of(f"{folder}/s.svg")
    assert "loss" in words and "samples per second" in words and "rates" in words, words

    wrong = subprocess.run([*PLOT, "ratios"], stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    assert wrong.returncode == 1 and "plot.py ratios FILE.svg" in wrong.stderr, wrong
print("ok")
