"""SI-2: every row of a trace is used, dropped or refused by a stated rule, and the report counts it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import NOTES_LIMIT, RowReport, Workload
from stepwell.sim.workload.trace import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
SIMPLE = "arrived_at,num_prefill_tokens,num_decode_tokens"


def written(tmp_path: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def simple(tmp_path: Path, *rows: str) -> Path:
    return written(tmp_path, "\n".join([SIMPLE, *rows]) + "\n")


def azure(tmp_path: Path, *stamps: str) -> Path:
    return written(tmp_path, "\n".join([AZURE, *(f"{stamp},5,6" for stamp in stamps)]) + "\n")


def mooncake(tmp_path: Path, *rows: str) -> Path:
    return written(tmp_path, "\n".join(rows) + "\n", "trace.jsonl")


def report(workload: Workload) -> RowReport:
    assert workload.report is not None
    told = workload.report
    assert told.rows == told.used + told.dropped + told.refused
    return told


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(request.prompt_tokens, request.output_tokens) for request in workload.requests]


REFUSED = {
    "input_0": ("2.0,0,5", "no prompt tokens"),
    "negative_input": ("2.0,-3,5", "num_prefill_tokens must be a whole number of tokens, not '-3'"),
    "negative_output": ("2.0,3,-5", "num_decode_tokens must be a whole number of tokens, not '-5'"),
    "negative_time": ("-2.0,3,5", "arrived_at must be a non-negative number of seconds"),
    "blank_input": ("2.0,,5", "num_prefill_tokens is blank"),
    "blank_output": ("2.0,3, ", "num_decode_tokens is blank"),
    "blank_time": (",3,5", "arrived_at is blank"),
    "blank_line": ("", "the line is blank"),
    "nan": ("2.0,NaN,5", "must be a whole number of tokens, not 'NaN'"),
    "nan_time": ("nan,3,5", "arrived_at must be a non-negative number of seconds"),
    "inf_time": ("inf,3,5", "arrived_at must be a non-negative number of seconds"),
    "far_time": ("1e30,3,5", "arrived_at is too far away"),
    "float": ("2.0,12.0,5", "must be a whole number of tokens, not '12.0'"),
    "exponent": ("2.0,1e3,5", "must be a whole number of tokens"),
    "sign": ("2.0,+3,5", "must be a whole number of tokens"),
    "underscore": ("2.0,1_000,5", "must be a whole number of tokens"),
    "foreign_digits": ("2.0,٣,5", "must be a whole number of tokens"),
    "huge": ("2.0,99999999999999999999999999,5", "more than 2147483647 tokens"),
    "huge_by_one": ("2.0,2147483648,5", "more than 2147483647 tokens"),
    "thousands_separator": ("2.0,1,234,5", "4 fields where the header has 3 (a thousands separator?)"),
    "quoted_thousands_separator": ('2.0,"1,234",5', "4 fields where the header has 3"),
    "short_row": ("2.0,3", "2 fields where the header has 3"),
}


@pytest.mark.parametrize(("row", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_si_2_bad_row_refused_with_file_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = simple(tmp_path, "1.0,3,5", row, "3.0,4,6")
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert f"{path}, line 3: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize(("row", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_si_2_bad_row_skipped_and_counted_on_request(tmp_path: Path, row: str, reason: str) -> None:
    workload = read_trace(simple(tmp_path, "1.0,3,5", row, "3.0,4,6"), skip_bad=True)
    assert lengths(workload) == [(3, 5), (4, 6)]
    told = report(workload)
    assert (told.rows, told.used, told.dropped, told.refused) == (3, 2, 0, 1)
    assert [(note.line, note.outcome) for note in told.notes] == [(3, "refused")]
    assert reason in told.notes[0].reason
    assert any("1 refused (33.33 % left out)" in line for line in workload.describe())


def test_si_2_output_0_is_dropped_and_counted(tmp_path: Path) -> None:
    workload = read_trace(simple(tmp_path, "1.0,3,0", "2.0,4,6", "3.0,5,0"))
    assert lengths(workload) == [(4, 6)]
    told = report(workload)
    assert (told.rows, told.used, told.dropped, told.refused) == (3, 1, 2, 0)
    assert [note.line for note in told.notes] == [2, 4]


def test_si_2_a_prompt_of_0_is_refused_even_if_nothing_was_generated(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: no prompt tokens"):
        read_trace(simple(tmp_path, "1.0,0,0"))


def test_si_2_notes_are_bounded_counts_are_not(tmp_path: Path) -> None:
    rows = [f"{index}.0,{'x' if index % 2 else 3},0" for index in range(600)]
    workload = read_trace(simple(tmp_path, *rows, "700.0,3,5"), skip_bad=True)
    told = report(workload)
    assert (told.rows, told.used, told.dropped, told.refused) == (601, 1, 300, 300)
    assert len(told.notes) == NOTES_LIMIT
    assert "and 500 more rows left out" in workload.describe()


def test_si_2_blank_lines_at_the_end_are_no_rows(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, f"{SIMPLE}\n1.0,3,5\n\n \n\n"))
    assert report(workload).rows == 1


def test_si_2_bom_crlf_and_no_final_newline_are_accepted(tmp_path: Path) -> None:
    text = f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:46.6805901,396,109"
    plain = read_trace(written(tmp_path, text))
    marked = read_trace(written(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert lengths(plain) == [(374, 44), (396, 109)]
    assert [request.arrival_ns for request in plain.requests] == [0, 100]
    assert plain.digest() == marked.digest()


def test_si_2_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"{SIMPLE},note\n1.0,3,5,".encode() + b"caf\xe9\n2.0,3,5,ok\n")
    with pytest.raises(UserError, match=r"line 2: the line is not UTF-8"):
        read_trace(path)
    assert report(read_trace(path, skip_bad=True)).used == 1


def test_si_2_unsorted_times_are_sorted_stably_and_noted(tmp_path: Path) -> None:
    path = simple(tmp_path, "2.0,1,1", "1.0,2,2", "2.0,3,3", "1.0,4,4", "3.0,5,5", "2.5,6,6")
    workload = read_trace(path)
    assert lengths(workload) == [(2, 2), (4, 4), (1, 1), (3, 3), (6, 6), (5, 5)]
    assert report(workload).unsorted == 3
    assert any(line.startswith("3 rows were out of order") for line in workload.describe())


def test_si_2_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    workload = read_trace(simple(tmp_path, *(f"1.0,{index},7" for index in range(1, 50))))
    assert [request.prompt_tokens for request in workload.requests] == list(range(1, 50))
    assert report(workload).unsorted == 0
    assert workload.profile().simultaneous == 48


def test_si_2_seconds_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    stamps = ["0", "0.000000001", "0.1234567894999", "0.1234567895", "1e-3", "8.1", "4567890.123456789"]
    workload = read_trace(simple(tmp_path, *(f"{stamp},3,5" for stamp in stamps)))
    arrivals = [request.arrival_ns for request in workload.requests]
    assert arrivals == [0, 1, 1_000_000, 123_456_789, 123_456_790, 8_100_000_000, 4_567_890_123_456_789]


def test_si_2_iso_stamps_with_and_without_zone_and_fraction(tmp_path: Path) -> None:
    zoned = azure(tmp_path, "2024-05-10 00:00:00+00:00", "2024-05-10T02:00:00.009930+02:00", "2024-05-10 00:00:01Z")
    assert [request.arrival_ns for request in read_trace(zoned).requests] == [0, 9_930_000, 1_000_000_000]
    naive = azure(tmp_path, "2023-12-31 23:59:59.9999999", "2024-01-01 00:00:00", "2024-02-29T00:00:00.000000001")
    assert [request.arrival_ns for request in read_trace(naive).requests] == [0, 100, 59 * 86_400 * 10**9 + 101]


@pytest.mark.parametrize(
    "stamp",
    [
        "11/16/2023 6:15 PM",
        "16.11.2023 18:15",
        "2023-11-16",
        "1700158546.68",
        "2023-02-29 00:00:00",
        "2023-11-16 24:00:00",
        "2023-11-16 18:15:60",
        "2023-11-16 18:15:46.1234567890",
        "2023-11-16 18:15:46 CET",
        "",
        "NaN",
    ],
)
def test_si_2_local_and_malformed_stamps_are_refused(tmp_path: Path, stamp: str) -> None:
    with pytest.raises(UserError, match=r"line 3: TIMESTAMP"):
        read_trace(azure(tmp_path, "2023-11-16 18:15:46.6805900", stamp))


def test_si_2_stamps_with_and_without_zone_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 3: TIMESTAMP names a time zone, unlike those before it"):
        read_trace(azure(tmp_path, "2023-11-16 18:15:46", "2023-11-16 18:15:47Z"))


@pytest.mark.parametrize("header", [AZURE, SIMPLE])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_si_2_missing_column_is_refused_by_name(tmp_path: Path, header: str, missing: int) -> None:
    columns = header.split(",")
    name = columns.pop(missing)
    path = written(tmp_path, f"{','.join(columns)}\n1.0,2\n")
    for skip_bad in (False, True):
        with pytest.raises(UserError, match=rf"line 1: column '{name}' is missing"):
            read_trace(path, skip_bad=skip_bad)


def test_si_2_columns_may_be_reordered_and_more_but_not_twice(tmp_path: Path) -> None:
    path = written(tmp_path, "num_decode_tokens,ratio,arrived_at,num_prefill_tokens\n5,0.1,1.0,3\n")
    assert lengths(read_trace(path)) == [(3, 5)]
    with pytest.raises(UserError, match="appears 2 times"):
        read_trace(written(tmp_path, f"{SIMPLE},arrived_at\n1.0,3,5,1.0\n"))


ROW = '{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}'


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"timestamp": 3000, ', ""), "column 'timestamp' is missing"),
        (('"input_length": 600, ', ""), "column 'input_length' is missing"),
        (('"output_length": 7, ', ""), "column 'output_length' is missing"),
        (("600", "0"), "no prompt tokens|hash_ids"),
        (("600", "-1"), "input_length must be"),
        (("600", "12.0"), "input_length must be a whole number of tokens, not 12.0"),
        (("600", "NaN"), "not a JSON object"),
        (("600", "true"), "input_length must be"),
        (("600", "null"), "input_length must be"),
        (("600", '"600"'), "input_length must be"),
        (("3000", "3.5"), "timestamp must be"),
        (("3000", "-1"), "timestamp must be"),
        (("600", "1025"), "2 hash_ids for input_length 1025, which has 3 blocks of 512"),
        (("600", "512"), "2 hash_ids for input_length 512, which has 1 blocks of 512"),
        (("[0, 9]", "[0, -9]"), "hash_ids must be"),
        (("[0, 9]", '{"a": 1}'), "hash_ids must be a list"),
        (("}", ""), "not a JSON object"),
        ((ROW, "[" * 100_000), "not a JSON object"),
        ((ROW, "17"), "must be a JSON object"),
    ],
)
def test_si_2_mooncake_rows(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    path = mooncake(tmp_path, ROW, ROW.replace(*change))
    with pytest.raises(UserError, match=rf"line 2: .*({reason})"):
        read_trace(path)
    assert report(read_trace(path, skip_bad=True)).refused == 1


def test_a_session_of_a_trace_is_the_program_of_its_requests(tmp_path: Path) -> None:
    plain = written(tmp_path, f"{SIMPLE},session_id\n1.0,5,6,s7\n2.0,5,6,\n3.0,5,6, 8 \n")
    assert [request.program for request in read_trace(plain).requests] == ["s7", "", "8"]
    row = '{"timestamp": 0, "input_length": 5, "output_length": 6, "hash_ids": [], "session_id": SESSION}'
    path = mooncake(tmp_path, *(row.replace("SESSION", each) for each in ('"s7"', "8", "null")))
    assert [request.program for request in read_trace(path).requests] == ["s7", "8", ""]
    for session, says in (("[1]", "must be text or a whole number, not [1]"), (f'"{"x" * 257}"', "256 letters")):
        with pytest.raises(UserError, match=re.escape(says)):
            read_trace(mooncake(tmp_path, row.replace("SESSION", session)))


def test_si_2_missing_reuse_data_is_stated(tmp_path: Path) -> None:
    stated = "no prefix identity: nothing can be said about prefix reuse with this workload"
    without = ROW.replace(', "hash_ids": [0, 9]', "")
    assert stated not in read_trace(mooncake(tmp_path, ROW)).describe()
    assert read_trace(mooncake(tmp_path, ROW)).key_tokens == 512
    assert stated in read_trace(mooncake(tmp_path, without)).describe()
    assert stated in read_trace(simple(tmp_path, "1.0,3,5")).describe()
    mixed = read_trace(mooncake(tmp_path, ROW, without)).describe()
    assert "1 requests have no prefix identity: prefix reuse comes out too low" in mixed


def test_si_2_a_quiet_head_is_shown_and_warned_of(tmp_path: Path) -> None:
    head = [f"{index * 9.2:.1f},3,5" for index in range(100)]
    body = [f"{911 + index / 10:.1f},3,5" for index in range(900)]
    workload = read_trace(simple(tmp_path, *head, *body))
    assert 1 / workload.profile().head_body_ratio == pytest.approx(92, rel=0.02)
    assert any(line.startswith("warning: the first tenth arrives at") for line in workload.describe())
    steady = read_trace(simple(tmp_path, *body))
    assert steady.profile().head_body_ratio == pytest.approx(1, rel=0.02)
    assert not any(line.startswith("warning") for line in steady.describe())


def test_unknown_formats_list_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,c\n1,2,3\n")
    with pytest.raises(UserError, match=r"line 1: no known trace format.*azure.*mooncake.*simple"):
        read_trace(path)
    with pytest.raises(UserError, match=r"unknown trace format 'nope'.*azure.*mooncake.*simple"):
        read_trace(path, format="nope")
    with pytest.raises(UserError, match="column 'arrived_at' is missing"):
        read_trace(path, format="simple")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n", "line 1 is blank"),
        (f"{SIMPLE}\n".encode(), "no row can be used"),
        (f"{SIMPLE}\n1.0,3,0\n".encode(), r"no row can be used \(1 read, 1 dropped, 0 refused\)"),
        (b"x" * (1 << 24), "no known trace format"),
        (f"{SIMPLE}\n".encode() + b"1" * (1 << 24), "line 2: longer than"),
        (bytes(range(256)), "no known trace format"),
    ],
)
def test_files_without_a_usable_row_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read_trace(written(tmp_path, content))


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(UserError, match=str(path)):
            read_trace(path)


def test_limit_keeps_the_earliest(tmp_path: Path) -> None:
    path = simple(tmp_path, "3.0,1,1", "1.0,2,2", "2.0,3,3")
    workload = read_trace(path, limit=2)
    assert lengths(workload) == [(2, 2), (3, 3)]
    assert "limited to the first 2 of 3 requests" in workload.describe()
    with pytest.raises(UserError, match="at least 1"):
        read_trace(path, limit=0)


def test_debucketing_spreads_evenly_inside_the_bucket(tmp_path: Path) -> None:
    rows = [ROW.replace("3000", str(stamp)) for stamp in (0, 0, 0, 3000, 3000, 9000)]
    coarse = read_trace(mooncake(tmp_path, *rows))
    assert [request.arrival_ns // 10**6 for request in coarse.requests] == [0, 0, 0, 3000, 3000, 9000]
    spread = read_trace(mooncake(tmp_path, *rows), debucket=True)
    assert [request.arrival_ns // 10**6 for request in spread.requests] == [0, 1000, 2000, 3000, 4500, 9000]
    assert "arrivals of one stamp were spread evenly over 3 s" in spread.describe()
    limited = read_trace(mooncake(tmp_path, *rows), debucket=True, limit=4)
    assert limited.requests == spread.requests[:4]
    with pytest.raises(UserError, match="has no buckets"):
        read_trace(simple(tmp_path, "1.0,3,5"), debucket=True)
