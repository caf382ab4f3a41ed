"""Laws of the token bucket, against a naive one in fractions; and of the accounts that are made of two of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.config import Config, validate
from stepwell.core.config_gateway import GatewayConfig, TenantConfig
from stepwell.core.errors import CapacityError

pytest.importorskip("starlette", reason="needs the extra `serve`")

from stepwell.transports.errors import LimitReached, refusal_of
from stepwell.transports.gateway.bucket import MINUTE_NS, Bucket
from stepwell.transports.gateway.durations import written
from stepwell.transports.gateway.limits import LOOKED_AT, Cost, Limits, Ticket

Moves = list[tuple[int, int, int]]
"""Nanoseconds that pass (some backwards), tokens that are reserved, and that are used of them."""

MOVES: st.SearchStrategy[Moves] = st.lists(
    st.tuples(st.integers(-(10**9), 2 * MINUTE_NS), st.integers(0, 1500), st.integers(0, 3000)), max_size=40
)
RATES = st.integers(1, 1000)


class Naive:
    """The same in exact fractions of tokens, in as few words as possible."""

    def __init__(self, rate: int) -> None:
        self.rate, self.level, self.at = rate, Fraction(rate), 0

    def pass_to(self, now: int) -> None:
        came = Fraction(max(now - self.at, 0) * self.rate, MINUTE_NS)
        self.at = max(self.at, now)
        self.level = min(self.level + came, Fraction(self.rate))


@given(RATES, MOVES)
def test_it_is_the_naive_one(rate: int, moves: Moves) -> None:
    bucket, naive, now = Bucket(rate, 0), Naive(rate), 0
    for passes, reserved, used in moves:
        now += passes
        naive.pass_to(now)
        taken = bucket.reserve(reserved, now)
        assert taken is (reserved <= naive.level)
        if taken:
            bucket.settle(reserved, used, now)
            naive.level = min(naive.level - used, Fraction(rate))
        assert bucket.left(now) == naive.level.numerator // naive.level.denominator


@given(RATES, MOVES)
def test_never_above_its_capacity_and_a_refund_is_at_most_what_was_reserved(rate: int, moves: Moves) -> None:
    bucket, now = Bucket(rate, 0), 0
    for passes, reserved, used in moves:
        now += passes
        before = bucket.left(now)
        if not bucket.reserve(reserved, now):
            assert reserved > before
            continue
        assert bucket.left(now) == before - reserved
        bucket.settle(reserved, used, now)
        assert bucket.left(now) == before - used
        assert bucket.left(now) <= rate


@given(RATES, st.lists(st.tuples(st.integers(0, MINUTE_NS), st.integers(0, 50)), max_size=30))
def test_nothing_is_lost_and_nothing_appears(rate: int, takes: list[tuple[int, int]]) -> None:
    """In any time a tenant gets what the bucket held and what came meanwhile, and no token more."""
    bucket, now, got = Bucket(rate, 0), 0, 0
    for passes, tokens in takes:
        now += passes
        if bucket.reserve(tokens, now):
            got += tokens
    assert got + bucket.left(now) <= rate + Fraction(now * rate, MINUTE_NS)


@given(RATES, st.integers(0, 5000))
def test_at_rest_it_fills_again(rate: int, used: int) -> None:
    bucket = Bucket(rate, 0)
    bucket.reserve(0, 0)
    bucket.settle(0, used, 0)
    assert bucket.full(0) is (used == 0)
    wait_ns = bucket.wait_ns(rate, 0)
    assert used == 0 or not bucket.full(wait_ns - 1)
    assert bucket.full(wait_ns)


@given(RATES, st.integers(0, 2000), st.integers(1, 1500))
def test_whoever_waits_as_long_as_was_said_is_served(rate: int, used: int, wanted: int) -> None:
    bucket = Bucket(rate, 0)
    bucket.settle(0, used, 0)
    wait_ns = bucket.wait_ns(wanted, 0)
    assert bucket.reserve(min(wanted, rate), wait_ns)
    if wait_ns:
        again = Bucket(rate, 0)
        again.settle(0, used, 0)
        assert not again.reserve(min(wanted, rate), wait_ns - 1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (12, "12ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_723_250, "1h2m3.25s"),
    ],
)
def test_durations_are_written_as_go_does(ms: int, text: str) -> None:
    assert written(ms * 1_000_000) == text
    assert written(ms * 1_000_000 - 1) == text


# ------------------------------------------------------------------------------------------------ accounts


def limits(*tenants: TenantConfig, **gateway: float) -> Limits:
    return Limits(validate(Config(gateway=GatewayConfig(**gateway), tenants=tenants)))  # type: ignore[arg-type]


def test_what_a_request_costs_is_settled_when_it_ends() -> None:
    """Reserved: the prompt and the answer that is predicted, or ``max_tokens`` if that is less.  Paid: what there was,
    with cached tokens at a discount."""
    it = limits(tokens_per_minute=1000, predicted_tokens=100, cached_share=0.1)
    assert it.headers("a", 0) == {}
    first = it.take("a", [300], 1, 5000, 0)
    second = it.take("a", [300], 1, 50, 0)
    assert it.headers("a", 0)["x-ratelimit-remaining-tokens"] == "250"
    first.settle(Cost(300, 200, 40), 0)  # 100 + 20 + 40 of 400
    second.settle(Cost(300, 0, 50), 0)
    second.settle(None, 0)
    assert it.headers("a", 0) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "490",
        "x-ratelimit-reset-tokens": "30.6s",
    }


def test_what_never_began_costs_nothing() -> None:
    it = limits(tokens_per_minute=1000, requests_per_minute=5, concurrent=3)
    full = it.take("a", [0], 1, 1, 0)
    full.settle(None, 0)
    before = it.headers("a", 0)
    it.take("a", [500], 2, 10, 0).settle(None, 0)  # the scheduler refused it
    assert it.headers("a", 0) == before
    it.take("a", [500], 2, 10, 0).settle(Cost(), 0)  # its client left while it was in line
    assert it.headers("a", 0)["x-ratelimit-remaining-tokens"] == "1000"
    assert it.headers("a", 0)["x-ratelimit-remaining-requests"] == "4"
    for _ in range(3):
        it.take("a", [1], 1, 1, 0)
    with pytest.raises(LimitReached, match="concurrent"):
        it.take("a", [1], 1, 1, 0)


def test_a_longer_answer_than_was_reserved_is_owed() -> None:
    it = limits(tokens_per_minute=600, predicted_tokens=10)
    it.take("a", [100], 1, 5000, 0).settle(Cost(100, 0, 1100), 0)
    with pytest.raises(LimitReached, match="tokens_per_minute") as refused:
        it.check("a", 0)
    assert refused.value.retry_after_ns == 601 * MINUTE_NS // 600
    assert refusal_of(refused.value).status == 429
    it.check("a", refused.value.retry_after_ns)


def test_what_is_predicted_follows_the_tenants_own_answers() -> None:
    it = limits(tokens_per_minute=100_000, predicted_tokens=1000)
    for _ in range(200):
        it.take("a", [0], 2, 5000, 0).settle(Cost(0, 0, 40), 0)
    before = int(it.headers("a", 10 * MINUTE_NS)["x-ratelimit-remaining-tokens"])
    it.take("a", [0], 1, 5000, 10 * MINUTE_NS)
    assert before - int(it.headers("a", 10 * MINUTE_NS)["x-ratelimit-remaining-tokens"]) in range(19, 22)


def test_each_limit_is_named_and_says_when_to_come_again() -> None:
    it = limits(requests_per_minute=2, tokens_per_minute=100, concurrent=8, predicted_tokens=1)
    with pytest.raises(
        LimitReached, match=r"tokens_per_minute.*100 are left, and this asks for 150, which it never holds"
    ) as never:
        it.take("a", [150], 1, 5000, 0)
    assert refusal_of(never.value).headers["x-should-retry"] == "false"
    with pytest.raises(LimitReached, match="concurrent") as much:
        it.take("a", [1], 9, 5000, 0)
    assert refusal_of(much.value).headers["x-should-retry"] == "false"
    for _ in range(2):
        it.take("a", [10], 1, 5000, 0)
    with pytest.raises(LimitReached, match="requests_per_minute") as refused:
        it.take("a", [10], 1, 5000, 0)
    told = refusal_of(refused.value, wait_ns=77 * 10**9)
    assert told.code == "rate_limit_exceeded"
    assert told.headers["Retry-After"] == "30"
    assert told.headers["retry-after-ms"] == "30000"
    assert told.headers["x-ratelimit-remaining-requests"] == "0"
    assert told.headers["x-ratelimit-reset-requests"] == "1m0s"
    it.take("a", [10], 1, 5000, 0, counts=False)  # a line of a batch
    it.take("a", [10], 1, 5000, 30 * 10**9)


def test_tenants_have_limits_of_their_own() -> None:
    own = TenantConfig(name="big", requests_per_minute=100), TenantConfig(name="free", requests_per_minute=0)
    it = limits(*own, requests_per_minute=1)
    for _ in range(100):
        it.take("big", [1], 1, 1, 0)
        it.take("free", [1], 1, 1, 0)
    it.take("small", [1], 1, 1, 0)
    for tenant in ("big", "small"):
        with pytest.raises(LimitReached):
            it.take(tenant, [1], 1, 1, 0)
    assert it.headers("free", 0) == {}


def test_lines_of_batches_take_no_client_s_place_and_have_as_many() -> None:
    """A batch in progress must not shut its own tenant's chats out."""
    it = limits(concurrent=2)
    clients, lines = ([it.take("a", [1], 1, 1, 0, counts=counts) for _ in range(2)] for counts in (True, False))
    for counts in (True, False):
        with pytest.raises(LimitReached, match="2 are in progress, and this asks for 1"):
            it.take("a", [1], 1, 1, 0, counts=counts)
    assert it.open == 4
    lines[0].settle(Cost(1, 0, 1), 0)
    with pytest.raises(LimitReached):
        it.take("a", [1], 1, 1, 0)
    it.take("a", [1], 1, 1, 0, counts=False).settle(None, 0)
    for ticket in (*clients, *lines):
        ticket.settle(None, 0)
    assert it.open == 0


