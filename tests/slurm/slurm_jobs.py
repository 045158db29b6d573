#!/usr/bin/env python3
"""ddp-run under a real SLURM of three nodes: both task layouts, kills, signals, the time limit, requeues and arrays.

usage: slurm_jobs.py BIN_DIR [CASE...]

BIN_DIR has ddp-run and, for the cases that train, ddp-train. Without CASE, runs all cases (those that wait for SLURM's clock only
with DDP_TEST_FULL=1). Skips (status 77) if SLURM is not installed or the user is not root.
"""
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import documents
import jobs
import slurm as slurm_support

LIMIT_S = 240
SKIPPED = 77
BIN = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path()
SOURCE = Path(__file__).resolve().parents[2]
DDP_RUN = str(BIN / "ddp-run")
TRAINER_WORKER = BIN.parent / "test-bin" / "trainer_worker"
PYTHON_PACKAGES = BIN.parent / "python"
# With so many epochs, some seven seconds on an idle machine, in steps of some milliseconds.
EPOCHS = 20
TRAINING = ["--model", "mnist", "--data", "synthetic", "--train-samples", "3072", "--test-samples", "256", "--batch-size", "64",
            "--threads", "1", "--log-every", "1000", "--epochs"]
PYTHON_PROGRAM = """import os, sys
import torch
import torch.distributed as dist
import ddp_run
dist.init_process_group("ddp", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(os.environ["SLURM_PROCID"]),
                        world_size=int(os.environ["SLURM_NTASKS"]))
values = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(values)
print(f"{dist.get_rank()} of {dist.get_world_size()}: sum {values.unique().item()} on {ddp_run.nodes()} node.", flush=True)
dist.destroy_process_group()
"""


def check(condition, what):
    if not condition:
        raise AssertionError(what)


class Job:
    """A command of SLURM that runs in the foreground: srun or salloc."""

    def __init__(self, slurm, folder, *command):
        self.out_path, self.err_path = folder / "out", folder / "err"
        self.process = subprocess.Popen([slurm_support.find(command[0]), *map(str, command[1:])], cwd=folder,
                                        env=slurm.environment, stdin=subprocess.DEVNULL, stdout=open(self.out_path, "wb"),
                                        stderr=open(self.err_path, "wb"))

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    def wait(self, limit_s=LIMIT_S):
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise TimeoutError(f"not over within {limit_s} s:\n{self.out}\n{self.err}")

    def ends_with(self, status):
        check(self.wait() == status, f"status {self.process.returncode}, not {status}:\n{self.out}\n{self.err}")
        return self


def lines_with(text, pattern):
    return sorted(re.findall(pattern, text))


def wait_for_files(folder, names):
    jobs.wait_until(lambda: all((folder / name).exists() and (folder / name).read_text().endswith("\n") for name in names),
                    LIMIT_S, f"{', '.join(names)} in {folder}")


def script(text):
    return ["--no-python", "/bin/sh", "-c", text]


# ---- both layouts ----

def one_task_a_node(slurm, folder):
    job = Job(slurm, folder, "srun", "-N3", DDP_RUN, *script(
        "echo $RANK of $WORLD_SIZE is node $SLURM_NODEID: $SLURMD_NODENAME of run $TORCHELASTIC_RUN_ID at $DDP_COORDINATOR_PORT")
              ).ends_with(0)
    found = lines_with(job.out, r"(\d) of 3 is node (\d): (n\d) of run (\d+\.\d+\.\d+) at (\d+)")
    check([line[:3] for line in found] == [("0", "0", "n1"), ("1", "1", "n2"), ("2", "2", "n3")], job.out)
    check(len({line[3:] for line in found}) == 1 and 20000 <= int(found[0][4]) < 32000, job.out)


