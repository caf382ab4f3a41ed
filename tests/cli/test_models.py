"""From a model's files to what is served: what is doubtful about it goes along, to be seen by everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.cli.models import open_model  # noqa: E402
from stepwell.core.config import Config, MemoryConfig, ModelConfig, SchedulerConfig  # noqa: E402
from stepwell.core.errors import UserError  # noqa: E402
from stepwell.tests.backends.speaking import write_speaking_folder, write_speaking_gguf  # noqa: E402
from stepwell.transports.model import Model  # noqa: E402


def opened(path: Path, **settings: Any) -> Model:
    config = Config(
        model=ModelConfig(path=str(path), threads=1, placement="inline", **settings),
        memory=MemoryConfig(pages=16, host_pages=0),
        scheduler=SchedulerConfig(token_budget=32, running_limit=8),
    )
    model = open_model(config)
    model.backend.close()
    if model.close is not None:
        model.close()
    return model


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("stepwell.cli.models.log", lambda level, event: lines.append(f"{level} {event}"))
    return lines


def test_a_model_without_doubts_has_no_warnings(tmp_path: Path, logged: list[str]) -> None:
    for path in (write_speaking_gguf(tmp_path / "model.gguf"), write_speaking_folder(tmp_path / "model")):
        assert opened(path).warnings == ()
    assert logged == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eos_token_id": None}, "eos_token_id is missing; answers end with </s>, <|im_end|>"),
        ({"tokenizer.chat_template": None}, "this model cannot chat, only complete"),
    ],
)
def test_ml_5_what_had_to_be_guessed_is_logged_and_goes_to_the_clients(
    tmp_path: Path, logged: list[str], change: dict[str, object], words: str
) -> None:
    (warning,) = opened(write_speaking_gguf(tmp_path / "model.gguf", **change)).warnings
    assert words in warning
    assert logged == [f"warning {warning}"]


def test_ml_5_without_a_template_a_model_can_only_complete(tmp_path: Path, logged: list[str]) -> None:
    model = opened(write_speaking_gguf(tmp_path / "model.gguf", **{"tokenizer.chat_template": None}))
    with pytest.raises(UserError, match="/v1/completions"):
        model.template([{"role": "user", "content": "hi"}], {})


def test_ml_5_an_unknown_pre_tokenizer_is_refused_unless_forced(tmp_path: Path, logged: list[str]) -> None:
    path = write_speaking_gguf(tmp_path / "model.gguf", pre="nobody-knows")
    with pytest.raises(UserError, match="nobody-knows"):
        opened(path)
    (warning,) = opened(path, pre_tokenizer="gpt-2").warnings
    assert "forced to 'gpt-2'" in warning
    with pytest.raises(UserError, match="known are gpt-2"):
        opened(path, pre_tokenizer="mine")
