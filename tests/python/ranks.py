"""Starts the ranks of a test."""
import subprocess
import sys
import tempfile


def run(script, count, limit_s, beside=None):
    """Runs `script --rank R N FILE` for each rank, with a FILE for their store. Exits with a line unless all end with 0 in time.

    FILE lies in a folder of its own, within the folder `beside`, if given.
    """
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        ranks = [subprocess.Popen([sys.executable, script, "--rank", str(rank), str(count), f"{folder}/store"]) for rank in range(count)]
        try:
            codes = [rank.wait(timeout=limit_s) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(codes):
        sys.exit(f"the ranks ended with {codes}")
