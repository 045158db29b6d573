#!/usr/bin/env python3
"""Installs the tree into a scratch folder and builds worker/examples against it, outside of the tree: what a library user
does. Then runs the examples, with the installed ddp-run and without. installed_package.py BUILD_DIR SOURCE_DIR
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

build, source = Path(sys.argv[1]), Path(sys.argv[2])
# The same place every time, so that ccache knows the compiler's arguments again.
scratch = build / "installed-package"
prefix, example = scratch / "prefix", scratch / "example"


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(condition, text):
    if not condition:
        sys.exit(f"installed_package: {text}")


def install_and_build():
    shutil.rmtree(scratch, ignore_errors=True)
    for component in ("ddp-libraries", "ddp-programs"):
        run("cmake", "--install", build, "--component", component, "--prefix", prefix)
    shutil.copytree(source / "worker" / "examples", example)
    ccache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    run("cmake", "-S", example, "-B", example / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *ccache)
    run("cmake", "--build", example / "build")


def check_training():
    train = example / "build" / "train"
    for name in ("libddp.so", "libddp_torch.so"):
        expect(re.search(rf"{name}\S* => {re.escape(str(prefix))}/", run("ldd", train)), f"train does not link the installed {name}")
    together = run(prefix / "bin" / "ddp-run", "--standalone", "--nproc-per-node", "2", train)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", together)]
    expect(len(losses) == 3 and losses[2] < losses[0] / 4, f"it does not learn:\n{together}")
    weights = re.findall(r"rank (\d) of 2: weights ([0-9a-f]{64})", together)
    expect(sorted(rank for rank, _ in weights) == ["0", "1"], f"two workers were expected:\n{together}")
    expect(len({digest for _, digest in weights}) == 1, f"weights differ between the ranks:\n{together}")
    alone = run(train)
    expect("rank 0 of 1: weights" in alone, f"alone it is not a group of one:\n{alone}")


def check_sum():
    program = example / "build" / "sum"
    expect("libtorch" not in run("ldd", program), "ddp::runtime links LibTorch")
    output = run(prefix / "bin" / "ddp-run", "--standalone", "--nproc-per-node", "2", program)
    expect(sorted(re.findall(r"rank \d of 2: sum 3", output)) == ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"], output)


def weights_of(output, workers):
    digests = re.findall(r"weights ([0-9a-f]{64})", output)
    expect(len(digests) == workers and len(set(digests)) == 1, f"{workers} workers with the same weights were expected:\n{output}")
    return digests[0]


def check_interfaces():
    """One program for each way of training: as its first lines say."""
    def under_ddp_run(name, *arguments):
        return run(prefix / "bin" / "ddp-run", "--standalone", "--nproc-per-node", "2", example / "build" / name, *arguments)
    zero = under_ddp_run("zero")
    weights_of(zero, 2)
    parts = [int(count) for count in re.findall(r"updates (\d+) elements", zero)]
    expect(len(parts) == 2 and max(parts) < 8 * 32 + 32 + 32 + 1, f"the optimizer is not divided:\n{zero}")
    weights_of(under_ddp_run("diloco"), 2)
    weights_of(run(example / "build" / "spawn"), 2)
    weights_of(run(example / "build" / "data_parallel"), 1)
    folder = scratch / "checkpoints"
    first = under_ddp_run("engine", example / "engine.json", folder)
    expect(first.count("step=200") == 1 and "fwd:" in first, f"the engine's lines were expected:\n{first}")
    # The last update's checkpoint is gone: the end comes from the one before.
    shutil.rmtree(folder / "step-0000000200")
    expect(weights_of(under_ddp_run("engine", example / "engine.json", folder), 2) == weights_of(first, 2),
           "going on from a checkpoint gives other weights")
    # The Trainer starts its workers by itself, and has nothing left to do the second time.
    started = [run(example / "build" / "trainer", scratch / "run1") for _ in range(2)]
    expect(weights_of(started[0], 2) == weights_of(started[1], 2) and "going on after update" in started[1], f"{started}")
    expect(sum("best-val_loss" in path.name for path in (scratch / "run1").iterdir()) == 1, "no best model was saved")
    for source_file in example.glob("*.cc"):
        expect(len(source_file.read_text().splitlines()) <= 60, f"{source_file.name} is too long for an example")


def check_another_libtorch():
    """A package for another LibTorch than the one that is found says so instead of giving undefined symbols."""
    config = prefix / "lib" / "cmake" / "ddp" / "ddp-config.cmake"
    config = config if config.exists() else next(prefix.glob("lib/*/cmake/ddp/ddp-config.cmake"))
    config.write_text(re.sub(r'(DDP_TORCH_VERSION STREQUAL) "[^"]*"', r'\1 "9.9.9"', config.read_text()))
    done = subprocess.run(["cmake", "-S", example, "-B", scratch / "other", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          capture_output=True, text=True)
    expect(done.returncode != 0 and "was built with LibTorch" in done.stderr, f"another LibTorch is taken:\n{done.stderr}")


install_and_build()
check_training()
check_sum()
check_interfaces()
check_another_libtorch()
