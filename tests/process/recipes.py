#!/usr/bin/env python3
"""Types what the documents for users tell people to type, as it stands there: recipes.py BIN_DIR SOURCE_DIR. Needs root for namespaces,
else skips (77).

Every command in a block of code, and every command, flag with a value and page of ours within a line, has an entry in HOW; a line that
has none, or an entry without a line, fails the test. The commands run on one machine that has the names of all nodes, a network and
processes of its own, and stand-ins for ssh and kubectl; only SUBSTITUTES are replaced. Flags and variables that a page names must exist.
"""
import contextlib
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import certificates
import documents
import jobs

SKIPPED = 77
LIMIT_S = 240
BIN, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
README, MANUAL, CONTRIBUTING = "README.md", "launcher/ddp_run/MANUAL.md", "CONTRIBUTING.md"
PYTHON, ELASTIC, LIBRARY = "worker/python/README.md", "worker/python/ELASTIC.md", "worker/MANUAL.md"
PAGES = [README, MANUAL, PYTHON, ELASTIC, LIBRARY, CONTRIBUTING]
NODES = "node0 node1 node2 e1 e2 e3"
# Open MPI takes names of 127.0.0.1 for one machine, and wants an address that is not loopback's.
MPI_NODES = ["m1", "m2", "m3", "m4"]
PROGRAM = "sh -c 'echo rank $RANK of $WORLD_SIZE'"
SUBSTITUTES = {"ddp-train ...": "ddp-train --model mnist --data synthetic", " ...": f" {PROGRAM}", "/shared/": "shared/",
               "HOST:PORT": "node1", "HOST": "node1",
               "FILE_OR_DIR": "text", "FILE": "file"}
TRAIN_PY = 'import os, sys\nprint("rank", os.environ.get("RANK"), "of", os.environ.get("WORLD_SIZE"), *sys.argv[1:], flush=True)\n'
TRAIN_SH = "#!/bin/sh\necho rank $RANK of $WORLD_SIZE\n"
OPEN_MPI = ("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_default_hostfile=machines "
            "PRTE_MCA_prte_default_hostfile=machines")
