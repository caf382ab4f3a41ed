"""Readers of what is no table: ShareGPT's conversations, ServeGen's clients, a vLLM server's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import Workload, shared_key_share
from stepwell.sim.workload.sharegpt import objects, read_conversations
from stepwell.sim.workload.trace import read_trace


def written(tmp_path: Path, text: str, name: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def chat(*values: str, id: Any = "c", first: str = "human") -> dict[str, Any]:
    roles = ["human", "gpt"] if first == "human" else ["gpt", "human"]
    return {"id": id, "conversations": [{"from": roles[at % 2], "value": each} for at, each in enumerate(values)]}


# ------------------------------------------------------------------------------------------------ ShareGPT


def test_turns_of_a_conversation_follow_each_other_and_share_what_was_said(tmp_path: Path) -> None:
    chats = [chat("x" * 100, "y" * 61, "z" * 3, "w" * 8, id="a"), chat("x" * 100, "y" * 4, id="b")]
    workload = read_trace(written(tmp_path, json.dumps(chats), "chats.json"))
    one, two, other = workload.requests
    assert [(r.prompt_tokens, r.output_tokens, r.program) for r in workload.requests] == [
        (25, 16, "a"),
        (25 + 16 + 1, 2, "a"),
        (25, 1, "b"),
    ]
    assert (two.after, one.after, other.after) == ((1,), (), ())
    assert two.think_ns > 0
    assert two.keys == [*one.keys, *one.answer_keys]
    assert len(two.keys) == 42 // 16
    assert not set(other.keys) & set(two.keys)
    assert workload.key_tokens == 16
    assert workload.report is not None
    assert (workload.report.rows, workload.report.used, workload.report.unit) == (2, 2, "conversation")
    assert workload.notes[-1] == "no tokenizer: 4 letters were taken for a token"


def test_a_tokenizer_counts_and_settings_tell_rate_and_thinking(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([chat("a b c", "d e", id=n) for n in range(400)]), "chats.json")
    counted = read_conversations(path, count_tokens=lambda text: len(text.split()))
    assert {(r.prompt_tokens, r.output_tokens) for r in counted.requests} == {(3, 2)}
    assert not any("tokenizer" in note for note in counted.notes)
    fast = read_trace(path, settings={"rate_per_s": 20.0, "chars_per_token": 1.0, "seed": 3})
    assert {(r.prompt_tokens, r.output_tokens) for r in fast.requests} == {(5, 3)}
    assert fast.profile().rate_per_s == pytest.approx(20, rel=0.15)
    assert fast.requests != read_trace(path, settings={"rate_per_s": 20.0, "chars_per_token": 1.0, "seed": 4}).requests
    assert len(read_trace(path, limit=7)) == 7
    with pytest.raises(UserError, match=r"settings\.rate_per_sec"):
        read_trace(path, settings={"rate_per_sec": 1.0})


def test_lists_lines_and_the_other_names_of_things_are_read_alike(tmp_path: Path) -> None:
    chats = [chat("xxxx", "yyyy", id=7), chat("zzzz", "vvvv", "z", "v", id=8)]
    other = [
        {"id": each["id"], "messages": [{"role": m["from"], "content": m["value"]} for m in each["conversations"]]}
        for each in chats
    ]
    texts = [
        json.dumps(chats),
        json.dumps(chats, indent=2),
        "\n".join(map(json.dumps, chats)) + "\n",
        "[\n" + ",\n".join(map(json.dumps, chats)) + "\n]\n",
        json.dumps(other).replace('"human"', '"user"').replace('"gpt"', '"assistant"'),
        "\ufeff" + json.dumps(chats),
    ]
    read = [read_trace(written(tmp_path, text, "chats.json")).requests for text in texts]
    assert all(each == read[0] for each in read)
    assert [r.program for r in read[0]] == ["7", "8", "8"]


def test_a_conversation_that_begins_with_an_answer_or_a_system_prompt_keeps_it_as_context(tmp_path: Path) -> None:
    begun = chat("wwww", "xxxx", "yyyy", first="gpt")
    begun["conversations"].insert(0, {"from": "system", "value": "ssss"})
    (request,) = read_trace(written(tmp_path, json.dumps([begun]), "chats.json")).requests
    assert (request.prompt_tokens, request.output_tokens) == (3, 1)


def test_conversations_without_an_answer_are_dropped_and_bad_ones_refused(tmp_path: Path) -> None:
    bad: list[tuple[Any, str]] = [
        ({"id": 1}, "must have a list 'conversations'"),
        ({"conversations": [7]}, "a message must be an object, not 7"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "a message must be from one of human"),
        ({"conversations": [{"from": "human", "value": None}]}, "a message must be text, not None"),
        (chat("a", "b", id=[1]), "id must be text or a whole number"),
    ]
    for found, why in bad:
        path = written(tmp_path, json.dumps([chat("a", "b"), found, chat("a"), chat("", "b")]), "chats.json")
        with pytest.raises(UserError, match=f"conversation 2: {why}"):
            read_trace(path)
        workload = read_trace(path, skip_bad=True)
        report = workload.report
        assert report is not None
        assert (report.rows, report.used, report.dropped, report.refused) == (4, 1, 2, 1)
        assert "conversation 3: dropped: no answer follows a prompt" in workload.describe()


@pytest.mark.parametrize("text", ['[{"id": 1, "conversations": [', '[{"id": 1, "conversations": []}, nonsense]'])
def test_a_torn_file_is_refused_where_it_is_torn(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"conversation \d: not JSON"):
        read_trace(written(tmp_path, text, "chats.json"), skip_bad=True)


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([chat("x" * 200_000, "y", id=n) for n in range(12)]), "chats.json")
    with path.open() as file:
        assert [number for number, _ in objects(path, file)] == list(range(1, 13))


# ------------------------------------------------------------------------------------------------ ServeGen


def client(tmp_path: Path, *rows: str, pdfs: dict[str, dict[str, str]] | None = None) -> Path:
    plain = {"0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"}}
    written(tmp_path, json.dumps(plain if pdfs is None else pdfs), "c-dataset.json")
    return written(tmp_path, "\n".join(rows) + "\n", "c-trace.csv")


def test_a_window_has_the_requests_that_were_counted_in_it(tmp_path: Path) -> None:
    rows = ["0,0,0,,0,0", "600,2.5,1.1,Gamma,0.8,0.1", "1200,0.5,2,Weibull,0.5,0.1", "1800,1,1,,0,0"]
    workload = read_trace(client(tmp_path, *rows))
    counts = [
        sum(start <= r.arrival_ns // 10**9 < start + 600 for r in workload.requests) for start in (0, 600, 1200, 1800)
    ]
    assert counts == [0, 1500, 300, 600]
    assert {r.output_tokens for r in workload.requests} == {5}
    share = sum(r.prompt_tokens == 20 for r in workload.requests) / len(workload)
    assert share == pytest.approx(0.75, abs=0.03)
    assert workload.requests == read_trace(client(tmp_path, *rows)).requests
    assert workload.requests != read_trace(client(tmp_path, *rows), settings={"seed": 1}).requests
    assert workload.requests[:1500] == read_trace(client(tmp_path, *rows), limit=1500).requests


@pytest.mark.parametrize(
    ("pattern", "shape", "cv"), [("Gamma", 4.0, 0.5), ("Gamma", 0.25, 2.0), ("Weibull", 0.5, 5**0.5), ("", 0, 1.0)]
)
def test_gaps_have_the_form_that_was_fitted(tmp_path: Path, pattern: str, shape: float, cv: float) -> None:
    """CV of a Gamma is 1/√shape; of a Weibull of shape 1/2 it is √5."""
    workload = read_trace(client(tmp_path, f"0,50,1,{pattern},{shape},0.01"))
    assert workload.profile().gap_cv == pytest.approx(cv, rel=0.06)


def test_lengths_are_those_of_the_six_hours(tmp_path: Path) -> None:
    pdfs = {
        "0": {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"},
        "21600": {"input_tokens": "{11: 1.0}", "output_tokens": "{6: 1}", "reason_ratio": "{0.5: 0.5, 1.0: 0.5}"},
    }
    workload = read_trace(client(tmp_path, "21000,0.1,1,,0,0", "21600,0.1,1,,0,0", pdfs=pdfs))
    assert [(r.prompt_tokens, r.output_tokens) for r in workload.requests] == [(10, 5)] * 60 + [(11, 6)] * 60
    assert workload.notes[-1] == "on average 75 % of an answer is reasoning"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("0,1,1,Gamma,0.5", "5 fields where the header has 6"),
        ("x,1,1,Gamma,0.5,1", "start must be a number, not 'x'"),
        ("0,-1,1,Gamma,0.5,1", "rate must be between 0"),
        ("0,nan,1,Gamma,0.5,1", "rate must be between 0"),
        ("0,1,1,Pareto,0.5,1", "pattern must be Gamma, Weibull or nothing"),
        ("0,1,1,Weibull,0.01,1", "shape must be at least 0.05"),
    ],
)
def test_si_2_a_bad_window_is_refused_and_counted(tmp_path: Path, row: str, why: str) -> None:
    path = client(tmp_path, "0,0.1,1,,0,0", row, "1200,0.1,1,,0,0")
    with pytest.raises(UserError, match=f"line 2: {why}"):
        read_trace(path)
    report = read_trace(path, skip_bad=True).report
    assert report is not None
    assert (report.rows, report.used, report.refused) == (3, 2, 1)


def test_si_2_a_client_with_bom_crlf_and_no_last_end_is_the_same_client(tmp_path: Path) -> None:
    path = client(tmp_path, "0,0.1,1,,0,0", "600,0.2,1,Gamma,0.5,1")
    plain = read_trace(path)
    text = path.read_bytes().rstrip(b"\n")
    for other in (b"\xef\xbb\xbf" + text, text.replace(b"\n", b"\r\n"), text):
        path.write_bytes(other)
        assert read_trace(path).requests == plain.requests


@pytest.mark.parametrize(("which", "least"), [("input_tokens", (1, 5)), ("output_tokens", (10, 1))])
def test_si_2_a_drawn_length_of_0_is_1(tmp_path: Path, which: str, least: tuple[int, int]) -> None:
    """A window has as many requests as were counted in it, each with a prompt and an answer."""
    pdfs = {"0": {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"} | {which: "{0: 0.5, 7: 0.5}"}}
    workload = read_trace(client(tmp_path, "0,0.1,1,,0,0", pdfs=pdfs))
    assert len(workload) == 60
    requests = workload.requests
    assert (min(r.prompt_tokens for r in requests), min(r.output_tokens for r in requests)) == least


@pytest.mark.parametrize(
    "pdf",
    [
        "__import__('os').system('true')",
        "{1: open('x')}",
        "{1: [2]}",
        "{-1: 1.0}",
        "{1: -0.5}",
        "{'1': 1.0}",
        "{1: 1e999}",
        "{True: 1}",
        "[1]",
        "7",
        "",
        "{" * 300,
        "{1: " + "-" * 3000 + "1}",
        "{1: {2: 3}}",
        "{}",
        "{5: 0.0}",
    ],
)
def test_a_distribution_is_data_and_nothing_else(tmp_path: Path, pdf: str) -> None:
    pdfs = {"0": {"input_tokens": pdf, "output_tokens": "{5: 1.0}"}}
    with pytest.raises(UserError, match=r"input_tokens"):
        read_trace(client(tmp_path, "0,0.1,1,,0,0", pdfs=pdfs))


def test_a_client_without_its_lengths_is_refused(tmp_path: Path) -> None:
    path = client(tmp_path, "0,0.1,1,,0,0")
    (tmp_path / "c-dataset.json").rename(tmp_path / "lengths.json")
    with pytest.raises(UserError, match=r"c-dataset\.json: No such file"):
        read_trace(path)
    assert len(read_trace(path, settings={"dataset": "lengths.json"})) == 60
    (tmp_path / "lengths.json").write_text("[]")
    with pytest.raises(UserError, match="not a ServeGen dataset"):
        read_trace(path, settings={"dataset": "lengths.json"})
    with pytest.raises(UserError, match="no window has a request"):
        read_trace(client(tmp_path, "0,0,0,,0,0"))
    with pytest.raises(UserError, match=r"no input_tokens then"):
        read_trace(client(tmp_path, "0,0.1,1,,0,0", pdfs={"21600": {}}))


# ------------------------------------------------------------------------------------------------ vLLM


def received(id: str, ids: object, at: str = "07:41:24", params: str = "n=1, max_tokens=50", **how: str) -> str:
    head = how.get("head", "(APIServer pid=12) INFO 11-30 {at} [logger.py:47]").format(at=at)
    prompt = how.get("prompt", "'hi'")
    return (
        f"{head} Received request {id}: prompt: {prompt}, params: SamplingParams({params}), prompt_token_ids: {ids}, "
        "prompt_embeds shape: None, lora_request: None."
    )


def response(id: str, ids: object, reason: str = "stop", kind: str = "", output: str = "'yo'") -> str:
    return (
        f"(APIServer pid=12) INFO 11-30 07:41:30 [logger.py:80] Generated response {id}{kind}: output: {output}, "
        f"output_token_ids: {ids}, finish_reason: {reason}"
    )


def log(tmp_path: Path, *lines: str, **options: Any) -> Workload:
    return read_trace(written(tmp_path, "\n".join(lines) + "\n", "server.log"), **options)


DELTA, COMPLETE = " (streaming delta)", " (streaming complete)"


def test_a_log_tells_prompts_answers_and_what_they_share(tmp_path: Path) -> None:
    said = list(range(40))
    answer = list(range(100, 130))
    workload = log(
        tmp_path,
        received("a", said),
        "INFO 11-30 07:41:25 [loggers.py:118] Engine 000: Avg prompt throughput: 1 tokens/s",
        '(APIServer pid=12) INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        response("a", answer),
        received("b", [*said, *answer, 7, 7], at="07:42:24", params="n=1, max_tokens=None"),
        response("b", [1, 2], "length", output="', output_token_ids: [9, 9, 9], finish_reason: stop'"),
    )
    one, two = workload.requests
    assert (one.prompt_tokens, one.output_tokens, one.max_tokens) == (40, 30, 50)
    assert (two.prompt_tokens, two.output_tokens, two.max_tokens) == (72, 3, 0)
    assert two.arrival_ns - one.arrival_ns == 60 * 10**9
    assert [*one.keys, *one.answer_keys] == two.keys[:4]
    assert (workload.key_tokens, len(two.keys)) == (16, 4)
    assert shared_key_share(workload) == 4 / 6


def test_streams_prompts_at_debug_colours_and_older_forms(tmp_path: Path) -> None:
    workload = log(
        tmp_path,
        'INFO 11-30 07:41:20 logger.py:37] Received request old-0: prompt: "it\'s, prompt_token_ids: [1, 2]", params:'
        " SamplingParams(n=1, max_tokens=8), prompt_token_ids: [5, 6, 7], lora_request: None.",
        response("old", [1], "stop"),
        "\x1b[32mDEBUG\x1b[0m 11-30 07:41:21 [logger.py:40] Request new details: prompt: 'x', prompt_token_ids: [1, 2],"
        " prompt_embeds shape: None.",
        "INFO 11-30 07:41:21 [logger.py:50] Received request new: params: SamplingParams(n=1), lora_request: None.",
        response("new", [4, 4], "None", DELTA),
        response("new", [4], "stop", DELTA),
        response("new", None, "streaming_complete", COMPLETE),
        received("counted", [1], at="07:41:22"),
        response("counted", None, "streaming_complete", COMPLETE, "'<streaming_complete: 12 tokens>'"),
        received("left", [1], at="07:41:23"),
        response("left", [4, 4, 4], "None", DELTA),
        "INFO 11-30 07:41:29 [async_llm.py:400] Request left aborted.",
        received("left too", [1], at="07:41:23").replace("left too", "left-too"),
        response("left-too", [4], "None", DELTA),
        "INFO 11-30 07:41:29 [async_llm_engine.py:400] Aborted request left-too.",
        response("unknown", [4], "stop"),
    )
    assert [(r.prompt_tokens, r.output_tokens, r.cancel_tokens) for r in workload.requests] == [
        (3, 1, 0),
        (2, 3, 0),
        (1, 12, 0),
        (1, 4, 3),
        (1, 2, 1),
    ]
    spread = log(
        tmp_path, received("a", [1]), received("b", [1]), response("a", [1]), response("b", [1]), debucket=True
    )
    assert [r.arrival_ns for r in spread.requests] == [0, 5 * 10**8]


def test_choices_of_a_prompt_share_it(tmp_path: Path) -> None:
    workload = log(
        tmp_path,
        received("z", [9], at="07:41:30"),
        received("a", [1, 2], params="n=2, max_tokens=9"),
        response("z", [1]),
        response("a", [1, 1]),
        response("a", [1, 1, 1]),
    )
    assert [(r.prompt_tokens, r.output_tokens, r.parent) for r in workload.requests] == [
        (2, 2, 0),
        (2, 3, 1),
        (1, 1, 0),
    ]


def test_new_year_is_not_the_end(tmp_path: Path) -> None:
    eve = received("a", [1], head="INFO 12-31 23:59:59 [logger.py:47]")
    day = received("b", [1], head="INFO 01-01 00:00:01 [logger.py:47]")
    workload = log(tmp_path, eve, day, response("a", [1]), response("b", [1]))
    assert [r.arrival_ns for r in workload.requests] == [0, 2 * 10**9]
    leap = received("a", [1], head="INFO 02-29 23:59:59 [logger.py:47]")
    assert len(log(tmp_path, leap, response("a", [1]))) == 1
    with pytest.raises(UserError, match=r"line 1: stamp 02-29 of 2025: .*settings\.year"):
        log(tmp_path, leap, response("a", [1]), settings={"year": 2025})


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([received("a", None)], "its prompt_token_ids are not logged"),
        ([received("a", [])], "its prompt_token_ids are not logged"),
        ([received("a", [1])], "no answer is logged: start vLLM with --enable-log-outputs"),
        ([received("a", [1]), response("a", None, "streaming_complete", COMPLETE)], "the length of its answer"),
        ([received("a", [1]), response("a", None)], "the length of its answer"),
        ([received("a", [1]).replace("SamplingParams", "PoolingParams")], "it has no SamplingParams"),
        ([received("a", [1], params="n=2"), response("a", [1], "stop", DELTA)], "n=2, and its answers cannot be told"),
        ([received("a", [1 << 32])], "prompt_token_ids must be below"),
        ([received("a", "[1,, 2]")], "prompt_token_ids is no list of token ids"),
        ([received("a", [1], at="25:00:00")], "stamp 11-30 of 2024: hour must be"),
    ],
)
def test_what_a_log_does_not_tell_is_refused_with_its_line(tmp_path: Path, lines: list[str], why: str) -> None:
    whole = [received("ok", [1, 2]), response("ok", [3])]
    with pytest.raises(UserError, match=rf"server\.log, line 3: {why}"):
        log(tmp_path, *whole, *lines)
    report = log(tmp_path, *whole, *lines, skip_bad=True).report
    assert report is not None
    assert (report.used, report.refused) == (1, 1)


def test_a_log_without_requests_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no request that was received is logged"):
        log(tmp_path, "INFO 11-30 07:41:25 [api_server.py:1] vLLM API server version 0.11.0")
