"""Recorded plans on a backend: what reaches it, in which order, and the figures that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from stepwell.core.errors import UserError
from stepwell.core.instructions import Launch
from stepwell.core.journal import Prompt
from stepwell.core.journal_file import segment_path
from stepwell.core.protocols import BatchShape, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.sim.execute import execute
from stepwell.sim.metrics import RunMetrics
from stepwell.sim.step_times import StepTime, StepTimes, bucket
from stepwell.tests.cli import hand
from stepwell.tests.cli.hand import call
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import ODD, fixed_case

VOCABULARY = 50
COST = Linear(ODD)


class Strict(EchoBackend):
    """Counts what a request holds, as a real device would have to: a slice begins where the one before it ended."""

    def __init__(self) -> None:
        super().__init__(cost=COST)
        self.prompts: dict[RequestId, Sequence[int]] = {}
        self.computed: dict[RequestId, int] = {}
        self.known: dict[RequestId, int] = {}
        self.group: list[RequestId] = []
        self.there: dict[RequestId, None] = {}

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        assert sampling.ignore_eos
        super().admit(request, prompt, max_tokens, sampling, output)
        self.prompts[request] = prompt
        self.known[request] = len(prompt)
        self.there[request] = None

    def execute(self, batch: Launch) -> StepResult:
        self.group = [id for id in self.group if id not in batch.left]
        self.group += [id for id in batch.joined if id in self.there]
        assert len(set(self.group)) == len(self.group)
        for id in self.group if batch.decode else ():
            assert self.computed[id] == self.known[id] - 1
            self.computed[id] += 1
            self.known[id] += 1
        for id, start, count, samples in batch.slices:
            assert start in (0, self.computed.get(id))
            self.computed[id] = start + count
            assert samples == (self.computed[id] == self.known[id])
            self.known[id] += samples
        return super().execute(batch)

    def release(self, request: RequestId) -> None:
        super().release(request)
        del self.there[request]


@pytest.mark.parametrize("policy", ["fcfs", "swap", "chat-batch"])
@pytest.mark.parametrize("seed", range(24))
def test_the_backend_gets_what_it_got_when_it_was_recorded(seed: int, policy: str, tmp_path: Path) -> None:
    """Swaps, recomputes, cancels, failed steps, up to three in flight: every step has the shape that it had then."""
    case, path = fixed_case(seed, policy, "paged"), tmp_path / "run.jsonl"
    metrics = RunMetrics()
    record(case, path, beside=[lambda writer, *turn: metrics.observe(*turn)])
    backend = Strict()
    times = execute(path, backend, COST, vocabulary=VOCABULARY)
    assert [each.predicted_ns for each in times.steps] == [each.recorded_ns for each in times.steps]
    assert [each.measured_ns for each in times.steps] == [each.recorded_ns for each in times.steps]
    if not case.faults:
        assert sum(each.recorded_ns for each in times.steps) == metrics.busy_ns
    assert len(times.steps) > 20
    assert not backend.there
    for id, tokens in backend.prompts.items():
        assert len(tokens) == case.requests[id - 1].prompt_tokens
        assert all(0 <= token < VOCABULARY for token in tokens)
    assert times.total().ratio == 1.0
    assert times.total().recorded_s is None


def test_token_ids_come_from_the_journal_or_from_a_seed(tmp_path: Path) -> None:
    case, path = fixed_case(1, "fcfs", "paged"), tmp_path / "run.jsonl"
    record(case, path)
    drawn = []
    for seed in (0, 0, 1):
        backend = Strict()
        execute(path, backend, COST, vocabulary=VOCABULARY, seed=seed)
        drawn.append(backend.prompts)
    assert drawn[0] == drawn[1] != drawn[2]
    head, *rest = path.read_bytes().splitlines(keepends=True)
    told = [7] * case.requests[0].prompt_tokens
    path.write_bytes(b"".join([head, msgspec.json.encode(Prompt(1, told)) + b"\n", *rest]))
    backend = Strict()
    execute(path, backend, COST, vocabulary=VOCABULARY)
    assert backend.prompts[1] == told


def test_a_journal_that_begins_late_is_executed_without_those_who_were_there(tmp_path: Path) -> None:
    case, path = fixed_case(5, "swap", "paged"), tmp_path / "run.jsonl"
    record(case, path, beside=[RotateEvery(4)])
    whole = execute(path, Strict(), COST, vocabulary=VOCABULARY)
    path.unlink()
    backend = EchoBackend(cost=COST)
    rest = execute(segment_path(path, 1), backend, COST, vocabulary=VOCABULARY)
    assert 0 < len(rest.steps) < len(whole.steps)
    assert not any(each.recorded_ns for each in rest.steps)
    segment_path(path, 2).unlink()
    broken = execute(segment_path(path, 1), EchoBackend(cost=COST), COST, vocabulary=VOCABULARY)
    assert 0 < len(broken.steps) < len(rest.steps)


def test_a_limit_and_progress(tmp_path: Path) -> None:
    path, told = tmp_path / "run.jsonl", list[int]()
    record(fixed_case(2, "fcfs", "paged"), path)
    assert len(execute(path, Strict(), COST, vocabulary=9, limit=7, progress=told.append).steps) == 7
    assert told == [1, 2, 3, 4, 5, 6, 7]


class Broken(EchoBackend):
    def execute(self, batch: Launch) -> StepResult:
        return StepResult(batch.step, failed="RuntimeError: out of memory")


class Small(EchoBackend):
    def admit(self, *_: object, **__: object) -> None:
        raise UserError("token 48 is outside 0 … 9", field="prompt")


def test_what_cannot_be_executed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(fixed_case(2, "fcfs", "paged"), path)
    with pytest.raises(UserError, match=r"could not execute step 1 \(\d+ prefill tokens.*out of memory"):
        execute(path, Broken(), COST, vocabulary=VOCABULARY)
    with pytest.raises(UserError, match=r"request 1 of the journal does not suit this model: .*token 48"):
        execute(path, Small(), COST, vocabulary=VOCABULARY)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(UserError, match="do not fit together"):
        execute(path, EchoBackend(cost=COST), COST, vocabulary=VOCABULARY)
    path.write_bytes(lines[0] + b"[oops\n" + lines[1])
    with pytest.raises(UserError, match="line 2: not a journal record"):
        execute(path, EchoBackend(cost=COST), COST, vocabulary=VOCABULARY)


# ------------------------------------------------------------------------------------------------ figures


def test_buckets() -> None:
    assert [bucket(count, 1, 16) for count in (0, 1, 16, 17, 32, 33)] == [
        *((0, 0), (1, 16), (1, 16)),
        *((17, 32), (17, 32), (33, 64)),
    ]
    assert [bucket(count, 2, 256) for count in (256, 257, 1025)] == [(1, 256), (257, 1024), (1025, 4096)]
    assert [bucket(count, 1, 1) for count in (1, 2, 3, 4, 5)] == [(1, 1), (2, 2), (3, 4), (3, 4), (5, 8)]


def test_figures_by_hand() -> None:
    ms = 1_000_000
    times = StepTimes(live=True)
    small, large = BatchShape(decode_requests=3, kv_tokens=300), BatchShape(prefill_tokens=100, kv_tokens=0)
    for measured, predicted, recorded in ((4, 2, 5), (6, 2, 5), (9, 3, 0)):
        times.steps.append(StepTime(small, measured * ms, predicted * ms, recorded * ms))
    times.steps.append(StepTime(large, 20 * ms, 40 * ms, 20 * ms))
    first, second = times.by_shape()
    assert (first.prefill_tokens, first.decode_requests, first.kv_tokens) == ((0, 0), (3, 4), (257, 1024))
    assert (first.steps, first.measured_p50_ms, first.predicted_p50_ms, first.ratio) == (3, 6.0, 2.0, 3.0)
    assert first.recorded_p50_ms == 5.0
    assert (second.prefill_tokens, second.ratio) == ((65, 128), 0.5)
    total = times.total()
    assert (total.steps, total.measured_s, total.predicted_s, total.ratio) == (4, 0.039, 0.047, 0.83)
    assert (total.recorded_s, total.ratio_to_recorded) == (0.03, 1.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    assert call(capsys, "sim", hand.scenario(tmp_path), "--journal", path)[0] == 0
    status, out, _ = call(capsys, "replay", path, "--backend", "echo")
    assert status == 0
    assert "medians by prefill tokens" in out
    assert out.splitlines()[-1] == "28 steps: measured 0.00 s, predicted 0.00 s, ratio 1.00"
    out = call(capsys, "replay", path, "--backend", "echo", "--json", "--limit", "13")[1]
    *rows, total = map(msgspec.json.decode, out.splitlines())
    assert sum(row["steps"] for row in rows) == total["steps"] == 13
    for arguments, says in (
        (("--backend", "nobody"), "no backend 'nobody'; there are costmodel, echo, torch"),
        (("--json",), "--json goes with --backend"),
        (("--limit", "3"), "--limit goes with --backend"),
        (("--backend", "echo", "--limit", "-1"), "must not be negative"),
    ):
        status, _, err = call(capsys, "replay", path, *arguments)
        assert status == 2
        assert says in err
