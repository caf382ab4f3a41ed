"""EO-1: one set of end tokens, the union of every source, read by weights and tokenizer alike; and what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from torch import Tensor  # noqa: E402

from stepwell.backends.host import HostStepper  # noqa: E402
from stepwell.backends.runner import StepWork  # noqa: E402
from stepwell.backends.tokenizer import tokenizer_from_folder, tokenizer_from_gguf  # noqa: E402
from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.backends.weights.end_tokens import folder_end_tokens, gguf_end_tokens  # noqa: E402
from stepwell.backends.weights.opening import open_model  # noqa: E402
from stepwell.core.errors import UserError  # noqa: E402
from stepwell.tests.backends.driving import make  # noqa: E402
from stepwell.tests.backends.speaking import (  # noqa: E402
    KEY,
    SPEAKING,
    vocabulary,
    write_speaking_folder,
    write_speaking_gguf,
)
from stepwell.tests.helpers.small_model import small_model_path  # noqa: E402

NAMELESS = ["<s>", "<pad>", "<stop>", *vocabulary()[f"{KEY}tokens"][3:]]
"""Three controls whose names say nothing of ends."""


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({}, {1, 2}),
        ({"eot_token_id": 5, "eom_token_id": 6}, {1, 2, 5, 6}),
        ({"eos_token_ids": [7, 8]}, {1, 2, 7, 8}),
        ({"eos_token_id": None}, {1, 2}),
        ({"tokens": NAMELESS}, {1}),
        ({"tokens": NAMELESS, "eos_token_id": 2, "eos_token_ids": [7]}, {2, 7}),
    ],
)
def test_eo_1_both_readers_of_a_file_have_the_same_union(
    tmp_path: Path, change: dict[str, Any], ends: set[int]
) -> None:
    source = open_model(write_speaking_gguf(tmp_path / "model.gguf", **change))
    assert source.end_tokens == ends
    assert tokenizer_from_gguf(source.gguf_metadata).end_tokens == ends


@pytest.mark.parametrize(
    ("tokens", "files", "ends"),
    [
        (None, {}, {1, 2}),
        (NAMELESS, {"config": {}, "tokenizer_config": {"eos_token": "<stop>"}}, {1, 2}),
        (NAMELESS, {"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": {"content": "<stop>"}}}, {2}),
        (NAMELESS, {"config": {"eos_token_id": [9]}, "generation_config": {"eos_token_id": [7, 2]}}, {1, 2, 7, 9}),
    ],
)
def test_eo_1_both_readers_of_a_folder_have_the_same_union(
    tmp_path: Path, tokens: list[str] | None, files: dict[str, Any], ends: set[int]
) -> None:
    settings = {"tokenizer_config": {"eos_token": "<pad>" if tokens else "</s>"}}
    path = write_speaking_folder(tmp_path, tokens=tokens, files=settings | files)
    assert open_model(path).end_tokens == ends
    assert tokenizer_from_folder(path).end_tokens == ends


def test_eo_1_end_of_text_counts_for_smollm2_which_names_only_the_end_of_a_turn() -> None:
    path = small_model_path()
    source = open_model(path)
    tokenizer = tokenizer_from_gguf(source.gguf_metadata)
    assert {tokenizer.name(each) for each in source.end_tokens} == {"<|endoftext|>", "<|im_end|>"}
    assert tokenizer.end_tokens == source.end_tokens


def test_eo_1_what_is_no_token_is_refused_with_its_key() -> None:
    for bad in (-1, "2", True, 1.5):
        with pytest.raises(UserError) as caught:
            gguf_end_tokens({f"{KEY}eos_token_ids": [1, bad]})
        assert caught.value.field == f"{KEY}eos_token_ids"
        with pytest.raises(UserError) as caught:
            folder_end_tokens({"generation_config.json": {"eos_token_id": bad}})
        assert caught.value.field == "generation_config.json: eos_token_id"


# ------------------------------------------------------------------------------------------------ the case itself


class Script:
    """In a runner's place: the scores of a row are highest for the token that the script has at its turn, and second
    highest for ``otherwise``."""

    def __init__(self, backend: TorchBackend, tokens: list[int], otherwise: int) -> None:
        self.backend, self.tokens, self.otherwise = backend, tokens, otherwise

    def run(self, work: StepWork) -> Tensor:
        rows = [
            *(self.backend.stepper.group.rows if len(work.tokens) else []),
            *(e.row for e in work.slices if e.samples),
        ]
        scores: Tensor = torch.zeros(len(rows), SPEAKING.vocab_size)
        scores[:, self.otherwise] = 5.0
        for place, row in enumerate(rows):
            if row.generated < len(self.tokens):
                scores[place, self.tokens[row.generated]] = 9.0
        return scores


@pytest.mark.parametrize(
    ("wants", "text", "tokens", "reason"),
    [
        ({}, "A", 2, "stop"),
        ({"ignore_eos": True, "max_tokens": 6}, "ABCC", 6, "length"),
        ({"min_tokens": 3}, "ACB", 4, "stop"),
        ({"min_tokens": 3, "stop": ["A"]}, "ACB", 4, "stop"),
        ({"min_tokens": 2, "stop": ["B"]}, "AC", 3, "stop"),
    ],
)
def test_eo_1_the_union_in_every_run(
    tmp_path: Path, wants: dict[str, Any], text: str, tokens: int, reason: str
) -> None:
    """Tokenizer EOS 2, generation config EOS [7]; the script is A, 7, B, 2 and then C for ever.  Before ``min_tokens``
    neither end may be chosen, so that the second best comes, and a stop string is text.  An end is never shown,
    not even where it is to be ignored and would have a letter, as 7 has (%)."""
    pytest.importorskip("starlette", reason="needs the extra `serve`")
    from stepwell.tests.transports.house import client, make_service  # lazy: skips where the extra is missing

    path = write_speaking_folder(
        tmp_path,
        tokens=NAMELESS,
        files={
            "config": {"eos_token_id": None},
            "tokenizer_config": {"eos_token": "<stop>"},
            "generation_config": {"eos_token_id": [7]},
        },
    )
    tokenizer = tokenizer_from_folder(path)
    (a,), (b,), (c,), (percent,) = (tokenizer.encode(each) for each in "ABC%")
    assert percent == 7
    backend = make(path, pages=400, page_size=4)
    assert isinstance(backend.stepper, HostStepper)
    backend.stepper.runner = Script(backend, [a, 7, b, 2], c)
    assert tokenizer.end_tokens == open_model(path).end_tokens == {2, 7}
    service = make_service(backend=backend, tokenizer=tokenizer, scheduler={"token_budget": 64, "running_limit": 16})
    with client(service) as http:
        body = {"prompt": "x", "max_tokens": 20, "temperature": 0, **wants}
        answer = http.post("/v1/completions", json=body).json()
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, reason)
        assert answer["usage"]["completion_tokens"] == tokens