def the_tasks_are_the_workers(slurm, folder):
    job = Job(slurm, folder, "srun", "-N2", "--ntasks-per-node=2", "--cpu-bind=map_cpu:0,1", DDP_RUN, *script(
        "cpus() { while read name list; do [ $name = Cpus_allowed_list: ] && echo $list; done < /proc/$1/status; }; "
        "echo $RANK of $WORLD_SIZE is task $SLURM_PROCID: $LOCAL_RANK=$SLURM_LOCALID, CPUs $(cpus self) of $(cpus $PPID), "
        "$OMP_NUM_THREADS threads.")).ends_with(0)
    found = lines_with(job.out, r"(\d) of 4 is task (\d): (\d)=(\d), CPUs (\d) of (\d), 1 threads\.")
    check([line[:2] for line in found] == [(str(rank), str(rank)) for rank in range(4)], job.out)
    check(all(line[2] == line[3] and line[4] == line[5] == line[2] for line in found), job.out)


def nodes_with_different_numbers_of_tasks(slurm, folder):
    job = Job(slurm, folder, "srun", "-N2", "-n3", "-m", "block", DDP_RUN,
              *script("echo $RANK of $WORLD_SIZE is task $SLURM_PROCID, $LOCAL_WORLD_SIZE here.")).ends_with(0)
    check(lines_with(job.out, r"(\d) of 3 is task (\d), (\d) here\.") ==
          [("0", "0", "2"), ("1", "1", "2"), ("2", "2", "1")], job.out)


def two_steps_share_the_nodes(slurm, folder):
    """Each finds its own rendezvous."""
    text = (f"#!/bin/bash\nfor step in 1 2; do srun --overlap -N2 {DDP_RUN} --no-python /bin/sh -c "
            "'echo step $SLURM_STEP_ID: $RANK of $WORLD_SIZE, run $TORCHELASTIC_RUN_ID.' & done; wait\n")
    number = batch(slurm, folder, text, "-N2")
    slurm.wait_for_state(number, ["COMPLETED", "FAILED"], LIMIT_S)
    found = lines_with(output(folder), r"step (\d): (\d) of 2, run \d+\.(\d)\.0\.")
    check(found == [("0", "0", "0"), ("0", "1", "0"), ("1", "0", "1"), ("1", "1", "1")], output(folder))


def nodes_with_a_step_each_are_one_job(slurm, folder):
    """The loop of torchrun's users: an srun for each node, in both of its rendezvous."""
    port = jobs.free_port()
    place = {"static": f"--node-rank=$i --master-addr=$HEAD --master-port={port}",
             "c10d": f"--rdzv-backend c10d --rdzv-endpoint $HEAD:{port} --rdzv-id X"}
    for name, flags in place.items():
        text = ("#!/bin/bash\nHEAD=127.0.0.1\ni=0\nfor n in $(scontrol show hostnames); do srun -N1 -n1 -w $n "
                f"{DDP_RUN} --nnodes=$SLURM_NNODES {flags} --no-python /bin/sh -c "
                f"'echo {name}: $RANK of $WORLD_SIZE on $SLURMD_NODENAME, run $TORCHELASTIC_RUN_ID.' & "
                "i=$((i + 1)); done; wait\n")
        number = batch(slurm, folder, text, "-N3")
        slurm.wait_for_state(number, ["COMPLETED", "FAILED"], LIMIT_S)
        found = lines_with(output(folder), name + r": (\d) of 3 on (n\d), run (\S+)\.\n")
        run = f"{number}.0" if name == "static" else "X"
        check(found == [(str(rank), f"n{rank + 1}", run) for rank in range(3)], output(folder))


