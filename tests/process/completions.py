#!/usr/bin/python3
"""Checks how real shells complete ddp-run's command line, with the scripts that ddp-run prints.

Each shell runs on its own terminal. The test types the beginning of a line and a tab; the output must have some words and must
not have others. Shells that are not installed are skipped, except bash.
"""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)).resolve()
LIMIT = 60  # Seconds; a deadline, not a pace.

# What is typed; some of what is offered (or put there); what is not.
CASES = {
    "flags": ("ddp-run --nn", ["--nnodes"], ["--tee"]),
    "several": ("ddp-run --stand", ["--standalone", "--standby"], ["--nnodes"]),
    "values": ("ddp-run --rdzv-backend ", ["c10d", "static", "etcd"], ["--nnodes"]),
    "joined": ("ddp-run --rdzv-backend=e", ["etcd"], ["c10d"]),
    "accelerators": ("ddp-run --nproc-per-node x", ["xpu"], ["hpu"]),
    "short": ("ddp-run -r ", ["0", "1", "2", "3"], ["--nnodes"]),
    "files": ("ddp-run --hostfile jo", ["job.json"], []),
    "folders": ("ddp-run --log-dir lo", ["logs"], ["lonely"]),
    "hosts": ("ddp-run --hosts nodes", ["nodeseven"], ["--nnodes"]),
    "endpoint": ("ddp-run --rdzv-endpoint nodes", ["nodeseven"], ["--nnodes"]),
    "second host": ("ddp-run --hosts node0,nodes", ["node0,nodeseven"], []),
    "after": ("ddp-run --nnodes 2 --virt", ["--virtual-local-rank"], []),
    "after a port": ("ddp-run --rdzv-endpoint node1:29400 --nnod", ["--nnodes"], []),
    "after a range": ("ddp-run --nnodes 2:4 --virt", ["--virtual-local-rank"], []),
    "after a pair": ("ddp-run --rdzv-conf join_timeout=5 --virt", ["--virtual-local-rank"], []),
    "joined port": ("ddp-run --rdzv-endpoint=node1:29400 --virt", ["--virtual-local-rank"], []),
    "port": ("ddp-run --rdzv-endpoint node1:2", [], ["--nnodes", "job.json"]),
    "program": ("ddp-run --standalone tra", ["train.py"], []),
    "underscored": ("ddp-run --rdzv_backend ", ["c10d", "static"], []),
    "argument": ("ddp-run --standalone train.py --nnod", [], ["--nnodes"]),
    "argument file": ("ddp-run --nnodes 2 train.py jo", ["job.json"], []),
}


class Terminal:
    """A shell on a terminal: types, and reads what it shows."""

    def __init__(self, command, folder, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, {**os.environ, **environment})
        self.shown = ""

    def read_until(self, pattern):
        deadline = time.monotonic() + LIMIT
        while not re.search(pattern, self.shown):
            rest = deadline - time.monotonic()
            if rest <= 0 or not select.select([self.fd], [], [], rest)[0]:
                raise AssertionError(f"{pattern!r} was not shown: {self.shown!r}")
            try:
                self.shown += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the shell has ended: {self.shown!r}") from None

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\r\x07]", "", text)


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        for name in ("train.py", "job.json", "lonely"):
            (cls.folder / name).touch()
        (cls.folder / "logs").mkdir()
        (cls.folder / ".ssh").mkdir()
        (cls.folder / ".ssh" / "known_hosts").write_text("nodeseven ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA\n")
        (cls.folder / "hosts").write_text("10.0.0.7 nodeseven\n")  # bash looks there: $HOSTFILE.
        for shell in ("bash", "zsh", "tcsh", "fish"):
            script = subprocess.run([BIN / "ddp-run", "--print-completion", shell], check=True, capture_output=True).stdout
            (cls.folder / f"script.{shell}").write_bytes(script)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def check_case(self, shell, case, offered):
        line, some, none = CASES[case]
        for word in some:
            self.assertRegex(offered, rf"(?<!\w){re.escape(word.removeprefix('--'))}(?![\w-])", f"{shell}, {case}: {line!r}")
        for word in none:
            self.assertNotRegex(offered, rf"(?<!\w){re.escape(word.removeprefix('--'))}(?![\w-])", f"{shell}, {case}: {line!r}")

    # Each case in a shell of its own: a line that is left unfinished has no say in the next one.
    def check_terminal(self, shell, command, setup, tab, without=()):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        environment = {"TERM": "vt100", "HOME": str(self.folder), "HOSTFILE": str(self.folder / "hosts"), "PS1": "", "LC_ALL": "C.UTF-8", "LINES": "400", "COLUMNS": "200"}
        for case in CASES:
            if case in without:
                continue
            with self.subTest(case):
                terminal = Terminal(command, self.folder, environment)
                try:
                    # The words are put together by the shell, so that the echo is not taken for it.
                    terminal.type(setup + "echo RE''ADY\n")
                    terminal.read_until("READY")
                    terminal.shown = ""
                    terminal.type(CASES[case][0] + tab)
                    # The cursor goes to the line's beginning and a comment begins there; it ends what is offered.
                    terminal.type("\x01#\x05 DO\"\"NE\n" + "echo OV''ER\n")
                    terminal.read_until("OVER")
                    self.check_case(shell, case, plain(terminal.shown).replace(CASES[case][0].split()[-1] + "\t", ""))
                finally:
                    terminal.close()

    def test_bash(self):
        self.check_terminal("bash", ["bash", "--norc", "--noprofile", "-i"],
                            "bind 'set page-completions off'; bind 'set completion-query-items 0'; "
                            "bind 'set show-all-if-ambiguous on'; . ./script.bash\n", "\t")

    def test_zsh(self):
        self.check_terminal("zsh", ["zsh", "-f", "-i"],
                            "autoload -Uz compinit; compinit -u -D; LISTMAX=0; "
                            "setopt interactivecomments nolistambiguous; . ./script.zsh\n", "\t")

    def test_zsh_finds_it_in_fpath(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        functions = self.folder / "functions"
        functions.mkdir()
        shutil.copy(self.folder / "script.zsh", functions / "_ddp-run")
        self.check_terminal("zsh", ["zsh", "-f", "-i"],
                            "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=0; "
                            "setopt interactivecomments nolistambiguous\n", "\t")

    # tcsh has no idea where the program begins, and knows no hosts.
    def test_tcsh(self):
        self.check_terminal("tcsh", ["tcsh", "-f"], "set edit; set autolist; set listmax=0; set prompt=''; source script.tcsh\n", "\t\x04",
                            without=("argument", "hosts", "endpoint", "second host"))

    # fish says what it would offer.
    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        for case, (line, _, _) in CASES.items():
            with self.subTest(case):
                asked = subprocess.run(["fish", "--no-config", "-c", "source script.fish; complete -C $argv[1]", line],
                                       cwd=self.folder, env={**os.environ, "HOME": str(self.folder)}, capture_output=True,
                                       text=True, timeout=LIMIT)
                self.assertEqual(asked.stderr, "")
                # A word and what it means.
                words = [offer.split("\t")[0] for offer in asked.stdout.splitlines()]
                self.check_case("fish", case, "\n".join(word.split("=")[-1] for word in words))


if __name__ == "__main__":
    unittest.main()
