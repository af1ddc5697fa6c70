"""A headless Chromium that a test drives as a person would: over a pipe, with no port and no library."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WITH_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
HAND_OVER = (
    "import fcntl, os, sys\n"
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]\n"
    "os.dup2(ends[0], 3), os.dup2(ends[1], 4), os.execv(sys.argv[3], sys.argv[3:])"
)
"""It reads its orders from its descriptor 3, and answers on 4."""


@dataclass
class Page:
    """One tab. `requests` is what the network was asked for beside files and data; `complaints` what the console said."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def open(self, url: str) -> None:
        """Goes there, and waits until everything is loaded."""
        self.browser.heard.clear()
        told = self.call("Page.navigate", url=url)
        until = time.monotonic() + PATIENCE_S
        while "loaderId" in told and not self.is_at(told["loaderId"]):  # else the page that is left would do
            assert time.monotonic() < until, f"never: {url}"
            self.call("Runtime.evaluate", expression="0")
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def is_at(self, loader: str) -> bool:
        """Whether the tab was heard to show what was loaded under that name."""
        heard = (one["params"]["frame"] for one in self.browser.heard if one.get("method") == "Page.frameNavigated")
        return any(frame["loaderId"] == loader for frame in heard)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for. Fails on an exception in it."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        assert "result" in answer, f"the page was left before it answered: {script}"
        return answer["result"].get("value")

    def leave(self, script: str) -> None:
        """Runs what makes the page go elsewhere. There is no value: the page may be gone before it answers."""
        self.call("Runtime.evaluate", expression=script)

    def until(self, script: str) -> None:
        """Waits until an expression is true; the page may be loaded anew in between."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.call("Runtime.evaluate", expression=f"Boolean({script})", returnByValue=True)
            if answer.get("result", {}).get("value") is True:
                return
            assert time.monotonic() < deadline, f"never: {script}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of what is found, which must be there to be seen."""
        at = self.run(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        about = {"key": key, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def look(self, width: int, *, dark: bool = False, height: int = 900, media: str = "screen") -> None:
        """A window of this width, with the colours that the user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=wanted)

    def picture(self, file: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._ids, self._rest = itertools.count(1), b""
        self._pages: dict[str, Page] = {}
        self.heard: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Asks, and waits for the answer; what happens meanwhile is noted."""
        number = next(self._ids)
        asked = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = self._next(deadline)
            if told.get("id") == number:
                assert "error" not in told or method == "Runtime.evaluate", f"{method}: {told.get('error')}"
                return dict(told.get("result") or {})
            self._note(told)

    @contextlib.contextmanager
    def tab(self) -> Iterator[Page]:
        """A new tab, closed in the end: one that stays open is laid out again and again."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        yield page
        self.call("Target.closeTarget", targetId=target)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, "Chromium does not answer"
            assert select.select([self._back], [], [], left)[0], "Chromium does not answer"
            data = os.read(self._back, 1 << 20)
            assert data, f"Chromium is gone: {self._process.poll()}"
            self._rest += data
        told, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(told))

    def _note(self, told: dict[str, Any]) -> None:
        self.heard.append(told)
        page, params = self._pages.get(told.get("sessionId", "")), told.get("params", {})
        if page is None:
            return
        match told.get("method"):
            case "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "about:", "blob:")):
                    page.requests.append(url)
            case "Log.entryAdded":
                page.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")
            case "Runtime.exceptionThrown":
                page.complaints.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled":
                page.complaints.append(" ".join(str(one.get("value", "")) for one in params["args"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own. It is gone when the block ends."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    with (profile.parent / f"{profile.name}.log").open("wb") as log:
        ends = [str(theirs_in), str(theirs_out)]
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, *ends, CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        made = Browser(process, ours_out, ours_in)
        made.call("Browser.getVersion")
        yield made
        with contextlib.suppress(AssertionError, OSError):
            made.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as made:
        yield made


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.tab() as made:
        yield made
