"""Debian's Chromium, driven by Playwright, at the pages of a real broker."""

import os
import shutil
from pathlib import Path

import pika
import pytest
from tests.broker import ROOT, Broker, reserved_port
from tests.server.clients import parameters
from tests.server.conftest import left_by_clients  # noqa: F401 - its fixture

AXE = ROOT / "src" / "web" / "node_modules" / "axe-core" / "axe.min.js"
MS = 60_000  # limit of every wait: none is reached while all is well


@pytest.fixture(scope="module")
def chromium():
    """The browser.

    Each module has its own: as long as Playwright is there, its event loop counts as the running one of this thread,
    and asyncio.run() refuses to run in the tests of other folders.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not there: apt-get install chromium")
    if not (ROOT / "src" / "brokerd" / "pages").exists():
        pytest.skip("the pages are not built: make pages, which needs npm")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Site:
    """A broker with its pages; ``open`` shows one."""

    def __init__(self, folder, chromium, *flags):
        self.port, self._held = reserved_port()
        self._chromium = chromium
        self._contexts = []
        self.faults = []  # what scripts have thrown, and what the browser refused to run
        self.broker = Broker(folder, "--http-port", self.port, *flags)
        self.broker.start()
        self.wait()

    def wait(self, begin=0):
        """Wait until the broker's pages are there."""
        self.broker.wait_for_log(rf"listening on 127\.0\.0\.1:{self.port} \(HTTP\)", begin)

    def address(self, page=""):
        """Of a page."""
        return f"http://127.0.0.1:{self.port}/#/{page}"

    def open(self, page="overview", user="guest", password=None, **context):
        """A new browser's window with that page, with the user logged in."""
        window = self.window(**context)
        window.goto(self.address(page))
        log_in(window, user, password or user)
        return window

    def window(self, width=1280, height=900, **context):
        """A new browser's window, where nobody has logged in."""
        made = self._chromium.new_context(viewport={"width": width, "height": height}, **context)
        made.set_default_timeout(MS)
        self._contexts.append(made)
        page = made.new_page()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._hear)
        return page

    def _hear(self, message):
        if "Content Security Policy" in message.text:
            self.faults.append(message.text)

    def client(self):
        """A channel of AMQP, which may stay silent while the pages are looked at."""
        return pika.BlockingConnection(parameters(self.broker)).channel()

    def close_windows(self):
        """Close what a test has opened."""
        for each in self._contexts:
            each.close()
        self._contexts.clear()

    def end(self):
        """Stop the broker."""
        self.close_windows()
        self.broker.stop()
        os.close(self._held)
        self.broker.check_log()


def log_in(window, user, password):
    """Fill in the form."""
    window.get_by_label("User").fill(user)
    window.get_by_label("Password").fill(password)
    window.get_by_role("button", name="Log in").click()
    window.locator(".side").wait_for()


@pytest.fixture(scope="module")
def shared(tmp_path_factory, chromium):
    """A site for the tests of a module."""
    site = Site(tmp_path_factory.mktemp("site") / "data", chromium)
    yield site
    site.end()


@pytest.fixture
def site(shared):
    """The shared site; a script's fault fails the test."""
    yield shared
    shared.close_windows()
    faults, shared.faults = shared.faults, []
    assert not faults


@pytest.fixture
def own_site(tmp_path, chromium):
    """A site whose broker a test may kill."""
    site = Site(tmp_path / "data", chromium)
    yield site
    site.end()
    assert not site.faults


def find_barriers(window):
    """What axe finds that keeps people from using a page, in words."""
    window.evaluate(Path(AXE).read_text())
    found = window.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{each['id']} ({each['impact']}): {node['target']} {node['failureSummary']}"
            for each in found["violations"] if each["impact"] in ("serious", "critical", "moderate")
            for node in each["nodes"]]
