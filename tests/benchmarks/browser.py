"""A headless Chromium that opens one page, driven over a pair of pipes: no package is needed."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

#: The names under which distributions install it.
NAMES = ("chromium", "chromium-browser", "google-chrome")

#: Longer than any page here takes to load, even on a busy machine.
PATIENCE_SECONDS = 60


def chromium() -> str:
    """Return the program; without it the test is skipped, in CI it fails."""
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    missing = "no Chromium is installed (Debian: apt-get install chromium)"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@attrs.define
class Page:
    """An open page: what it shows, and what it complained of."""

    _commands: Any
    _answers: Any
    _session: str = ""
    _number: int = 0
    complaints: list[str] = attrs.field(factory=list)
    """Messages of the console, exceptions, and what the browser logged."""
    requested: list[str] = attrs.field(factory=list)
    """Every URL that it asked for."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (said := self.receive()).get("id") != self._number:
            pass
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    def receive(self) -> dict[str, Any]:
        """Wait for the next message, and note what an event tells."""
        data = bytearray()
        while (letter := self._answers.read(1)) != b"\0":
            assert letter, "the browser has gone"
            data += letter
        said: dict[str, Any] = json.loads(data)
        match said.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(said["params"]))
            case "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])
        return said

    def open(self, path: Path, *, width: int, height: int = 900) -> None:
        """Open a file at a width of so many pixels, and wait until it is shown."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a picture."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def opened_browser(folder: Path) -> Iterator[Page]:
    """Run a browser with its files in *folder* until the block ends."""
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()

    def place() -> None:
        # The browser reads commands from descriptor 3 and writes answers to 4.
        high = [os.dup(each) for each in (to_browser, from_browser)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    flags = [
        *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
        *("--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
        *("--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"),
    ]
    process = subprocess.Popen(
        [chromium(), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4, to_browser, from_browser),
        preexec_fn=place,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(to_browser)
    os.close(from_browser)
    with os.fdopen(commands, "wb") as sent, os.fdopen(answers, "rb") as received:
        try:
            page = Page(sent, received)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
            page._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.kill()
            process.wait()
