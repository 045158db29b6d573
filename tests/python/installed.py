"""`pip install .` into a virtual environment: what is in it, two ranks under torchrun in another folder, and that nothing stays. Then
what the build and the package say of a PyTorch that they are not for.

    installed.py BIN_DIR COMPILER
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import torchrun

SKIPPED = 77
LIMIT_S = 1000
TREE = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1]).resolve().parent
# Beside the other build folder and with its warnings, so that ccache knows from there what it compiles here.
PIP_BUILD = BUILD.with_name(BUILD.name + ".pip")
WERROR, = re.findall(r"^DDP_WERROR:BOOL=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
FILES = {"_built_with.py", *(path.name for path in (TREE / "worker/python/ddp_run").glob("*.py*")), "py.typed"}
TRAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("ddp")
values = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(values)
assert values.tolist() == [3.0] * 1000
import ddp_run
print(f"rank {dist.get_rank()}: {ddp_run.nodes()} node, {ddp_run.__file__}", flush=True)
dist.destroy_process_group()
"""


def call(*command, cwd="/", **environment):
    """Status and output. Without the build tree's package."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env={**given, **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout


def run(*command, **where):
    status, output = call(*command, **where)
    assert status == 0, f"{command} ended with {status}:\n{output}"
    return output.strip()


def install(python, **environment):
    shutil.rmtree(PIP_BUILD, ignore_errors=True)
    try:
        return call(python, "-m", "pip", "install", "--no-build-isolation", "--no-index", "--config-settings", f"build-dir={PIP_BUILD}",
                    "--config-settings", f"cmake.define.DDP_WERROR={WERROR}", TREE, CXX=sys.argv[2], **environment)
    finally:
        shutil.rmtree(PIP_BUILD, ignore_errors=True)


def check_contents(python, site):
    names = {path.name for path in (site / "ddp_run").iterdir()} - {"__pycache__"}
    module, = names - FILES
    assert names - {module} == FILES and module.startswith("_native.cpython-") and module.endswith(".so"), names
    assert str(BUILD.parent) not in run("readelf", "-d", site / "ddp_run" / module), "it looks for libraries in the build folder"
    entry = run(python, "-c", "import importlib.metadata as m; print(*m.entry_points(group='torch.distributed.backends'))")
    assert "name='ddp'" in entry and "value='ddp_run:register'" in entry, entry
    # CMake writes the build tree's, and pip what pyproject.toml says.
    metadata, = BUILD.glob("python/ddp_run-*.dist-info")
    installed, = site.glob("ddp_run-*.dist-info")
    assert metadata.name == installed.name, (metadata, installed)
    assert (metadata / "entry_points.txt").read_text().strip() == (installed / "entry_points.txt").read_text().strip()


def check_ranks(python, site, folder):
    script = folder / "train.py"
    # 2.14 and newer find the backend by its entry point.
    script.write_text(("" if torchrun.release() >= (2, 14) else "import ddp_run\n") + TRAIN)
    said = run(python, "-c", torchrun.PROGRAM, "--standalone", "--nproc-per-node", 2, script, cwd=folder, **torchrun.RANK_0_STORE)
    for rank in range(2):
        assert f"rank {rank}: 1 node, {site}/ddp_run/__init__.py" in said, said


def check_other_releases(python, folder):
    """A PyTorch by its metadata only, found before the real one."""
    for release, reason in (("2.5.1", "has PyTorch 2.5.1; the backend needs 2.6 or newer"),
                            ("99.1.0", "has PyTorch 99.1.0, but the LibTorch in")):
        place = folder / release
        (place / "torch").mkdir(parents=True)
        (place / "torch" / "__init__.py").write_text("")
        (place / f"torch-{release}.dist-info").mkdir()
        (place / f"torch-{release}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {release}\n")
        status, output = install(python, PYTHONPATH=str(place))
        assert status != 0 and reason in " ".join(output.split()), output


def main():
    if call(sys.executable, "-c", "import pip, scikit_build_core")[0] != 0:
        print("SKIPPED: needs pip and scikit-build-core (scripts/setup --test)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        # pip is the system's, as torch is.
        run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"))
        before = sorted((folder / "venv").rglob("*"))
        status, output = install(python)
        assert status == 0, output
        check_contents(python, site)
        check_ranks(python, site, folder)
        status, output = call(python, "-c", "import torch; torch.__version__ = '99.1.0'; import ddp_run")
        assert status != 0 and "was built with PyTorch" in output and "this is 99.1.0" in output, output
        run(python, "-m", "pip", "uninstall", "--yes", "ddp-run")
        assert sorted((folder / "venv").rglob("*")) == before, set((folder / "venv").rglob("*")) ^ set(before)
        check_other_releases(python, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
