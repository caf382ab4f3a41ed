"""HC-3 with a real tokenizer: streams and the event loop go on while long texts are tokenised."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

pytest.importorskip("tokenizers", reason="needs the extra `model`")

from stepwell.backends.tokenizer import tokenizer_from_gguf
from stepwell.backends.weights.gguf_file import read_gguf
from stepwell.tests.helpers.small_model import small_model_path
from stepwell.tests.transports.house import Call, events, make_service, visit

TEXT = "/v1/completions"
SAID = [f"{index} bottles of beer on the wall, " * 20 for index in range(5)]
LONG = "漢字" * 50_000


@pytest.mark.slow
def test_hc_3_long_texts_beside_streams() -> None:
    path = small_model_path()
    tokenizer = tokenizer_from_gguf(read_gguf(path).metadata)
    turns = {"encoding": 0, "now": 0}

    def encode(text: str) -> list[int]:
        turns["now"] += 1
        try:
            return tokenizer.prompt(text)
        finally:
            turns["now"] -= 1

    service = make_service(tokenizer=tokenizer, encode=encode, memory={"pages": 4000})

    async def count() -> None:
        while True:
            turns["encoding"] += turns["now"] > 0
            await asyncio.sleep(0)

    async def test(app: Any) -> None:
        long = [Call(TEXT, {"prompt": LONG, "max_tokens": 1}) for _ in range(3)]
        streams = [Call(TEXT, {"prompt": each, "stream": True}) for each in SAID]
        async with anyio.create_task_group() as counting:
            counting.start_soon(count)
            async with anyio.create_task_group() as tasks:
                for call in [*long, *streams]:
                    tasks.start_soon(call.run, app)
            counting.cancel_scope.cancel()
        assert [call.status for call in long] == [400] * 3
        for call, said in zip(streams, SAID, strict=True):
            assert "".join(each["choices"][0]["text"] for each in events(call.text)) == said
        assert turns["encoding"] > 100

    visit(service, test)
