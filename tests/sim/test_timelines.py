"""Small timelines, computed on paper first and met to the nanosecond by the live engine in virtual time.

A step takes 10 + prefill tokens + decoding requests + 5 per page copied to or from the host + 3 per page copied within
the device.  "A 6" is a slice of 6 tokens of A, "A+" that A decodes; a page holds four tokens.  What runs without being
in the decode group (after a swap) counts as a prefill of one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from stepwell.core import registry
from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.config import MemoryConfig
from stepwell.core.engine import Engine
from stepwell.core.limits import SchedulerLimits
from stepwell.core.page_keys import page_keys
from stepwell.core.protocols import SchedulerPolicy
from stepwell.core.scheduler import Scheduler
from stepwell.core.streams import Stream
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.tests.helpers.runs import ROUND, assert_empty
from stepwell.tests.helpers.scripted import Scripted, outputs

COST = msgspec.structs.replace(ROUND, copy_page_ns=3)
PAGE = 4
SALT = b"paper"

Act = Callable[[Engine], Any]


class Ear:
    """Notes when each token came."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.token_ns: list[int] = []

    def heard(self, tokens: Sequence[int]) -> None:
        self.token_ns += [self.clock.now_ns()] * len(tokens)

    def ended(self) -> None: ...


def play(
    *acts: tuple[int, Act],
    lengths: Sequence[int],
    policy: str | SchedulerPolicy = "fcfs",
    allocator: str = "paged",
    limits: SchedulerLimits | None = None,
) -> list[list[int]]:
    """Acts at their times; those that return a stream are requests, of answers so long.  When each had its tokens."""
    memory = MemoryConfig(allocator=allocator, pages=16, page_size=PAGE, host_pages=16)
    named = policy if isinstance(policy, str) else "scripted"

    def make(name: str, options: dict[str, object]) -> SchedulerPolicy:
        return policy if not isinstance(policy, str) else registry.make_policy(name, options)

    scheduler = Scheduler(limits or SchedulerLimits(), registry.make_allocator(memory), make, named)
    ears: list[Ear] = []

    async def main() -> None:
        clock = VirtualClock()
        answers = dict(enumerate(lengths, 1))
        engine = Engine(scheduler, EchoBackend(cost=Linear(COST), lengths=answers), clock)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            for at_ns, act in acts:
                await clock.sleep_until(at_ns)
                stream = act(engine)
                if isinstance(stream, Stream):
                    ears.append(Ear(clock))
                    stream.listen(ears[-1])
            await engine.drained()
            engine.close()
        assert not engine.failed

    run_virtual(main)
    assert_empty(scheduler)
    return [ear.token_ns for ear in ears]


def ask(*prompt: int, **named: Any) -> Act:
    keys = page_keys(prompt, PAGE, SALT)
    return lambda engine: engine.submit(prompt, 100, keys=keys, salt=SALT, **named)


def test_a_prefill_in_chunks_beside_a_decode() -> None:
    """A budget of four tokens.

    0:  A 2       10 + 2     = 12 → 12  A1
    12: A+, B 3   10 + 1 + 3 = 14 → 26  A2
    26: A+, B 3   10 + 1 + 3 = 14 → 40  A3 (its end), B1
    40: B+        10 + 1     = 11 → 51  B2 (its end)
    """
    four = SchedulerLimits(token_budget=4, running_limit=4)
    times = play((0, ask(1, 2)), (5, ask(1, 2, 3, 4, 5, 6)), lengths=(3, 2), limits=four)
    assert times == [[12, 26, 40], [40, 51]]


def test_swapped_out_and_in() -> None:
    """A is sent to the host with two tokens said, so with four computed: one page.

    0:  A 3       10 + 3 = 13 → 13  A1
    13: A+        10 + 1 = 11 → 24  A2
    24: A out     10 + 5 = 15 → 39
    39: A in      10 + 5 = 15 → 54      (it rides one step before A runs again)
    54: A 1       10 + 1 = 11 → 65  A3
    65: A+        10 + 1 = 11 → 76  A4
    """
    assert play((0, ask(1, 2, 3)), lengths=(4,), policy=Scripted([outputs(2)], "swap")) == [[13, 24, 65, 76]]


