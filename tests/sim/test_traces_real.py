"""The readers on the real traces, against figures measured apart from them.  Skipped where the files are absent."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from stepwell.core.config import MemoryConfig
from stepwell.core.errors import UserError
from stepwell.core.instructions import Admitted, Instruction
from stepwell.core.limits import SchedulerLimits
from stepwell.core.registry import make_allocator, make_policy
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import NS_PER_S
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.generate import common_workload, read_unit_rate
from stepwell.sim.workload.request import Workload, shared_key_share
from stepwell.sim.workload.trace import read_trace

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the recorded traces are not at {TRACES}")


def read(name: str, *, debucket: bool = False) -> Workload:
    return read_trace(TRACES / name, debucket=debucket)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("azure_llm_2023_conv.csv", 19_366),
        ("azure_llm_2023_code.csv", 8_819),
        ("mooncake_fast25_conversation.jsonl", 12_031),
        ("mooncake_fast25_synthetic.jsonl", 3_993),
        ("synthetic_lognormal_10k.csv", 10_000),
    ],
)
def test_si_2_every_row_of_the_real_traces_is_used(name: str, rows: int) -> None:
    workload = read(name)
    assert len(workload) == rows
    report = workload.report
    assert report is not None
    assert (report.rows, report.used, report.dropped, report.refused, report.unsorted) == (rows, rows, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "span_s", "rate", "cv", "prompt", "output"),
    [
        ("azure_llm_2023_conv.csv", 3501.7, 5.53, 1.09, 1154.7, 211.1),
        ("azure_llm_2023_code.csv", 3435.9, 2.57, 13.15, 2047.8, 27.9),
    ],
)
def test_azure_profiles(name: str, span_s: float, rate: float, cv: float, prompt: float, output: float) -> None:
    workload = read(name)
    profile = workload.profile()
    assert workload.requests[0].arrival_ns == 0
    assert profile.span_ns / 1e9 == pytest.approx(span_s, abs=0.06)
    assert profile.span_ns % 100 == 0
    assert profile.rate_per_s == pytest.approx(rate, abs=0.006)
    assert profile.gap_cv == pytest.approx(cv, abs=0.006)
    assert sum(r.prompt_tokens for r in workload.requests) / len(workload) == pytest.approx(prompt, abs=0.06)
    assert sum(r.output_tokens for r in workload.requests) / len(workload) == pytest.approx(output, abs=0.06)


def test_mooncake_infinite_cache_hit_share() -> None:
    assert shared_key_share(read("mooncake_fast25_conversation.jsonl")) == pytest.approx(0.366, abs=0.0006)
    assert shared_key_share(read("mooncake_fast25_synthetic.jsonl")) == pytest.approx(0.640, abs=0.0006)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_mooncake_infinite_cache_hit_share_is_what_prefix_finds_in_a_pool_without_end(name: str, share: float) -> None:
    """Whoever comes alone finds exactly what the trace says was there before: full pages, all but the last token's."""
    workload = read(f"mooncake_fast25_{name}.jsonl")
    size = workload.key_tokens
    requests = [
        msgspec.structs.replace(
            each, arrival_ns=place * NS_PER_S, output_tokens=1, keys=each.keys[: each.prompt_tokens // size]
        )
        for place, each in enumerate(workload.requests)
    ]
    pages = sum(len(each.keys) + 1 for each in requests)
    memory = MemoryConfig(allocator="prefix", pages=pages, page_size=size, host_pages=0)
    limits = SchedulerLimits(token_budget=1 << 20)
    scheduler = Scheduler(limits, make_allocator(memory), make_policy)
    found: dict[int, int] = {}

    def watch(now_ns: int, events: object, out: Sequence[Instruction]) -> None:
        found.update({each.request: each.cached // size for each in out if isinstance(each, Admitted)})

    instant = Linear.Options(base_ns=1, prefill_token_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0)
    Simulator(scheduler, Linear(instant), requests, observers=[watch]).run()
    assert len(found) == len(requests)
    seen: set[int] = set()
    expected = 0
    for id, each in enumerate(requests, 1):
        known = next((place for place, key in enumerate(each.keys) if key not in seen), len(each.keys))
        most = (each.prompt_tokens - 1) // size
        assert found[id] == min(known, most)
        expected += known - min(known, most)
        seen.update(each.keys)
    keys = sum(len(each.keys) for each in workload.requests)
    parts = sum(len(a.keys) - len(b.keys) for a, b in zip(workload.requests, requests, strict=True))
    hits = sum(found.values()) + expected
    assert share - parts / keys - 0.0006 <= hits / keys <= share + 0.0006


def test_mooncake_debucketing_removes_the_bursts_and_no_more() -> None:
    coarse = read("mooncake_fast25_conversation.jsonl")
    spread = read("mooncake_fast25_conversation.jsonl", debucket=True)
    assert len({request.arrival_ns for request in coarse.requests}) == 1_180
    assert len({request.arrival_ns for request in spread.requests}) == 12_031
    moved = [b.arrival_ns - a.arrival_ns for a, b in zip(coarse.requests, spread.requests, strict=True)]
    assert min(moved) == 0
    assert 2_000_000_000 < max(moved) < 3_000_000_000
    assert [r.keys for r in coarse.requests] == [r.keys for r in spread.requests]
    assert coarse.profile().gap_cv > 3
    assert spread.profile().gap_cv < 0.5
    fine = read("mooncake_fast25_synthetic.jsonl")
    shaken = read("mooncake_fast25_synthetic.jsonl", debucket=True)
    assert max(b.arrival_ns - a.arrival_ns for a, b in zip(fine.requests, shaken.requests, strict=True)) < 1_000_000


def test_the_common_workload_looks_like_its_recorded_sample() -> None:
    recorded = read_unit_rate(TRACES / "synthetic_lognormal_10k.csv", load=0.9)
    drawn = common_workload(10_000, load=0.9)
    assert recorded.profile().rate_per_s == pytest.approx(25.6, rel=0.02)
    for column in ("prompt_tokens", "output_tokens"):
        a = sorted(getattr(request, column) for request in recorded.requests)
        b = sorted(getattr(request, column) for request in drawn.requests)
        assert sum(a) == pytest.approx(sum(b), rel=0.02)
        for share in (0.1, 0.5, 0.9):
            assert a[int(share * 10_000)] == pytest.approx(b[int(share * 10_000)], rel=0.04)


@pytest.mark.parametrize(
    ("client", "windows", "busy", "requests"),
    [("language_m-small_chunk-15", 2_016, 13, 116_926), ("reason_deepseek-r1_chunk-2", 144, 1, 312)],
)
def test_servegen_clients_have_the_requests_that_were_counted_and_their_lengths(
    client: str, windows: int, busy: int, requests: int
) -> None:
    name = f"servegen_{client}-trace.csv"
    workload = read(name)
    assert workload.report is not None
    assert (workload.report.rows, workload.report.used, workload.report.refused) == (windows, windows, 0)
    assert len(workload) == requests
    per_window = Counter(r.arrival_ns // 600_000_000_000 for r in workload.requests)
    rates = [float(line.split(",")[1]) for line in (TRACES / name).read_text().splitlines()]
    assert [per_window[at] for at in range(windows)] == [round(rate * 600) for rate in rates]
    assert len(per_window) == busy
    lengths = json.loads((TRACES / f"servegen_{client}-dataset.json").read_text())
    for of_file, of_request in (("input_tokens", "prompt_tokens"), ("output_tokens", "output_tokens")):
        expected = 0.0
        for window, count in per_window.items():
            pdf = ast.literal_eval(lengths[str(window * 600 // 21_600 * 21_600)][of_file])
            expected += count * sum(value * weight for value, weight in pdf.items())
        assert sum(getattr(r, of_request) for r in workload.requests) == pytest.approx(expected, rel=0.05)


def test_a_trace_of_lengths_without_times_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="column 'arrived_at' is missing"):
        read("vidur_arxiv_summarization_first1000.csv")