# Trainings are short. Of more than two workers only the first one trains, alone, because it is the flags that matter.
DDP_TRAIN = f"""#!/bin/sh
[ "$1" != --help ] || exec {BIN}/ddp-train --help
echo rank $RANK of $WORLD_SIZE
short="--epochs 1 --train-samples 128 --test-samples 32 --batch-size 32 --threads 1"
[ $WORLD_SIZE -gt 2 ] || exec {BIN}/ddp-train "$@" $short
[ $RANK != 0 ] || exec env -i PATH=$PATH {BIN}/ddp-train "$@" $short
"""
# ssh [-o OPTION]... HOST WORD...; each host has a folder of its own for what is temporary.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
export TMPDIR="$HOME/tmp.$1"
mkdir -p "$TMPDIR"
shift
exec sh -c "$*"
"""
# kubectl exec -i HOST -- WORD...
KUBECTL = '#!/bin/sh\n[ "$1 $2 $4" = "exec -i --" ] && shift 4 && exec "$@"\n'


# What is a line to be typed, if it is not in a block. Words in capitals stand for something.
LINE = r"(\. <\()?ddp-[\w-]+ .|sh -c |http://|GET /|--[a-z-]+ (?![A-Z])"


class Recipe:
    def __init__(self, page, line, text):
        self.page, self.line, self.text = page, line, text
        self.command = text
        for before, after in SUBSTITUTES.items():
            self.command = self.command.replace(before, after)

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


# ---- what the pages have ----

def recipes():
    for page in PAGES:
        yield from (Recipe(page, number, command) for number, command in documents.commands(SOURCE / page))
        yield from (Recipe(page, number, text) for number, language, text in documents.code(SOURCE / page)
                    if language is None and re.match(LINE, text))
    for path in sorted((SOURCE / "configs").iterdir()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"\s*#   (\S.*)", line):
                yield Recipe(f"configs/{path.name}", number, match.group(1))


def missing_names():
    """Flags and variables that the pages name and nobody reads."""
    helps = [[program, "--help"] for program in ("ddp-run", "ddp-train", "ddp-rendezvous")]
    helps += [["ddp-run", word, "--help"] for word in ("status", "top", "trace", "check")]
    helps += [["ddp-checkpoint", word, "--help"] for word in ("ls", "verify", "show", "export", "import")]
    helps += [["ddp-rendezvous", "get", "--help"]]
    known = set(re.findall(r"--[a-z][a-z-]+", "".join(shell(" ".join(words)) for words in helps)))
    sources = "".join(path.read_text() for folder in ("launcher", "agent", "worker", "common") for path in (SOURCE / folder).rglob("*")
                      if path.suffix in (".cc", ".h", ".py"))
    pieces = [(page, *piece) for page in PAGES for piece in documents.code(SOURCE / page)]
    pieces += [(path.relative_to(SOURCE), 1, "", path.read_text()) for path in sorted((SOURCE / "configs").glob("*.env"))]
    for page, number, language, text in pieces:
        if language in (None, ""):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
                if flag not in known and flag not in OTHERS_FLAGS and not any(word in text for word in OTHERS):
                    yield f"{page}:{number}: nobody has the flag {flag}: {text}"
            for variable in re.findall(r"\b(?:DDP|TORCH|TORCHELASTIC|PET)_[A-Z_]+[A-Z]\b", text):
                flag = "--" + variable.removeprefix("PET_").lower().replace("_", "-")
                if variable not in sources and not (variable.startswith("PET_") and flag in known) and variable not in OTHERS_VARIABLES:
                    yield f"{page}:{number}: nobody reads {variable}: {text}"


OTHERS = ("cmake", "pip", "srun", "sbatch", "scancel", "mpirun", "kubectl", "ctest", "scripts/", "COPY", "flux", "apt ")
OTHERS_FLAGS = {"--op", "--wait", "--no-install-recommends"}
OTHERS_VARIABLES = {"PET_NAME", "DDP_WERROR", "DDP_TEST_FULL"}


# ---- how they are typed ----

def shell(command, statuses=(0,)):
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S, check=False)
    assert done.returncode in statuses, f"{command}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def check_ranks(said, count):
    found = sorted(set(re.findall(rf"rank (\d+) of {count}\b", said)))
    assert found == [str(rank) for rank in range(count)], f"the ranks {found} of {count}:\n{said}"


def typed(*words, ranks=0, nodes=1, statuses=(0,)):
    """The line, typed on each node. What they say has all these patterns."""
    def run(recipe):
        shells = [subprocess.Popen(["bash", "-c", recipe.command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True) for _ in range(nodes)]
        said = "".join(each.communicate(timeout=LIMIT_S)[0] for each in shells)
        assert all(each.returncode in statuses for each in shells), f"{[each.returncode for each in shells]}:\n{said}"
        for word in words:
            assert re.search(word, said), f"no '{word}':\n{said}"
        if ranks:
            check_ranks(said, ranks)
    return run


def in_a_terminal(recipe):
    """Until a rank is there; then q ends it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "-c", recipe.command], {**os.environ, "TERM": "xterm"})
    shown, deadline = b"", time.monotonic() + LIMIT_S
    with contextlib.suppress(OSError):  # The end of the terminal.
        while time.monotonic() < deadline and select.select([terminal], [], [], deadline - time.monotonic())[0]:
            shown += os.read(terminal, 4096)
            if b"rank" in shown.lower():
                os.write(terminal, b"q")
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0 and b"rank" in shown.lower(), (status, shown)


@contextlib.contextmanager
def in_background(*command):
    with open("background.log", "ab") as log, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def daemon(recipe):
    """A rendezvous by itself, to which a job comes."""
    with in_background("bash", "-c", "exec " + recipe.command):
        wait_for_status("store:")
        check_ranks(shell(f"ddp-run --nproc-per-node 2 --rdzv-endpoint node1:29400 {PROGRAM}"), 2)


