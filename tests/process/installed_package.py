#!/usr/bin/env python3
"""Installs the tree into a scratch folder and builds worker/examples against it, outside the tree, as a user of the library
does. Then runs the examples, with and without the installed ddp-run. installed_package.py BIN_DIR SOURCE_DIR
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import documents  # noqa: E402
from commands import output_of as run  # noqa: E402

build, source = Path(sys.argv[1]).resolve().parent, Path(sys.argv[2]).resolve()
# The same place every time, so that ccache knows the compiler's arguments again.
scratch = build / "installed-package"
prefix, example = scratch / "prefix", scratch / "example"


# What the pieces of worker/MANUAL.md take for granted, in their order: the parameters of a function that has the piece as its body.
TAKEN_FOR_GRANTED = [
    "at::Tensor loss, torch::optim::SGD& optimizer", "int world_size, int rank",
    "at::Tensor loss, at::Tensor all, at::Tensor mine, at::Tensor received, at::Tensor sent, std::vector<std::int64_t> received_rows, "
    "std::vector<std::int64_t> sent_rows, at::Tensor weights, Group group",
    "", "torch::optim::SGD& sgd, std::shared_ptr<Net> net, Group group, at::Tensor loss",
    "torch::optim::AdamOptions options, std::shared_ptr<Net> net, Group group, at::Tensor loss",
    "std::shared_ptr<Net> net, Pair batch, at::Tensor (*criterion)(at::Tensor, at::Tensor)",
    "std::shared_ptr<ddp::TensorDataset> train, std::shared_ptr<ddp::TensorDataset> valid, std::shared_ptr<ddp::TensorDataset> test",
    "torch::optim::AdamWOptions options, std::shared_ptr<Net> net, Group group, at::Tensor loss",
    "std::shared_ptr<Net> net, torch::optim::SGD& optimizer, std::int64_t step",
]
MANUAL_HEAD = """#include <ddp/ddp.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "../net.h"

