"""Runs a command of a test that is to succeed."""
import subprocess
import sys


def output_of(*command, limit_s=None):
    """What it writes to both streams. Ends the test, and shows that, if the command does not end with status 0."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                          timeout=limit_s, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout
