"""A training in Python that is disturbed ends with the bytes of one that is not: elastic.py BIN_DIR [SEED COUNT]

With SEED and COUNT it disturbs so many trainings at random instead, with both backends and optimizers in turn.
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs
import torchrun

BIN = Path(sys.argv[1]).resolve()
PROGRAM = str(Path(__file__).with_name("elastic_program.py"))
STEPS = 16
LIMIT_S = 240


class Job:
    """The processes of one training, and what they have logged."""

    def __init__(self, folder, command, backend="ddp", optimizer="sgd", faults=(), output=subprocess.PIPE, more=None):
        self.log = Path(folder) / "log"
        environment = dict(os.environ, OMP_NUM_THREADS="1", **(more or {}))
        self.process = subprocess.Popen([*command, PROGRAM, folder, str(STEPS), backend, optimizer, *faults], stdout=output,
                                        stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True)

    def end(self, code=0):
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == code, f"ended with {self.process.returncode}:\n{output}"
        return output

    def lines(self, what):
        """What, pid, rank, round, step of each line of this kind, with further fields by name."""
        found = [line.split()[1:] for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [dict(zip(("pid", "rank", "round", "step"), map(int, line[1:5])), **dict(field.split("=") for field in line[5:]))
                for line in found if line[0] == what]

    def wait_for(self, what, count=1, step=0):
        def is_there():
            assert self.process.poll() is None, f"ddp-run has ended with {self.process.returncode}"
            return len([each for each in self.lines(what) if each["step"] >= step]) >= count
        jobs.wait_until(is_there, LIMIT_S, f"a line \"{what}\"")

    def weights(self):
        ends = {each["rank"]: each["weights"] for each in self.lines("end")}
        return [ends[rank] for rank in sorted(ends)]


def ddp_run(*flags, nproc=2):
    return [BIN / "ddp-run", "--nproc-per-node", str(nproc), "--max-restarts", "5", *(flags or ["--standalone"])]


def undisturbed(backend, optimizer, nproc=2, known={}):
    key = backend, optimizer, nproc
    if key not in known:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, ddp_run(nproc=nproc), backend, optimizer)
            job.end()
            known[key] = job.weights()
            assert len(known[key]) == nproc
    return known[key]


def a_lost_worker_leaves_the_others_alive():
    for backend, optimizer, size, victim in [("ddp", "sgd", 3, 1), ("gloo", "adamw", 2, 0)]:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, ddp_run(nproc=size), backend, optimizer, [f"{victim}:7:9"])
            report = job.end()
            assert "signal 9 (SIGKILL)" in report, report
            rounds = job.lines("round")
            survivors = {each["pid"] for each in rounds if each["rank"] != victim}
            assert len(rounds) == 2 * size and len(survivors) == size - 1, rounds
            assert all(each["resumed"] == "True" for each in rounds if each["round"] == 1), rounds
            assert job.weights() == undisturbed(backend, optimizer, size), backend


def a_standby_takes_the_place():
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, ddp_run("--standalone", "--standby", "1"), faults=["1:9:9"])
        job.end()
        assert job.weights() == undisturbed("ddp", "sgd")


def all_workers_lost_go_on_from_the_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, ddp_run(), faults=["0:12:9", "1:12:9"])
        job.end()
        again = [each for each in job.lines("round") if each["round"] == 1]
        assert {each["step"] for each in again} == {10}, again
        assert job.weights() == undisturbed("ddp", "sgd")


def an_exception_is_in_the_report():
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, [*ddp_run(), "--max-restarts", "0"], faults=["1:7:raise"])
        report = job.end(1)
        assert "Root Cause" in report, report
        cause = report[report.index("Root Cause"):]
        assert re.search(r"rank +: 1\b", cause) and "ValueError: the fault of the test" in cause, report


def ranks_that_register_other_state_are_told():
    with tempfile.TemporaryDirectory() as folder:
        report = Job(folder, [*ddp_run(), "--max-restarts", "0"], faults=["1:0:more"]).end(1)
        assert "rank 1 has registered different state from rank 0" in report and "value more" in report, report


def a_program_without_a_guard_is_told():
    """A data loader's process runs the program again, with forkserver, the default from Python 3.14 on, and spawn."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text("import ddp_run, torch\n"
                           "def train(group):\n"
                           "    for batch in torch.utils.data.DataLoader(torch.ones(4), num_workers=1, multiprocessing_context='spawn'):\n"
                           "        pass\n"
                           "ddp_run.run_elastic(ddp_run.ElasticState(step=0), train)\n")
        done = subprocess.run([*ddp_run(nproc=1), "--max-restarts", "0", program], timeout=LIMIT_S, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 1 and "if __name__ == \"__main__\"" in done.stdout, done.stdout


def kill_at_step_12(folder, choose):
    """Kills the process that choose(job) names, while rank 0 is stopped after step 12. Returns when ddp-run has ended."""
    with open(f"{folder}/output", "w") as output:
        job = Job(folder, ddp_run(), output=output, faults=["0:12:19"])
        job.wait_for("step", step=12)
        os.kill(choose(job), signal.SIGKILL)
        job.process.wait(timeout=LIMIT_S)
        return job


def ddp_run_is_killed_and_started_again():
    with tempfile.TemporaryDirectory() as folder:
        assert kill_at_step_12(folder, lambda job: job.process.pid).process.returncode == -signal.SIGKILL
        again = Job(folder, ddp_run())
        again.end()
        assert {each["step"] for each in again.lines("round")} == {0, 10}, again.lines("round")
        assert again.weights() == undisturbed("ddp", "sgd")


def the_agent_is_killed():
    def agent(job):
        return jobs.children(job.process.pid)[0]
    with tempfile.TemporaryDirectory() as folder:
        job = kill_at_step_12(folder, agent)
        assert job.process.returncode == 0, Path(f"{folder}/output").read_text()
        assert job.weights() == undisturbed("ddp", "sgd")


def without_ddp_run():
    with tempfile.TemporaryDirectory() as folder:
        alone = Job(folder, [sys.executable])
        alone.end()
        assert alone.weights() == undisturbed("ddp", "sgd", nproc=1)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, [*torchrun.COMMAND, "--standalone", "--nproc-per-node", "2"], more=torchrun.RANK_0_STORE)
        output = job.end()
        assert "no agent of ddp-run is there" in output, output
        assert job.weights() == undisturbed("ddp", "sgd")


def at_random(seed, count):
    for number in range(seed, seed + count):
        chosen = random.Random(number)
        backend, optimizer = chosen.choice(["ddp", "gloo"]), chosen.choice(["sgd", "adamw"])
        faults = [f"{chosen.randrange(2)}:{chosen.randrange(1, STEPS)}:{chosen.choice(['9', '9', '9', '11', 'raise'])}"
                  for _ in range(chosen.randrange(1, 4))]
        print(f"seed {number}: {backend}, {optimizer}, {faults}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, ddp_run(), backend, optimizer, faults)
            output = job.end()
            assert job.weights() == undisturbed(backend, optimizer), output


if len(sys.argv) > 2:
    at_random(int(sys.argv[2]), int(sys.argv[3]))
else:
    for case in (a_lost_worker_leaves_the_others_alive, a_standby_takes_the_place, all_workers_lost_go_on_from_the_checkpoint,
                 an_exception_is_in_the_report, a_program_without_a_guard_is_told, ranks_that_register_other_state_are_told,
                 ddp_run_is_killed_and_started_again, the_agent_is_killed, without_ddp_run):
        begun = time.monotonic()
        case()
        print(f"{case.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
