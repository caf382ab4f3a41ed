"""Generated workloads in the simulator: the example scenarios, closed loops against theory, prefixes that are found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, WorkloadConfig
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.core.limits import SchedulerLimits
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.replay import replay
from stepwell.sim.run import Result, simulate
from stepwell.sim.scenario import fit_keys, load_workload, read_scenario
from stepwell.sim.workload.agents import AgentClass, Agents, generate_agents
from stepwell.sim.workload.describe import describe, headline
from stepwell.sim.workload.kinds import KINDS
from stepwell.sim.workload.mixes import Delay, Lengths
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.retrieval import Retrieval, RetrievalClass, generate_retrieval
from stepwell.sim.workload.sessions import SessionClass, Sessions, generate_sessions
from stepwell.sim.workload.users import UserClass, Users, generate_users
from stepwell.tests.helpers.runs import build
from stepwell.tests.helpers.timeline import Timeline

ROOT = Path(__file__).parents[2]
MS = 1_000_000

# Recorded once; if one of these changes, whoever compared policies on the example compared them on another workload.
GOLDEN = {
    "agents": "fcf74c4bbe574b3a498844f40e975888915b7349434131856079e8c8e5a3583d",
    "day": "8f9fd065821ccc4b21eb32a37ebef13317efbe29dafbb6352aea2eca0e1e515d",
    "mix": "ff96bda4fc0922eb98db4c262154d17775f39b6751882a89a37d8662ba833b1d",
    "retrieval": "a7f26d8c581a6d7c2964dcc9fe8b0790bd7cc0c15a3817f6bc71c968487f1f78",
    "sessions": "c81e5bd376cb7dad48b195fec4e8b7b5d67ade1e403d8e4dd2ea35b25065fab0",
    "users": "cb65b913549132cddada534a8da0d89859caebc58fa20fab88a0f248fc0b2169",
}

EXAMPLES = [ROOT / f"examples/scenarios/{name}.toml" for name in GOLDEN]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_scenario_is_the_same_everywhere_and_runs(path: Path, tmp_path: Path) -> None:
    assert load_workload(read_scenario(path)).digest() == GOLDEN[path.stem]
    reseeded = load_workload(read_scenario(path, overrides=["workload.settings.seed=2"]))
    assert reseeded.digest() != GOLDEN[path.stem]
    journal = tmp_path / "run.jsonl"
    result = simulate(path, overrides=["workload.limit=120"], journal=journal)
    assert result.summary.all.offered == 120
    assert on_time(result)
    assert replay(journal).difference is None


def on_time(result: Result) -> bool:
    """Everybody arrived when told to, and ended."""
    at = {place: result.metrics.requests[id] for id, place in enumerate(result.places, 1)}
    for place, each in enumerate(result.workload.requests, 1):
        ends = [at[before].finished_ns for before in each.after]
        due_ns = max(ends) + each.think_ns if ends else each.arrival_ns
        if at[place].arrival_ns != due_ns or not at[place].reason:
            return False
    return len(at) == len(result.workload)


def test_every_kind_has_an_example_and_the_page_shows_all() -> None:
    kinds = {read_scenario(path).config.workload.kind for path in EXAMPLES}
    assert kinds == set(KINDS) - {"builtin", "common"}
    page = (ROOT / "docs/generating.md").read_text()
    assert set(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)) == {path.read_text() for path in EXAMPLES}


def test_every_arrival_on_the_page_can_be_had() -> None:
    page = (ROOT / "docs/generating.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| `arrivals = (\{.*\})` \|", page, re.MULTILINE)
    assert len(rows) == 7
    classes = [{"prompt": {"mean": 9}, "output": {"mean": 9}}]
    for row in rows:
        settings = tomllib.loads(f"arrivals = {row}") | {"classes": classes, "count": 50}
        config = Config(workload=WorkloadConfig(kind="generate", settings=settings))
        assert len(load_workload(Resolved(config, {}))) == 50


# ------------------------------------------------------------------------------------------------ settings


USERS = {"classes": [{"prompt": {"mean": 9}, "output": {"mean": 9}, "think": {"mean_s": 1}}]}


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (WorkloadConfig(kind="users", rate=3.0, settings=USERS), "workload.rate: cannot be set: users send when"),
        (WorkloadConfig(kind="users", settings=USERS | {"user": 3}), "workload.settings.user: unknown key 'user'"),
        (WorkloadConfig(kind="users", settings=USERS | {"users": 0}), "workload.settings.users: must be between 1 and"),
        (WorkloadConfig(kind="users", skip_bad=True, settings=USERS), "workload.skip_bad: is for traces"),
        (WorkloadConfig(kind="sessions"), "workload.settings"),
        (
            WorkloadConfig(kind="generate", settings={"arrivals": {"rate_per_s": 1, "daily": {"wieghts": [1]}}}),
            "workload.settings.arrivals.daily.wieghts: unknown key 'wieghts'; did you mean 'weights'",
        ),
    ],
)
def test_wrong_settings_name_their_field(workload: WorkloadConfig, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        simulate(Config(workload=workload))


def test_a_rate_is_of_what_arrives_by_the_clock() -> None:
    path = next(each for each in EXAMPLES if each.stem == "sessions")
    workload = load_workload(read_scenario(path, overrides=["workload.rate=20"]))
    assert workload.profile().rate_per_s == pytest.approx(20.0, rel=1e-6)
    head = workload.describe()
    assert "and 400 over 19.9 s, 20.00 programs/s" in head[0]
    assert head[1].startswith("rates are of programs")
    assert f"{len(workload) / 400:.2f} requests each" in head[1]
    told = describe(workload)
    assert "1,870 requests, 400 of them by the clock over 19.9 s, 20 a second" in headline(told)
    assert {each.think_ns for each in workload.requests} == {
        each.think_ns for each in load_workload(read_scenario(path)).requests
    }


# ------------------------------------------------------------------------------------------------ closed loops


ONE = Lengths(1.0)
CONSTANT = Linear.Options(
    base_ns=MS, prefill_token_ns=0, prefill_request_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0
)


def ask_one_server(users: int, requests: int, think_s: float = 0.005) -> tuple[float, float]:
    """Requests a second, and their mean response in ms, of a server that serves one at a time, a millisecond each."""
    klass = UserClass(ONE, ONE, Delay(think_s))
    workload = generate_users(Users((klass,), users, requests, start_s=think_s, seed=8))
    timeline = Timeline()
    scheduler = build(limits=SchedulerLimits(running_limit=1, token_budget=1))
    simulator = Simulator(scheduler, Linear(CONSTANT), workload.requests, observers=[timeline])
    simulator.run()
    stays = [story.end_ns - story.arrival_ns for story in timeline.stories.values()]
    return len(stays) * 1e9 / simulator.now_ns, sum(stays) / len(stays) / MS


def test_the_interactive_response_time_law_at_both_ends() -> None:
    """Response = users / throughput - think (Lazowska et al., "Quantitative System Performance", 1984, ch. 3, 5)."""
    alone = ask_one_server(1, 800)
    assert alone[1] == 1.0
    assert alone[0] == pytest.approx(1000 / 6, rel=0.1)
    throughput, response = ask_one_server(40, 60)
    assert throughput == pytest.approx(1000, rel=0.02)  # the server never rests, but at the end
    assert response == pytest.approx(40 / throughput * 1000 - 5, rel=0.03)
    for users in (2, 6):
        throughput, response = ask_one_server(users, 200)
        assert throughput <= min(1000.0, users * 1000 / 6) * 1.03
        assert response + 5 == pytest.approx(users / throughput * 1000, rel=0.1)


@pytest.mark.parametrize("policy", ["fcfs", "chat-batch", "vtc", "plas"])
def test_a_generated_closed_loop_keeps_every_think_time_and_its_users(policy: str) -> None:
    klass = UserClass(Lengths(200.0, 0.8), Lengths(60.0, 0.8), Delay(0.4, "lognormal", 1.0))
    workload = generate_users(Users((klass,), 12, 10, start_s=1.0, seed=2))
    config = Config(scheduler=SchedulerConfig(policy=policy), memory=MemoryConfig(pages=120, host_pages=100))
    result = simulate(config, workload=workload)
    assert on_time(result)
    moves = sorted(
        (at, step)
        for each in result.metrics.requests.values()
        for at, step in ((each.arrival_ns, 1), (each.finished_ns, -1))
    )
    inside = most = 0
    for _, step in moves:
        inside += step
        most = max(most, inside)
    assert 6 < most <= 12


# ------------------------------------------------------------------------------------------------ prefixes


def cached(workload: Workload, allocator: str = "prefix", page_size: int = 16) -> int:
    memory = MemoryConfig(allocator=allocator, page_size=page_size, pages=400_000 // page_size)
    return simulate(Config(memory=memory), workload=workload).metrics.cached_tokens


@pytest.mark.parametrize("allocator", ["prefix", "radix"])
def test_a_turn_finds_all_that_was_said_before(allocator: str) -> None:
    """Full pages of prompt and answer, without the last token of the answer, which was never computed."""
    klass = SessionClass(Lengths(4.0, 0.5), Lengths(70.0, 0.8), Lengths(50.0, 0.8), Delay(1.0))
    workload = generate_sessions(Sessions(Arrivals(2.0), (klass,), sessions=30, seed=3))
    before = [workload.requests[each.after[0] - 1] for each in workload.requests if each.after]
    assert len(before) > 60
    said = sum((each.prompt_tokens + each.output_tokens - 1) // 16 * 16 for each in before)
    assert cached(workload, allocator) == said


def test_without_answer_keys_only_the_prompt_is_found() -> None:
    klass = AgentClass(Lengths(5.0), Lengths(90.0, 0.8), Lengths(40.0, 0.5), Lengths(37.0), Delay(0.5))
    workload = generate_agents(Agents(Arrivals(2.0), (klass,), programs=20, seed=3))
    for each in workload.requests:
        each.answer_keys = ()
    before = [workload.requests[each.after[0] - 1] for each in workload.requests if each.after]
    assert cached(workload) == sum(each.prompt_tokens // 16 * 16 for each in before)


def test_documents_are_computed_once() -> None:
    """Requests so far apart that each has ended before the next: every full page seen before is found."""
    klass = RetrievalClass(Lengths(30.0, 0.6), Lengths(4.0))
    options = Retrieval(
        Arrivals(2.0, "constant"), (klass,), Lengths(300.0, 0.5), documents=20, instructions=40, count=150, seed=5
    )
    workload = generate_retrieval(options)
    seen: set[int] = set()
    found = 0
    for each in workload.requests:
        full = each.keys[: each.prompt_tokens // 16]
        hits = sum(key in seen for key in full)
        found += 16 * (hits - (hits * 16 == each.prompt_tokens))  # the last token is always computed
        seen.update(full)
    assert found > 16 * 1500
    assert cached(workload) == found


@pytest.mark.parametrize("page_size", [8, 32, 24])
def test_other_pages_than_keys_find_no_more_than_is_there(page_size: int) -> None:
    klass = SessionClass(Lengths(4.0), Lengths(70.0, 0.8), Lengths(50.0, 0.8), Delay(1.0), system=100)
    workload = generate_sessions(Sessions(Arrivals(2.0), (klass,), sessions=20, seed=3))
    fitted = fit_keys(workload, page_size, wanted=True)
    for each in fitted.requests:
        assert len(each.keys) == each.prompt_tokens // page_size
    found = cached(workload, page_size=page_size)
    exact = sum(
        (before.prompt_tokens + before.output_tokens - 1) // page_size * page_size
        for before in (workload.requests[each.after[0] - 1] for each in workload.requests if each.after)
    )
    first = sum(100 // page_size * page_size for each in workload.requests if not each.after)
    assert 0.8 * exact < found <= exact + first