def with_etcd(recipe):
    if not shutil.which("etcd"):
        print(f"etcd is not here: {recipe}")
        return
    with in_background("etcd", "--data-dir", "etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://e1:2379"):
        typed(ranks=2, nodes=2)(recipe)


def value_of_a_key(recipe):
    assert shell(recipe.command.replace("KEY", "who")) == "a worker"


def completion(recipe):
    assert "_ddp_run" in shell(f"{recipe.command}; complete -p ddp-run")


def dollar(recipe):
    assert shell(f"ddp-run {recipe.command}") == "$\n"


def looks_into_run1(recipe):
    """A list of commands: ls|verify|show"""
    program, words, folder = recipe.text.split()
    for word in words.split("|"):
        assert "step-00" in shell(f"{program} {word} {folder}")


def planned(words):
    """With what such a line leaves out, as a dry run."""
    def run(recipe):
        line = recipe.command if recipe.command.startswith("ddp-run ") else f"ddp-run {recipe.command}"
        said = shell(line.replace("ddp-run ", "ddp-run --dry-run ", 1) + f" {PROGRAM}")
        assert words in said, said
    return run


def flags(line, *words, **more):
    """In this line, for FLAGS. Of values with | between them each one."""
    def run(recipe):
        name, _, values = recipe.command.partition(" ")
        for value in values.split("|"):
            typed(*words, **more)(Recipe(recipe.page, recipe.line, line.replace("FLAGS", f"{name} {value}")))
    return run


def with_certificates(recipe):
    certificates.flags_of_new(Path.cwd(), ["127.0.0.1"], ["node1"])
    typed(ranks=2, nodes=2)(Recipe(recipe.page, recipe.line, f"ddp-run --nnodes 2 {recipe.text} --rdzv-endpoint node1:29400 {PROGRAM}"))


def by_open_mpi(recipe):
    """On four machines, to which it gets by ssh."""
    if not shutil.which("mpirun") or "Open MPI" not in shell("mpirun --version"):
        print(f"Open MPI is not here: {recipe}")
        return
    Path("machines").write_text("\n".join(MPI_NODES))
    typed(ranks=4)(Recipe(recipe.page, recipe.line, f"{OPEN_MPI} {recipe.command}"))


def looked_at(recipe):
    where = recipe.command.removeprefix("GET ")
    with urllib.request.urlopen(where if "://" in where else f"http://node1:29400{where}", timeout=LIMIT_S) as answer:
        said = answer.read().decode()
    assert "ddp" in said and len(said) > 200, said


def helped(program):
    """The flags are the program's."""
    def run(recipe):
        for flag in re.findall(r"--[a-z-]+", recipe.text):
            assert flag in shell(f"{program} --help"), f"{program} has no {flag}"
    return run


def traced(recipe):
    """A trace of at least as many steps as the line asks for."""
    shell(recipe.command)
    steps, name = re.search(r"--steps (\d+) --output (\S+)", recipe.command).groups()
    found = Path(name).read_text().count('"cat":"step"')
    assert found >= 2 * int(steps), f"{found} steps of two ranks"


def names_a_word(recipe):
    """A command without its arguments: the program has the word."""
    program, words = recipe.text.removesuffix(" --help").split(" ", 1)
    for word in re.split(", |,", words.replace("COMMAND", "ls")):
        assert word in shell(f"{program} {word} --help"), recipe


def by(*tests):
    """Not typed here, but by these tests or for this reason. Files that the line names exist."""
    def run(recipe):
        for name in tests:
            assert " " in name or (SOURCE / name).exists(), f"there is no {name}"
        for word in re.findall(r"(?<![\w/.:-])(?:scripts|tests|bench)/[\w./-]+", recipe.text):
            assert word.endswith("/all") or (SOURCE / word).exists(), f"there is no {word}"
    return run


