"""A headless Chromium that a test clicks and asks, through its DevTools protocol on two pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
)


@dataclass
class Browser:
    """One page of a running browser. `complaints` are what its scripts logged or threw."""

    commands: IO[bytes]
    answers: IO[bytes]
    session: str = ""
    sent: int = 0
    complaints: list[str] = field(default_factory=list)
    loaded: int = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and gives its result; AssertionError where the browser refuses it."""
        self.sent += 1
        message: dict[str, Any] = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self._hear()).get("id") != message["id"]:
            continue
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def attach(self) -> None:
        """Opens an empty page and listens to it."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Goes to a page and waits until it is there with its script run."""
        before = self.loaded
        self.ask("Page.navigate", url=address)
        self.wait_for_page(before)

    def wait_for_page(self, before: int) -> None:
        """Waits until more than so many pages were loaded."""
        while self.loaded <= before:
            self._hear()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks into the middle of an element, scrolled into view, as a mouse does."""
        x, y = self.evaluate(
            f"(at => {{ at.scrollIntoView({{block: 'center'}}); const box = "
            "at.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] "
            f"}})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _hear(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        method = message.get("method")
        if method == "Page.loadEventFired":
            self.loaded += 1
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))
        return message


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser that keeps what it must in an empty folder, and ends with the context."""
    (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
    wired = f'exec "$@" 3<&{read_there} 4>&{write_there}'
    process = subprocess.Popen(
        ["bash", "-c", wired, "bash", PROGRAM, *_OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(read_there, write_there),
        stderr=subprocess.DEVNULL,
    )
    os.close(read_there)
    os.close(write_there)
    try:
        with os.fdopen(write_here, "wb") as commands, os.fdopen(read_here, "rb") as answers:
            browser = Browser(commands, answers)
            browser.attach()
            yield browser
    finally:
        process.kill()
        process.wait()
