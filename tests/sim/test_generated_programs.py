"""Generated users, sessions, retrieval and agents: what holds of all of them, and of each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim.workload.agents import AgentClass, Agents, generate_agents
from stepwell.sim.workload.mixes import Delay, Lengths, TenantMix
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import TraceRequest, Workload, shared_key_share
from stepwell.sim.workload.retrieval import Retrieval, RetrievalClass, generate_retrieval
from stepwell.sim.workload.sessions import SessionClass, Sessions, generate_sessions
from stepwell.sim.workload.users import UserClass, Users, generate_users

MAKE: dict[type, Callable[[Any], Workload]] = {
    Users: generate_users,
    Sessions: generate_sessions,
    Retrieval: generate_retrieval,
    Agents: generate_agents,
}

FEW = st.builds(Lengths, st.floats(1, 6), st.floats(0, 1), st.integers(1, 3), st.integers(3, 9))
MANY = st.builds(Lengths, st.floats(1, 90), st.floats(0, 1.5), st.integers(1, 9), st.integers(9, 400))
DELAY = st.one_of(
    st.builds(Delay, st.sampled_from([0.0, 0.5, 20.0]), st.sampled_from(["exponential", "constant"])),
    st.builds(Delay, st.just(3.0), st.just("lognormal"), st.floats(0, 2)),
)
ARRIVALS = st.builds(Arrivals, st.sampled_from([0.5, 40.0]), st.sampled_from(["poisson", "constant"]))
SHARE = st.sampled_from([1.0, 4.0])
TENANTS = st.sampled_from([(TenantMix(),), (TenantMix("a", 3.0), TenantMix("b", 1.0))])
SHARED = st.sampled_from([0, 5, 16, 100])
SEED = st.integers(0, 2**64 - 1)
ROOM = st.sampled_from([300, 4_000])
KEY = st.sampled_from([1, 7, 16])


def two(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One class or two."""
    return st.one_of(
        kind.map(lambda it: (it,)),
        st.tuples(kind, kind).map(lambda both: (both[0], msgspec.structs.replace(both[1], name="batch"))),
    )


USERS = st.builds(
    Users, two(st.builds(UserClass, MANY, MANY, DELAY, share=SHARE)), st.integers(1, 9), st.integers(1, 9),
    st.sampled_from([0.0, 5.0]), TENANTS, SEED,
)  # fmt: skip
SESSIONS = st.builds(
    Sessions, ARRIVALS, two(st.builds(SessionClass, FEW, MANY, MANY, DELAY, SHARED, share=SHARE)), st.integers(1, 20),
    ROOM, TENANTS, KEY, SEED,
)  # fmt: skip
RETRIEVAL = st.builds(
    Retrieval, ARRIVALS, two(st.builds(RetrievalClass, MANY, MANY, share=SHARE)), MANY, st.integers(3, 30),
    st.sampled_from([0.0, 1.0, 2.5]), st.integers(1, 3), SHARED, st.integers(1, 60), TENANTS, KEY, SEED,
)  # fmt: skip
AGENTS = st.builds(
    Agents, ARRIVALS,
    two(st.builds(AgentClass, FEW, MANY, MANY, MANY, DELAY, SHARED, st.sampled_from([1, 1, 2, 3]), share=SHARE)),
    st.integers(1, 15), ROOM, TENANTS, KEY, SEED,
)  # fmt: skip


def made(options: Any) -> Workload:
    """The workload; settings under which nothing fits are of no interest."""
    try:
        return MAKE[type(options)](options)
    except UserError as error:
        if error.field != "max_context":
            raise
        return Workload("none", [])


@settings(max_examples=80, deadline=None)
@given(options=st.one_of(USERS, SESSIONS, RETRIEVAL, AGENTS))
def test_what_holds_of_every_kind(options: Any) -> None:
    workload = made(options)
    requests = workload.requests
    assert workload.digest() == made(options).digest()
    names = {each.name for each in options.classes}, {each.name for each in options.tenants}
    for each in requests:
        assert each.klass in names[0]
        assert each.tenant in names[1]
        before = [requests[place - 1] for place in each.after]
        assert (each.think_ns == 0) or before
        if before:  # the earliest time there is, so that a run never has to wait for it
            assert each.arrival_ns == max(it.arrival_ns for it in before) + each.think_ns
        for it in before:
            assert (it.program, it.klass, it.tenant) == (each.program, each.klass, each.tenant)
            assert each.program
    keys_nest(requests, workload.key_tokens)