def nodes_with_a_step_each_go_on_later_once(slurm, folder):
    port = jobs.free_port()
    text = ("#!/bin/bash\ni=0\nfor n in $(scontrol show hostnames); do srun -N1 -n1 -w $n "
            f"{DDP_RUN} --nnodes=2 --node-rank=$i --master-addr=127.0.0.1 --master-port={port} --no-python /bin/sh -c "
            "'echo ${$} > pid.$RANK; [ -n \"$SLURM_RESTART_COUNT\" ] || exec sleep 1000; "
            "echo $RANK at start $SLURM_RESTART_COUNT of $TORCHELASTIC_RUN_ID.' & i=$((i + 1)); done; wait\n")
    number = batch(slurm, folder, text, "-N2")
    wait_for_files(folder, ["pid.0", "pid.1"])
    slurm.call("scancel", "--signal=USR1", str(number))
    let_it_go_on(slurm, number, 1)
    slurm.wait_for_state(number, ["COMPLETED", "FAILED"], LIMIT_S)
    check(slurm.job(number)["Restarts"] == "1", output(folder))
    check(output(folder).count("was put back into the queue") == 1, output(folder))
    check(lines_with(output(folder), r"(\d) at start 1 of (\S+)\.\n") == [(str(rank), f"{number}.1") for rank in range(2)],
          output(folder))


def strangers_are_kept_out_without_a_flag(slurm, folder):
    """The nodes share a secret that MUNGE has carried; who has read only what the first node shows is refused."""
    job = Job(slurm, folder, "srun", "-N2", DDP_RUN, *script(
        "echo $RANK: $DDP_COORDINATOR_ADDR $DDP_COORDINATOR_PORT $TORCHELASTIC_RUN_ID > at.$RANK; while ! [ -s go ]; do sleep 0.05; done"))
    wait_for_files(folder, ["at.0", "at.1"])
    host, port, name = (folder / "at.0").read_text().split()[1:]
    with urllib.request.urlopen(f"http://{host}:{port}/token", timeout=10) as page:
        check(page.read().startswith(b"MUNGE:"), "the token's page is no sealed text")
    stranger = subprocess.run([DDP_RUN, "--nnodes", "2", "--rdzv-id", name, "--rdzv-endpoint", f"{host}:{port}", "--rdzv-conf", "is_host=0",
                               *script("echo in")], env=slurm.environment, capture_output=True, text=True, timeout=LIMIT_S)
    check(stranger.returncode == 74 and "in" not in stranger.stdout.split(), f"{stranger}")
    check("this job has a token" in stranger.stderr, stranger.stderr)
    (folder / "go").write_text("now\n")
    job.ends_with(0)
    check("can join" not in job.err and "no secret" not in job.err, job.err)


# ---- what fails and what is killed ----

def everybody_leaves_with_the_first_failures_status(slurm, folder):
    for flags in ([], ["--kill-on-bad-exit=1"], ["--ntasks-per-node=2"], ["--ntasks-per-node=2", "--kill-on-bad-exit=1"]):
        job = Job(slurm, folder, "srun", "-N3", *flags, DDP_RUN, *script(
            "[ $RANK = 2 ] && { echo the root of it >&2; exit 7; }; exec /bin/sleep 1000")).ends_with(7)
        reports = job.err.count("the root of it")
        check(reports >= 1 and "exit code 7" in job.err, job.err)


def a_killed_worker_starts_again(slurm, folder):
    for flags in (["-N3"], ["-N2", "--ntasks-per-node=2"]):
        job = Job(slurm, folder, "srun", *flags, DDP_RUN, "--max-restarts", "1", *script(
            "[ $RANK.$DDP_ROUND = 1.0 ] && kill -9 ${$}; [ $DDP_ROUND = 0 ] && exec /bin/sleep 1000; echo $RANK again")
                  ).ends_with(0)
        ranks = 3 if flags == ["-N3"] else 4
        check(lines_with(job.out, r"(\d) again") == [str(rank) for rank in range(ranks)], job.out)


