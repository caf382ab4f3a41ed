"""What an answer left can be found by the chat's next turn: as far as it was computed, however it ended."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stepwell.core.answer_keys import AnswerKeys
from stepwell.core.engine import Engine
from stepwell.core.events import Cancel, Stop
from stepwell.core.instructions import Admitted
from stepwell.core.page_keys import page_keys
from stepwell.core.registry import complete
from stepwell.core.sampling import SamplingParams
from stepwell.core.streams import Stream
from stepwell.sim.replay import replay
from stepwell.sim.run import open_writer
from stepwell.tests.core.house import DEPTHS, ROOM, House, house

SALT = b"of a tenant"
SIZE = 4
KEPT: dict[str, Any] = {"allocator": "prefix", "memory": {**ROOM, "page_size": SIZE}, "virtual": True}


def ask(engine: Engine, prompt: list[int], most: int, salt: bytes = SALT) -> Stream:
    return engine.submit(prompt, most, keys=page_keys(prompt, SIZE, salt), salt=salt)


def found(it: House) -> list[int]:
    """What each admission found, in tokens."""
    return [each.cached for each in it.decided if isinstance(each, Admitted)]


def full(tokens: int) -> int:
    return tokens // SIZE * SIZE


@DEPTHS
@pytest.mark.parametrize("ends", ["length", "end token"])
@pytest.mark.parametrize(("prompt", "answer"), [(10, 7), (8, 1), (3, 30), (1, 1), (2, 3), (13, 4), (5, 200)])
def test_the_next_turn_finds_the_answer(depth: int, ends: str, prompt: int, answer: int) -> None:
    """All but its last token, which was never computed."""
    it = house(depth, **KEPT, lengths={1: answer, 2: 3})

    async def visit(engine: Engine) -> None:
        first = ask(engine, list(range(prompt)), answer if ends == "length" else 300)
        await first.wait()
        assert len(first.tokens) == answer
        await ask(engine, [*range(prompt), *first.tokens, 999], 3).wait()

    it.serve(visit)
    assert found(it) == [0, full(prompt + answer - 1)]


@DEPTHS
def test_what_was_computed_before_a_stop_or_a_cancel_is_found(depth: int) -> None:
    """Of a stop, what belongs to the answer."""
    it = house(depth, **KEPT, lengths=dict.fromkeys(range(1, 9), 200))

    async def visit(engine: Engine) -> None:
        for leaves in (True, False):
            prompt = [int(leaves)] * 10
            first = ask(engine, prompt, 200)
            async for _ in first:
                if len(first.tokens) >= 25:
                    first.cancel() if leaves else engine.stop(first.request, 17)
                    break
            await first.wait()
            tokens = first.tokens[:25] if leaves else first.tokens[:17]
            assert len(tokens) == (25 if leaves else 17)
            await ask(engine, [*prompt, *tokens, *range(30)], 1).wait()

    it.serve(visit)
    assert found(it) == [0, full(10 + 25 - 1), 0, full(10 + 17)]


@DEPTHS
def test_a_live_journal_replays_with_what_the_next_turn_found(tmp_path: Path, depth: int) -> None:
    it = house(depth, **KEPT, lengths=dict.fromkeys(range(1, 9), 11))
    writer = open_writer(tmp_path / "live.jsonl", complete(it.case.config()), it.scheduler)
    it.observers.append(writer.observe)

    async def visit(engine: Engine) -> None:
        said = [1, 2, 3]
        for turn in range(4):
            stream = ask(engine, said, 9 if turn % 2 else 100)
            await stream.wait()
            said += [*stream.tokens, 7]

    it.serve(visit)
    writer.close()
    assert replay(writer.path).difference is None
    assert found(it) == [0, 12, 20, 32]


def test_only_who_has_the_salt_finds_it_and_only_if_one_was_given() -> None:
    it = house(**KEPT, lengths=dict.fromkeys(range(1, 9), 20))

    async def visit(engine: Engine) -> None:
        for salt in (b"", b"one"):
            first = ask(engine, [1] * 3, 20, salt)
            await first.wait()
            for other in (salt + b"!", salt):
                await ask(engine, [1] * 3 + first.tokens + [2] * 4, 1, other).wait()

    it.serve(visit)
    assert found(it) == [0, 0, 0, 0, 0, full(3 + 20 - 1)]


def test_however_answers_are_looked_at_their_keys_are_those_of_the_whole() -> None:
    """Made in pieces while the answer grows, or at the end; and never of more than was said."""
    dice = random.Random(4)
    state = house(**KEPT).scheduler.state
    for _ in range(200):
        prompt = [dice.randrange(9) for _ in range(dice.randint(1, 12))]
        keys, said = AnswerKeys(state), Stream(1, lambda request: None)
        of_prompt = page_keys(prompt, SIZE, SALT)
        keys.begin(1, prompt, of_prompt, SALT)
        for _ in range(dice.randint(0, 40)):
            said.push(dice.randrange(9))
            if dice.random() < 0.2:
                keys.look({1: said})
        keep = dice.randint(0, len(said.tokens))
        stop, cancel = Stop(1, keep), Cancel(1)
        keys.complete([stop, cancel], [], {1: said})
        most = max(len(said.tokens) - 1, 0)
        assert of_prompt + cancel.keys == page_keys(prompt + said.tokens[:most], SIZE, SALT)
        assert of_prompt + stop.keys == page_keys(prompt + said.tokens[: min(keep, most)], SIZE, SALT)


def test_a_prompt_whose_log_probabilities_are_asked_for_leaves_nothing() -> None:
    it = house(**KEPT, lengths={1: 20, 2: 1})

    async def visit(engine: Engine) -> None:
        keys = page_keys([1] * 10, SIZE, SALT)
        first = engine.submit([1] * 10, 20, keys=keys, salt=SALT, sampling=SamplingParams(prompt_logprobs=0))
        await first.wait()
        await ask(engine, [1] * 10 + first.tokens, 1).wait()

    it.serve(visit)
    assert found(it) == [0, 0]