def with_job(run):
    run.needs_job = True
    return run


CI, PACKAGES = by(".ci/run"), by("tests/package/fresh_root.sh")
BY_HAND = by("takes minutes, or changes this machine")
MPI, SLURM, PIP = by("tests/process/mpi.py"), by("tests/slurm/slurm_jobs.py"), by("tests/python/installed.py")
TRAINED, PLAIN = typed("weights_sha256", ranks=2), typed(ranks=2)
STATUS, KEYS = with_job(typed("RANKS")), with_job(typed("who"))
CHECK = typed("bandwidth", "clock", nodes=2, statuses=(0, 77))  # 77: this machine is no good node.
SMALL = "--context 16 --width 16 --sample-bytes 0 --batch-size 2 --threads 1 --max-steps 1"
VALUE = flags(f"ddp-run --rdzv-endpoint node1:29400 --dry-run FLAGS {PROGRAM}", "worker 0")
DEVICES = flags(f"ddp-run --dry-run FLAGS {PROGRAM}", "CUDA", statuses=(0, 64))  # Here there may be none.
# How a line is run: that of the longest key with which it begins.
HOW = {
    README: {
        "scripts/package": PACKAGES, "apt install": PACKAGES, "ddp-run demo": by("tests/process/demo.py"), "scripts/quickstart": BY_HAND,
        "scripts/test": CI, "ddp-run --standalone --nproc-per-node 2 --max-restarts 3 ddp-train ": TRAINED,
        "ddp-run --standalone --nproc-per-node 2 train.py": PLAIN, "ddp-run --nnodes 2 --rdzv-endpoint": typed("weights_sha256", ranks=2, nodes=2),
        "ddp-run check --nnodes 2": CHECK, "--hosts ": flags(f"ddp-run --dry-run FLAGS {PROGRAM}", "worker 0"), "ddp-run --standalone": planned("nodes       1"),
        "ddp-run top ": with_job(in_a_terminal), "ddp-run trace ": with_job(typed("step")), "http://": with_job(looked_at),
    },
    MANUAL: {
        # One machine, and Python.
        "ddp-run --standalone --nproc-per-node 2 --max-restarts 3 ddp-train ": TRAINED,
        "ddp-run --standalone --nproc-per-node 2 train.py": typed("--epochs 3", ranks=2),
        "ddp-run --standalone --nproc-per-node 2 -m mypackage.train": PLAIN,
        "ddp-run --standalone --nproc-per-node 2 --no-python ./train.sh": PLAIN,
        "ddp-run --help": typed("--nnodes"), "ddp-train --help": typed("--model"), ". <(ddp-run ": completion,
        # Several machines.
        "ddp-run --nnodes 2 --nproc-per-node 4 ": typed("weights_sha256", ranks=8, nodes=2),
        "ddp-run --nnodes 2 --rdzv-backend c10d --rdzv-conf store_type=file ": typed(ranks=2, nodes=2),
        "ddp-run --nnodes 2 --rdzv-backend etcd ": with_etcd,
        "ddp-run --hosts ": typed("weights_sha256", ranks=8),
        "openssl rand ": typed(), "ddp-run --nnodes 2 --rdzv-token-file ": typed(ranks=2, nodes=2),
        "ddp-rendezvous --port 29400": daemon,
        # At a running job.
        "ddp-run trace node1:29400 --summary": with_job(typed("step")), "ddp-run trace node1:29400 --steps": with_job(traced),
        "ddp-run top ": with_job(in_a_terminal), "ddp-run status node1:29400": STATUS, "ddp-run status": names_a_word,
        "ddp-rendezvous keys node1:29400": KEYS, "ddp-rendezvous get node1:29400 KEY": with_job(value_of_a_key),
        "ddp-rendezvous keys": names_a_word, "ddp-rendezvous get": names_a_word,
        "http://": with_job(looked_at), "GET /": with_job(looked_at),
        # Schedulers.
        "srun ": SLURM, "ddp-run --nnodes 3:4 --max-restarts 3": SLURM, "mpirun -np 4 --map-by": by_open_mpi,
        "mpiexec ": MPI, "flux ": by("there is no Flux in Debian"), "ddp-run train.py": by("tests/unit/launcher/schedulers_test.cc"),
        # Others.
        "ddp-run check --check-dir": typed("/dev/shm", "write speed", statuses=(0, 77)), "ddp-run check": names_a_word, "ddp-run check --nnodes 2": CHECK,
        "ddp-run check --nnodes 4": typed("bandwidth", "clock", nodes=4, statuses=(0, 77)),  # Memory for 32 workers may lack here.
        "ddp-checkpoint ls|verify|show run1": looks_into_run1, "ddp-checkpoint COMMAND": names_a_word,
        "ddp-run --trace FILE": planned("worker 0"), "ddp-train --": helped("ddp-train"),
        "sh -c 'echo $$'": dollar, "--tls-cert ": with_certificates,
        "--launch-agent \"kubectl": flags(f"ddp-run --hosts node1,node2 FLAGS {PROGRAM}", ranks=2),
        "--log-line-prefix-template ": flags(f"ddp-run --nproc-per-node 2 FLAGS {PROGRAM}", r"\d:\d\d\S* 1: rank 1", ranks=2),
        "--launch-agent \"blaunch": flags(f"ddp-run --dry-run --hosts node1,node2 FLAGS {PROGRAM}", "blaunch node2"),
        "--data mnist": by("tests/torch/dataset_test.cc"),
        "--model gpt": flags(f"{BIN}/ddp-train FLAGS {SMALL}", "weights_sha256"),
        "--checkpoint-": flags("ddp-train --checkpoint-dir run2 FLAGS", "weights_sha256"),
        "--nproc-per-node gpu": DEVICES, "--devices ": DEVICES, "--": VALUE,
    },
    PYTHON: {"pip install": PIP, "ddp-run --standalone --nproc-per-node 2 train.py": PLAIN},
    ELASTIC: {
        "ddp-run --standalone --nproc-per-node 2 --max-restarts 10 --standby 1 train.py": PLAIN, "ddp-run status": names_a_word,
        "ddp-run trace ": with_job(typed("step")), "ddp-checkpoint ls, show, verify, export": names_a_word, "--": VALUE,
    },
    LIBRARY: {"cmake --install": by("tests/process/installed_package.py")},
    CONTRIBUTING: {
        "scripts/": BY_HAND, "tests/": BY_HAND, "ctest ": CI, "bench/run launch": by("tests/process/bench_run.py"), "ddp-run status": STATUS,
        "ddp-rendezvous keys": KEYS, "ddp-train --": helped("ddp-train"), "--": VALUE,
    },
    "configs/bound.env": {"set -a; ": PLAIN}, "configs/one_node.env": {"set -a; ": typed("rank 0 of")},
    "configs/two_nodes.env": {"set -a; ": typed(ranks=4, nodes=2)}, "configs/elastic.env": {"set -a; ": typed(ranks=2, nodes=2)},
    "configs/kubernetes_job.yaml": {"kubectl ": by("tests/process/kubernetes_pods.py")},
}