def a_killed_node_is_done_without(slurm, folder):
    """Any node, also the first one, which hosts the rendezvous."""
    for node in ("n3", "n1"):
        own = folder / node
        own.mkdir()
        job = Job(slurm, own, "srun", "--no-kill", "--export=ALL,DDP_LOG_LEVEL=info", "-N3", DDP_RUN, "--nnodes", "2:3", "--max-restarts", "1", "--last-call", "100",
                  "--shutdown-timeout", "2", *script(
                      "echo ${$} > here.$RANK.$DDP_ROUND; [ $WORLD_SIZE = 3 ] && exec /bin/sleep 1000; echo $RANK of $WORLD_SIZE"))
        wait_for_files(own, ["here.0.0", "here.1.0", "here.2.0"])
        jobs.wait_until(lambda: "3 of its ddp-runs keep its record" in job.err, LIMIT_S, "three replicas")
        slurm.kill_node(node)
        jobs.wait_until(lambda: lines_with(job.out, r"\d of \d") == ["0 of 2", "1 of 2"], LIMIT_S, "two nodes that go on")
        job.wait()
        slurm.start_node(node)
        jobs.wait_until(slurm.all_idle, LIMIT_S, "three nodes again")


# ---- batch jobs ----

def batch(slurm, folder, text, *flags):
    path = folder / "job.sh"
    path.write_text(text)
    return slurm.submit(path, "--chdir", folder, "--output", folder / "out", "--open-mode=append", "--requeue", *flags)


def output(folder):
    path = folder / "out"
    return path.read_text(errors="replace") if path.exists() else ""


def the_body_is_one_line(slurm, folder):
    """A Python script, as in torchrun's own documentation."""
    (folder / "train.py").write_text(
        "import os, sys\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'with', sys.argv[1:], flush=True)\n")
    number = batch(slurm, folder, f"#!/bin/bash\nsrun {DDP_RUN} train.py --epochs 3\n", "-N3")
    slurm.wait_for_state(number, ["COMPLETED"], LIMIT_S)
    check(lines_with(output(folder), r"(\d) of 3 with \['--epochs', '3'\]") == ["0", "1", "2"], output(folder))


def without_srun_it_says_what_to_type(slurm, folder):
    number = batch(slurm, folder, f"#!/bin/bash\n{DDP_RUN} --max-restarts 3 train.py 'a b'\n", "-N2")
    slurm.wait_for_state(number, ["FAILED"], LIMIT_S)
    check("No such file" in output(folder) or "train.py" in output(folder), output(folder))
    (folder / "train.py").write_text("")
    number = batch(slurm, folder, f"#!/bin/bash\n{DDP_RUN} --max-restarts 3 train.py 'a b'\n", "-N2")
    slurm.wait_for_state(number, ["FAILED"], LIMIT_S)
    check("type: srun ddp-run --max-restarts 3 train.py 'a b'" in output(folder), output(folder))
    check(slurm.job(number)["ExitCode"] == "64:0", slurm.job(number))
    job = Job(slurm, folder, "salloc", "-N2", DDP_RUN, "train.py").ends_with(64)
    check("type: srun ddp-run train.py" in job.err, job.err)


def the_script_that_people_copy_runs(slurm, folder):
    """scripts/ddp-run.sbatch as it is, but for a shorter training: ddp-run from PATH, its checkpoints beside it."""
    text = (SOURCE / "scripts" / "ddp-run.sbatch").read_text()
    *head, last = text.rstrip().split("\n")
    shorter = " ".join([last, *TRAINING[TRAINING.index("--train-samples"):], '1 --summary "$SLURM_SUBMIT_DIR/summary.json"'])
    path = folder / "train.sbatch"
    path.write_text("\n".join([*head, f"export PATH={BIN}:$PATH", shorter]) + "\n")
    number = slurm.submit(path, cwd=folder)
    slurm.wait_for_state(number, ["COMPLETED", "FAILED"], LIMIT_S)
    said = "".join(file.read_text(errors="replace") for file in folder.glob("train-*.out"))
    check(slurm.job(number)["JobState"] == "COMPLETED", said)
    summary = jobs.summary(folder / "summary.json")
    check(summary["world_size"] == 2 and summary["weights_sha256"] == undisturbed(1), f"{summary}\n{said}")
    check(any((folder / "run1").glob("step-*/manifest.json")), said)


