"""A page in a real browser without a window, driven over its debugging pipe: no package and no port are needed."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads its third and writes its fourth file.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class NoBrowser(Exception):
    """There is none, or it does not start."""


def find_browser() -> str:
    """Path of a browser of the Chromium family."""
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    raise NoBrowser(f"none of {', '.join(_NAMES)} is installed")


class Page:
    """One page; what it logs and fetches is kept.

    Args:
        folder: For the browser's profile.
        width: Of the page in pixels.
        height: Likewise.
        is_dark: Whether the reader prefers dark pages.
    """

    def __init__(self, folder: Path, width: int = 1280, height: int = 900, *, is_dark: bool = False) -> None:
        self._number, self._buffer, self._events = 0, b"", []
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
        os.close(theirs_in)
        os.close(theirs_out)
        profile = [f"--user-data-dir={folder / 'profile'}"]
        command = [sys.executable, "-c", _LAUNCH, *map(str, high), find_browser(), *_OPTIONS, *profile, "about:blank"]
        environment = {**os.environ, "HOME": str(folder), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        self._process = subprocess.Popen(
            command, pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        for fd in high:
            os.close(fd)
        try:
            targets = self._started()
            target = next(one for one in targets["targetInfos"] if one["type"] == "page")
            attached = self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            mobile = width < 600
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
            self.call("Emulation.setDeviceMetricsOverride", size)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
            self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        except (OSError, TimeoutError, StopIteration, KeyError) as error:
            self.close()
            raise NoBrowser(f"{find_browser()} does not start here: {error!r}") from error

    def _started(self) -> dict:
        """The pages of the browser, once there is one."""
        self._session = None
        end = time.monotonic() + 60
        while time.monotonic() < end:
            targets = self.call("Target.getTargets")
            if any(one["type"] == "page" for one in targets["targetInfos"]):
                return targets
            time.sleep(0.1)
        raise TimeoutError("no page")

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._events.clear()
        self.call("Page.navigate", {"url": path.resolve().as_uri()})
        self.wait("document.readyState === 'complete'")

    def run(self, code: str) -> object:
        """The value of a piece of JavaScript; promises are awaited."""
        answer = self.call("Runtime.evaluate", {"expression": code, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until a piece of JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.complaints()}"
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and refusals of the page's own policy."""
        reported = []
        for event in self._events:
            name, more = event["method"], event.get("params", {})
            if name == "Runtime.exceptionThrown":
                reported.append(str(more["exceptionDetails"]))
            elif name == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning", "assert"):
                reported.append(str(more["args"]))
            elif name == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
                reported.append(more["entry"]["text"])
        return reported

    def requests(self) -> list[str]:
        """Addresses that were asked for, those within the page apart."""
        asked = [
            one["params"]["request"]["url"] for one in self._events if one["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the whole page."""
        shown = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            shown["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", shown)["data"]))

    def call(self, method: str, params: dict | None = None, seconds: float = 60) -> dict:
        """Call a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            answer = self._read(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)

    def _read(self, end: float) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise OSError("the browser has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in (self._in, self._out):
            os.close(fd)