def assignments():
    """(recipe, how), after a look at whether each has the other."""
    found, unused = [], {(page, key) for page, entries in HOW.items() for key in entries}
    for recipe in recipes():
        keys = [key for key in HOW.get(recipe.page, {}) if recipe.text.startswith(key)]
        if not keys:
            fail(f"{recipe}: how is this typed? Add it to HOW.")
            continue
        key = max(keys, key=len)
        unused.discard((recipe.page, key))
        found.append((recipe, HOW[recipe.page][key]))
    for page, key in sorted(unused):
        fail(f"{page}: no line begins with '{key}', which HOW has")
    return found


def fail(text):
    failures.append(text)
    print(text, flush=True)


def run_all(assigned):
    for recipe, run in assigned:
        began = time.monotonic()
        try:
            run(recipe)
        except (AssertionError, OSError, ValueError) as error:
            fail(f"{recipe}\n{error}\n")
        except subprocess.TimeoutExpired:
            print(f"{recipe}: it does not end")
            raise
        if time.monotonic() - began > 1:
            print(f"{time.monotonic() - began:.1f} s: {recipe}", flush=True)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_place(folder):
    hosts = f"127.0.0.1 localhost\n127.0.0.1 {NODES}\n" + "".join(f"127.0.0.{n} {name}\n" for n, name in enumerate(MPI_NODES, 2))
    for name, text in {"bin/ddp-train": DDP_TRAIN, "bin/ssh": SSH, "bin/kubectl": KUBECTL, "train.py": TRAIN_PY, "train.sh": TRAIN_SH,
                       "mypackage/train.py": TRAIN_PY, "mypackage/__init__.py": "",
                       "hosts": hosts, "text": "What is written here is read. " * 100}.items():
        write(folder / name, text)
    shutil.copytree(SOURCE / "configs", folder / "configs")
    elastic = folder / "configs/elastic.env"
    elastic.write_text(elastic.read_text().replace("last_call_timeout=10", "last_call_timeout=0.2"))
    (folder / "shared").mkdir()
    subprocess.run(["mount", "--bind", folder / "hosts", "/etc/hosts"], check=True)
    os.chdir(folder)
    for name in list(os.environ):
        if name.startswith(("SLURM", "PET_", "MASTER_", "OMPI_", "DDP_")):
            del os.environ[name]
    os.environ.update(HOME=str(folder), PATH=f"{folder}/bin:{BIN}:/usr/bin:{os.environ['PATH']}")


