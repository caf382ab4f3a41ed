"""SI-2 over every format: the same row, written as each format has it, is used, dropped or refused by the same rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.trace import FORMATS, read_trace


@dataclass(frozen=True)
class Sample:
    """How a format writes a request: ``row`` gets whole seconds, prompt and output as they stand in the file."""

    header: str
    row: Callable[[int, str, str], str]
    columns: tuple[str, ...]
    joint: str = "\n"

    def text(self, *rows: str) -> str:
        return self.joint.join([*([self.header] if self.header else []), *rows])


def stamp(at: int) -> str:
    return f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0000000"


def vllm(at: int, prompt: str, output: str) -> str:
    """Lengths are lists of token ids there: a whole number of tokens, or text that is none."""
    ids = [str([7] * int(each)) if each.isdigit() else each for each in (prompt, output)]
    head = f"INFO 11-16 18:{at // 60:02}:{at % 60:02} [logger.py:47]"
    name = f"cmpl-{at}-{prompt}-{output}"
    return (
        f"{head} Received request {name}: prompt: 'x', params: SamplingParams(n=1, max_tokens=99), "
        f"prompt_token_ids: {ids[0]}, lora_request: None.\n"
        f"{head} Generated response {name}: output: 'y', output_token_ids: {ids[1]}, finish_reason: stop"
    )


LINES = {
    "azure": Sample("TIMESTAMP,ContextTokens,GeneratedTokens", lambda at, p, o: f"{stamp(at)},{p},{o}", ()),
    "burstgpt": Sample(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        lambda at, p, o: f"{at}.0,ChatGPT,{p},{o},7,Conversation log",
        (),
    ),
    "burstgpt with sessions": Sample(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        lambda at, p, o: f"{at},s1,3.25,GPT-4,{p},{o},7,API log",
        (),
    ),
    "simple": Sample("arrived_at,num_prefill_tokens,num_decode_tokens", lambda at, p, o: f"{at},{p},{o}", ()),
}
JSON = {
    "mooncake": Sample(
        "",
        lambda at, p, o: f'{{"timestamp": {at * 1000}, "input_length": {p}, "output_length": {o}, "hash_ids": []}}',
        ("timestamp", "input_length", "output_length"),
    ),
    "qwen": Sample(
        "",
        lambda at, p, o: (
            f'{{"chat_id": {at}, "parent_chat_id": -1, "timestamp": {at}.0, "input_length": {p}, '
            f'"output_length": {o}, "type": "text", "turn": 1, "hash_ids": []}}'
        ),
        ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
    ),
}
KEPT = {"workload": Sample('{"stepwell_workload":1}', lambda at, p, o: f"[{at * 10**9}, {p}, {o}]", ())}
EVERY = {**LINES, **JSON, **KEPT, "vllm-log": Sample("", vllm, ())}
every = pytest.mark.parametrize("sample", EVERY.values(), ids=EVERY)
STRICT = {**LINES, **JSON}
strict = pytest.mark.parametrize("sample", STRICT.values(), ids=STRICT)


def read(tmp_path: Path, text: str | bytes, **options: Any) -> Workload:
    path = tmp_path / "trace.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, **options)


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(r.prompt_tokens, r.output_tokens) for r in workload.requests]


def counts(workload: Workload) -> tuple[int, int, int, int]:
    told = workload.report
    assert told is not None
    assert told.rows == told.used + told.dropped + told.refused
    return told.rows, told.used, told.dropped, told.refused


def test_every_format_is_tried_here_or_has_tests_of_its_own() -> None:
    tried = {name.split()[0] for name in EVERY}
    assert tried | {"journal", "servegen", "sharegpt"} == set(FORMATS)


@every
def test_si_2_a_file_is_known_by_its_beginning(tmp_path: Path, sample: Sample) -> None:
    name = next(name for name, each in EVERY.items() if each is sample).split()[0]
    workload = read(tmp_path, sample.text(sample.row(1, "3", "5"), sample.row(3, "4", "6")))
    assert workload.report is not None
    assert workload.report.format == name
    assert lengths(workload) == [(3, 5), (4, 6)]
    assert workload.requests[1].arrival_ns - workload.requests[0].arrival_ns == 2 * 10**9


@strict
@pytest.mark.parametrize("bad", ["-3", "NaN", "12.0", "1e3", '"1,234"', "99999999999", " ", "٣", "true", "+3", "x"])
@pytest.mark.parametrize("place", ["prompt", "output"])
def test_si_2_what_is_no_count_is_refused_and_counted(tmp_path: Path, sample: Sample, bad: str, place: str) -> None:
    row = sample.row(2, bad, "5") if place == "prompt" else sample.row(2, "5", bad)
    text = sample.text(sample.row(1, "3", "5"), row, sample.row(3, "4", "6"))
    line = 3 if sample.header else 2
    with pytest.raises(UserError, match=rf"trace\.txt, line {line}: "):
        read(tmp_path, text)
    workload = read(tmp_path, text, skip_bad=True)
    assert lengths(workload) == [(3, 5), (4, 6)]
    assert counts(workload) == (3, 2, 0, 1)
    assert workload.report is not None
    assert [(note.line, note.outcome) for note in workload.report.notes] == [(line, "refused")]


@every
def test_si_2_input_0_is_refused_and_output_0_dropped(tmp_path: Path, sample: Sample) -> None:
    text = sample.text(sample.row(1, "3", "5"), sample.row(2, "0", "5"), sample.row(4, "4", "6"))
    with pytest.raises(UserError, match=r"line \d: (no prompt tokens|its prompt_token_ids)"):
        read(tmp_path, text)
    assert counts(read(tmp_path, text, skip_bad=True)) == (3, 2, 0, 1)
    if "vllm" not in sample.row(1, "3", "5") and "Received" not in sample.row(1, "3", "5"):
        assert counts(read(tmp_path, sample.text(sample.row(1, "3", "0"), sample.row(2, "4", "6")))) == (2, 1, 1, 0)


@every
def test_si_2_bom_crlf_a_missing_end_and_blank_lines_at_the_end(tmp_path: Path, sample: Sample) -> None:
    text = sample.text(sample.row(1, "3", "5"), sample.row(3, "4", "6"))
    plain = read(tmp_path, text)
    for other in (b"\xef\xbb\xbf" + text.encode(), text.replace("\n", "\r\n").encode(), text.encode() + b"\n\n \n"):
        assert read(tmp_path, other).requests == plain.requests


@every
def test_si_2_unsorted_times_are_sorted_and_equal_ones_keep_their_order(tmp_path: Path, sample: Sample) -> None:
    rows = [sample.row(at, str(prompt), "7") for prompt, at in enumerate((2, 1, 2, 1, 3), 1)]
    workload = read(tmp_path, sample.text(*rows))
    assert [r.prompt_tokens for r in workload.requests] == [2, 4, 1, 3, 5]
    assert workload.report is not None
    assert workload.report.unsorted == 2


@pytest.mark.parametrize("sample", JSON.values(), ids=JSON)
def test_si_2_a_missing_column_is_named(tmp_path: Path, sample: Sample) -> None:
    good = sample.row(1, "3", "5")
    for column in sample.columns:
        row = json.loads(good)
        del row[column]
        with pytest.raises(UserError, match=rf"line 2: column '{column}' is missing"):
            read(tmp_path, sample.text(good, json.dumps(row)))


@pytest.mark.parametrize("sample", LINES.values(), ids=LINES)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_si_2_a_missing_header_column_is_named_whatever_is_asked(
    tmp_path: Path, sample: Sample, skip_bad: bool
) -> None:
    ignored = {"Model", "Total tokens", "Log Type", "Elapsed time", "Session ID"}
    for column in sample.header.split(","):
        if column in ignored:
            continue
        header = ",".join(each for each in sample.header.split(",") if each != column)
        with pytest.raises(UserError, match=rf"line 1: column '{column}' is missing"):
            read(tmp_path, f"{header}\n", skip_bad=skip_bad)


@every
def test_si_2_the_first_requests_are_the_earliest(tmp_path: Path, sample: Sample) -> None:
    text = sample.text(*(sample.row(9 - at, str(at), "5") for at in range(1, 8)))
    assert lengths(read(tmp_path, text, limit=2)) == [(7, 5), (6, 5)]


TIMES = {
    "azure": stamp(777),
    "burstgpt": "777.0",
    "burstgpt with sessions": "777",
    "simple": "777",
    "mooncake": "777000",
    "qwen": "777.0",
}
"""How each format writes the time of ``row(777, …)``."""


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("bad", ["-2", "NaN", "inf", "", "x", "1,234", "99999999999999999999999999"])
def test_si_2_what_is_no_time_is_refused_and_counted(tmp_path: Path, name: str, bad: str) -> None:
    sample = EVERY[name]
    row = sample.row(777, "3", "5").replace(TIMES[name], bad, 1)
    text = sample.text(sample.row(1, "3", "5"), row, sample.row(3, "4", "6"))
    with pytest.raises(UserError, match=rf"trace\.txt, line {3 if sample.header else 2}: "):
        read(tmp_path, text)
    workload = read(tmp_path, text, skip_bad=True)
    assert (lengths(workload), counts(workload)) == ([(3, 5), (4, 6)], (3, 2, 0, 1))


@every
def test_si_2_a_rate_that_changes_92_times_is_shown_and_warned_of(tmp_path: Path, sample: Sample) -> None:
    head = [sample.row(at * 92, "3", "5") for at in range(10)]
    body = [sample.row(920 + at, "3", "5") for at in range(90)]
    workload = read(tmp_path, sample.text(*head, *body))
    assert 1 / workload.profile().head_body_ratio == pytest.approx(92, rel=0.02)
    assert "rate of the head / body 0.01" in workload.describe()[0]
    assert any(line.startswith("warning: the first tenth arrives at") for line in workload.describe())
    assert not any(line.startswith("warning") for line in read(tmp_path, sample.text(*body)).describe())


@strict
def test_si_2_missing_reuse_data_and_the_share_left_out_are_stated(tmp_path: Path, sample: Sample) -> None:
    text = sample.text(
        sample.row(1, "3", "5"), sample.row(2, "0", "5"), sample.row(3, "4", "0"), sample.row(4, "5", "6")
    )
    told = "\n".join(read(tmp_path, text, skip_bad=True).describe())
    assert "no prefix identity" in told or "have no prefix identity" in told
    assert "4 rows, 2 used, 1 dropped, 1 refused (50.00 % left out)" in told


def test_si_2_a_logged_answer_without_tokens_is_refused_and_counted(tmp_path: Path) -> None:
    """A log does not tell an empty answer from one whose length it leaves out."""
    text = "\n".join([vllm(1, "3", "0"), vllm(2, "4", "6")])
    with pytest.raises(UserError, match="line 1: the length of its answer is not logged"):
        read(tmp_path, text)
    workload = read(tmp_path, text, skip_bad=True)
    assert (lengths(workload), counts(workload)) == ([(4, 6)], (2, 1, 0, 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_si_2_whatever_stands_in_a_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """No error but ``UserError``, and the books balance."""
    sample = data.draw(st.sampled_from([*EVERY.values()]))
    good = sample.text(*(sample.row(at, "3", "5") for at in range(1, 4)))
    at, length = data.draw(st.integers(0, len(good))), data.draw(st.integers(0, 30))
    junk = data.draw(
        st.one_of(st.text(max_size=20), st.sampled_from(["\n", ",", "[" * 5000, "]", "9" * 400, "\x00", '"']))
    )
    try:
        workload = read(tmp_path, good[:at] + junk + good[at + length :], skip_bad=True)
    except UserError:
        return
    counts(workload)
    assert all(r.prompt_tokens > 0 and r.output_tokens > 0 and r.arrival_ns >= 0 for r in workload.requests)


def test_burstgpt_sessions_are_programs_and_failures_are_told(tmp_path: Path) -> None:
    sample = LINES["burstgpt with sessions"]
    failed = sample.row(2, "4", "0").replace("s1", " ")
    workload = read(tmp_path, sample.text(sample.row(1, "3", "5"), failed, sample.row(3, "4", "6").replace("s1", "")))
    assert [r.program for r in workload.requests] == ["s1", ""]
    assert workload.report is not None
    assert workload.report.notes[0].reason == "no response tokens: the request failed"
    first = "5,ChatGPT,472,18,490,Conversation log"
    assert read(tmp_path, f"{LINES['burstgpt'].header}\n{first}\n").requests[0].arrival_ns == 5 * 10**9


def qwen(chat: int, parent: int, at: str, prompt: int, ids: list[int]) -> str:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": 0, "input_length": prompt, "output_length": 9}
    return json.dumps({**row, "type": "text", "turn": 1, "hash_ids": ids}).replace(
        '"timestamp": 0', f'"timestamp": {at}'
    )


def test_qwen_chats_are_programs_and_blocks_are_keys(tmp_path: Path) -> None:
    rows = [
        qwen(55, -1, "61.114", 32, [5, 6]),
        qwen(90, -1, "61.2", 40, [5, 7, 8]),
        qwen(159, 55, "70", 63, [5, 6, 9]),
        qwen(160, 159, "71.0000000004", 64, [5, 6, 9, 10]),
        qwen(200, 33, "72", 3, []),
    ]
    workload = read(tmp_path, "\n".join(rows))
    assert [r.program for r in workload.requests] == ["55", "90", "55", "55", "33"]
    assert [r.keys for r in workload.requests] == [[5, 6], [5, 7, 8], [5, 6, 9], [5, 6, 9, 10], []]
    assert [r.arrival_ns for r in workload.requests] == [
        61_114_000_000,
        61_200_000_000,
        7 * 10**10,
        71 * 10**9,
        72 * 10**9,
    ]
    assert workload.key_tokens == 16
    assert "1 requests have no prefix identity: prefix reuse comes out too low" in workload.notes
    for bad, why in (
        (qwen(1, -2, "1", 32, [1, 2]), "parent_chat_id must be a whole number from -1"),
        (qwen(1, -1, "1", 32, [1]), "1 hash_ids for input_length 32, which has 2 blocks of 16"),
        (qwen(1, -1, "-1.5", 32, []), "timestamp must be a non-negative number of seconds, not '-1.5'"),
        (qwen(1, -1, "true", 32, []), "timestamp must be"),
        (qwen(1, -1, '"7"', 32, []), "timestamp must be"),
    ):
        with pytest.raises(UserError, match=why):
            read(tmp_path, f"{rows[0]}\n{bad}\n")