def test_recomputed() -> None:
    """As before, but A's page is dropped: its five known tokens are computed again, and give the next one.

    0:  A 3       10 + 3 = 13 → 13  A1
    13: A+        10 + 1 = 11 → 24  A2
    24: A 5       10 + 5 = 15 → 39  A3
    39: A+        10 + 1 = 11 → 50  A4
    """
    assert play((0, ask(1, 2, 3)), lengths=(4,), policy=Scripted([outputs(2)], "recompute")) == [[13, 24, 39, 50]]


def test_a_prefix_that_was_computed() -> None:
    """B begins with A's two pages; C is A's prompt itself, whose last page is computed again for its last token.

    0:  A 8       10 + 8     = 18 → 18  A1 (its end): two pages can be found
    20: B 2, C 4  10 + 2 + 4 = 16 → 36  B1, C1 (its end)
    36: B+        10 + 1     = 11 → 47  B2 (its end)
    """
    eight = (1, 2, 3, 4, 5, 6, 7, 8)
    times = play((0, ask(*eight)), (20, ask(*eight, 9, 10)), (20, ask(*eight)), lengths=(1, 2, 1), allocator="prefix")
    assert times == [[18], [36, 47], [36]]
    times = play((0, ask(*eight)), (20, ask(*eight, 9, 10)), (20, ask(*eight)), lengths=(1, 2, 1))
    assert times == [[18], [48, 59], [48]], "paged finds nothing: 10 + 10 + 8"


def test_two_choices_of_one_prompt() -> None:
    """B shares A's full page, has the half one copied, and computes the last prompt token, which it samples from.

    0:  A 6         10 + 6         = 16 → 16  A1
    16: A+, B 1     10 + 1 + 1 + 3 = 15 → 31  A2 (its end), B1
    31: B+          10 + 1         = 11 → 42  B2
    42: B+                         = 11 → 53  B3 (its end)
    """
    six = (1, 2, 3, 4, 5, 6)
    assert play((0, ask(*six)), (0, ask(*six, parent=1)), lengths=(2, 3)) == [[16, 31], [31, 42, 53]]


def test_a_policy_changed_while_others_wait() -> None:
    """One seat.  B came before C; from 15 on the policy is ``priority``, which takes C first.

    0:  A 2       10 + 2 = 12 → 12  A1
    12: A+        10 + 1 = 11 → 23  A2 (its end)
    23: C 4       10 + 4 = 14 → 37  C1 (its end)
    37: B 2       10 + 2 = 12 → 49  B1 (its end)
    """
    visits = (0, ask(1, 2, priority=-5)), (5, ask(3, 4)), (6, ask(5, 6, 7, 8, priority=-1))
    change: Act = lambda engine: engine.use_policy("priority", {})  # noqa: E731
    one = SchedulerLimits(running_limit=1, token_budget=8)
    assert play(*visits, (15, change), lengths=(2, 1, 1), limits=one) == [[12, 23], [49], [37]]
    assert play(*visits, lengths=(2, 1, 1), limits=one) == [[12, 23], [35], [49]]


def test_who_leaves_within_a_step_counts_until_it_ends() -> None:
    """C is cancelled at 14.

    0:  A 1, C 1  10 + 2 = 12 → 12  A1, C1
    12: A+, C+    10 + 2 = 12 → 24  A2 (its end); C left at 14
    """
    leave: Act = lambda engine: engine._streams[2].cancel()  # noqa: E731
    assert play((0, ask(1)), (0, ask(2)), (14, leave), lengths=(2, 9)) == [[12, 24], [12]]
