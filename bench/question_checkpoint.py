"""How long does a checkpoint keep training waiting, and when is it safe?

One worker under ddp-run saves a ResNet50 with momentum (205 MB) and a state of 1 GiB (bench-checkpoint):
  blocked   time of save(), against one memcpy of the state in the same process just before
  durable   time until wait() reports the checkpoint on disk, against dd of as many bytes with conv=fsync, and against
            torch.save in Python with fsync
  load      load_latest() with all its checksums, against torch.load and copying, both from the page cache, and both from the disk
The same from Python, 512 MiB: the time of ddp_run's save(), torch.save and torch.distributed.checkpoint.async_save
(checkpoint_elastic.py; left out where the package ddp_run is not built).
Then two workers train a ResNet50: in turn, ten steps with one save and ten without.

BENCH_PARTS=resnet50,1024,python,train chooses, BENCH_ROUNDS the rounds; BENCH_FOLDER is where files go (guard.py; default: the temporary
folder).
"""
import os
import shutil
import statistics
import subprocess
import tempfile

import commanded
import harness
import paired

PROGRAM = str(harness.BIN / "bench-checkpoint")
SCRIPT = str(harness.ROOT / "bench" / "checkpoint_python.py")
PYTHON_SCRIPT = str(harness.ROOT / "bench" / "checkpoint_elastic.py")
PARTS = os.environ.get("BENCH_PARTS", "resnet50,1024,python,train").split(",")
ROUNDS = paired.ROUNDS
INNER = 1 if paired.QUICK else 3  # Saves in each run of a program, besides the first.
TURNS, STEPS = (1, 10) if paired.QUICK else (10, 10)
MIB = 1024 * 1024


def median(lines, key):
    return statistics.median(line[key] for line in lines if line["round"] >= 0 and key in line)


def launched(workers, *arguments):
    return [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(workers), "--no-python", PROGRAM, *map(str, arguments)]


def ours(state, folder):
    lines = paired.run_all([(launched(1, "state", state, os.path.join(folder, "ours"), INNER), {})])
    shutil.rmtree(os.path.join(folder, "ours"))
    return {key: median(lines, key) for key in ("bytes", "memcpy_s", "blocked_s", "durable_s", "load_cold_s", "load_s")}


def python(shapes, folder):
    path = os.path.join(folder, "python.pt")
    done = subprocess.run([harness.PYTHON, SCRIPT, path, str(INNER)], input=shapes, stdout=subprocess.PIPE, text=True, check=True)
    lines = [paired.json.loads(line) for line in done.stdout.splitlines()]
    os.remove(path)
    return {key: median(lines, key) for key in ("save_s", "save_fsync_s", "load_cold_s", "load_s")}


def dd(size, folder):
    path = os.path.join(folder, "dd")
    taken = [harness.seconds(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={-(-size // MIB)}", "conv=fsync"])
             for _ in range(INNER)]
    os.remove(path)
    return statistics.median(taken)


def against(name, ours_s, peers_s, peer_name, goal):
    """Seconds of each round; the ratio is taken within a round."""
    ratios = [peer / mine for mine, peer in zip(ours_s, peers_s)]
    return {"figure": name, "ours": round(statistics.median(ours_s), 4), "peer": round(statistics.median(peers_s), 4),
            "peer_name": peer_name, "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3),
            "rounds": len(ratios), "unit": "s", "goal": goal}


def saving(state, folder):
    shapes = subprocess.run([PROGRAM, "shapes", state], stdout=subprocess.PIPE, text=True, check=True).stdout
    mine, peers, disk = [], [], []
    for number in range(ROUNDS):
        contenders = [lambda: mine.append(ours(state, folder)), lambda: peers.append(python(shapes, folder))]
        for contend in contenders if number % 2 == 0 else contenders[::-1]:
            contend()
        disk.append(dd(int(mine[-1]["bytes"]), folder))

    def each(lines, key):
        return [line[key] for line in lines]
    what = "ResNet50 with momentum" if state == "resnet50" else f"{state} MiB"
    yield against(f"{what}: step blocked", each(mine, "blocked_s"), each(mine, "memcpy_s"), "memcpy of the state", 0.77)
    yield against(f"{what}: step blocked, against Python", each(mine, "blocked_s"), each(peers, "save_s"), "torch.save", None)
    yield against(f"{what}: step blocked, against Python with fsync", each(mine, "blocked_s"), each(peers, "save_fsync_s"),
                  "torch.save and fsync", None)
    yield against(f"{what}: durable", each(mine, "durable_s"), disk, "dd conv=fsync", 0.85)
    yield against(f"{what}: durable, against Python", each(mine, "durable_s"), each(peers, "save_fsync_s"), "torch.save and fsync",
                  None)
    yield against(f"{what}: loading from the disk", each(mine, "load_cold_s"), each(peers, "load_cold_s"), "torch.load", None)
    yield against(f"{what}: loading", each(mine, "load_s"), each(peers, "load_s"), "torch.load", 2)


def from_python(folder):
    if not commanded.has_package():
        return
    lines = []
    for _ in range(ROUNDS):
        command = [harness.DDP_RUN, "--standalone", PYTHON_SCRIPT, folder, "512", str(INNER)]
        lines += paired.run_all([(command, {"PYTHONPATH": commanded.environment()["PYTHONPATH"]})])
    more = {"async_save_tears": any(line.get("async_save_tears") for line in lines)}
    lines = [line for line in lines if line["round"] >= 0]
    mine = [line["blocked_s"] for line in lines]
    for peer, name, goal in (("memcpy_s", "copy of the state", 0.77), ("torch_save_s", "torch.save", None),
                             ("async_save_s", "torch.distributed.checkpoint.async_save of a copy", None)):
        yield {**against(f"Python, 512 MiB: step blocked, against {name}", mine, [line[peer] for line in lines], name, goal), **more}


def training(folder):
    path = os.path.join(folder, "training")
    lines = []
    for _ in range(max(1, 3 * ROUNDS // TURNS)):
        lines += paired.run_all([(launched(2, "train", path, TURNS, STEPS), {})], limit_s=600)
        shutil.rmtree(path)
    rates = {key: [line["steps"] / line[key] for line in lines] for key in ("with_s", "without_s")}
    ratios = [mine / peer for mine, peer in zip(rates["with_s"], rates["without_s"])]
    yield {"figure": "ResNet50, 2 workers, a save every 10 steps", "ours": round(statistics.median(rates["with_s"]), 3),
           "peer": round(statistics.median(rates["without_s"]), 3), "peer_name": "the same without saves",
           "ratio": round(statistics.median(ratios), 4), "low": round(paired.lower_bound(ratios), 4), "turns": len(ratios),
           "unit": "steps/s", "goal": 0.97}


def figures():
    harness.require(harness.DDP_RUN, PROGRAM, "dd", harness.PYTHON)
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint.") as folder:
        for part in PARTS:
            of_part = {"train": training, "python": from_python}
            yield from of_part[part](folder) if part in of_part else saving(part, folder)
