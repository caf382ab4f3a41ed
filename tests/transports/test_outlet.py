"""News go straight to a connection while it keeps up, and whatever happens nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.transports.herald import Herald
from stepwell.transports.outlet import LEAST_S, MOST_S, Outlet


class Connection:
    """A task that says what is new, slowly or straight, as a stream's does; ``free`` is what its client makes of it."""

    def __init__(self, outlet: Outlet) -> None:
        self.pending: list[int] = []
        self.said: list[int] = []
        self.straight = self.slow = 0
        self.free = True
        self.over = False
        self.broken = False
        self.herald = Herald(outlet, self._say)

    def tell(self, number: int) -> None:
        self.pending.append(number)
        self.herald.ring()

    def _say(self) -> bool:
        if self.broken:
            raise ValueError("broken")
        if not self.free or self.over:
            return False
        self.straight += bool(self.pending)
        self.said += self.pending
        self.pending = []
        return True

    async def serve(self) -> None:
        while True:
            taken, self.pending = self.pending, []
            while not self.free:
                await asyncio.sleep(0)
            self.slow += bool(taken)
            self.said += taken
            if self.over and not self.pending:
                return
            await self.herald.heard()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["tell", "tell", "tell", "slow", "free", "turn"])), max_size=60
    ),
    st.booleans(),
)
def test_nothing_is_lost_doubled_or_out_of_order(acts: list[tuple[int, str]], apart: bool) -> None:
    """Under any slow readers, in rounds that come at once and in rounds that come apart."""

    async def play() -> list[Connection]:
        outlet = Outlet()
        outlet.gap_s = 0.001 if apart else 0.0
        connections = [Connection(outlet) for _ in range(3)]
        tasks = [asyncio.ensure_future(each.serve()) for each in connections]
        for number, (which, act) in enumerate(acts):
            each = connections[which]
            if act == "tell":
                each.tell(number)
            elif act == "turn":
                await asyncio.sleep(0)
            else:
                each.free = act == "free"
        for each in connections:
            each.free = each.over = True
            each.herald.ring()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        return connections

    for which, each in enumerate(asyncio.run(play())):
        assert each.said == [number for number, (to, act) in enumerate(acts) if act == "tell" and to == which]


def test_who_keeps_up_is_told_without_its_task() -> None:
    async def play() -> Connection:
        each = Connection(Outlet())
        task = asyncio.ensure_future(each.serve())
        await asyncio.sleep(0)
        for number in range(5):
            each.tell(number)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return each

    each = asyncio.run(play())
    assert each.said == [0, 1, 2, 3, 4]
    assert each.slow == 0
    assert each.straight > 0


def test_what_goes_wrong_is_the_task_s() -> None:
    async def play() -> None:
        each, other = (Connection(outlet := Outlet()), Connection(outlet))
        each.broken = True
        tasks = [asyncio.ensure_future(one.serve()) for one in (each, other)]
        await asyncio.sleep(0)
        each.tell(1)
        other.tell(2)
        await asyncio.sleep(0.01)
        assert isinstance(tasks[0].exception(), ValueError)
        assert other.said == [2], "and nobody else's"
        tasks[1].cancel()

    asyncio.run(play())


def test_rounds_come_apart_while_the_loop_is_late_and_together_again() -> None:
    outlet, gaps = Outlet(), []
    for late_s in (0.5,) * 20 + (0.0,) * 20:
        outlet._looked_s -= 1.0  # a look counts once in a while
        outlet.look(late_s)
        gaps.append(outlet.gap_s)
    assert gaps[0] == LEAST_S
    assert gaps == sorted(gaps[:20]) + sorted(gaps[20:], reverse=True)
    assert gaps[19] == MOST_S
    assert gaps[-1] == 0.0
