#!/usr/bin/env python3
"""Draws what bench/run and ddp-train have measured, as SVG (or what else the file's ending says that matplotlib writes).

    bench/run allreduce store | bench/plot.py ratios FILE.svg     each figure's ratio to its peer
    bench/plot.py rates FILE.svg RATES...                          loss and speed from files of ddp-train --rates

Runs in the Python that has Debian's python3-matplotlib.
"""
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402

# Readable without colours, too: a goal that is missed has another shape.
REACHED, MISSED, INK, FAINT = "#2563a8", "#b3541e", "#24292f", "#d0d7de"
matplotlib.rcParams.update({"font.family": "sans-serif", "font.sans-serif": ["Liberation Sans", "DejaVu Sans"], "font.size": 10,
                            "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "svg.fonttype": "none",
                            "svg.hashsalt": "ddp-run", "axes.spines.top": False, "axes.spines.right": False})


def times(ratio):
    return f"{ratio:.0f}×" if ratio >= 20 else f"{ratio:.1f}×" if ratio >= 2 else f"{ratio:.2f}×"


def draw_ratios(lines, path):
    """One row for each figure, in the order of the lines; a log scale, on which twice as fast is as far from 1 as half as fast."""
    rows = len(lines)
    figure, axes = pyplot.subplots(figsize=(9.6, 1.1 + 0.26 * rows), layout="constrained")
    axes.set_xscale("log", base=2)
    axes.axvline(1, color=INK, linewidth=1)
    bench = None
    for row, line in enumerate(lines):
        ratio, goal = line["ratio"], line["goal"]
        missed = goal is not None and line.get("low", ratio) < goal
        color = MISSED if missed else REACHED
        axes.plot([1, ratio], [row, row], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot([ratio], [row], marker="D" if missed else "o", color=color, markersize=6)
        if goal is not None:
            axes.plot([goal, goal], [row - 0.36, row + 0.36], color=INK, linewidth=1.5)
        axes.annotate(f"{times(ratio)}  {line['peer_name']}", (max(ratio, goal or 1, 1), row), xytext=(8, 0), textcoords="offset points",
                      va="center", fontsize=9)
        if bench is not None and line["bench"] != bench:
            axes.axhline(row - 0.5, color=FAINT, linewidth=0.8)
        bench = line["bench"]
    axes.set_yticks(range(rows), [f"{line['bench']}: {line['figure']}" for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(rows - 0.4, -0.6)
    low, high = min([1, *(line["ratio"] for line in lines)]), max([1, *(line["ratio"] for line in lines)])
    axes.set_xlim(low / 1.4, high * 6)  # Room for the texts.
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("times as good as the peer, measured in the same run (dash: the goal; diamond: a goal that is missed)")
    figure.savefig(path, metadata={"Date": None})


def draw_rates(files, path):
    """Loss and accuracy above, samples per second below, over the steps."""
    figure, (learning, speed) = pyplot.subplots(2, 1, sharex=True, figsize=(9.6, 6), layout="constrained")
    accuracy = learning.twinx()
    accuracy.spines["right"].set_visible(True)
    for number, file in enumerate(files):
        lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
        measured = [line for line in lines if "test_accuracy" in line]
        color = f"C{number}"
        label = Path(file).name
        x = [line["step"] for line in steps]
        learning.plot(x, [float("nan") if line["loss"] is None else line["loss"] for line in steps], color=color, label=label)
        accuracy.plot([line["step"] for line in measured], [100 * line["test_accuracy"] for line in measured], color=color, linestyle="--",
                      marker="o", markersize=4)
        speed.plot(x, [line["samples_per_second"] for line in steps], color=color, label=label)
    learning.set_ylabel("loss")
    learning.set_ylim(bottom=0)
    accuracy.set_ylabel("test accuracy in % (dashed)")
    accuracy.set_ylim(0, 100)
    speed.set_ylabel("samples per second")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    if len(files) > 1:
        speed.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    kind, path, *files = sys.argv[1:] if len(sys.argv) > 2 else ("", "")
    if kind == "ratios" and not files:
        draw_ratios([json.loads(line) for line in sys.stdin], path)
    elif kind == "rates" and files:
        draw_rates(files, path)
    else:
        sys.exit(__doc__)


main()
