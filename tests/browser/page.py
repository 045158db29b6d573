#!/usr/bin/env python3
"""The page at the rendezvous' port, in Debian's Chromium, while two nodes train: page.py BIN_DIR [--pictures DIR].

A worker is killed and then a whole node, which comes back; the page shows all of it without being loaded again. Nothing else is
asked for anything, the console stays empty, and axe-core finds nothing. --pictures keeps what it looks like.
"""
import argparse
import contextlib
import os
import signal
import socket
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "browser")]
import browser  # noqa: E402
import jobs  # noqa: E402

AXE = ROOT / ".axe" / "axe.min.js"  # scripts/setup --test puts it there where there is npm.
TOKEN = "the token of this test"
SIZES = ((1280, 900, False), (360, 740, False), (2560, 1440, True))

rank_states = "[...document.querySelectorAll('#ranks button')].map(b => b.className.replace('cell ', ''))"
rows = "[...document.querySelectorAll('#rounds tbody tr')].map(row => row.innerText)"


class Tested:
    def __init__(self, bin_dir, folder, pictures, window):
        self.bin_dir, self.folder, self.pictures, self.window = bin_dir, folder, pictures, window
        self.port = jobs.free_port()
        self.jobs = 0
        self.nodes = []

    def run(self, flags=(), nodes=(0, 1)):
        """Starts the next job."""
        self.jobs += 1
        self.nodes = []
        for node in nodes:
            self.nodes.append(self.start(node, flags))

    def start(self, node, flags=()):
        # Two rounds of eight workers on two cores: the model is small, so that steps are quick.
        command = [str(self.bin_dir / "ddp-run"), "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                   "--rdzv-id", "seen", "--node-rank", str(node), "--max-restarts", "100", "--rdzv-conf", "last_call_timeout=1", *flags,
                   str(self.bin_dir / "ddp-train"), "--model", "toy", "--train-samples", "6000", "--epochs", "1000000", "--batch-size", "5",
                   "--log-every", "50", "--threads", "1", "--checkpoint-dir", str(self.folder / "checkpoints"), "--checkpoint-every", "2000"]
        return jobs.Node(command, self.folder / f"job{self.jobs}.node{node}.log", env={"DDP_LOG_LEVEL": "info"})

    def is_served(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def open(self, user=""):
        jobs.wait_until(self.is_served, browser.LIMIT_S, "the daemon")
        self.window.get(f"http://{user}127.0.0.1:{self.port}/")

    def picture(self, name):
        if self.pictures:
            self.window.picture(self.pictures / f"{name}.png")


def it_shows_a_training(t):
    w = t.window
    t.open()
    w.wait_for(f"{rank_states}.join() === 'good,good,good,good'")
    w.wait_for("document.getElementById('state').innerText.includes('running')")
    w.wait_for("document.getElementById('link').innerText === 'live'")
    assert w.text("#job") == "seen", w.text("#job")
    w.run("window.loadedOnce = true")
    before = w.text("#facts")
    assert "2 of 2" in before and "100 of 100" in before, before
    w.wait_for(f"document.querySelector('#facts').innerText !== {before!r}")
    w.wait_for("document.querySelectorAll('#curves figure:not([hidden]) path.mean[d]').length === 3")
    w.wait_for("document.querySelectorAll('#checkpoints tbody tr').length >= 2")
    assert "complete" in w.text("#checkpoints"), w.text("#checkpoints")


def it_shows_a_loss_and_what_it_cost(t):
    w = t.window
    os.kill(t.nodes[1].workers()[0], signal.SIGKILL)
    w.wait_for("!document.getElementById('failure').hidden")
    assert "signal 9 (SIGKILL)" in w.text("#failure-text"), w.text("#failure-text")
    assert w.text("#failure-title") == "First failure of round 0", w.text("#failure-title")
    w.wait_for(f"{rows}.length === 2 && /^\\d.* m?s$/.test(document.querySelectorAll('#rounds tbody tr')[1].cells[4].innerText)")
    assert "99 of 100" in w.text("#facts"), w.text("#facts")
    t.nodes[1].kill()
    w.wait_for(f"{rank_states}.includes('bad') || document.querySelectorAll('#ranks button').length === 2")
    w.wait_for("document.getElementById('waiting').innerText.includes('Waiting: ')")
    t.picture("lost")
    t.nodes[1] = t.start(1)
    w.wait_for(f"{rows}.length === 3")
    w.wait_for(f"{rank_states}.join() === 'good,good,good,good'")
    assert "was lost" in w.run(f"{rows}[1]"), w.run(rows)
    assert w.run("window.loadedOnce"), "the page was loaded again"


def it_shows_output_and_the_report_on_a_click(t):
    w = t.window
    w.run("document.querySelector('#ranks button').click()")
    w.wait_for("document.getElementById('text').open && document.getElementById('text-body').innerText.includes('loss')")
    t.picture("output")
    w.run("document.querySelector('#text form button').click()")
    w.wait_for("!document.getElementById('text').open")
    w.run("document.getElementById('failure-more').click()")
    w.wait_for("document.getElementById('text-body').innerText.includes('exitcode') || document.getElementById('text-body').innerText.includes('lost')")
    w.run("document.querySelector('#text form button').click()")


def it_works_by_keyboard(t):
    from selenium.webdriver.common.keys import Keys
    w = t.window
    w.run("document.querySelector('#ranks button[tabindex=\"0\"]').focus()")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert w.run(focused).startswith("Rank 0 "), w.run(focused)
    for key, rank in ((Keys.ARROW_RIGHT, 1), (Keys.END, 3), (Keys.ARROW_LEFT, 2), (Keys.HOME, 0)):
        w.driver.switch_to.active_element.send_keys(key)
        assert w.run(focused).startswith(f"Rank {rank} "), w.run(focused)
    assert w.text("#rank").startswith("Rank 0 on "), w.text("#rank")
    w.driver.switch_to.active_element.send_keys(Keys.ENTER)
    w.wait_for("document.getElementById('text').open")
    w.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    w.wait_for("!document.getElementById('text').open")
    assert w.run(focused).startswith("Rank 0 "), "the focus is not back at the rank"
    w.run("document.querySelector('#curves svg').focus()")
    text = w.text("#curves figcaption")
    w.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert " at " in w.text("#curves figcaption"), f"{text} became {w.text('#curves figcaption')}"


def it_fits_and_is_accessible(t):
    w = t.window
    for width, height, dark in SIZES:
        w.set_size(width, height)
        w.set_dark(dark)
        w.wait_for(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}", 10)
        w.wait_for("[...document.querySelectorAll('#curves svg')].every(s => s.viewBox.baseVal.width <= innerWidth)", 10)
        t.picture(f"page{width}")
        assert_accessible(w, f"{width} pixels{', dark' if dark else ''}")
    w.set_size(1280, 900)
    w.set_dark(False)


def shows_the_page(address):
    """A node that stands by may still send its readers to the coordinator that is lost."""
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def assert_accessible(w, what):
    if not AXE.exists():
        return  # main() says so.
    w.driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = w.driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run().then(r => done(r.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html)}`)));")
    assert found == [], f"axe-core, {what}: {found}"


def it_asks_nobody_else_and_complains_of_nothing(t):
    w = t.window
    hosts = w.asked_hosts() - {"new-tab-page", "new-tab-page-third-party", "resources", "favicon2"}  # Of the empty page before.
    assert hosts == {f"127.0.0.1:{t.port}"}, hosts
    assert w.complaints() == [], "the console has complaints"


def it_says_how_the_job_ended(t):
    for node in t.nodes:
        node.process.send_signal(signal.SIGTERM)
    for node in t.nodes:
        node.wait(browser.LIMIT_S)
    w = t.window
    w.wait_for("document.getElementById('link').innerText === 'the job is over'")
    w.wait_for("document.getElementById('state').innerText.includes('failed with status 143')")
    w.complaints()  # Of the requests that nobody answers.


def it_is_one_file_after_the_job(t):
    page = t.folder / "page.html"
    t.run(["--nnodes", "1", "--page-file", str(page)], nodes=[0])
    node = t.nodes[0]
    t.open()
    t.window.wait_for("document.querySelectorAll('#curves figure:not([hidden])').length > 0")
    node.process.send_signal(signal.SIGTERM)
    node.wait(browser.LIMIT_S)
    w = t.window
    w.asked_hosts()
    w.complaints()
    w.get(page.as_uri())
    w.wait_for("document.getElementById('link').innerText === 'as the job ended'")
    w.wait_for("document.getElementById('state').innerText.includes('failed with status 143')")
    assert w.run("document.querySelectorAll('#curves figure:not([hidden]) path.mean[d]').length") > 0
    assert w.asked_hosts() <= {""}, w.asked_hosts()
    assert w.complaints() == [], "the console has complaints"


def it_goes_on_at_the_next_coordinator(t):
    """The node that coordinates is lost with all of its processes: the page says where it may go on, and shows the whole job there."""
    t.port = jobs.free_port()
    t.run(["--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=100", "--nproc-per-node", "1"], nodes=(0, 1, 2))
    t.open()
    w = t.window
    w.wait_for(f"{rank_states}.join() === 'good,good,good'")
    w.wait_for("document.querySelectorAll('#curves figure:not([hidden]) path.mean[d]').length > 0")
    jobs.wait_until(lambda: b"3 of its ddp-runs keep its record" in t.nodes[0].log_path.read_bytes(), browser.LIMIT_S, "the job's record on three nodes")
    t.nodes[0].kill()
    w.wait_for("!document.getElementById('elsewhere').hidden")
    assert_accessible(w, "the page whose coordinator is lost")
    t.picture("elsewhere")
    w.complaints()  # Of the requests that nobody answers.
    # The link is there before the next coordinator is.
    address = w.run("document.querySelector('#elsewhere a').host")
    jobs.wait_until(lambda: shows_the_page(address), browser.LIMIT_S, "the next coordinator")
    w.run("document.querySelector('#elsewhere a').click()")
    # Until the other page has been read, there is no such element.
    w.wait_for("document.getElementById('link')?.innerText === 'live'")
    w.wait_for(f"{rows}.length === 2")
    assert "lost" in w.run(f"{rows}[1]"), w.run(rows)
    assert w.complaints() == [], "the console has complaints"
    for node in t.nodes[1:]:
        node.process.send_signal(signal.SIGTERM)
        node.wait(browser.LIMIT_S)


def with_a_token_it_asks_for_it(t):
    token = t.folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    t.port = jobs.free_port()
    t.run(["--rdzv-token-file", str(token)])
    w = t.window
    t.open(f"x:{TOKEN.replace(' ', '%20')}@")
    w.wait_for(f"{rank_states}.join() === 'good,good,good,good'")
    w.run("document.querySelector('#ranks button').click()")
    w.wait_for("document.getElementById('text-body').innerText.includes('loss')")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    why = browser.missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    if not AXE.exists():
        print(f"without accessibility: there is no {AXE} (scripts/setup --test makes it with npm)")
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp_page.")))
        window = stack.enter_context(browser.Browser())
        t = Tested(args.bin_dir.resolve(), folder, args.pictures, window)
        try:
            t.run()
            for case in (it_shows_a_training, it_shows_a_loss_and_what_it_cost, it_shows_output_and_the_report_on_a_click, it_works_by_keyboard,
                         it_fits_and_is_accessible, it_asks_nobody_else_and_complains_of_nothing, it_says_how_the_job_ended,
                         it_is_one_file_after_the_job, it_goes_on_at_the_next_coordinator, with_a_token_it_asks_for_it):
                print(f"{case.__name__} ...", flush=True)
                case(t)
        finally:
            for node in t.nodes:
                node.kill()


if __name__ == "__main__":
    main()
