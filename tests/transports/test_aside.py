"""HC-3: what takes long is done aside, in one thread for all prompts of a request, and never on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest

from stepwell.core.errors import StepwellError, UserError
from stepwell.core.execution import BackendInfo, PromptIds
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.tests.transports.house import chat, client, make_service
from stepwell.transports.aside import Aside
from stepwell.transports.echo import ByteTokenizer

TEXT = "/v1/completions"
LIMIT = 4 << 10


class Noting(ByteTokenizer):
    """Notes which thread encodes and decodes how long a text."""

    def __init__(self) -> None:
        self.encoded: list[tuple[int, int]] = []
        self.decoded: list[tuple[int, int]] = []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.encoded.append((threading.get_ident(), len(text)))
        return super().encode(text)

    def decode(self, tokens: Sequence[int]) -> bytes:
        self.decoded.append((threading.get_ident(), len(tokens)))
        return super().decode(tokens)


@pytest.mark.parametrize(
    "prompt",
    [
        "x" * (LIMIT + 1),
        "字" * (LIMIT // 3 + 1),
        ["y" * (LIMIT // 16 + 1)] * 16,
        [[120] * 600, "z" * LIMIT],
    ],
    ids=["long", "few-letters-many-bytes", "many-prompts", "ids-and-text"],
)
def test_hc_3_a_request_s_long_prompts_are_tokenised_in_one_thread(prompt: Any) -> None:
    noting = Noting()
    service = make_service(tokenizer=noting, memory={"pages": 20_000})
    asked = {"prompt": prompt, "max_tokens": 1, "echo": True}
    with client(service) as http:
        assert http.portal is not None
        loop = http.portal.call(threading.get_ident)
        answer = http.post(TEXT, json=asked).json()
    texts = prompt if isinstance(prompt, list) else [prompt]
    assert [length for _, length in noting.encoded] == [len(each) for each in texts if isinstance(each, str)]
    assert len({thread for thread, _ in noting.encoded}) == 1
    assert loop not in {thread for thread, _ in noting.encoded}
    echoed = [(thread, length) for thread, length in noting.decoded if length > 1]
    assert len(echoed) == len(texts)
    assert loop not in {thread for thread, _ in echoed}
    for choice, each in zip(answer["choices"], texts, strict=True):
        assert choice["text"].startswith(each if isinstance(each, str) else bytes(each).decode())


def test_a_short_prompt_needs_no_thread() -> None:
    noting = Noting()
    with client(make_service(tokenizer=noting)) as http:
        assert http.portal is not None
        loop = http.portal.call(threading.get_ident)
        http.post(TEXT, json={"prompt": ["x" * 100] * 16, "max_tokens": 1})
    assert noting.encoded == [(loop, 100)] * 16


class Taking(EchoBackend):
    """Has a vocabulary, looks at prompts as a place does, and notes what it was given."""

    def __init__(self) -> None:
        super().__init__(cost=Linear(Linear.Options()))
        self.given: list[Sequence[int]] = []

    def admit(
        self,
        request: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        BackendInfo(model="echo", vocab_size=256).check_prompt(prompt)
        self.given.append(prompt)
        super().admit(request, prompt, max_tokens, sampling, output)


def test_hc_3_a_prompt_s_ids_are_looked_through_once_at_most_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once if a client sent them, never if they are the tokenizer's; however many choices there are."""
    looks: list[int] = []

    def look(ids: PromptIds) -> Iterator[int]:
        looks.append(len(ids))
        return list.__iter__(ids)

    monkeypatch.setattr(PromptIds, "__iter__", look)
    backend = Taking()
    with client(make_service(backend=backend)) as http:
        http.post("/v1/chat/completions", json=chat("a" * 40, n=3, max_tokens=1))
        http.post(TEXT, json={"prompt": ["b" * 50, [99] * 60], "n": 3, "max_tokens": 1})
        wrong = http.post(TEXT, json={"prompt": [97, 256], "n": 3, "max_tokens": 1})
    assert wrong.status_code == 400
    assert [len(each) for each in backend.given] == [40] * 3 + [50] * 3 + [60] * 3
    assert len({id(each) for each in backend.given}) == 3
    assert looks == []


def test_ids_of_a_larger_vocabulary_are_looked_through() -> None:
    info = BackendInfo(model="small", vocab_size=100)
    info.check_prompt(PromptIds([99], below=100))
    with pytest.raises(UserError):
        info.check_prompt(PromptIds([100], below=101))
    with pytest.raises(UserError):
        info.check_prompt(PromptIds([], below=100))


def test_who_leaves_before_the_turn_comes_costs_nothing() -> None:
    """Twenty wait for two threads and leave; only two pieces of work are ever begun, and later ones get their turn."""
    gate = threading.Event()
    begun: list[int] = []

    def work(each: int) -> int:
        begun.append(each)
        gate.wait(30)
        return each

    async def main() -> None:
        aside = Aside(2)
        async with anyio.create_task_group() as tasks:
            for each in range(20):
                tasks.start_soon(aside, work, each)
            while len(begun) < 2:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert len(begun) == 2
        gate.set()
        assert [await aside(work, each) for each in (20, 21, 22)] == [20, 21, 22]
        assert len(begun) == 5
        with pytest.raises(ValueError, match="invalid literal"):
            await aside(int, "x")
        aside.close()
        with pytest.raises(StepwellError):
            await aside(work, 23)

    anyio.run(main)
