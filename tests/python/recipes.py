"""The code in the pages on Python, run as it stands there, but for what it leaves out: recipes.py BIN_DIR

It leaves out the model and the data, which come before it here, and "..." for a step. It trains 200 steps in place of 1000.
"""
import operator
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import ddp_run
import documents
from commands import output_of

BIN = Path(sys.argv[1]).resolve()
SOURCE = Path(__file__).resolve().parents[2]
README, PYTHON, ELASTIC = (SOURCE / name for name in ("README.md", "worker/python/README.md", "worker/python/ELASTIC.md"))
LIMIT_S = 240
BEFORE = """import contextlib, ddp_run, torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
sampler = ddp_run.DistributedSampler(dataset)
loader = ddp_run.DataLoader(dataset, batch_size=8, sampler=sampler)
"""
STATE = 'state = ddp_run.ElasticState(model=model, optimizer=optimizer, step=0)\ncheckpoints = ddp_run.Checkpointer("{}", state, every=100)\n'
RUN = 'ddp_run.run_elastic(state, train, backend="ddp")\n'
END = 'print("weights", ddp_run.weights_sha256(model), flush=True)\n'


def blocks(page, *beginnings):
    """Those in Python, of which each begins as is said here."""
    found = [text for _, language, text in documents.code(page) if language == "python"]
    assert len(found) == len(beginnings) and all(map(str.startswith, found, beginnings)), (page, found)
    return found


def ranks(program):
    Path("program.py").write_text(program)
    said = output_of(BIN / "ddp-run", "--standalone", "--nproc-per-node", "2", "program.py", limit_s=LIMIT_S)
    found = re.findall("weights [0-9a-f]{64}", said)
    assert len(found) == 2 and len(set(found)) == 1, f"two ranks with the same weights were expected:\n{program}\n{said}"


def body(block, step):
    """With that many steps, and with a step."""
    return re.sub(r"^( *)\.\.\..*$", lambda match: "\n".join(match[1] + line for line in step), block.replace("1000", "200"), flags=re.MULTILINE) + "\n"


def names_exist():
    for page in (README, PYTHON, ELASTIC, SOURCE / "launcher/ddp_run/MANUAL.md"):
        for number, language, text in documents.code(page):
            # Lightning's part needs Lightning, which may not be here: lightning_programs.py.
            for name in re.findall(r"\bddp_run\.(?!lightning)([a-zA-Z]\w*(?:\.\w+)*)", text if language in (None, "python") else ""):
                try:
                    operator.attrgetter(name)(ddp_run)
                except AttributeError:
                    raise AssertionError(f"{page}:{number}: there is no ddp_run.{name}") from None


def main():
    names_exist()
    begin, again = blocks(README, "import ddp_run")[0], blocks(PYTHON, "import ddp_run")[0]
    elastic, logical, curves, exchange = blocks(ELASTIC, "import ddp_run", "logical = ", "def train(group):", "ddp_run.export_checkpoint(")
    for block in {re.sub(" *#.*", "", each) for each in (begin, again)}:
        ranks(f"import torch\n{block}\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))\n{END}"
              "torch.distributed.destroy_process_group()\n")
    ranks(BEFORE + body(elastic, ["optimizer.zero_grad()", "loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)", "loss.backward()",
                                  "optimizer.step()"]) + END)
    assert list(Path("run1").glob("step-*")), "no checkpoint"
    checkpoints = 'checkpoints = ddp_run.Checkpointer("run2", state, every=100)\n'
    ranks(BEFORE + body(logical, []).replace("\ndef train", f"\n{checkpoints}\ndef train") + RUN + END)
    ranks(BEFORE + STATE.format("run3") + body(curves, ["loss = 1 / (state.step + 1)", "state.step += 1", "state.commit_if_due()"]) + RUN + END)
    assert list(Path("board").glob("events*")), "no curves"
    Path("exchange.py").write_text(BEFORE + STATE.format("run1") + 'ddp_run.export_checkpoint("run1", "pretrained.safetensors")\n' + exchange)
    output_of(sys.executable, "exchange.py", limit_s=LIMIT_S)
    Path("model.pt").unlink()
    output_of(sys.executable, *re.search(r"# Or python3 (.*)", exchange)[1].split(), limit_s=LIMIT_S)
    assert Path("model.pt").exists(), "nothing was exported"
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="recipes.") as scratch:
        os.chdir(scratch)
        sys.exit(main())
