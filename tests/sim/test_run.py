"""From configuration to result: which requests are served, what is refused before anything runs, and the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.core.config import (
    ClassConfig,
    Config,
    CostConfig,
    JournalConfig,
    MemoryConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from stepwell.core.errors import UserError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction
from stepwell.sim.journal_read import stat
from stepwell.sim.metrics import RequestRecord, RunMetrics
from stepwell.sim.run import simulate
from stepwell.sim.scenario import check_classes, fit_keys, load_workload, read_scenario
from stepwell.sim.summary import Spread, summarise
from stepwell.sim.workload.builtin import demo
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.tests.cli import hand

MOONCAKE = """\
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [5, 6]}
{"timestamp": 3000, "input_length": 1024, "output_length": 2, "hash_ids": [5, 9]}
"""


def requests_of(*overrides: str) -> Workload:
    return load_workload(read_scenario(overrides=overrides))


def refusal(*overrides: str) -> UserError:
    with pytest.raises(UserError) as caught:
        requests_of(*overrides)
    return caught.value


# ------------------------------------------------------------------------------------------------ workloads


def test_builtin_is_the_demonstration_and_settings_replace_single_values() -> None:
    assert requests_of().requests == demo().requests
    changed = requests_of("workload.settings.count=50", "workload.settings.arrivals.rate_per_s=1.0")
    assert len(changed) == 50
    # Another rate changes times only, so the prompts are still those of the demonstration.
    assert [each.prompt_tokens for each in changed.requests] == [each.prompt_tokens for each in demo().requests[:50]]
    assert changed.requests[-1].arrival_ns > 20 * demo().requests[49].arrival_ns


def test_common_is_limited_and_scaled_in_this_order() -> None:
    whole = requests_of("workload.kind=common", "workload.limit=100")
    assert [each.prompt_tokens for each in whole.requests[:3]] == [
        each.prompt_tokens for each in requests_of("workload.kind=common").requests[:3]
    ]
    scaled = requests_of("workload.kind=common", "workload.limit=100", "workload.rate=2")
    assert scaled.profile().requests == 100
    assert scaled.profile().rate_per_s == pytest.approx(2.0, rel=1e-6)


def test_generate_needs_its_settings_and_names_what_is_wrong_in_them(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        '[workload]\nkind = "generate"\n[workload.settings]\ncount = 7\n[workload.settings.arrivals]\nrate_per_s = 5\n'
        '[[workload.settings.classes]]\nname = "batch"\nprompt = {mean = 10.0, sigma = 0.5}\n'
        "output = {mean = 5.0, sigma = 0.5}\n"
    )
    made = load_workload(read_scenario(file))
    assert [each.klass for each in made.requests] == ["batch"] * 7
    assert "workload.settings" in refusal("workload.kind=generate").field
    assert refusal("workload.settings.arrivals.cv=-1.0").field == "workload.settings.arrivals.cv"
    assert refusal("workload.settings.coutn=5").field == "workload.settings.coutn"


@pytest.mark.parametrize("override", ["workload.debucket=true", "workload.skip_bad=true", "workload.format=azure"])
def test_a_setting_that_the_kind_does_not_use_is_refused(override: str) -> None:
    assert refusal(override).field == override.partition("=")[0]


def test_settings_beside_a_trace_are_refused(tmp_path: Path) -> None:
    hand.scenario(tmp_path)
    trace = f"workload.trace={tmp_path / 'two.csv'}"
    assert refusal("workload.kind=trace", trace, "workload.settings.count=5").field == "workload.settings.count"


def test_a_trace_that_is_not_there_says_where_traces_come_from() -> None:
    error = refusal("workload.kind=trace", "workload.trace=nowhere.csv")
    assert error.field == "workload.trace"
    assert "nowhere.csv: no such file. docs/workloads.md says" in str(error)


def test_a_rate_needs_a_span() -> None:
    assert refusal("workload.limit=1", "workload.rate=5").field == "workload.rate"
    assert refusal("workload.rate=1e12").field == "workload.rate"


def test_trace_is_looked_for_beside_the_scenario_and_a_plugin_file_too(tmp_path: Path) -> None:
    file = hand.scenario(tmp_path)
    (tmp_path / "mine.py").write_text("from stepwell.policies.fcfs import Fcfs as Mine\n")
    file.write_text(hand.SCENARIO.replace('"fcfs"', '"mine.py:Mine"'))
    result = simulate(file)
    assert result.summary.policy == f"{tmp_path / 'mine.py'}:Mine"
    assert result.summary.all.completed == 2


def test_unknown_class_is_refused_before_the_run() -> None:
    workload = Workload("w", [TraceRequest(0, 5, 5, "chat"), TraceRequest(1, 5, 5, "gold")])
    with pytest.raises(UserError, match=r"'gold'.*batch, chat") as caught:
        simulate(Config(), workload=workload)
    assert caught.value.field == "classes"
    check_classes(workload, Config(classes=(ClassConfig(name="chat"), ClassConfig(name="gold"))))


def test_keys_become_page_keys_only_where_an_allocator_wants_them(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(MOONCAKE)
    workload = load_workload(read_scenario(overrides=["workload.kind=trace", f"workload.trace={file}"]))
    kept = fit_keys(workload, 16, wanted=True)
    first, second = kept.requests
    assert len(first.keys) == 600 // 16
    assert len(second.keys) == 1024 // 16
    assert first.keys[:32] == second.keys[:32]
    assert not set(first.keys[32:]) & set(second.keys[32:])
    dropped = fit_keys(workload, 16, wanted=False)
    assert [each.keys for each in dropped.requests] == [[], []]
    assert "left out" in dropped.notes[-1]


def test_the_scheduler_never_learns_the_true_length() -> None:
    seen: list[Event] = []

    def watch(now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        seen.extend(each for each in events if isinstance(each, Submitted))

    workload = Workload("w", [TraceRequest(0, 5, 3), TraceRequest(0, 5, 700)])
    simulate(Config(), workload=workload, observers=[watch])
    first, second = (each for each in seen if isinstance(each, Submitted))
    assert first.max_tokens == second.max_tokens > 700


# ------------------------------------------------------------------------------------------------ the numbers


def in_ns(spread: Spread) -> tuple[int, ...]:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99)
    return spread.count, *(round((value or 0.0) * 1e6) for value in values)


def test_hand_worked_run(tmp_path: Path) -> None:
    result = simulate(hand.scenario(tmp_path))
    it = result.summary
    assert it.duration_s == 353e-9
    assert in_ns(it.all.ttft_ms) == (2, 27, 18, 36, 36, 36)
    assert in_ns(it.all.e2e_ms) == (2, 299, 246, 352, 352, 352)
    assert in_ns(it.all.tpot_ms) == (2, round(544 / 38), 228 // 19, *[round(316 / 19)] * 3)
    # 7 and 7 gaps of 11, one of 19, 22 of 12, and one of 107 while request 2 was away.
    assert in_ns(it.all.itl_ms) == (38, round(544 / 38), 12, 12, 19, 107)
    assert (it.preemptions_swap, it.preemptions_recompute) == (0, 1)
    assert (it.recomputed_tokens, it.computed_tokens, it.recompute_tax) == (19, 73, 19 / 73)
    assert it.steps == 28
    assert it.device_busy == 1.0
    # The objective is 30 ns to the first token: request 1 (18 ns) meets it, request 2 (36 ns) does not.
    assert (it.all.met_slo, it.all.judged, it.all.slo_attainment) == (1, 2, 0.5)
    assert it.all.goodput_per_s == pytest.approx(1 / 353e-9)
    assert it.output_tokens_per_s == pytest.approx(40 / 353e-9)


def test_hand_worked_kv_utilisation(tmp_path: Path) -> None:
    """Pages in use, from the step that needs one more to the next change (see ``hand``)."""
    alone = {step: -(-(8 + step - 1) // 4) for step in range(1, 21)}
    other = {step: -(-(8 + step - 2) // 4) for step in range(2, 14)}
    length = {1: 18, 2: 19} | dict.fromkeys(range(3, 14), 12) | dict.fromkeys(range(14, 21), 11)
    page_ns = sum((alone[step] + other.get(step, 0)) * length[step] for step in length)
    page_ns += 5 * 30 + sum(-(-(20 + step - 21) // 4) * 11 for step in range(22, 29))
    assert simulate(hand.scenario(tmp_path)).summary.kv_utilisation == page_ns / (10 * 353)


def test_prefix_hits_are_told_by_a_run_and_its_journal_alike(tmp_path: Path) -> None:
    """Mooncake's two requests of 600 and 1024 tokens share their first 512; the second comes when one is done."""
    file = tmp_path / "m.jsonl"
    file.write_text(MOONCAKE)

    def run(allocator: str) -> Any:
        overrides = ["workload.kind=trace", f"workload.trace={file}", f"memory.allocator={allocator}"]
        journal = tmp_path / f"{allocator}.jsonl"
        found = simulate(overrides=overrides, journal=journal).summary
        assert msgspec.json.encode(stat(journal).summary) == msgspec.json.encode(found)
        return found

    kept = run("prefix")
    assert (kept.cached_tokens, kept.cached_share) == (512, 512 / 1624)
    assert (run("paged").cached_tokens, run("paged").cached_share) == (0, None)