def what_the_manual_types_runs(slurm, folder):
    """Its lines for srun, here with three nodes of two CPUs. What it says of sbatch, SLURM reads."""
    manual = SOURCE / "launcher/ddp_run/MANUAL.md"
    (folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n")
    said = {}
    for _, line in documents.commands(manual):
        if line.startswith("srun "):
            shorter = line.replace("-N4", "-N3").replace("-node=8", "-node=2")
            job = Job(slurm, folder, "bash", "-c", f"PATH={BIN}:$PATH; {shorter}")
            check(job.wait() in (0, 77), f"{line}\n{job.out}\n{job.err}")  # 77: this machine is no good node.
            said[line] = job.out
    check([lines_with(text, r"rank (\d) of (\d)") for text in said.values()][:2] ==
          [[(str(rank), str(count)) for rank in range(count)] for count in (3, 6)], said)
    check(len(said) == 3 and "bandwidth" in list(said.values())[2], said)
    spans = [text for _, language, text in documents.code(manual) if language is None]
    for program, count in (("sbatch", 2), ("srun", 2), ("ddp-run --nnodes", 1)):
        flags = [text.split(" ", 1)[1] for text in spans if text.startswith(f"{program} ")]
        check(len(flags) == count, f"{program} {flags}")
        line = {"sbatch": "sbatch --test-only FLAGS --wrap true", "srun": "n=3; node=n1; srun FLAGS true",
                "ddp-run --nnodes": f"srun -N3 {DDP_RUN} --dry-run FLAGS true"}[program]
        for each in flags:
            Job(slurm, folder, "bash", "-c", line.replace("FLAGS", each.replace("3:4", "2:3"))).ends_with(0)


def tasks_of_a_trainer_are_one_job(slurm, folder):
    """A program with ddp::Trainer and no ddp-run in sight: both layouts train with two workers what each would train alone."""
    for name, layout, epochs in (("node", ["-N2", "--ntasks-per-node=1"], 1), ("task", ["-N1", "-n2"], 1)):
        summary = folder / f"{name}.json"
        job = Job(slurm, folder, "srun", *layout, "env", f"DDP_RUN={DDP_RUN}", TRAINER_WORKER, "ddp", epochs, 64, 0.01, 0.5, summary)
        check(job.wait() == 0, job.err)
        check(jobs.summary(summary)["steps"] == 1536 // (2 * 64), summary.read_text() + job.err)


def tasks_of_a_python_program_are_ranks(slurm, folder):
    """A program with PyTorch's backend "ddp", the place of its rank taken from SLURM, and no ddp-run."""
    if not list(PYTHON_PACKAGES.glob("ddp_run/_native.*.so")):
        print("tasks_of_a_python_program_are_ranks: SKIPPED: the package ddp_run was not built", flush=True)
        return
    (folder / "train.py").write_text(PYTHON_PROGRAM)
    # Debian's PyTorch has no libuv.
    job = Job(slurm, folder, "srun", "-N1", "-n2", "env", f"PYTHONPATH={PYTHON_PACKAGES}", "USE_LIBUV=0", sys.executable, "train.py",
              jobs.free_port()).ends_with(0)
    check(lines_with(job.out, r"(\d) of (\d): sum (\S+) on (\d) node\.") == [("0", "2", "3.0", "1"), ("1", "2", "3.0", "1")], job.out)


def train_command(folder, epochs, *flags):
    return " ".join([f"srun {DDP_RUN}", *flags, str(BIN / "ddp-train"), *TRAINING, str(epochs), "--checkpoint-dir",
                     str(folder / "checkpoints"), "--summary", str(folder / "summary.json")])


@functools.lru_cache
def undisturbed(epochs):
    """The bytes of the training on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([DDP_RUN, "--standalone", "--nproc-per-node", "2", str(BIN / "ddp-train"), *TRAINING, str(epochs),
                        "--summary", f"{folder}/summary.json"], check=True, stdout=subprocess.DEVNULL)
        return jobs.summary(f"{folder}/summary.json")["weights_sha256"]


def has_checkpoint(folder):
    return any((folder / "checkpoints").glob("step-*/manifest.json"))


def let_it_go_on(slurm, number, restarts, *changes):
    """Waits until the job is back in the queue and starts it without SLURM's pause of two minutes, but not in the second in
    which it was taken back: slurmd tells old orders from new ones by seconds."""
    def requeued():
        job = slurm.job(number)
        return job.get("Restarts") == str(restarts) and job.get("JobState") == "PENDING"
    jobs.wait_until(requeued, LIMIT_S, f"restart {restarts} of job {number}: {slurm.job(number)}")
    slurm.call("scontrol", "update", f"JobId={number}", *changes, "StartTime=now+3")


def ends_with_the_same_bytes(slurm, folder, number, epochs, restarts):
    state = slurm.wait_for_state(number, ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], LIMIT_S)
    check(state == "COMPLETED", f"{slurm.job(number)}\n{output(folder)}")
    summary = jobs.summary(folder / "summary.json")
    check(summary["resumed_from_step"] > 0, f"{summary}\n{output(folder)}")
    check(summary["weights_sha256"] == undisturbed(epochs), f"other bytes: {summary}\n{output(folder)}")
    check(slurm.job(number)["Restarts"] == str(restarts), slurm.job(number))


def a_warning_is_a_checkpoint_a_requeue_and_the_same_bytes(slurm, folder):
    for layout, flags in (("nodes", ["-N2"]), ("tasks", ["-N1", "--ntasks-per-node=2"])):
        place = folder / layout
        place.mkdir()
        number = batch(slurm, place, f"#!/bin/bash\n{train_command(place, EPOCHS)}\n", *flags)
        jobs.wait_until(lambda: has_checkpoint(place), LIMIT_S, "a first checkpoint")
        slurm.call("scancel", "--signal=USR1", str(number))
        let_it_go_on(slurm, number, 1)
        ends_with_the_same_bytes(slurm, place, number, EPOCHS, 1)
        check("was put back into the queue" in output(place), output(place))


def the_end_of_the_time_is_announced_by_ddp_run_itself(slurm, folder):
    """A limit of a minute, almost all of which is kept free: the checkpoint is due after three seconds."""
    epochs = EPOCHS
    number = batch(slurm, folder, f"#!/bin/bash\n{train_command(folder, epochs, '--requeue-before', '57')}\n", "-N2", "-t", "1")
    let_it_go_on(slurm, number, 1, "TimeLimit=60")
    ends_with_the_same_bytes(slurm, folder, number, epochs, 1)


def slurms_own_limit_is_a_requeue(slurm, folder):
    """SIGTERM at the end of the job's time; SLURM looks at its clock every half minute."""
    epochs = 1000
    number = batch(slurm, folder, f"#!/bin/bash\n{train_command(folder, epochs, '--requeue-before', '0')}\n", "-N2", "-t", "1")
    let_it_go_on(slurm, number, 1)
    slurm.wait_for_state(number, ["RUNNING"], LIMIT_S)
    jobs.wait_until(lambda: "resum" in output(folder), LIMIT_S, "a training that goes on")
    slurm.call("scancel", str(number))
    slurm.wait_for_state(number, ["CANCELLED"], LIMIT_S)


def a_cancelled_job_stays_cancelled(slurm, folder):
    number = batch(slurm, folder, f"#!/bin/bash\n{train_command(folder, 1000)}\n", "-N2")
    jobs.wait_until(lambda: has_checkpoint(folder), LIMIT_S, "a checkpoint")
    slurm.call("scancel", str(number))
    slurm.wait_for_state(number, ["CANCELLED"], LIMIT_S)
    jobs.wait_until(lambda: slurm.all_idle(), LIMIT_S, "idle nodes")
    check(slurm.job(number)["Restarts"] == "0", slurm.job(number))


def of_an_array_one_job_goes_on_later(slurm, folder):
    text = (f"#!/bin/bash\nsrun {DDP_RUN} --no-python /bin/sh -c 'echo $SLURM_ARRAY_TASK_ID start $SLURM_RESTART_COUNT.; "
            "echo ${$} > pid.$SLURM_ARRAY_TASK_ID; [ -n \"$SLURM_RESTART_COUNT\" ] || while ! [ -s go ]; do sleep 0.05; done; "
            "echo $SLURM_ARRAY_TASK_ID done.'\n")
    number = batch(slurm, folder, text, "-N1", "--array=0-1")
    wait_for_files(folder, ["pid.0", "pid.1"])
    slurm.call("scancel", "--signal=USR1", f"{number}_1")
    let_it_go_on(slurm, f"{number}_1", 1)
    slurm.wait_for_state(f"{number}_1", ["COMPLETED"], LIMIT_S)
    (folder / "go").write_text("now\n")
    slurm.wait_for_state(f"{number}_0", ["COMPLETED"], LIMIT_S)
    check(slurm.job(f"{number}_0")["Restarts"] == "0", output(folder))
    check(lines_with(output(folder), r"(\d) (start|done) ?(\d?)\.") ==
          [("0", "done", ""), ("0", "start", ""), ("1", "done", ""), ("1", "start", ""), ("1", "start", "1")], output(folder))


PLAIN = [one_task_a_node, the_tasks_are_the_workers, nodes_with_different_numbers_of_tasks, two_steps_share_the_nodes,
         nodes_with_a_step_each_are_one_job, nodes_with_a_step_each_go_on_later_once,
         strangers_are_kept_out_without_a_flag, everybody_leaves_with_the_first_failures_status, a_killed_worker_starts_again, a_killed_node_is_done_without,
         the_body_is_one_line, without_srun_it_says_what_to_type, of_an_array_one_job_goes_on_later,
         what_the_manual_types_runs, tasks_of_a_python_program_are_ranks]
TRAINS = [the_script_that_people_copy_runs, tasks_of_a_trainer_are_one_job, a_warning_is_a_checkpoint_a_requeue_and_the_same_bytes,
          the_end_of_the_time_is_announced_by_ddp_run_itself, a_cancelled_job_stays_cancelled]
LONG = [slurms_own_limit_is_a_requeue]


def main():
    reason = slurm_support.reason_to_skip()
    if reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    cases = PLAIN + (TRAINS if (BIN / "ddp-train").exists() else [])
    cases += LONG if os.environ.get("DDP_TEST_FULL") == "1" and (BIN / "ddp-train").exists() else []
    if len(sys.argv) > 2:
        cases = [case for case in PLAIN + TRAINS + LONG if case.__name__ in sys.argv[2:]]
        check(len(cases) == len(sys.argv) - 2, f"there are {', '.join(case.__name__ for case in PLAIN + TRAINS + LONG)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # slurmstepd's sockets lie in this folder, and their names are short.
    with tempfile.TemporaryDirectory(prefix="slurm.") as base:
        slurm = slurm_support.Slurm(Path(base) / "d")
        try:
            slurm.start()
            for case in cases:
                folder = Path(base) / case.__name__
                folder.mkdir()
                began = time.monotonic()
                try:
                    case(slurm, folder)
                except BaseException:
                    for said in [path for name in ("out", "err") for path in sorted(folder.rglob(name))]:
                        print(f"--- {said.relative_to(base)}\n{said.read_text(errors='replace')[-8000:]}", flush=True)
                    raise
                print(f"{case.__name__}: {time.monotonic() - began:.1f} s", flush=True)
                jobs.wait_until(slurm.all_idle, LIMIT_S, f"idle nodes after {case.__name__}")
        finally:
            slurm.stop()
        left = slurm.processes()
        check(not left, f"left behind: {[jobs.program_of(pid) for pid in left]}")
    return 0


sys.exit(main())
