"""The policies of ``examples/policies``, installed as anybody's: they are found, conform, and do what they say."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from stepwell.core import registry
from stepwell.core.catalogue import catalogue
from stepwell.core.config import MemoryConfig
from stepwell.core.limits import ClassLimits, SchedulerLimits, TenantLimits
from stepwell.core.scheduler import Scheduler
from stepwell.core.testing import check_policy
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.cli.hand import call
from stepwell.tests.helpers.runs import Pool, simulate
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import ONE_SEAT, order, play

FOLDER = ROOT / "examples" / "policies"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
NAMES = sorted(PROJECT["entry-points"]["stepwell.policies"])
MOST_LINES = 60
HOUR_NS = 3600 * NS_PER_S


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With pip, into a folder of its own on the path; from a copy, since building writes beside the sources."""
    target = tmp_path_factory.mktemp("site")
    source = shutil.copytree(FOLDER, tmp_path_factory.mktemp("source") / "policies")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(target), str(source)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(target))
        registry.discover.cache_clear()
        yield
    registry.discover.cache_clear()


def test_every_file_is_declared_and_small() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert [path.stem.replace("_", "-") for path in files] == NAMES
    texts = {path.name: path.read_text() for path in files}
    assert not [name for name, text in texts.items() if len(text.splitlines()) >= MOST_LINES]
    assert not [name for name, text in texts.items() if "\nFor: " not in text]


def test_they_are_found_by_name() -> None:
    theirs = {each.name: each for each in catalogue("policies") if each.distribution == PROJECT["name"]}
    assert sorted(theirs) == NAMES
    assert not [each.error for each in theirs.values() if each.error]
    assert all(each.summary and each.api_version for each in theirs.values())


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name: str) -> None:
    check_policy(lambda: registry.make_policy(name), examples=15)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_conforms_at_length(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "policies", "check", name, "--examples", "500")
    assert status == 0, out


# ------------------------------------------------------------------------------------------------ what each is for

TIERS = (ClassLimits("gold", 0), ClassLimits("bronze", 1), ClassLimits("timed", 0, 1.0, 200))
SEAT = SchedulerLimits(running_limit=1, classes=TIERS)


def test_sla_tiers_a_better_tier_goes_first_and_the_other_waits_so_much_longer_at_most() -> None:
    """Gold comes faster than it can be served; bronze lets pass whoever comes up to 300 ns later, and no more."""
    gold = [TraceRequest(10 * k, 4, 1, "gold") for k in range(100)]
    requests = [*gold[:11], TraceRequest(101, 4, 1, "bronze"), *gold[11:]]
    before = order(play("sla-tiers", requests, {"head_start_s": 3e-7}, limits=SEAT))
    before = before[: before.index(12)]
    assert max(requests[id - 1].arrival_ns for id in before) == 400
    assert len(before) == 41
    assert order(play("sla-tiers", requests, {"head_start_s": 1}, limits=SEAT))[-1] == 12


def test_user_round_robin_one_request_of_each_in_turn() -> None:
    many = [TraceRequest(0, 4, 3, tenant="script") for _ in range(6)]
    few = [TraceRequest(1, 4, 3, tenant=name) for name in ("ann", "ann", "bob")]
    run = play("user-round-robin", [*many, *few])
    script, ann, bob = {1, 2, 3, 4, 5, 6}, {7, 8}, {9}
    turns = ["script" if id in script else "ann" if id in ann else "bob" for id in order(run)]
    assert sorted(turns[1:4]) == ["ann", "bob", "script"] or sorted(turns[:3]) == ["ann", "bob", "script"]
    assert bob < set(order(run)[:4])
    assert turns[-3:] == ["script"] * 3


def test_deadline_drop_rejects_whom_it_could_only_serve_late() -> None:
    """Steps of some 20 ns, first tokens due after 200: most of 40 at once cannot be; those served are all in time."""
    requests = [TraceRequest(0, 4, 2, "timed") for _ in range(40)]
    late = play("fcfs", requests, limits=SEAT)
    assert sum(it.first_ns > 200 for it in late.stories.values()) > 20
    estimate = {"base_ns": 10, "prefill_token_ns": 1, "decode_request_ns": 1, "kv_token_ps": 0, "swap_page_ns": 5}
    run = play("deadline-drop", requests, {"estimate_options": estimate}, limits=SEAT)
    served = [it for it in run.stories.values() if it.token_ns]
    assert len(served) == sum(0 < it.first_ns <= 200 for it in late.stories.values())
    assert all(it.first_ns <= 200 for it in served)
    assert all(it.end_ns <= 200 for it in run.stories.values() if not it.token_ns), "at once, not when it is late"