def keys_nest(requests: list[TraceRequest], key_tokens: int) -> None:
    """A key has one place and one key before it, and is of one tenant; prompts have keys for all their tokens."""
    known: dict[int, tuple[int, int, str]] = {}
    for each in requests:
        assert len(each.keys) == (-(-each.prompt_tokens // key_tokens) if key_tokens else 0)
        full = each.keys[: each.prompt_tokens // key_tokens] if key_tokens else []
        for chain in (each.keys, [*full, *each.answer_keys]):
            for place, key in enumerate(chain):
                stands = (place, chain[place - 1] if place else 0, each.tenant)
                assert known.setdefault(key, stands) == stands


@settings(max_examples=40, deadline=None)
@given(options=USERS)
def test_a_users_requests_are_a_chain(options: Users) -> None:
    workload = made(options)
    assert len(workload) == options.users * options.requests
    assert workload.followers == options.users * (options.requests - 1)
    for chain in programs(workload).values():
        assert len(chain) == options.requests
        assert [len(each.after) for _, each in chain] == [0] + [1] * (options.requests - 1)
        assert [each.after[0] for _, each in chain[1:]] == [place for place, _ in chain[:-1]]
        assert 0 <= chain[0][1].arrival_ns <= options.start_s * 1e9


def programs(workload: Workload) -> dict[str, list[tuple[int, TraceRequest]]]:
    """Requests with their places, by program."""
    found: dict[str, list[tuple[int, TraceRequest]]] = defaultdict(list)
    for place, each in enumerate(workload.requests, 1):
        found[each.program].append((place, each))
    return found


@settings(max_examples=40, deadline=None)
@given(options=SESSIONS)
def test_a_turn_begins_with_all_that_was_said(options: Sessions) -> None:
    workload = made(options)
    system = {each.name: each.system for each in options.classes}
    for chain in programs(workload).values():
        said = system[chain[0][1].klass]
        for index, (place, each) in enumerate(chain):
            assert each.after == ((chain[index - 1][0],) if index else ())
            assert each.prompt_tokens > said
            if index:
                assert continues(chain[index - 1][1], each, options.key_tokens)
            said = each.prompt_tokens + each.output_tokens
            assert said <= options.max_context
            assert bool(each.answer_keys) <= (index + 1 < len(chain))
            assert place > 0
        assert len(chain) <= max(each.turns.max for each in options.classes)
    firsts = Counter(
        (each.klass, each.tenant, tuple(each.keys[: system[each.klass] // options.key_tokens]))
        for each in workload.requests
    )
    assert len(firsts) <= len(options.classes) * len(options.tenants)  # one system prompt for each


def continues(before: TraceRequest, after: TraceRequest, key_tokens: int) -> bool:
    """Whether ``after``'s prompt begins with ``before``'s prompt and answer."""
    whole = (before.prompt_tokens + before.output_tokens) // key_tokens
    known = [*before.keys[: before.prompt_tokens // key_tokens], *before.answer_keys]
    return (
        after.prompt_tokens > before.prompt_tokens + before.output_tokens
        and len(known) == whole
        and after.keys[:whole] == known
    )


@settings(max_examples=40, deadline=None)
@given(options=AGENTS)
def test_programs_are_chains_or_fork_and_join(options: Agents) -> None:
    workload = made(options)
    for chain in programs(workload).values():
        requests = workload.requests
        klass = next(each for each in options.classes if each.name == chain[0][1].klass)
        assert [place for place, each in chain if not each.after] == [chain[0][0]]
        followed = Counter(place for _, each in chain for place in each.after)
        for _, each in chain:
            assert each.prompt_tokens + each.output_tokens <= options.max_context
            before = requests[each.after[0] - 1] if each.after else None
            if before is not None and len(each.after) == 1 and before.answer_keys:
                alone = klass.branches > 1 and continues(chain[0][1], each, options.key_tokens)  # of all that had room
                assert alone or continues(before, each, options.key_tokens)
        if klass.branches == 1:
            assert max(followed.values(), default=1) == 1
            assert all(len(each.after) <= 1 for _, each in chain)
        else:
            assert all(count == 1 for place, count in followed.items() if place != chain[0][0])
            assert followed[chain[0][0]] <= klass.branches


def test_a_program_with_branches_by_hand() -> None:
    """A plan, two chains of two calls, and what puts their answers together; then the same with too little room."""
    calls, task, observation, answer = (Lengths(float(mean)) for mean in (2, 30, 20, 10))
    klass = AgentClass(calls, task, observation, answer, Delay(1.0, "constant"), instructions=100, branches=2)
    options = Agents(Arrivals(1.0, "constant"), (klass,), programs=1, key_tokens=10)
    requests = generate_agents(options).requests
    second = 10**9
    assert [(r.arrival_ns // second, r.prompt_tokens, r.output_tokens, r.after) for r in requests] == [
        (1, 130, 10, ()),
        (2, 160, 10, (1,)),
        (2, 160, 10, (1,)),
        (3, 190, 10, (2,)),
        (3, 190, 10, (3,)),
        (4, 160, 10, (4, 5)),
    ]
    plan, left, right, *_, last = (each.keys for each in requests)
    assert left[:14] == right[:14] == last[:14] == [*plan, *requests[0].answer_keys]
    assert not set(left[14:]) & set(right[14:])
    tight = generate_agents(msgspec.structs.replace(options, max_context=180))
    assert [each.after for each in tight.requests] == [(), (1,), (1,), (2, 3)]
    assert "2 calls were not made: they are beyond 180 tokens of context" in tight.notes
    with pytest.raises(UserError, match=r"^max_context: no program"):
        generate_agents(msgspec.structs.replace(options, max_context=120))


def test_sessions_end_where_the_context_does() -> None:
    klass = SessionClass(Lengths(5.0), Lengths(30.0), Lengths(20.0), Delay(2.0, "constant"), system=50)
    options = Sessions(Arrivals(1.0, "constant"), (klass,), sessions=2, max_context=210)
    workload = generate_sessions(options)
    chains = programs(workload)
    assert [each.prompt_tokens for _, each in chains["session-1"]] == [80, 130, 180][:3]
    assert [each.arrival_ns // 10**9 for _, each in chains["session-1"]] == [2, 4, 6]
    assert "2 sessions end early: their next turn is beyond 210 tokens of context" in workload.notes
    with pytest.raises(UserError, match=r"^max_context: no session"):
        generate_sessions(msgspec.structs.replace(options, max_context=90))


@pytest.mark.parametrize("popularity", [0.0, 0.8, 1.5])
def test_documents_are_asked_about_by_zipfs_law(popularity: float) -> None:
    klass = RetrievalClass(Lengths(8.0), Lengths(5.0))
    options = Retrieval(
        Arrivals(1.0), (klass,), Lengths(64.0), documents=50, popularity=popularity, count=40_000, seed=4
    )
    requests = generate_retrieval(options).requests
    found = sorted(Counter(each.keys[0] for each in requests).values(), reverse=True)
    weights = [rank**-popularity for rank in range(1, 51)]
    for count, weight in zip(found, weights, strict=True):
        expected = weight / sum(weights) * len(requests)
        assert abs(count - expected) < 5 * math.sqrt(expected)


def test_documents_come_in_the_order_drawn_and_once() -> None:
    klass = RetrievalClass(Lengths(8.0), Lengths(5.0))
    tenants = (TenantMix("a"), TenantMix("b"))
    options = Retrieval(
        Arrivals(1.0), (klass,), Lengths(64.0), documents=3, per_request=2, instructions=32, count=500, tenants=tenants
    )
    workload = generate_retrieval(options)
    assert {each.prompt_tokens for each in workload.requests} == {32 + 64 + 8, 32 + 128 + 8}
    paths = {(each.tenant, tuple(each.keys[2:-1:4])) for each in workload.requests}
    assert len(paths) == 2 * (3 + 6)  # one document, or two in either order, of each tenant's own
    assert shared_key_share(workload) > 0.85


COUNT = 4_000
TWO, ONE, PACE = Lengths(2.0), Delay(1.0), Arrivals(1.0)
NAMES = (("chat", 3.0), ("batch", 1.0))
THREE = (TenantMix("a", 0.6), TenantMix("b", 0.3), TenantMix("c", 0.1))


@pytest.mark.parametrize(
    "options",
    [
        Users(tuple(UserClass(TWO, TWO, ONE, *name) for name in NAMES), COUNT, 1, tenants=THREE, seed=6),
        Sessions(
            PACE, tuple(SessionClass(TWO, TWO, TWO, ONE, 0, *name) for name in NAMES), COUNT, tenants=THREE, seed=6
        ),
        Retrieval(
            PACE, tuple(RetrievalClass(TWO, TWO, *name) for name in NAMES), TWO, count=COUNT, tenants=THREE, seed=6
        ),
        Agents(
            PACE,
            tuple(AgentClass(TWO, TWO, TWO, TWO, ONE, 0, 1, *name) for name in NAMES),
            COUNT,
            tenants=THREE,
            seed=6,
        ),
    ],
    ids=lambda options: options.name,
)
def test_classes_and_tenants_have_their_shares(options: Any) -> None:
    """Of users, sessions, requests and programs."""
    heads = [each for each in made(options).requests if not each.after]
    assert len(heads) == COUNT
    assert sum(each.klass == "chat" for each in heads) / COUNT == pytest.approx(0.75, abs=0.02)
    for tenant in THREE:
        assert sum(each.tenant == tenant.name for each in heads) / COUNT == pytest.approx(tenant.share, abs=0.02)
    both = sum(each.tenant == "a" and each.klass == "chat" for each in heads) / COUNT
    assert both == pytest.approx(0.45, abs=0.02)


LONG = Lengths(100.0)
USER = UserClass(LONG, LONG, ONE)
SESSION = SessionClass(LONG, LONG, LONG, ONE)
AGENT = AgentClass(LONG, LONG, LONG, LONG, ONE)
QUESTION = RetrievalClass(LONG, LONG)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (Users((USER,), users=0), "users"),
        (Users((USER,), requests=0), "requests"),
        (Users((USER,), users=100_000, requests=100_000), "requests"),
        (Users((USER,), start_s=-1.0), "start_s"),
        (Users((UserClass(LONG, LONG, Delay(1e7)),), 1, 1_000), "classes.think"),
        (Users((USER,), seed=-1), "seed"),
        (Users(()), "classes"),
        (Users((USER,), tenants=()), "tenants"),
        (Users((UserClass(LONG, LONG, Delay(-1.0)),)), r"classes\[0\].think.mean_s"),
        (Users((UserClass(LONG, LONG, Delay(1.0, "exponential", 0.5)),)), r"classes\[0\].think.sigma"),
        (Users((UserClass(LONG, Lengths(0.0), ONE),)), r"classes\[0\].output.mean"),
        (Sessions(PACE, (SESSION,), sessions=0), "sessions"),
        (Sessions(PACE, (SESSION,), max_context=1), "max_context"),
        (Sessions(PACE, (SESSION,), key_tokens=0), "key_tokens"),
        (Sessions(Arrivals(0.0), (SESSION,)), "arrivals.rate_per_s"),
        (Sessions(PACE, (SESSION, SESSION)), "classes"),
        (Sessions(PACE, (SessionClass(LONG, LONG, LONG, ONE, system=9_000),)), r"classes\[0\].system"),
        (Sessions(PACE, (SessionClass(Lengths(1e7, max=10**8), LONG, LONG, ONE),)), "sessions"),
        (Retrieval(PACE, (QUESTION,), LONG, count=0), "count"),
        (Retrieval(PACE, (QUESTION,), LONG, documents=0), "documents"),
        (Retrieval(PACE, (QUESTION,), LONG, documents=2, per_request=3), "per_request"),
        (Retrieval(PACE, (QUESTION,), LONG, popularity=-1.0), "popularity"),
        (Retrieval(PACE, (QUESTION,), Lengths(5.0, min=0)), "document"),
        (Agents(PACE, (AGENT,), programs=0), "programs"),
        (Agents(PACE, (msgspec.structs.replace(AGENT, branches=65),)), r"classes\[0\].branches"),
        (Agents(PACE, (msgspec.structs.replace(AGENT, tool=Delay(math.nan)),)), r"classes\[0\].tool.mean_s"),
        (Agents(PACE, (msgspec.structs.replace(AGENT, instructions=-1),)), r"classes\[0\].instructions"),
    ],
)
def test_settings_that_describe_no_workload_are_refused(options: Any, field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        MAKE[type(options)](options)
