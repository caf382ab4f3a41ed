"""A real Chromium without a screen, driven over its DevTools protocol: pages are opened, looked at and clicked."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S

from websockets.sync.client import ClientConnection, connect  # isort: skip

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Where it is; skips the test if nowhere."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"needs a browser, and there is none of {', '.join(NAMES)}")
    return found


class Page:
    """One tab.  What its console and its network complained of is in ``complaints``, what it asked for in ``asked``."""

    def __init__(self, socket: ClientConnection) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._socket = socket
        self._ids = itertools.count(1)
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **params: Any) -> Any:
        id = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": id, "method": method, "params": params, **session}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == id:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") == "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            elif message.get("method") == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])

    def open(self, url: str) -> None:
        """Go there; waits until its scripts have run."""
        self._call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def look(self, expression: str) -> Any:
        """The value of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """The window, in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def without_scripts(self) -> None:
        """From the next page on."""
        self._call("Emulation.setScriptExecutionDisabled", value=True)

    def picture(self, path: Path) -> None:
        """A PNG of what is to be seen."""
        shot = self._call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(shot))

    def until(self, condition: str) -> None:
        """It must come true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.look(condition):
            assert time.monotonic() < deadline, (condition, self.look("document.body?.innerText"), self.complaints)
            time.sleep(0.02)

    def until_complaint(self, words: str) -> None:
        """The console or the network must say so."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(words in each for each in self.complaints):
            assert time.monotonic() < deadline, self.complaints
            self.look("0")
            time.sleep(0.02)

    def type(self, selector: str, text: str) -> None:
        """Replace what a field holds, as somebody at the keyboard would."""
        self.look(f"document.querySelector({json.dumps(selector)}).select()")
        self._call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of it."""
        box = self.look(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)


@contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """A browser of its own, with an empty profile, and a page in it."""
    command = [chromium(), "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to run as root with one
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: None)
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"DevTools listening on (ws://\S+)", line):
                    break
            else:
                pytest.fail(f"the browser did not start: {''.join(said)[-2000:]}")
            reader = threading.Thread(target=process.stderr.read)  # or it would stop once the pipe is full
            reader.start()
            with connect(found[1], max_size=None, compression=None, open_timeout=PATIENCE_S) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.wait()
            if reader.ident is not None:
                reader.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """A plain web server for a folder, as ``python -m http.server``; gives its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