def test_batch_window_batch_waits_for_the_night_and_chat_does_not() -> None:
    """The server starts at noon."""
    by_day = [TraceRequest(0, 4, 2, "bronze"), TraceRequest(5, 4, 2, "gold")]
    by_night = [TraceRequest(11 * HOUR_NS, 4, 2, "bronze"), TraceRequest(18 * HOUR_NS + 1, 4, 2, "bronze")]
    run = play("batch-window", [*by_day, *by_night], {"started_at": 12}, limits=SEAT)
    admitted = [it.admissions[0] // HOUR_NS for it in run.stories.values()]
    assert admitted == [10, 0, 11, 34], "at 22:00, at once, at 23:00, and at 22:00 of the next day"


def test_cheapest_victim_the_least_work_is_done_again() -> None:
    """The latest arrival is the long one: fcfs sends it away, this the short ones."""
    requests = [*(TraceRequest(0, 16, 200) for _ in range(3)), TraceRequest(1, 600, 200)]
    limits, pool = SchedulerLimits(running_limit=8), Pool(60, 16, 0)
    cheap = play("cheapest-victim", requests, limits=limits, pool=pool)
    usual = play("fcfs", requests, limits=limits, pool=pool)
    assert usual.stories[4].preemptions
    assert not cheap.stories[4].preemptions
    assert cheap.computed < usual.computed


def test_length_pairing_batches_hold_about_as_much() -> None:
    """Eight long prompts and then eight short ones, four seats."""
    requests = [*(TraceRequest(0, 256, 40) for _ in range(8)), *(TraceRequest(0, 16, 40) for _ in range(8))]
    limits = SchedulerLimits(running_limit=4)

    def loads(run: Timeline) -> list[int]:
        """Prompt tokens of each four that were admitted one after another."""
        prompts = [run.stories[id].prompt for id in order(run)]
        return [sum(prompts[first : first + 4]) for first in range(0, 16, 4)]

    paired, usual = loads(play("length-pairing", requests, limits=limits)), loads(play("fcfs", requests, limits=limits))
    assert max(usual) - min(usual) == 4 * (256 - 16)
    assert paired == 4 * [2 * (256 + 16)]


def test_residual_sjf_who_has_outlived_its_guess_gives_way_first() -> None:
    """Both were guessed at 20 tokens; when pages run out one has had a hundred, and the other is nearly done."""
    options: dict[str, object] = {"predictor": "constant", "predictor_options": {"tokens": 20}}
    limits, pool = SchedulerLimits(running_limit=8), Pool(9, 16, 0)
    requests = [TraceRequest(0, 16, 120), TraceRequest(1000, 16, 19)]
    run = play("residual-sjf", requests, options, limits=limits, pool=pool)
    usual = play("fcfs", requests, limits=limits, pool=pool)
    assert [len(run.stories[id].preemptions) for id in (1, 2)] == [1, 0]
    assert [len(usual.stories[id].preemptions) for id in (1, 2)] == [0, 1]


def on_prefix(name: str, requests: list[TraceRequest], options: dict[str, object] | None = None) -> Timeline:
    """One seat, and pages for hardly more than one prompt."""
    allocator = registry.make_allocator(MemoryConfig(allocator="prefix", pages=17, page_size=16, host_pages=0))
    policy = registry.make_policy(name, options)
    return simulate(Scheduler(ONE_SEAT, allocator, lambda name, options: policy, name), requests)


def test_cache_affinity_serves_a_prefix_while_it_is_there() -> None:
    """Two documents of 16 pages, asked about in turn, in a pool that holds one: together each is computed once."""
    documents = [list(range(1, 17)), list(range(101, 117))]
    requests = [TraceRequest(k, 260, 4, keys=documents[k % 2]) for k in range(10)]
    together = on_prefix("cache-affinity", requests)
    assert order(together) == [1, 3, 5, 7, 9, 2, 4, 6, 8, 10]
    in_turn = on_prefix("fcfs", requests)
    assert in_turn.computed > 10 * 256
    assert together.computed < 3 * 256
    assert order(on_prefix("cache-affinity", requests, {"patience_s": 0})) == list(range(1, 11))


def test_session_affinity_the_next_turn_goes_before_newcomers_for_so_long() -> None:
    """Turn after turn of one session; newcomers are let pass by what comes up to 1000 ns after them, and no more."""
    turns = [TraceRequest(200 * k, 4, 8, program="chat") for k in range(10)]
    newcomers = [TraceRequest(1, 4, 60, program=f"new {k}") for k in range(10)]
    requests = [turns[0], *newcomers, *turns[1:]]
    run = play("session-affinity", requests, {"head_start_s": 1e-6})
    at = [run.stories[id].admissions[0] - requests[id - 1].arrival_ns for id in (12, 13, 14)]
    assert max(at) < 800, "it waits for one newcomer that runs, at most"
    assert order(run)[:1] == [1]
    before = order(run)
    late = [id for id in range(12, 21) if requests[id - 1].arrival_ns > 1001]
    assert max(map(before.index, range(2, 12))) < min(map(before.index, late))
    forgetful = play("session-affinity", requests, {"head_start_s": 1e-6, "keep_s": 0})
    assert order(forgetful) == order(play("fcfs", requests))


def test_weighted_sjf_is_best_for_those_who_count() -> None:
    """Smith's rule: the mean wait by weight is least, so below that of sjf, which is below that of fcfs."""
    weights = {"paying": 8.0, "free": 1.0}
    limits = SchedulerLimits(running_limit=1, tenants=tuple(TenantLimits(*each) for each in weights.items()))
    requests = [TraceRequest(0, 8 + 8 * (k * 7 % 11), 4, tenant=("paying", "free")[k % 2]) for k in range(22)]
    options: dict[str, object] = {"predictor": "oracle", "output_cost": 1}

    def cost(name: str, options: dict[str, object] | None = None) -> float:
        run = play(name, requests, options, limits=limits)
        return sum(weights[requests[id - 1].tenant] * it.end_ns for id, it in run.stories.items())

    assert cost("weighted-sjf", options) < cost("sjf", options) < cost("fcfs")