def test_tenants_take_bounded_memory() -> None:
    """One that is at rest makes room; while all are busy another is refused; and who is kept keeps what it owes."""
    it = limits(requests_per_minute=60, max_tenants=50)
    for number in range(1000):
        it.take(f"t{number}", [1], 1, 1, number * 10**9).settle(Cost(1, 0, 1), number * 10**9)
    assert len(it) == 50
    now_ns = 2000 * 10**9
    tickets: list[Ticket] = [it.take(f"busy{number}", [1], 1, 1, now_ns) for number in range(50)]
    assert len(it) == 50
    with pytest.raises(CapacityError) as refused:
        it.take("another", [1], 1, 1, now_ns)
    assert refused.value.code == "too_many_tenants"
    assert int(it.headers("busy0", now_ns)["x-ratelimit-remaining-requests"]) == 59
    for ticket in tickets:
        ticket.settle(Cost(), now_ns)
    it.take("another", [1], 1, 1, now_ns + MINUTE_NS)
    assert LOOKED_AT < 50
    assert len(it) == 50


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "drop", "wait"]),
        st.integers(0, 3),
        st.integers(1, 200),
        st.integers(0, 400),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_at_rest_every_account_is_as_it_was(operations: list[tuple[str, int, int, int]]) -> None:
    """Whatever was taken, settled and given back: nothing is open at the end, and all that is owed comes in again."""
    it = limits(requests_per_minute=50, tokens_per_minute=500, concurrent=4, predicted_tokens=20)
    now_ns, tickets = 0, []
    for what, which, size, used in operations:
        if what == "wait":
            now_ns += size * 10**9
        elif what == "take":
            try:
                tickets.append(it.take(f"t{which}", [size], 1, 50, now_ns))
            except LimitReached:
                continue
        elif tickets:
            ticket = tickets.pop(which % len(tickets))
            ticket.settle(Cost(used, min(used, size), used) if what == "settle" else None, now_ns)
            ticket.settle(Cost(10_000, 0, 10_000), now_ns)
    for ticket in tickets:
        ticket.settle(None, now_ns)
    now_ns += 60 * 800 * MINUTE_NS
    for which in range(4):
        for name, value in it.headers(f"t{which}", now_ns).items():
            assert "reset" not in name or value == "0s"
        for _ in range(4):
            it.take(f"t{which}", [1], 1, 1, now_ns)
