"""A recorded run under another policy: where step times come from, what is compared, what cannot be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.build import build_scheduler
from stepwell.core.config import Config, CostConfig
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.events import Submitted, UsePolicy
from stepwell.core.execution import BatchShape
from stepwell.core.instructions import Finished, Launch
from stepwell.core.journal import Turn, decode_header, encode_header
from stepwell.core.types import NS_PER_MS
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.reach import Reach
from stepwell.sim.extrapolation import Extrapolation
from stepwell.sim.run import open_writer, simulate
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.whatif.counterfactual import Counterfactual, what_if
from stepwell.sim.whatif.measured import Coinciding, Measured, first_digits, key_of, measured_cost
from stepwell.sim.whatif.recorded import Reign, most_of, read_recorded
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.tests.cli.hand import call
from stepwell.tests.core.house import ROOM, house
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import ODD, Case, fixed_case, header_of, live

COST = CostConfig(options={k: v for k, v in msgspec.to_builtins(ODD).items() if k != "reach"})
counts = st.integers(0, 70)
shapes = st.builds(BatchShape, counts, counts, counts, st.integers(0, 3), counts, st.integers(0, 2), counts)


def made(cost: CostConfig) -> Measured:
    return Measured(msgspec.convert(cost.options, Measured.Options))


# ------------------------------------------------------------------------------------------------ measured steps


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_counts_coincide_exactly_up_to_31_and_within_a_sixteenth_above(one: int, other: int) -> None:
    same = first_digits(one) == first_digits(other)
    assert first_digits(one) <= one
    if max(one, other) <= 31:
        assert same == (one == other)
    if same:
        assert 16 * abs(one - other) < min(one, other) or one == other
    assert first_digits(first_digits(one)) == first_digits(one)


@given(recorded=st.lists(shapes, max_size=8), asked=shapes, steps=st.integers(1, 60), until_ns=st.integers(0, 5000))
def test_measurements_that_the_model_would_have_said_change_nothing(
    recorded: list[BatchShape], asked: BatchShape, steps: int, until_ns: int
) -> None:
    plain = Linear(ODD)
    cost = made(measured_cost([MeasuredStep(each, plain.step_ns(each)) for each in recorded], COST))
    for shape in (*recorded, asked):
        assert cost.step_ns(shape) == plain.step_ns(shape)
    assert cost.run_ns(asked, 7, steps, until_ns) == plain.run_ns(asked, 7, steps, until_ns)


@given(shape=shapes, periods=st.lists(st.integers(1, 10**6), min_size=1, max_size=9), other=shapes)
def test_a_batch_of_a_recorded_shape_takes_the_median_of_what_was_measured(
    shape: BatchShape, periods: list[int], other: BatchShape
) -> None:
    cost = made(measured_cost([MeasuredStep(shape, each) for each in periods], COST))
    assert cost.coincides(shape)
    assert cost.step_ns(shape) == sorted(periods)[(len(periods) - 1) // 2]
    plain = Linear(ODD)
    if cost.coincides(other):
        assert cost.step_ns(other) == max(1, cost.step_ns(shape) + plain.step_ns(other) - plain.step_ns(shape))
    else:
        assert cost.step_ns(other) == plain.step_ns(other)


@given(recorded=st.lists(shapes, max_size=6), shape=shapes, count=st.integers(1, 200), kv=st.integers(0, 500))
def test_a_run_counts_as_its_steps_one_by_one(
    recorded: list[BatchShape], shape: BatchShape, count: int, kv: int
) -> None:
    known = {key_of(msgspec.structs.replace(each, kv_tokens=kv)) for each in [*recorded, shape]}
    reach = Reach(prefill_tokens=(0, 40), decode_requests=(0, 40), kv_tokens=(0, 700), prefill_requests=(0, 40))

    def counting() -> Coinciding:
        return Coinciding(lambda it: key_of(it) in known, Extrapolation(reach))

    first = msgspec.structs.replace(shape, kv_tokens=kv)
    whole, single = counting(), counting()
    whole.run(first, count)
    for at in range(count):
        single.step(msgspec.structs.replace(first, kv_tokens=kv + at * first.decode_requests))
    assert whole.source() == single.source()
    assert whole.measured >= 1
    assert (whole.steps, first.kv_tokens) == (count, kv)


# ------------------------------------------------------------------------------------------------ simulated journals


def crowd(seed: int, policy: str, allocator: str = "paged") -> tuple[Config, Workload]:
    """A crowded house.  Who leaves does so with a token: one who left between two is taken to have had enough."""
    case = replace(fixed_case(seed, policy, allocator), faults={})
    config = msgspec.structs.replace(case.config(), cost=COST)
    leaving = [
        msgspec.structs.replace(each, cancel_ns=0, cancel_tokens=(1 + each.output_tokens // 2) * (at % 4 == 0))
        for at, each in enumerate(case.requests)
    ]
    return config, Workload("crowd", leaving)


@pytest.mark.parametrize(
    ("policy", "allocator"), [("fcfs", "paged"), ("swap", "prefix"), ("mlfq", "radix"), ("vtc", "paged")]
)
@pytest.mark.parametrize("seed", [1, 2, 3, 7])
def test_the_same_policy_on_a_simulated_journal_is_the_recorded_run(
    tmp_path: Path, seed: int, policy: str, allocator: str
) -> None:
    config, workload = crowd(seed, policy, allocator)
    journal = tmp_path / "run.jsonl"
    simulate(config, workload=workload, journal=journal)
    found = what_if(journal, [f"scheduler.seed={config.scheduler.seed}"])
    assert found.coinciding == 1.0
    for each in found.differences.effects:
        assert each.recorded == each.again == each.other
        assert not each.error
        assert not each.effect
    assert all(each.effect_ms == 0 for each in found.differences.requests)
    assert all(len(set(each.ttft_ms)) == len(set(each.preemptions)) == 1 for each in found.differences.requests)
    assert not found.differences.lost + found.differences.gained
    assert found.differences.compared == len(workload)


@pytest.mark.parametrize("other", ["fcfs", "chat-batch", "srpt", "mlfq", "vllm"])
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_differences_add_up_and_clients_leave_after_as_many_tokens(tmp_path: Path, seed: int, other: str) -> None:
    config, workload = crowd(seed, "swap")
    journal = tmp_path / "run.jsonl"
    simulate(config, workload=workload, journal=journal)
    found = what_if(journal, [f"scheduler.policy={other}"])
    told = found.differences
    assert (found.recorded_policy, found.other.policy) == ("swap", other)
    if not told.lost + told.gained:
        (mean,) = [e.effect for e in told.effects if (e.scope, e.metric.name) == ("all", "e2e_mean_ms")]
        assert mean == pytest.approx(sum(each.effect_ms for each in told.requests) / len(told.requests))
    recorded = read_recorded(journal)
    again = simulate(
        msgspec.structs.replace(
            recorded.config, scheduler=msgspec.structs.replace(recorded.config.scheduler, policy=other, options={})
        ),
        workload=recorded.workload,
    )
    for place, id in enumerate(recorded.ids, 1):
        was, now = recorded.records[id], again.metrics.requests[place]
        if was.reason == "cancelled" and was.tokens and now.reason == "cancelled":
            assert was.tokens == now.tokens
    assert {each.request for each in told.winners()}.isdisjoint(each.request for each in told.losers())


def by_hand(tmp_path: Path) -> Counterfactual:
    """Steps of 1 ms, one request at a time.  ``fcfs``: the first (5 tokens) is done at 5 ms, the second (5) at 10, the
    third (one) at 11.  ``sjf``, which goes by prompts here, takes the third before the second: it is done at 6 ms, the
    second at 11."""
    cost = {"base_ns": NS_PER_MS, "prefill_token_ns": 0, "decode_request_ns": 0, "kv_token_ps": 0, "swap_page_ns": 0}
    requests = [TraceRequest(0, 10, 5), TraceRequest(100_000, 10, 5), TraceRequest(200_000, 2, 1)]
    base = Config(cost=CostConfig(options=dict(cost)))
    config = msgspec.structs.replace(base, scheduler=msgspec.structs.replace(base.scheduler, running_limit=1))
    simulate(config, workload=Workload("three", requests), journal=tmp_path / "run.jsonl")
    return what_if(tmp_path / "run.jsonl", ["scheduler.policy=sjf", "scheduler.options.predictor=constant"])


def test_three_requests_worked_out_on_paper(tmp_path: Path) -> None:
    told = by_hand(tmp_path).differences
    assert [each.e2e_ms for each in told.requests] == [(5.0, 5.0, 5.0), (9.9, 9.9, 10.9), (10.8, 10.8, 5.8)]
    assert [each.effect_ms for each in told.requests] == [0.0, 1.0, -5.0]
    assert [[each.request for each in rows] for rows in (told.winners(), told.losers())] == [[3], [2]]
    effects = {each.metric.name: each for each in told.effects if each.scope == "all"}
    mean = effects["e2e_mean_ms"]
    assert mean.effect == pytest.approx(-4 / 3)
    assert (mean.error, mean.low, mean.real, mean.better) == (0.0, None, None, None), "too few for an interval"
    assert effects["tpot_mean_ms"].effect == 0.0
    assert effects["e2e_p99_ms"].recorded == 10.8
    assert effects["e2e_p99_ms"].other == 10.9


# ------------------------------------------------------------------------------------------------ live journals


def serve(tmp_path: Path, change: str = "", **options: Any) -> Path:
    """Forty requests through the live engine in virtual time, on the echo backend; ``change``: to a policy, halfway."""
    it = house(allocator="prefix", memory={**ROOM, "pages": 60}, virtual=True, running_limit=6, **options)
    path = tmp_path / "live.jsonl"
    writer = open_writer(path, it.case.config(), it.scheduler)
    it.observers.append(writer.observe)

    async def visit(engine: Engine) -> None:
        async with anyio.create_task_group() as tasks:
            for at in range(40):
                if at == 20 and change:
                    engine.use_policy(change, {}, "by hand")
                stream = engine.submit(list(range(at, at + 5 + at % 7)), 90, klass=("chat", "batch")[at % 2])
                tasks.start_soon(stream.wait)
                if at % 9 == 4:
                    stream.cancel()
                await it.clock.sleep_until(it.clock.now_ns() + 30_000 + 1_000 * (at % 4))

    it.serve(visit)
    writer.close()
    head, *rest = path.read_bytes().splitlines(keepends=True)
    header = msgspec.structs.replace(decode_header(head, name="it"), shell="engine")
    path.write_bytes(b"".join([encode_header(header), *rest]))
    return path


def test_a_live_run_served_again_by_measured_times_is_the_live_run(tmp_path: Path) -> None:
    found = what_if(serve(tmp_path), ["scheduler.policy=fcfs"])
    assert found.coinciding == 1.0
    assert found.extrapolated == 0.0
    assert "measured where batches coincide" in found.step_times
    assert found.differences.compared == 36, "four clients left before the engine heard of them"
    assert all(each.error == each.effect == 0 for each in found.differences.effects if each.error is not None)


def test_under_another_policy_the_share_that_coincides_is_told(tmp_path: Path) -> None:
    found = what_if(serve(tmp_path), ["scheduler.policy=static", "scheduler.options.batch_size=3"])
    assert 0 < found.coinciding < 1
    assert found.other.summary.measured_share == found.coinciding
    assert found.other.summary.step_times == "predicted"
    assert any(each.effect for each in found.differences.effects)
    assert all(each.error == 0 for each in found.differences.effects if each.error is not None)
    other = what_if(serve(tmp_path), ["scheduler.policy=static", "cost.options.base_ns=900000"])
    assert "linear as it was given" in other.step_times
    assert other.extrapolated is None


def test_a_policy_that_was_changed_on_the_way_is_told_of(tmp_path: Path) -> None:
    path = serve(tmp_path, change="srpt")
    recorded = read_recorded(path)
    assert [each.policy for each in recorded.reigns] == ["fcfs", "srpt"]
    assert sum(each.steps for each in recorded.reigns) > 50
    found = what_if(path, ["scheduler.policy=swap"])
    assert found.again.policy == recorded.config.scheduler.policy == most_of(recorded.reigns).policy
    assert any(note.startswith("more than one policy decided: fcfs for ") for note in found.notes)


def test_a_policy_that_broke_a_rule_is_not_taken_for_the_recorded_one() -> None:
    broken, fallback = Reign("mine", {}, 0, steps=900, faulted=True), Reign("fcfs", {}, 5, steps=10)
    assert most_of([broken, fallback]) is fallback
    assert most_of([broken]) is broken
    assert most_of([Reign("a", {}, 0, 5), Reign("b", {}, 1, 7), Reign("a", {}, 2, 4)]).policy == "a"
    with pytest.raises(UserError, match="no turn"):
        most_of([])


def test_a_journal_that_begins_in_the_middle_says_what_it_cannot_know(tmp_path: Path) -> None:
    case, path = replace(fixed_case(5, "swap", "paged"), faults={}), tmp_path / "run.jsonl"
    record(case, path, beside=[RotateEvery(4)])
    whole = what_if(path, ["scheduler.policy=fcfs"])
    path.unlink()
    late = sorted(tmp_path.glob("run.*.jsonl"))[0]
    part = what_if(late, ["scheduler.policy=fcfs"])
    assert 0 < part.differences.compared < whole.differences.compared
    assert any("known in outline" in note for note in part.notes)
    assert any("find the device emptier than it was" in note for note in part.notes)
    assert not any("emptier" in note for note in whole.notes)


def test_a_rotated_journal_is_the_whole_journal(tmp_path: Path) -> None:
    case = replace(fixed_case(5, "swap", "paged"), faults={})
    record(case, tmp_path / "one.jsonl")
    record(case, tmp_path / "many.jsonl", beside=[RotateEvery(4)])
    one, many = (what_if(tmp_path / f"{name}.jsonl", ["scheduler.policy=fcfs"]) for name in ("one", "many"))
    assert len(list(tmp_path.glob("many*"))) > 3
    assert msgspec.structs.replace(many, journal="", notes=[]) == msgspec.structs.replace(one, journal="", notes=[])


def test_requests_that_the_record_does_not_see_the_end_of_are_left_out(tmp_path: Path) -> None:
    config, _ = crowd(1, "fcfs")
    rows = [
        Turn(100, [Submitted(1, 4, 50), Submitted(2, 4, 50)], [Launch(1, False, slices=[(1, 0, 4, True)])]),
        Turn(900, [UsePolicy("fcfs", {})], [Finished(1, "stop", 1)]),
    ]
    head = encode_header(header_of(config, build_scheduler(config), shell="sim"))
    path = tmp_path / "cut.jsonl"
    path.write_bytes(head + msgspec.json.Encoder().encode_lines(rows))
    found = what_if(path, ["scheduler.policy=swap"])
    assert found.differences.compared == 1
    assert any(note.startswith("1 request did not end in the record and is left out") for note in found.notes)
    path.write_bytes(head + msgspec.json.Encoder().encode_lines(rows[:1]))
    with pytest.raises(UserError, match="nothing to compare"):
        what_if(path, ["scheduler.policy=swap"])


def test_a_live_journal_of_few_steps_falls_back_to_its_configuration(tmp_path: Path) -> None:
    path = live(Case((TraceRequest(0, 3, 4), TraceRequest(5, 3, 4)), memory=ROOM)).write(tmp_path / "short.jsonl")
    found = what_if(path, ["scheduler.policy=swap"])
    assert "too few to fit" in found.step_times
    assert found.coinciding == 1.0


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_on_a_simulated_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand(tmp_path)
    journal = tmp_path / "run.jsonl"
    asked = ("--policy", "sjf", "--set", "scheduler.options.predictor=constant")
    status, out, err = call(capsys, "replay", journal, *asked)
    assert (status, err) == (0, "")
    assert "fcfs in the record, sjf instead" in out
    assert "E2E p99" in out
    assert "requests that win most" in out
    status, out, _ = call(capsys, "replay", journal, *asked, "--json")
    told = msgspec.json.decode(out)
    assert told["coinciding"] == 1.0
    assert [each["effect_ms"] for each in told["differences"]["requests"]] == [0.0, 1.0, -5.0]


def test_the_command_on_a_live_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "replay", serve(tmp_path), "--policy", "static", "--allocator", "radix")
    assert status == 0
    assert "of the steps of static coincide with recorded ones" in out
    assert "class batch" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "nobody"), "nobody"),
        (("--policy", "swap", "--set", "scheduler.policy=fcfs"), "not by both"),
        (("--policy", "swap", "--backend", "echo"), "without --backend"),
        (("--policy", "swap", "--limit", "5"), "goes with --backend"),
        (("--set", "workload.rate=5"), "the recorded ones"),
        (("--fit", "linear"), "nothing is predicted without"),
        (("--policy", "swap", "--set", "memory.pages=0"), "memory.pages"),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    by_hand(tmp_path)
    status, _, err = call(capsys, "replay", tmp_path / "run.jsonl", *arguments)
    assert status == 2
    assert says in err
