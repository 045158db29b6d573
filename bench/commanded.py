"""Contenders whose ranks live throughout a question, wait for commands (commands.py), and so take turns without starting anew."""
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import harness
import jobs
import paired

PYTHON = os.environ.get("PYTHON", sys.executable)
PACKAGE = str(harness.BIN.parent / "python")
START_S = 60


class Failed(Exception):
    pass


def environment():
    """With the package ddp_run."""
    folders = [folder for folder in (os.environ.get("PYTHONPATH"), PACKAGE) if folder]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}


def has_package():
    """Whether Debian's Python has ddp_run."""
    return subprocess.run([harness.PYTHON, "-c", "import ddp_run"], env=environment(), capture_output=True).returncode == 0


def about(*command):
    """What the interpreter has: the line that the program prints."""
    try:
        done = subprocess.run([PYTHON, *command], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"bench: {error}; PYTHON names an interpreter that has PyTorch")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"bench: {PYTHON} cannot use PyTorch ({reason}); PYTHON names an interpreter that has it")
    return json.loads(done.stdout.splitlines()[-1])


class Contender:
    """The ranks of one backend. Starts them when they are first asked, and anew after a failure.

    ranks: what each one has in its environment, beside what all have. limit_s: for a command. starts: a backend that needs more of
    them is given up.
    """

    def __init__(self, command, ranks, deadline, limit_s, starts=3):
        self.command, self.ranks, self.world = command, ranks, len(ranks)
        self.deadline, self.limit_s, self.most_starts = deadline, limit_s, starts
        self.processes, self.logs, self.answers = [], [], None
        self.starts, self.ready, self.last_failure = 0, False, ""

    def start(self):
        if self.processes:
            return
        if time.monotonic() >= self.deadline:
            raise Failed("the time of the question is used up")
        if self.starts == self.most_starts:
            raise Failed(f"given up after {self.starts} failures, the last one: {self.last_failure}")
        self.starts += 1
        self.ready, self.answers = False, queue.Queue()
        where = {**environment(), "USE_LIBUV": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(jobs.free_port()),
                 "WORLD_SIZE": str(self.world), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for rank, own in enumerate(self.ranks):
            log = tempfile.TemporaryFile()
            process = subprocess.Popen(self.command, env={**where, "RANK": str(rank), **own}, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=log, text=True)
            self.processes.append(process)
            self.logs.append(log)
            threading.Thread(target=self.listen, args=(rank, process, self.answers), daemon=True).start()

    @staticmethod
    def listen(rank, process, answers):
        for line in process.stdout:
            if line.startswith("{"):
                answers.put((rank, json.loads(line)))
        answers.put((rank, None))

    def ask(self, do, **arguments):
        """All ranks do it; returns rank 0's answer."""
        self.start()
        if not self.ready:
            self.collect(START_S)
            self.ready = True
        for rank in range(self.world):
            self.send(rank, do, **arguments)
        return self.collect(self.limit_s)

    def send(self, rank, do, **arguments):
        try:
            print(json.dumps({"do": do, **arguments}), file=self.processes[rank].stdin, flush=True)
        except OSError:
            pass  # It has ended: collect() finds out.

    def collect(self, limit_s):
        """An answer from each rank; rank 0's."""
        found = {}
        until = min(time.monotonic() + limit_s, self.deadline)
        while len(found) < self.world:
            rank, line = self.next(until)
            if rank is None and time.monotonic() >= self.deadline:
                self.fail("the time of the question is used up")
            if rank is None:
                self.fail(f"no answer of rank {min(set(range(self.world)) - set(found))} in time")
            if line is None or "error" in line:
                self.fail(self.reasons(rank, line))
            found[rank] = line
        return found[0]

    def next(self, until):
        """(rank, answer) of whoever answers next. The answer is None if the rank has ended; both are if nobody answers."""
        try:
            return self.answers.get(timeout=max(0.01, until - time.monotonic()))
        except queue.Empty:
            return None, None

    def reasons(self, rank, line):
        """Why this rank failed, and others within a second: the first to say so is not always the one that began it."""
        texts, until = {}, time.monotonic() + 1
        while rank is not None:
            if line is None or "error" in line:
                texts.setdefault(rank, line["error"] if line else self.last_words(rank))
            if len(texts) == self.world:
                break
            rank, line = self.next(until)
        return "; ".join(f"rank {rank}: {text}" for rank, text in texts.items())

    def last_words(self, rank):
        status = self.processes[rank].wait()
        self.logs[rank].seek(0)
        lines = self.logs[rank].read().decode(errors="replace").strip().splitlines()
        return f"ended with status {status}; " + " | ".join(lines[-3:])[-400:]

    def fail(self, text):
        self.stop(0)
        self.last_failure = text
        raise Failed(text)

    def stop(self, grace_s=5):
        until = time.monotonic() + grace_s
        for process in self.processes:
            try:
                process.stdin.close()
            except OSError:
                pass
        for process in self.processes:
            try:
                process.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes, self.logs = [], []


class Pair:
    """Two contenders that take turns, and where they are."""

    def __init__(self, ours, peer, where):
        self.ours, self.peer, self.where = ours, peer, where
        self.until = None  # No further round begins after this time.

    def __enter__(self):
        self.ours.start()
        self.peer.start()
        return self

    def __exit__(self, *_):
        self.ours.stop()
        self.peer.stop()

    def rounds(self, turns, warm_up=0):
        """Runs each turn (name -> function) once a round in alternating order; name -> its results, or the error's text."""
        results = {name: [] for name in turns}
        for number in range(-warm_up, paired.ROUNDS):
            if number > 0 and self.until and time.monotonic() > self.until:
                break
            for name in list(turns) if number % 2 == 0 else list(turns)[::-1]:
                if isinstance(results[name], str):
                    continue
                try:
                    value = turns[name]()
                    if number >= 0:
                        results[name].append(value)
                except Failed as error:
                    results[name] = str(error)
        return results

    def both(self, do, **arguments):
        return self.rounds({"ours": lambda: self.ours.ask(do, **arguments), "peer": lambda: self.peer.ask(do, **arguments)})

    def forget(self):
        """Both free their models."""
        for contender in (self.ours, self.peer):
            if contender.processes:
                try:
                    contender.ask("forget")
                except Failed:
                    pass  # The next figure starts it anew.


def compare(name, results, of, unit, goal, peer_name, peer="peer", rate=False, scale=1):
    """A figure of what of(result) is for both. If one of them failed, it has an error."""
    values = {who: None if isinstance(results[who], str) else [of(line) * scale for line in results[who]]
              for who in ("ours", peer)}
    medians = {who: found and round(statistics.median(found), 3) for who, found in values.items()}
    line = {"figure": name, "ours": medians["ours"], "peer": medians[peer], "peer_name": peer_name}
    errors = [f"{'ours' if who == 'ours' else peer_name}: {results[who]}" for who in ("ours", peer) if values[who] is None]
    if errors:
        return {**line, "ratio": None if values["ours"] else 0.0, "unit": unit, "goal": None if values["ours"] else goal,
                "error": "; ".join(errors)}
    ratios = [mine / theirs if rate else theirs / mine for mine, theirs in zip(values["ours"], values[peer])]
    return {**line, "ratio": round(statistics.median(ratios), 3), "low": round(paired.lower_bound(ratios), 3),
            "rounds": len(ratios), "unit": unit, "goal": goal}