def test_prefix_hits_of_a_workload_without_keys_are_unknown() -> None:
    it = simulate(overrides=["workload.limit=20", "memory.allocator=prefix"]).summary
    assert (it.cached_tokens, it.cached_share) == (0, None)


def test_same_seed_same_bytes() -> None:
    def once(seed: int) -> bytes:
        config = Config(
            scheduler=SchedulerConfig(policy="chat-batch", seed=seed),
            memory=MemoryConfig(pages=800),
            workload=WorkloadConfig(limit=200, settings={"seed": seed}),
        )
        return msgspec.json.encode(simulate(config).summary)

    assert once(3) == once(3)
    assert once(3) != once(4)


def record(id: int, reason: str, **values: Any) -> RequestRecord:
    return RequestRecord(id, 0, 10, values.pop("klass", "chat"), "default", reason=reason, **values)


def verdicts(*records: RequestRecord, end_ns: int = 0) -> tuple[int, int, int]:
    """Met, judged, offered under objectives of 100 ns to the first token and 10 ns a token."""
    metrics = RunMetrics()
    metrics.requests = {each.id: each for each in records}
    metrics.end_ns = end_ns
    config = Config(classes=(ClassConfig(name="chat", ttft_ms=1e-4, tpot_ms=1e-5), ClassConfig(name="free")))
    everybody = summarise(metrics, config).all
    return everybody.met_slo, everybody.judged, everybody.offered


