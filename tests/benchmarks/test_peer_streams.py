"""The peer that streams beside ours: the same tokens at the same beat, and room for all of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.benchmarks.peer import model
from stepwell.benchmarks.peer.pace import Numbers, Pace
from stepwell.benchmarks.peer_streams import PROMPT, crowd_args, play, vllm_words
from stepwell.cli.streams_scenarios import beat_ends
from stepwell.sim.numbered import NUMBERED

# ------------------------------------------------------------------------------------------------ its tokens


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `model`")
    return tokenizers.Tokenizer.from_str(json.dumps(model.tokenizer()))


def test_every_token_of_an_answer_is_its_number(tokenizer: Any) -> None:
    from tokenizers.decoders import DecodeStream

    answer = [model.FIRST + number for number in range(model.NUMBERS)]
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer, token) or "" for token in answer]
    assert "".join(pieces) == NUMBERED
    assert {len(piece) for piece in pieces} == {2}


def test_prompts_are_read_back_and_fit(tokenizer: Any) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    def law(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    law()
    # as long as any of the crowd's, with what the template puts around it
    said = "user: 1000000: which tokens first please which tokens first please which tokens first\nassistant: "
    assert len(tokenizer.encode(said).ids) <= PROMPT


def test_the_folder_is_what_a_server_reads(tmp_path: Path) -> None:
    model.write(tmp_path, 256)
    read = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert read["config.json"]["max_position_embeddings"] == 256
    vocabulary = read["tokenizer.json"]["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(read["config.json"]["vocab_size"]))
    assert vocabulary[read["tokenizer_config.json"]["eos_token"]] == model.END


# ------------------------------------------------------------------------------------------------ its device


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 0.99)), min_size=1, max_size=20))
def test_a_host_that_is_faster_than_its_device_adds_nothing(steps: list[tuple[int, float]]) -> None:
    clock = SimpleNamespace(now=100.0)
    pace = Pace(0.1, 0.01, lambda: clock.now)
    ends = [100.0]
    for requests, late in steps:
        clock.now = ends[-1] + late * 0.1
        ends.append(pace.end_of(requests))
    first = 100.0 + steps[0][1] * 0.1
    took = [0.1 + 0.01 * requests for requests, _ in steps]
    assert ends[1:] == pytest.approx([first + sum(took[: count + 1]) for count in range(len(took))])


def test_a_device_that_was_idle_begins_when_it_is_told() -> None:
    clock = SimpleNamespace(now=5.0)
    pace = Pace(1.0, 0.0, lambda: clock.now)
    assert pace.end_of(1) == 6.0
    clock.now = 6.5  # late, but not idle
    assert pace.end_of(1) == 7.0
    clock.now = 9.0
    assert pace.end_of(1) == 10.0


@given(st.integers(1, 30), st.lists(st.integers(1, 10), min_size=1, max_size=30))
def test_a_token_a_step_once_the_prompt_is_computed(prompt: int, slices: list[int]) -> None:
    numbers = Numbers(first=100, count=3)
    numbers.add("a", prompt)
    numbers.add("b", 1)
    made = 0
    for place, size in enumerate(slices):
        done = sum(slices[: place + 1]) >= prompt
        assert numbers.step({"a": size, "b": 1}) == [[100 + made % 3] if done else [], [100 + place % 3]]
        made += done
    numbers.drop(["a", "never"])
    numbers.add("a", 1)
    assert numbers.step({"a": 1}) == [[100]]


# ------------------------------------------------------------------------------------------------ what is compared


@pytest.mark.parametrize(("users", "beat", "seconds"), [(1000, 0.1, 10.0), (1, 1.0, 1.0), (5000, 1.0, 30.0)])
def test_the_peer_has_room_for_the_whole_crowd(users: int, beat: float, seconds: float) -> None:
    args = crowd_args(users, beat, 10.0, seconds)
    words = vllm_words(args, "folder", 1)
    told = dict(pairwise(words))
    context = int(told["--max-model-len"])
    assert context >= PROMPT + len(beat_ends(args))
    assert int(told["--num-gpu-blocks-override"]) * int(told["--block-size"]) >= users * context
    assert int(told["--max-num-seqs"]) == users
    device = json.loads(told["--additional-config"])
    assert device["base_s"] + users * device["each_s"] == pytest.approx(beat)


def test_the_floor_is_measured_as_the_peer_is() -> None:
    line = play("bare starlette", crowd_args(users=3, beat_s=0.02, join_s=0.1, seconds=0.3), lambda: None)
    assert line["wrong"] == []
    assert line["answered"] == 3
    assert line["chunk_bytes"] == 218  # as in streams_floor