def wait_for_status(words):
    return jobs.wait_until(lambda: words in subprocess.run(["ddp-run", "status", "node1:29400"], capture_output=True, text=True,
                                                           check=False).stdout, LIMIT_S, f"'{words}' in ddp-run status")


def put_a_key():
    """As a program with PyTorch before 2.2: SET, then GET, whose answer says that it is there."""
    def counted(text):
        return struct.pack("<Q", len(text)) + text
    with socket.create_connection(("node1", 29400), LIMIT_S) as store:
        store.sendall(b"\0" + counted(b"/who") + counted(b"a worker") + b"\2" + counted(b"/who"))
        assert store.recv(8, socket.MSG_WAITALL) == struct.pack("<Q", 8)


def main():
    namespaces = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c"]
    network = "ip link set lo up && ip link add v0 up type veth peer name v1 && ip link set v1 up && ip address add 10.0.0.1/24 dev v0"
    if "IN_NAMESPACES" not in os.environ:
        if os.geteuid() != 0 or subprocess.run([*namespaces, network], check=False).returncode != 0:
            print("needs root and namespaces with a network")
            return SKIPPED
        os.execvpe(namespaces[0], [*namespaces, f'{network} && exec "$@"', "sh", sys.executable, *sys.argv], {**os.environ, "IN_NAMESPACES": "1"})
    with tempfile.TemporaryDirectory(prefix="recipes.") as folder:
        make_place(Path(folder))
        assigned = assignments()
        run_all([each for each in assigned if not hasattr(each[1], "needs_job")])
        for text in missing_names():
            fail(text)
        with in_background("ddp-run", "--rdzv-endpoint", "node1:29400", "--nproc-per-node", "2", BIN / "ddp-train", "--batch-size", "8", "--epochs",
                           "1000", "--threads", "1") as job:
            wait_for_status(" LOSS ")
            put_a_key()
            run_all([each for each in assigned if hasattr(each[1], "needs_job")])
            job.send_signal(signal.SIGKILL)
    print(f"{len(assigned)} lines, {len(failures)} failures")
    return 1 if failures else 0


failures = []
if __name__ == "__main__":
    sys.exit(main())