def done(id: int, first_ns: int, last_ns: int, tokens: int, reason: str = "stop", **values: Any) -> RequestRecord:
    return record(
        id, reason, first_token_ns=first_ns, last_token_ns=last_ns, finished_ns=last_ns, tokens=tokens, **values
    )


def test_objectives_are_met_up_to_and_including_the_limit() -> None:
    assert verdicts(done(1, 100, 150, 6)) == (1, 1, 1)
    assert verdicts(done(1, 101, 150, 6)) == (0, 1, 1)
    assert verdicts(done(1, 100, 151, 6)) == (0, 1, 1)
    assert verdicts(done(1, 100, 100, 1)) == (1, 1, 1)
    assert verdicts(done(1, 100, 150, 6, reason="length")) == (1, 1, 1)


@pytest.mark.parametrize("reason", ["rejected", "expired", "error"])
def test_ends_that_miss(reason: str) -> None:
    assert verdicts(record(1, reason)) == (0, 1, 1)
    assert verdicts(record(1, reason, klass="free")) == (0, 1, 1)


def test_a_cancelled_request_counts_only_if_it_had_missed() -> None:
    assert verdicts(record(1, "cancelled", finished_ns=90)) == (0, 0, 1)
    assert verdicts(record(1, "cancelled", finished_ns=101)) == (0, 1, 1)
    assert verdicts(done(1, 90, 140, 6, reason="cancelled")) == (0, 0, 1)
    assert verdicts(done(1, 90, 141, 6, reason="cancelled")) == (0, 1, 1)


def test_a_request_cut_off_by_the_end_counts_only_if_it_had_missed() -> None:
    assert verdicts(record(1, ""), end_ns=100) == (0, 0, 1)
    assert verdicts(record(1, ""), end_ns=101) == (0, 1, 1)


def test_a_class_without_objectives_asks_only_for_completion() -> None:
    assert verdicts(done(1, 9_000, 99_000, 3, klass="free")) == (1, 1, 1)


