"""Trouble that others had with chunked prefill (CP-1): chunks of 64 tokens, pages of 16."""

from __future__ import annotations

import pytest

from stepwell.core.limits import SchedulerLimits
from stepwell.core.types import PreemptMode
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool, build, simulate
from stepwell.tests.helpers.scripted import Scripted, computed
from stepwell.tests.helpers.timeline import Story

PROMPTS = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192]
LONG = [prompt for prompt in PROMPTS if prompt > 64]
POOL = Pool(64, 16, 64)


def limits(depth: int = 1) -> SchedulerLimits:
    return SchedulerLimits(token_budget=64, running_limit=16, depth=depth)


def chunks(story: Story) -> list[tuple[int, int, bool]]:
    return [(start, tokens, samples) for _, (_, start, tokens, samples) in story.slices]


def cut(prompt: int, size: int) -> list[tuple[int, int, bool]]:
    """What the chunks must be: each starts where the one before ended, and only the last one samples."""
    return [(start, min(size, prompt - start), start + size >= prompt) for start in range(0, prompt, size)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_cp_1_one_first_token_after_the_last_chunk(prompt: int, depth: int) -> None:
    run = simulate(build(pool=POOL, limits=limits(depth)), [TraceRequest(0, prompt, 5)])
    story = run.stories[1]
    assert chunks(story) == cut(prompt, 64)
    assert story.positions == list(range(prompt, prompt + 5))
    # A step takes 10 and one more a token; the first token exists when the last chunk is done, and not before.
    assert story.first_ns == 10 * len(story.slices) + prompt


@pytest.mark.parametrize("prompt", LONG)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_cp_1_evicted_between_chunks(mode: PreemptMode, prompt: int) -> None:
    """Chunks go on at the tokens stored: from the start after recompute, from 64 after a swap."""
    policy = Scripted([computed(64)], mode)
    story = simulate(build(policy, pool=POOL, limits=limits()), [TraceRequest(0, prompt, 5)]).stories[1]
    rest = cut(prompt, 64)
    assert chunks(story) == [rest[0], *(rest if mode == "recompute" else rest[1:])]
    assert story.positions == list(range(prompt, prompt + 5))


@pytest.mark.parametrize("prompt", LONG)
def test_cp_1_aborted_between_chunks(prompt: int) -> None:
    """The client leaves at 80, in the second step (74 to 74 + 10 + its tokens): no token, and every page comes back."""
    requests = [TraceRequest(0, prompt, 5, cancel_ns=80), TraceRequest(0, 20, 3)]
    run = simulate(build(pool=POOL, limits=limits()), requests)
    story = run.stories[1]
    assert (story.reason, story.end_ns, story.token_ns) == ("cancelled", 80, [])
    assert len(story.slices) == 2
    assert run.stories[2].positions == [20, 21, 22]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cp_1_budget_shared_with_ten_decodes(prompt: int) -> None:
    """Ten requests decode, so 54 of the 64 tokens are left; they never miss a step."""
    crowd = [TraceRequest(0, 1, 60) for _ in range(10)]
    run = simulate(build(pool=POOL, limits=limits()), [*crowd, TraceRequest(25, prompt, 5)])
    story = run.stories[11]
    assert chunks(story) == cut(prompt, 54)
    assert story.positions == list(range(prompt, prompt + 5))
    steps_ns = run.stories[1].token_ns
    for id in range(1, 11):
        assert run.stories[id].token_ns == steps_ns
    assert len(steps_ns) == 60
    # One step ends at 20 (ten prompts of one token); the next one is under way at 25 and ends at 40.
    assert [at for at, _ in story.slices] == steps_ns[1 : 1 + len(story.slices)]
