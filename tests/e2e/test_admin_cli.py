"""``stepwell admin`` against a real server with a token and an admin port, as an operator uses it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.core.config_admin import ADMIN_TOKEN
from stepwell.sim.replay import replay
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

TOKEN = "sw-" + "t" * 43


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journals"


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(ADMIN_TOKEN, TOKEN)
    own = ["admin.port=0", f"admin.journal_folder={folder}", "admin.metrics=true"]
    settings = [word for each in own for word in ("--set", each)]
    with serving(*settings, step_us=20_000, errors=tmp_path / "errors") as running:
        yield running


def address(server: Server) -> str:
    (line,) = [line for line in server.greeting if line.startswith("admin: ")]
    return line.removeprefix("admin: ").removesuffix("/admin/scheduler")


def admin(server: Server, *words: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "stepwell", "admin", words[0], "--url", address(server), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def ask(server: Server, prompt: str) -> None:
    """As long an answer, which may be ended in the middle."""
    body = {"stream": True, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        f"{server.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        answer.read()


def test_the_token_of_the_environment_goes_no_further(server: Server) -> None:
    """The worker, and what it may start, is given everything but the token."""
    (worker,) = [line.rpartition(" ")[2] for line in server.greeting if "in worker process" in line]
    assert b"PATH=" in (given := Path(f"/proc/{worker}/environ").read_bytes())
    assert TOKEN.encode() not in given


def test_an_operator_sees_holds_and_ends_what_runs_and_all_of_it_replays(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        server.get("/metrics")
    wrong = tmp_path / "wrong"
    wrong.write_text("sw-wrong\n")
    assert "/admin wants a token of its own" in admin(server, "scheduler", "--token-file", str(wrong), status=2)
    assert "policy " in admin(server, "scheduler")
    assert "on " in admin(server, "journal", "on")
    clients = [threading.Thread(target=ask, args=(server, "x" * 4000)) for _ in range(2)]
    for client in clients:
        client.start()
    server.until(lambda: json.loads(admin(server, "requests", "--json", "--state", "decoding"))["total"] == 2)
    assert "it is given a token a step" in admin(server, "request", "1")
    assert "paused" in admin(server, "pause", "--why", "a look")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        server.get("/ready")
    assert "an operator has paused" in admin(server, "requests")
    admin(server, "resume")
    assert "sjf" in admin(server, "policy", "sjf", "--why", "a try")
    assert "admin.port" in admin(server, "config")
    assert TOKEN not in admin(server, "config", "--json")
    assert "aborted: 1" in admin(server, "abort", "--request", "1")
    assert "1 aborted" in admin(server, "abort", "--all")
    for client in clients:
        client.join(PATIENCE_S)
        assert not client.is_alive()
    assert "pages freed" in admin(server, "reset-cache")
    assert "no request 1" in admin(server, "request", "1", status=2).replace("'", "")
    admin(server, "journal", "off")
    assert "yes" in admin(server, "drain")
    assert server.process.wait(PATIENCE_S) == 0
    (path,) = folder.iterdir()
    report = replay(path)
    assert (report.difference, report.unfinished) == (None, 0)
    assert report.turns > 10
    assert TOKEN not in path.read_text()


def test_a_server_that_is_not_there_is_said_in_a_line() -> None:
    command = [sys.executable, "-m", "stepwell", "admin", "scheduler", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.startswith("stepwell: http://127.0.0.1:9 does not answer: ")