def test_a_class_without_objectives_is_left_out_of_all_but_its_goodput() -> None:
    late, free, expired = (
        done(1, 101, 140, 3),
        done(2, 9_000, 99_000, 3, klass="free"),
        record(3, "expired", klass="free"),
    )
    assert verdicts(late, free, expired) == (0, 1, 3)
    metrics = RunMetrics()
    metrics.requests = {each.id: each for each in (late, free)}
    config = Config(classes=(ClassConfig(name="chat", ttft_ms=1e-4), ClassConfig(name="free")))
    everybody = summarise(metrics, config).all
    assert (everybody.slo_attainment, everybody.has_objectives) == (0.0, True)
    assert everybody.goodput_per_s * summarise(metrics, config).duration_s == pytest.approx(1.0)
    metrics.requests = {2: free}
    alone = summarise(metrics, config).all
    assert (alone.slo_attainment, alone.has_objectives) == (1.0, False)


def test_rejections_are_told_by_code() -> None:
    config = Config(
        scheduler=SchedulerConfig(max_context=50, running_limit=1, max_waiting=1),
        cost=CostConfig(options={"base_ns": 1000}),
    )
    workload = Workload("w", [TraceRequest(0, 60, 5), *[TraceRequest(at, 10, 5) for at in range(1, 5)]])
    it = simulate(config, workload=workload).summary
    assert it.rejected == {"prompt_too_long": 1, "queue_full": 2}
    assert it.ended == {"rejected": 3, "stop": 2}
    assert it.all.slo_attainment == 2 / 5


def test_a_run_of_nothing_but_rejections_has_no_latencies() -> None:
    workload = Workload("w", [TraceRequest(0, 60, 5)])
    it = simulate(Config(scheduler=SchedulerConfig(max_context=50)), workload=workload).summary
    assert it.all.ttft_ms == Spread(0)
    assert (it.requests_per_s, it.all.slo_attainment) == (0.0, 0.0)


def test_attainment_leaves_out_whom_nobody_can_judge() -> None:
    metrics = RunMetrics()
    metrics.requests = {1: done(1, 5, 5, 1), 2: record(2, "cancelled", finished_ns=5), 3: record(3, "expired")}
    config = Config(classes=(ClassConfig(name="chat", ttft_ms=1e-4),))
    everybody = summarise(metrics, config).all
    assert (everybody.offered, everybody.judged, everybody.slo_attainment) == (3, 2, 0.5)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_device_is_busy_all_the_time_at_most(depth: int) -> None:
    """Steps still in flight when the last request ends count, and so does their time."""
    config = Config(scheduler=SchedulerConfig(depth=depth))
    it = simulate(config, workload=Workload("w", [TraceRequest(0, 60, 5)])).summary
    assert it.device_busy == 1.0


def test_a_simulation_has_no_tokens_to_record(tmp_path: Path) -> None:
    config = Config(journal=JournalConfig(level="tokens"))
    with pytest.raises(UserError, match=r"journal\.level.*a simulation has no tokens"):
        simulate(config, journal=tmp_path / "run.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_workload_is_shaped_in_the_order_that_is_told(tmp_path: Path) -> None:
    """Window, share, limit, clipping, rate: whatever the kind."""
    rows = [f"{at}.0,{100 + at % 7},{10 + at % 3},s{at % 10}" for at in range(200)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens,session_id", *rows]))
    asked = ["start_s=50", "end_s=150", "share=0.5", "share_by=program", "share_seed=2", "limit=30", "max_prompt=104"]
    asked += ["max_output=11", "rate=4", f"trace={path}", "kind=trace"]
    workload = load_workload(read_scenario(overrides=[f"workload.{each}" for each in asked]))
    assert len(workload) == 30
    assert {r.program for r in workload.requests} < {f"s{at}" for at in range(10)}
    assert (max(r.prompt_tokens for r in workload.requests), max(r.output_tokens for r in workload.requests)) == (
        104,
        11,
    )
    assert workload.profile().rate_per_s == pytest.approx(4.0)
    done = ["100 of 200 requests", "a share of 0.5 by program", "limited to the first 30", "clipped", "rate multiplied"]
    assert len(workload.notes) == len(done)
    assert all(word in note for word, note in zip(done, workload.notes, strict=True))
    dropped = load_workload(read_scenario(overrides=["workload.max_output=100", "workload.over=drop"]))
    assert max(r.output_tokens for r in dropped.requests) <= 100
    assert refusal("workload.start_s=9999999").field == "workload.end_s"
