"""HC-3: log-probabilities of prompts are computed and made once a prompt, in slices, and bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import anyio
import pytest

from stepwell.core.sampling import TokenLogprob
from stepwell.tests.transports.house import client, error_of, events, flat_cost, make_service
from stepwell.tests.transports.test_answers import Examined
from stepwell.transports.http.columns import ROWS_AT_ONCE, columns_of_prompt

TEXT = "/v1/completions"
NAMES = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


def examined() -> Examined:
    return Examined(flat_cost(20_000))


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_hc_3_the_choices_of_a_prompt_share_its_rows(stream: bool, most: int) -> None:
    backend = examined()
    service = make_service(backend=backend, logprobs=True, scheduler={"token_budget": 16, "running_limit": 8})
    prompts = ["first of all", "and the second one"]
    asked = {"prompt": prompts, "n": 3, "echo": True, "logprobs": 0, "max_tokens": most, "stream": stream}
    with client(service) as http:
        answer = http.post(TEXT, json=asked)
    chunks = events(answer.text) if stream else [answer.json()]
    assert sorted(bytes(each).decode() for each in backend.prompts.values()) == sorted(prompts)
    found: dict[int, dict[str, list[Any]]] = {}
    for each in (choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]):
        assert set(each["logprobs"]) == NAMES
        mine = found.setdefault(each["index"], {name: [] for name in NAMES})
        for name, values in each["logprobs"].items():
            mine[name] += values
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    for index, mine in found.items():
        said = prompts[index // 3] + prompts[index // 3][:most]
        assert mine["tokens"] == list(said)
        assert mine["token_logprobs"] == [None, *(-float(ord(each)) for each in said[1:])]
        assert mine["text_offset"] == list(range(len(said)))


def test_hc_3_others_have_a_turn_between_slices_of_rows() -> None:
    length = 20 * ROWS_AT_ONCE
    made: list[int] = []
    turns: Counter[int] = Counter()

    def token(id: int) -> str:
        made.append(id)
        return "x"

    async def other() -> None:
        while len(made) < length:
            turns[len(made)] += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await columns_of_prompt([1] * length, [TokenLogprob(-1.0)] * (length - 1), token)

    anyio.run(main)
    seen = sorted(turns)
    assert max(after - before for before, after in zip(seen, [*seen[1:], length], strict=True)) <= ROWS_AT_ONCE


def test_in_4_rows_are_bounded_over_prompts_and_choices() -> None:
    service = make_service(backend=examined(), logprobs=True, memory={"pages": 20_000})
    asked = {"prompt": ["x" * 6000, "y" * 6000], "echo": True, "logprobs": 5, "max_tokens": 0}
    with client(service) as http:
        assert error_of(http.post(TEXT, json=asked | {"n": 4})) == (400, "invalid_value", "logprobs")
        assert service.metrics.accepted == 0
        answer = http.post(TEXT, json=asked | {"n": 1}).json()
    assert [len(each["logprobs"]["tokens"]) for each in answer["choices"]] == [6000, 6000]
