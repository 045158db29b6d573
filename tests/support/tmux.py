"""A terminal in which a test runs a program, types, and reads the screen: tmux, with a server of its own."""
import os
import subprocess
import uuid

import jobs

LIMIT_S = 240


class Tmux:
    """One window, in which the command runs."""

    def __init__(self, folder, width, height, command):
        self.base = ["tmux", "-L", f"ddp-{uuid.uuid4().hex}", "-f", "/dev/null"]
        self.env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TMUX_TMPDIR": str(folder)}
        self.call("new-session", "-d", "-x", str(width), "-y", str(height), *command)
        self.call("set-option", "-g", "remain-on-exit", "on")

    def call(self, *words):
        return subprocess.run([*self.base, *words], env=self.env, capture_output=True, text=True, check=True).stdout

    def screen(self):
        return self.call("capture-pane", "-p")

    def keys(self, *names):
        self.call("send-keys", *names)

    def wait_for(self, *texts):
        try:
            jobs.wait_until(lambda: all(text in self.screen() for text in texts), LIMIT_S, f"{texts} on the screen")
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.screen()}") from None

    def is_over(self):
        return self.call("list-panes", "-F", "#{pane_dead}").strip() == "1"

    def close(self):
        subprocess.run([*self.base, "kill-server"], env=self.env, capture_output=True, check=False)
