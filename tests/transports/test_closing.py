"""What a model holds is given back once, however serving ends."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepwell.cli import serve
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.sim.backend import EchoBackend
from stepwell.tests.transports.house import Call, chat, client, make_service, visit
from stepwell.transports.echo import ByteTokenizer, last_message
from stepwell.transports.model import Model
from stepwell.transports.service import Service


class Held(EchoBackend):
    """Counts how often it was closed."""

    closed = 0
    breaks = False

    def execute(self, batch: Launch) -> StepResult:
        if self.breaks:
            raise RuntimeError("the driver is gone")
        return super().execute(batch)

    def close(self) -> None:
        self.closed += 1


class House:
    """A service whose model counts."""

    def __init__(self) -> None:
        self.backend = Held()
        self.template_closed = 0
        self.service: Service = make_service(backend=self.backend, close=self.close_template)

    def close_template(self) -> None:
        self.template_closed += 1

    @property
    def counts(self) -> tuple[int, int]:
        return self.backend.closed, self.template_closed


def test_after_serving() -> None:
    home = House()
    with client(home.service) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        assert home.counts == (0, 0)
    assert home.counts == (1, 1)
    home.service.close()
    assert home.counts == (1, 1)


def test_without_ever_serving() -> None:
    home = House()
    home.service.close()
    home.service.close()
    assert home.counts == (1, 1)


def test_when_the_start_fails() -> None:
    home = House()

    def fails() -> None:
        raise RuntimeError("not this time")

    with pytest.raises(ExceptionGroup):
        anyio.run(home.service.run, fails)
    home.service.close()
    assert home.counts == (1, 1)


def test_when_it_is_cancelled() -> None:
    home = House()

    async def main() -> None:
        with anyio.move_on_after(0.01):
            await home.service.run()

    anyio.run(main)
    home.service.close()
    assert home.counts == (1, 1)


def test_when_the_engine_breaks_down() -> None:
    home = House()
    home.backend.breaks = True

    async def test(app: Any) -> None:
        call = Call("/v1/chat/completions", chat())
        await call.run(app)
        assert call.status == 500

    visit(home.service, test, breaks=True)
    assert home.counts == (1, 1)


def test_when_the_journal_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, closed = Held(), []

    def open_model(config: Config) -> Model:
        return Model(
            name="echo",
            backend=backend,
            tokenizer=ByteTokenizer(),
            template=last_message,
            close=lambda: closed.append("template"),
        )

    monkeypatch.setattr("stepwell.cli.models.open_model", open_model)
    blocked = tmp_path / "a file"
    blocked.write_text("")
    parser = argparse.ArgumentParser()
    serve.arguments(parser)
    with pytest.raises((UserError, OSError)):
        serve.run(parser.parse_args(["--port", "0", "--journal", str(blocked)]))
    assert (backend.closed, closed) == (1, ["template"])
