"""Advice on recorded traffic: one policy clearly wins, none does, none can; time, limits, logs, the command."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stepwell.core.config import ClassConfig, Config, CostConfig, MemoryConfig, SchedulerConfig
from stepwell.core.config_load import resolve
from stepwell.core.errors import UserError
from stepwell.core.registry import complete, load, make_options, names
from stepwell.sim.compare.records import Contender, Difference, Point
from stepwell.sim.compare.statistics import t_quantile
from stepwell.sim.compare.tasks import Failed
from stepwell.sim.run import simulate
from stepwell.sim.whatif.advice import Advice, toml_of
from stepwell.sim.whatif.advise import advise, until
from stepwell.sim.whatif.catalogue import VARIANTS, catalogue, knows_the_future
from stepwell.sim.whatif.judging import distance
from stepwell.sim.whatif.traffic import Traffic, read_traffic
from stepwell.sim.workload.kept import write_workload
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import joined, scale_rate
from stepwell.tests.cli.hand import call

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "what_if.md").read_text(encoding="utf-8")
MS = 1_000_000
COST = {"base_ns": MS, "prefill_token_ns": 1000, "decode_request_ns": 0, "kv_token_ps": 0, "swap_page_ns": 0}


def house(**scheduler: object) -> Config:
    chat = ClassConfig(name="chat", ttft_ms=20.0)
    return Config(
        scheduler=SchedulerConfig(**{"running_limit": 4, "token_budget": 512, **scheduler}),  # type: ignore[arg-type]
        memory=MemoryConfig(allocator="paged", pages=2000),
        cost=CostConfig(options=dict(COST)),
        classes=(chat, ClassConfig(name="batch", rank=1)),
    )


def two_kinds(count: int, every_ms: int = 7) -> Workload:
    """A batch request of 60 tokens, then a chat request of four, and so on; there are four seats.  Who serves the first
    that came has every seat full of batch while chat waits; who puts chat first never lets it wait long."""
    made = []
    for at in range(count):
        batch = at % 2 == 0
        klass = "batch" if batch else "chat"
        made.append(TraceRequest(at * every_ms * MS, 40, 60 if batch else 4, klass))
    return Workload("two kinds", made)


def recorded(tmp_path: Path, config: Config, workload: Workload) -> Traffic:
    simulate(config, workload=workload, journal=tmp_path / "run.jsonl")
    return read_traffic([tmp_path / "run.jsonl"])


def asked(tmp_path: Path, traffic: Traffic, *policies: str, **options: object) -> Advice:
    return advise(traffic, folder=tmp_path, policies=policies, jobs=1, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ verdicts


def test_a_policy_that_clearly_wins_is_advised(tmp_path: Path) -> None:
    traffic = recorded(tmp_path, house(), two_kinds(260))
    found = asked(tmp_path, traffic, "swap", "chat-batch")
    assert found.verdict == "change"
    assert found.now == "fcfs (now)"
    best, now = found.standings[0], found.standing(found.now)
    assert best.contender.policy == "chat-batch"
    assert best.meets
    assert not now.meets
    assert best.distance is not None
    assert best.distance.better
    assert best.distance.mean == pytest.approx(best.attainment - now.attainment)
    assert best.attainment > 0.95 > now.attainment
    assert "is really better" in found.reasons[0]
    assert best.headroom is not None
    assert best.headroom.factor >= 1
    written = tmp_path / "advice.toml"
    written.write_text(found.toml)
    config = resolve(written).config
    assert (config.scheduler.policy, config.memory.allocator) == ("chat-batch", "paged")


def test_what_meets_the_objectives_already_is_kept(tmp_path: Path) -> None:
    """Alone on the device: every policy does the same."""
    traffic = recorded(tmp_path, house(), two_kinds(260, every_ms=70))
    found = asked(tmp_path, traffic, "swap")
    assert found.verdict == "keep"
    assert found.best == found.now == "fcfs (now)"
    assert all(each.distance is None or not each.distance.better for each in found.standings)
    assert "keep it" in found.reasons[0]
    assert 'policy = "fcfs"' in found.toml


def test_too_few_requests_are_told_from_proof(tmp_path: Path) -> None:
    traffic = recorded(tmp_path, house(), two_kinds(60))
    found = asked(tmp_path, traffic, "chat-batch")
    assert found.verdict == "unclear"
    assert any("too few to tell a difference from chance: 250 are needed" in reason for reason in found.reasons)
    assert 'policy = "fcfs"' in found.toml, "what is not known to be better is not advised"


def test_where_none_can_meet_them_it_says_what_limits(tmp_path: Path) -> None:
    """Chat alone needs more than one device: a rate that would hold is named."""
    chat = [TraceRequest(at * MS, 40, 20) for at in range(260)]
    traffic = recorded(tmp_path, house(), Workload("flood", chat))
    found = asked(tmp_path, traffic, "swap")
    assert found.verdict == "none"
    assert found.saturated_per_s is not None
    assert found.rate_per_s > found.saturated_per_s
    assert any(reason.startswith("the load is beyond capacity") for reason in found.reasons)
    assert any("seats limit: with scheduler.running_limit = 8 instead of 4" in reason for reason in found.reasons)
    assert any(re.search(r"would hold them at [\d.]+ requests/s", reason) for reason in found.reasons)
    best = found.standings[0]
    assert best.headroom is not None
    assert best.headroom.bound == "found"
    slower = scale_rate(traffic.workload, best.headroom.factor)
    config = msgspec.structs.replace(house(), scheduler=msgspec.structs.replace(
        house().scheduler, policy=best.contender.policy, options=best.contender.options))  # fmt: skip
    assert (simulate(config, workload=slower).summary.all.slo_attainment or 0) >= 0.95


def test_objectives_that_are_tighter_than_the_device(tmp_path: Path) -> None:
    tight = msgspec.structs.replace(house(), classes=(ClassConfig(name="chat", ttft_ms=1.01),))
    alone = Workload("alone", [TraceRequest(at * 50 * MS, 40, 10) for at in range(260)])
    found = asked(tmp_path, recorded(tmp_path, tight, alone), "swap")
    assert found.verdict == "none"
    assert any("even a nearly idle device misses the objectives" in reason for reason in found.reasons)
    assert any("would not help" in reason for reason in found.reasons)


def test_an_interval_is_wider_the_more_are_tried() -> None:
    it = Difference("a", "b", Point(), "all", "slo_attainment", 0.1, 0.02, 0.18, 20, "sections", None, True, True)
    one, thirty = distance(it, 1), distance(it, 30)
    assert (one.low, one.high) == (pytest.approx(0.02), pytest.approx(0.18))
    assert thirty.high is not None
    assert thirty.high - 0.1 == pytest.approx(0.08 * t_quantile(19, 1 - 0.05 / 30) / t_quantile(19))
    assert (one.real, thirty.real) == (True, False)
    assert distance(msgspec.structs.replace(it, low=None, high=None), 3).real is None


# ------------------------------------------------------------------------------------------------ what is tried


def test_every_registered_policy_is_tried_and_no_oracle() -> None:
    found = catalogue(complete(house()), CostConfig(options=dict(COST)))
    assert {each.policy for each in found} == set(names("policies"))
    assert found[0].label == "fcfs (now)"
    assert len({each.label for each in found}) == len(found)
    assert not any(knows_the_future(each.policy, each.options) for each in found)
    assert knows_the_future("srpt", {"predictor": "oracle"})
    (sarathi,) = (each for each in found if each.label == "sarathi step_ms=25.0")
    assert sarathi.options["estimate_options"] == COST
    assert len(catalogue(complete(house()), CostConfig(), ["fcfs"])) == 1, "what runs now is not tried twice"


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variants_are_options_that_there_are_and_the_page_tells_them(name: str) -> None:
    plugin = load("policies", name)
    default = msgspec.to_builtins(make_options(plugin, {}, field="x"))
    for each in VARIANTS[name]:
        made = msgspec.to_builtins(make_options(plugin, each, field="x"))
        assert made != default
    told = "; ".join(f"`{key} = {tomllib_text(value)}`" for each in VARIANTS[name] for key, value in each.items())
    assert f"| `{name}` | {told} |" in PAGE


def tomllib_text(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    assert tomllib.loads(f"x = {text}")["x"] == value
    return text


def test_a_recorded_oracle_is_refused(tmp_path: Path) -> None:
    config = house(policy="srpt", options={"predictor": "oracle"})
    traffic = recorded(tmp_path, config, two_kinds(20))
    with pytest.raises(UserError, match="knows the future"):
        asked(tmp_path, traffic)


def test_no_objectives_no_advice(tmp_path: Path) -> None:
    config = msgspec.structs.replace(house(), classes=(ClassConfig(name="chat"), ClassConfig(name="batch")))
    with pytest.raises(UserError, match="--slo"):
        asked(tmp_path, recorded(tmp_path, config, two_kinds(20)))


def test_allocators_are_tried_where_requests_share_prefixes(tmp_path: Path) -> None:
    config = msgspec.structs.replace(house(), memory=MemoryConfig(allocator="prefix", pages=2000))
    requests = [msgspec.structs.replace(each, keys=[at % 3, 10 + at]) for at, each in enumerate(two_kinds(40).requests)]
    traffic = recorded(tmp_path, config, Workload("shared", requests, key_tokens=16))
    found = asked(tmp_path, traffic, "swap")
    assert {each.contender.allocator for each in found.standings} == {"prefix", "radix"}
    assert any(each.contender.label == "fcfs + radix" for each in found.standings)
    without = asked(tmp_path, recorded(tmp_path, house(), two_kinds(20)), "swap")
    assert any("allocators were not compared" in note for note in without.notes)


# ------------------------------------------------------------------------------------------------ bounds


def test_what_is_not_begun_in_time_has_failed() -> None:
    clock = iter([0.0, 1.0, 5.0])

    def runner(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        yield from enumerate(tasks)

    found = dict(until(runner, 5.0, lambda: next(clock))([b"a", b"b", b"c", b"d"]))
    assert (found[0], found[1]) == (b"a", b"b")
    assert all(msgspec.json.decode(found[at], type=Failed).error == "no time was left for it" for at in (2, 3))
    assert set(dict(until(runner, 5.0, lambda: 6.0)([b"a"]))) == {0}


def test_the_latest_requests_count(tmp_path: Path) -> None:
    simulate(house(), workload=two_kinds(50), journal=tmp_path / "run.jsonl")
    traffic = read_traffic([tmp_path / "run.jsonl"], latest=10)
    whole = read_traffic([tmp_path / "run.jsonl"])
    assert (len(traffic.workload), traffic.requests_in_all, len(whole.workload)) == (10, 50, 50)
    assert traffic.workload.requests[0].arrival_ns == 0
    assert [each.output_tokens for each in traffic.workload.requests] == [60, 4] * 5


def test_journals_are_played_one_after_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simulate(house(), workload=two_kinds(10), journal=tmp_path / f"{name}.jsonl")
    traffic = read_traffic([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert [each.arrival_ns for each in traffic.workload.requests] == [at * 7 * MS for at in range(20)]
    first = Workload("a", [TraceRequest(5, 1, 1), TraceRequest(7, 1, 1, parent=1)], key_tokens=4)
    both = joined([first, first])
    assert [(each.arrival_ns, each.parent) for each in both.requests] == [(0, 0), (2, 1), (4, 0), (6, 3)]
    with pytest.raises(UserError, match="keys stand for 4 and 8 tokens"):
        joined([first, msgspec.structs.replace(first, key_tokens=8)])


def test_a_workload_that_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    requests = [
        TraceRequest(5, 40, 9, "batch", "t", [1, 1 << 63], priority=-2, program="p", answer_keys=(7,)),
        TraceRequest(9, 40, 9, keys=[1], max_tokens=30, expires_ns=99, cancel_tokens=3, parent=1),
        TraceRequest(11, 1, 1, after=(1,), think_ns=4, cancel_ns=50),
    ]
    workload = Workload("it", requests, key_tokens=16)
    write_workload(workload, tmp_path / "it.jsonl")
    again = read_trace(tmp_path / "it.jsonl")
    assert again.digest() == workload.digest()
    assert again.requests == workload.requests
    bad = tmp_path / "bad.jsonl"
    for row, says in (
        ("[1,2]", "2 fields"),
        ('[1,2,"x"]', "Expected"),
        ("[-1,2,3]", "not negative"),
        ("{}", "Expected"),
    ):
        bad.write_text('{"stepwell_workload":1,"key_tokens":0}\n' + row + "\n")
        with pytest.raises(UserError, match=f"line 2: .*{says}"):
            read_trace(bad)
    bad.write_text('{"stepwell_workload":2}\n[1,2,3]\n')
    with pytest.raises(UserError, match="version"):
        read_trace(bad)


def test_toml_says_all_that_was_chosen(tmp_path: Path) -> None:
    it = Contender("x", "sarathi", "prefix", {"step_ms": 25.0, "estimate": "linear", "estimate_options": COST}, {})
    path = tmp_path / "c.toml"
    path.write_text(toml_of(it))
    config = resolve(path).config
    assert (config.scheduler.policy, config.scheduler.options) == ("sarathi", it.options)
    assert config.memory.allocator == "prefix"


# ------------------------------------------------------------------------------------------------ the command

LOG = (
    "INFO 11-30 07:41:{second:02d} [logger.py:47] Received request cmpl-{id}: prompt: 'Hi', params: SamplingParams(n=1,"
    " max_tokens=50), prompt_token_ids: [1, 15, 9], prompt_embeds shape: None, lora_request: None.\n"
    "INFO 11-30 07:41:{second:02d} [logger.py:80] Generated response cmpl-{id}: output: 'Yo',"
    " output_token_ids: [7, 7, 2], finish_reason: stop\n"
)


def test_the_command_on_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, out = tmp_path / "run.jsonl", tmp_path / "advice"
    simulate(house(), workload=two_kinds(260), journal=journal)
    asked = ("advise", journal, "--policy", "chat-batch", "--slo", "chat.ttft_ms=19", "--jobs", 1, "--out", out)
    status, told, err = call(capsys, *asked)
    assert (status, err) == (0, "")
    assert "objectives: chat TTFT 19 ms, batch none; 95.0 % are to meet them" in told
    assert "put into the configuration:" in told
    assert 'policy = "chat-batch"' in told
    assert resolve(out / "advice.toml").config.scheduler.policy == "chat-batch"
    kept = msgspec.json.decode((out / "advice.json").read_bytes())
    assert kept["verdict"] == "change"
    runs = len(list((out / "cells").iterdir()))
    status, told, _ = call(capsys, *asked, "--json")
    assert msgspec.json.decode(told) == kept, "from what was kept"
    assert len(list((out / "cells").iterdir())) == runs


def test_the_command_on_a_vllm_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("".join(LOG.format(second=at % 60, id=at) for at in range(30)))
    status, _, err = call(capsys, "advise", log)
    assert status == 2
    assert "holds no step times: give --cost" in err
    cost = tmp_path / "cost.toml"
    cost.write_text('[cost]\nmodel = "linear"\n[cost.options]\nbase_ns = 5000000\n')
    status, told, err = call(capsys, "advise", log, "--cost", cost, "--policy", "fcfs", "--jobs", 1)
    assert (status, err) == (0, "")
    assert "vllm (now)" in told
    assert "Step times are estimates: those of the cost model linear; lengths are as they were logged" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--slo", "chat.ttft=5"), "CLASS.ttft_ms"),
        (("--slo", "nobody.ttft_ms=5"), "nobody"),
        (("--policy", "nobody"), "nobody"),
        (("--share", "1.5"), "at most 1"),
        (("--minutes", "0"), "above 0"),
        (("--latest", "-1"), "negative"),
        (("--jobs", "-1"), "between 0"),
        (("--set", "workload.rate=5"), "the recorded ones"),
        (("--config", "x.toml"), "a journal says what runs now"),
        (("--cost", "absent.toml"), "absent.toml"),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    simulate(house(), workload=two_kinds(4), journal=tmp_path / "run.jsonl")
    status, _, err = call(capsys, "advise", tmp_path / "run.jsonl", *arguments)
    assert status == 2
    assert says in err
