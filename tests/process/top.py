#!/usr/bin/env python3
"""ddp-run top in tmux, at 80 and 200 columns, with a real job: top.py BIN_DIR [--pictures DIR]."""
import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs  # noqa: E402
from tmux import Tmux  # noqa: E402

LIMIT_S = 240
SIZES = ((80, 24), (200, 50))
# Says a line again and again, so that there is something to see.
WORKER = "import sys, time\nwhile True:\n  print('a line of rank', __import__('os').environ['RANK'], flush=True)\n  time.sleep(0.2)\n"


def look(bin_dir, folder, pictures, node, port):
    for width, height in SIZES:
        is_first = width == SIZES[0][0]
        # What ranks have written needs the job's token.
        proof = [] if is_first else ["--rdzv-token-file", str(folder / "token")]
        window = Tmux(folder, width, height, [str(bin_dir / "ddp-run"), "top", f"127.0.0.1:{port}", *proof])
        try:
            window.wait_for("seen", "running", f"{3 if is_first else 2} of 3 restarts left", "rank 0 on ", "rounds", "arrows: rank")
            window.keys("Right")
            window.wait_for("rank 1 on ")
            window.keys("Enter")
            window.wait_for("rank 1: last lines", "this job has a token; give it with" if is_first else "a line of rank 1")
            window.keys("Escape")
            window.wait_for("rank 1 on ")
            if is_first:
                os.kill(node.workers()[0], signal.SIGKILL)
                window.wait_for("first failure of round 0: rank", "signal 9", "2 of 3")
            if pictures:
                (pictures / f"top{width}.txt").write_text(window.call("capture-pane", "-p", "-e"), encoding="utf-8")
            window.keys("q")
            jobs.wait_until(window.is_over, LIMIT_S, "the end after q")
        finally:
            window.close()


def it_says_what_is_wrong(bin_dir, port):
    for words, status, text in (([], 2, "the rendezvous is missing; write ddp-run top HOST[:PORT]"), (["a", "b"], 2, "b: write ddp-run top"), (["a", "--watch"], 2, "--watch: "),
                                ([f"127.0.0.1:{port}", "--rdzv-token-file=/nowhere"], 64, "--rdzv-token-file /nowhere: "), ([f"127.0.0.1:{port}"], 2, "no terminal"),
                                (["127.0.0.1:x"], 64, "127.0.0.1:x: ")):
        done = subprocess.run([str(bin_dir / "ddp-run"), "top", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == status and text in done.stderr, (words, done)
    done = subprocess.run([str(bin_dir / "ddp-run"), "top", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Keys: " in done.stdout, done


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    bin_dir, port = args.bin_dir.resolve(), jobs.free_port()
    with tempfile.TemporaryDirectory(prefix="ddp_top.") as name:
        folder = Path(name)
        it_says_what_is_wrong(bin_dir, port)
        (folder / "worker.py").write_text(WORKER)
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        node = jobs.Node([str(bin_dir / "ddp-run"), "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "seen",
                          "--rdzv-token-file", str(folder / "token"), "--max-restarts", "3", "--max-no-progress", "0", "--no-python", sys.executable, str(folder / "worker.py")], folder / "node.log")
        try:
            jobs.wait_until(lambda: b"a line" in node.log_path.read_bytes(), LIMIT_S, "a line of a worker")
            look(bin_dir, folder, args.pictures, node, port)
        finally:
            node.kill()


if __name__ == "__main__":
    main()