using Group = std::shared_ptr<ddp::ProcessGroup>;
struct Pair { at::Tensor input, target; };
struct Module : ddp::TrainerModule {
  at::Tensor training_step(const ddp::Batch& batch, std::int64_t /*index*/) override { return batch[0]; }
  ddp::ConfiguredOptimizer configure_optimizers() override { return std::unique_ptr<torch::optim::Adam>(); }
};
"""


def expect(condition, text):
    if not condition:
        sys.exit(f"installed_package: {text}")


def ccache():
    # Unless told so, it leaves alone what begins with precompiled headers.
    launcher = "env;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache"
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if shutil.which("ccache") else []


def install_and_build():
    shutil.rmtree(scratch, ignore_errors=True)
    for component in ("ddp-libraries", "ddp-programs"):
        run("cmake", "--install", build, "--component", component, "--prefix", prefix)
    shutil.copytree(source / "worker" / "examples", example)
    run("cmake", "-S", example, "-B", example / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *ccache())
    run("cmake", "--build", example / "build")


def check_manual():
    """The code in the manual compiles; its lines for CMake say how. Names and headers that it mentions exist."""
    blocks = {language: [] for language in ("c++", "cmake", None)}
    for number, language, text in documents.code(source / "worker" / "MANUAL.md"):
        blocks.setdefault(language, []).append((number, text))
    expect(len(blocks["c++"]) == len(TAKEN_FOR_GRANTED) and len(blocks["cmake"]) == 1, f"MANUAL.md has other code: {blocks}")
    pieces = [MANUAL_HEAD]
    for (number, text), parameters in zip(blocks["c++"], TAKEN_FOR_GRANTED):
        net = "using Net = Module;" if "Trainer" in text else ""
        pieces.append(f'void piece_{number}({parameters}) {{ {net}\n#line {number} "worker/MANUAL.md"\n{text.replace("...", ";")}\n}}\n')
    for number, text in blocks[None]:
        for name in re.findall(r"ddp::(\w+)", text):
            pieces.append(f'#line {number} "worker/MANUAL.md"\nnamespace names {{ using ddp::{name}; }}\n')
        for header in re.findall(r"^[\w/]+\.h$", text):
            expect(any((source / "worker").rglob(header)), f"worker/MANUAL.md:{number}: there is no {header}")
    (example / "manual").mkdir()
    (example / "manual" / "manual.cc").write_text("".join(pieces))
    # With the targets of these names, the header that is parsed already, and no program: only whether it compiles.
    with open(example / "CMakeLists.txt", "a") as project:
        project.write(f"add_executable(other sum.cc)\n{blocks['cmake'][0][1]}\nadd_library(manual OBJECT manual/manual.cc)\n"
                      "target_link_libraries(manual PRIVATE ddp::ddp)\ntarget_precompile_headers(manual REUSE_FROM train)\n")
    run("cmake", "--build", example / "build", "--target", "manual", "other")


def check_headers():
    listed = (source / "worker" / "package" / "public_headers.txt").read_text().splitlines()
    wanted = sorted(line.removeprefix("worker/package/") for line in listed if line and not line.startswith("#"))
    there = sorted(path.relative_to(prefix / "include" / "ddp").as_posix() for path in (prefix / "include" / "ddp").rglob("*.h"))
    expect(there == wanted, f"the installed headers are not the listed ones: {set(there) ^ set(wanted)}")


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


def pip_layout(folder, cxx_flags=""):
    """A LibTorch as pip installs it, of links to the one that the tree was built with; gives torch.utils.cmake_prefix_path."""
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE))
    torch = folder / "site-packages" / "torch"
    config = torch / "share" / "cmake" / "Torch"
    for made in (torch / "include", torch / "lib", config):
        made.mkdir(parents=True)
    for part in ("torch", "ATen", "c10", "caffe2"):
        (torch / "include" / part).symlink_to(Path(cache["TORCH_INCLUDE_DIR"]) / part)
    for name in ("TORCH_LIBRARY", "TORCH_CPU_LIBRARY", "C10_LIBRARY"):
        (torch / "lib" / Path(cache[name]).name).symlink_to(cache[name])
    (config / "TorchConfig.cmake").write_text(f'set(TORCH_CXX_FLAGS "{cxx_flags}")\n')
    return torch, config.parent


def uses_libtorch_of(build_folder, torch):
    cache = (build_folder / "CMakeCache.txt").read_text()
    for entry in (f"TORCH_INCLUDE_DIR:PATH={torch}/include", f"TORCH_CPU_LIBRARY:FILEPATH={torch}/lib/libtorch_cpu.so"):
        expect(entry in cache, f"{entry} is not in {build_folder}/CMakeCache.txt")


def check_pips_libtorch():
    """LibTorch where torch.utils.cmake_prefix_path says, for a user's program and for the tree itself."""
    torch, cmake_prefix_path = pip_layout(scratch / "pip")
    compiler = ["-G", "Ninja", *ccache()]
    program = scratch / "with-pip"
    run("cmake", "-S", example, "-B", program, f"-DCMAKE_PREFIX_PATH={prefix};{cmake_prefix_path}",
        "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", *compiler)  # For one program it does not pay.
    uses_libtorch_of(program, torch)
    run("cmake", "--build", program, "--target", "train")
    expect(f"{torch}/lib" in run("readelf", "-d", program / "train"), "train does not know where LibTorch is")
    expect("rank 0 of 1: weights" in run(program / "train"), "train does not run with pip's layout")
    tree = scratch / "tree-with-pip"
    run("cmake", "-S", source, "-B", tree, f"-DCMAKE_PREFIX_PATH={cmake_prefix_path}", "-DCMAKE_BUILD_TYPE=Release", *compiler)
    uses_libtorch_of(tree, torch)
    _, old = pip_layout(scratch / "pip-with-the-old-abi", "-D_GLIBCXX_USE_CXX11_ABI=0")
    done = subprocess.run(["cmake", "-S", source, "-B", scratch / "tree-with-the-old-abi", f"-DCMAKE_PREFIX_PATH={old}", *compiler],
                          capture_output=True, text=True)
    expect(done.returncode != 0 and "old ABI" in done.stderr, f"an old ABI is taken:\n{done.stderr}")


def check_another_libtorch():
    """A package for another LibTorch than the one that is found says so instead of giving undefined symbols."""
    config = prefix / "lib" / "cmake" / "ddp" / "ddp-config.cmake"
    config = config if config.exists() else next(prefix.glob("lib/*/cmake/ddp/ddp-config.cmake"))
    config.write_text(re.sub(r'(DDP_TORCH_VERSION STREQUAL) "[^"]*"', r'\1 "9.9.9"', config.read_text()))
    done = subprocess.run(["cmake", "-S", example, "-B", scratch / "other", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          capture_output=True, text=True)
    expect(done.returncode != 0 and "was built with LibTorch" in done.stderr, f"another LibTorch is taken:\n{done.stderr}")


install_and_build()
check_manual()
check_headers()
check_training()
check_sum()
check_interfaces()
check_pips_libtorch()
check_another_libtorch()
