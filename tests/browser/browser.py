"""Debian's Chromium, without a window, driven through its own driver.

    with Browser(width=1280, height=900) as browser:
        browser.get("http://127.0.0.1:29400/")
        browser.wait_for("document.title.includes('running')")
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import jobs  # noqa: E402

LIMIT_S = 240


def missing():
    """Why no browser can be driven here; empty if one can."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"there is no {program} (scripts/setup --test installs it on Debian 13 and later)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "python3-selenium is not installed"
    return ""


class Browser:
    def __init__(self, width=1280, height=900, dark=False):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
        self.folder = tempfile.mkdtemp(prefix="ddp_browser.")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        # Root can have no sandbox. The rest keeps the browser from asking its maker about anything.
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "no-first-run",
                     "disable-background-networking", "disable-component-update", "disable-default-apps", "disable-sync",
                     f"user-data-dir={self.folder}", f"window-size={width},{height}", "force-device-scale-factor=1"):
            options.add_argument("--" + flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        os.environ.setdefault("SE_OFFLINE", "true")
        self.service = Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=self.service)
        self.driver.set_script_timeout(LIMIT_S)
        self.set_size(width, height)
        if dark:
            self.set_dark(True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(self, address):
        self.driver.get(address)

    def run(self, script, *arguments):
        """The value of a JavaScript expression."""
        return self.driver.execute_script(f"return ({script});", *arguments)

    def wait_for(self, condition, limit_s=LIMIT_S):
        """Until a JavaScript expression is true; gives its value."""
        try:
            return jobs.wait_until(lambda: self.run(condition), limit_s, condition)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.text('body')}") from None

    def text(self, selector):
        return self.run("(document.querySelector(arguments[0]) || {}).innerText || ''", selector)

    def set_size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def set_dark(self, dark):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def picture(self, path):
        """The whole page, as a PNG."""
        import base64
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def complaints(self):
        """What the console has shown since the last call: errors and warnings."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def asked_hosts(self):
        """The hosts that were asked for anything since the last call."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if not address.startswith(("data:", "blob:")):
                    hosts.add(address.split("/")[2])
        return hosts

    def renderers(self):
        """The browser's processes that show pages."""
        found = jobs.descendants(self.service.process.pid)
        return [pid for pid in found if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def script_bytes(self):
        """Memory of the page's JavaScript, after what is not needed is gone."""
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return self.run("performance.memory.usedJSHeapSize")
