"""The log of a vLLM server, started with ``--enable-log-requests --enable-log-outputs``.

Older versions log requests without being asked and have no outputs in their logs (those are refused); recent ones log
prompts at level DEBUG only (``VLLM_LOGGING_LEVEL=DEBUG``).

Three kinds of lines are read, at any level, whatever stands before the level (such as ``(APIServer pid=12)``):

- ``Received request ID: …, params: SamplingParams(…), …``, with ``prompt_token_ids: […]`` in it or in the line
  ``Request ID details: …`` before it: an arrival, the prompt, ``max_tokens``, ``n``;
- ``Generated response ID: … output_token_ids: […], finish_reason: …``: an answer, or with ``(streaming delta)`` a piece
  of one, which ``(streaming complete)`` ends;
- ``Aborted request ID`` and ``Request ID aborted``: its client left, after the pieces logged before.

Everything else in the log is passed over.  A request is refused if its prompt's token ids are not logged, if no answer
is, or if an answer's length is not (a stream logged without its pieces).  Where ``--max-log-len`` cut the ids, lengths
come out too short, and nothing in the log tells.

Stamps are whole seconds without a year: ``debucket`` spreads those of one second; ``year`` is that of the first line
(for 29 February), and one that runs back by months means the next.  Token ids become keys of blocks of 16 tokens, so a
prompt shares what it has in common with those before it and with their answers.  They go no further than that.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Annotated

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.page_keys import page_keys
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload.reading import Format, Intake, Reading, numbered_lines
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.rows import RowError

BLOCK_TOKENS = 16
_SALT = b"vllm log"

_LINE = re.compile(
    r"(?:.*?\s)?(?:INFO|DEBUG)\s+(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s+\[?[\w./-]+:\d+\]\s+(.*)",
    re.ASCII,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RECEIVED = re.compile(r"Received request ([^\s:]+): ")
_DETAILS = re.compile(r"Request ([^\s:]+) details: ")
_RESPONSE = re.compile(r"Generated response ([^\s:]+)( \(streaming (?:delta|complete)\))?: ")
_ABORTED = re.compile(r"(?:Aborted requests? ([^\s.]+)|Request ([^\s.]+) aborted)")
_COUNTED = re.compile(r"output: '<streaming_complete: (\d+) tokens>'")
_IDS = {key: re.compile(rf"{key}: (\[[\d, ]*\]|None)") for key in ("prompt_token_ids", "output_token_ids")}


class VllmLogOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    year: Annotated[int, msgspec.Meta(ge=2022, le=2100)] = 2024
    """Of the first line; the default has a 29 February."""


class _Answer(msgspec.Struct):
    tokens: list[int] = []
    count: int = -1
    """Of its tokens, once that is known."""
    reason: str = ""


class _Seen(msgspec.Struct):
    """What the log tells of a request so far; ``tail`` are the prompt's tokens behind its last full block."""

    line: int
    arrival_ns: int
    max_tokens: int
    choices: int
    prompt_tokens: int = 0
    keys: list[int] = []
    tail: list[int] = []
    answers: list[_Answer] = []
    pieces: list[int] = []
    aborted: bool = False


class _Clock:
    """Stamps without a year, as nanoseconds that count from some day."""

    def __init__(self, year: int) -> None:
        self._year = year
        self._month = 0

    def read(self, match: re.Match[str]) -> int:
        month, day, hour, minute, second = (int(match[at]) for at in range(1, 6))
        if self._month - month > 6:
            self._year += 1
        self._month = month
        try:
            moment = datetime.datetime(self._year, month, day, hour, minute, second)
        except ValueError as error:
            raise RowError(f"stamp {match[1]}-{match[2]} of {self._year}: {error} (settings.year)") from None
        days = moment.toordinal()
        total_s = ((days * 24 + hour) * 60 + minute) * 60 + second
        return total_s * NS_PER_S + int((match[6] or "").ljust(9, "0"))


class _Log:
    """Follows the lines; what is found is put into ``seen``, in order of arrival."""

    def __init__(self, intake: Intake, year: int) -> None:
        self.seen: dict[str, _Seen] = {}
        self._prompts: dict[str, list[int]] = {}
        self._intake = intake
        self._clock = _Clock(year)

    def take(self, number: int, line: str) -> None:
        match = _LINE.fullmatch(_COLOUR.sub("", line) if "\x1b" in line else line)
        if match is None:
            return
        text = match[7]
        try:
            if found := _DETAILS.match(text):
                self._prompts[found[1]] = _token_ids(text, "prompt_token_ids")
            elif found := _RECEIVED.match(text):
                self._received(number, self._clock.read(match), found[1], text)
            elif found := _RESPONSE.match(text):
                self._answered(found[1], found[2] or "", text)
            elif found := _ABORTED.match(text):
                for id in (found[1] or found[2]).split(","):
                    self._of(id).aborted = True
        except RowError as error:
            self._intake.refuse(number, error)
        except KeyError:
            return  # a request that came before the log begins

    def _received(self, number: int, arrival_ns: int, id: str, text: str) -> None:
        ids = self._prompts.pop(id, None) or _token_ids(text, "prompt_token_ids")
        if id in self.seen:
            raise RowError(f"request {id} was received before")
        if not ids:
            raise RowError("its prompt_token_ids are not logged: set VLLM_LOGGING_LEVEL=DEBUG where vLLM runs")
        head, _, params = text.rpartition("SamplingParams(")
        if not head:
            raise RowError("it has no SamplingParams: nothing is generated")
        most = re.search(r"\bmax_tokens=(\d+)", params)
        choices = re.search(r"(?:^|[ ,])n=(\d+)", params)
        keys = page_keys(ids, BLOCK_TOKENS, _SALT)
        tail = ids[len(keys) * BLOCK_TOKENS :]
        self.seen[id] = _Seen(
            number, arrival_ns, int(most[1]) if most else 0, int(choices[1]) if choices else 1, len(ids), keys, tail
        )

    def _answered(self, id: str, streaming: str, text: str) -> None:
        seen = self._of(id)
        ids = _token_ids(text, "output_token_ids")
        reason = text.rpartition("finish_reason: ")[2].strip()
        if "delta" in streaming:
            seen.pieces += ids
            if reason not in ("", "None"):
                seen.answers.append(_Answer(seen.pieces, len(seen.pieces), reason))
                seen.pieces = []
        elif streaming:
            counted = _COUNTED.search(text)
            if seen.pieces or not seen.answers:
                count = len(seen.pieces) or (int(counted[1]) if counted else -1)
                seen.answers.append(_Answer(seen.pieces, count, reason))
                seen.pieces = []
        else:
            seen.answers.append(_Answer(ids, len(ids) if ids else -1, reason))

    def _of(self, id: str) -> _Seen:
        """Some versions number the prompts of a request, but not its answers."""
        return self.seen[id] if id in self.seen else self.seen[f"{id}-0"]


def _token_ids(text: str, key: str) -> list[int]:
    """The last list of that name in a line, as text of a prompt or an answer comes before it."""
    every = _IDS[key].findall(text)
    if not every or every[-1] == "None":
        return []
    try:
        ids = msgspec.json.decode(every[-1], type=list[int])
    except msgspec.DecodeError as error:
        raise RowError(f"{key} is no list of token ids: {error}") from None
    if any(id >> 32 for id in ids):
        raise RowError(f"{key} must be below 2^32")
    return ids


def _read(path: Path, format: Format, reading: Reading) -> Workload:
    options: VllmLogOptions = reading.options
    intake = Intake(path, reading.skip_bad, unanswered="its answer has no tokens")
    log = _Log(intake, options.year)
    with path.open("rb") as file:
        for number, line in numbered_lines(path, file):
            log.take(number, line)
    for seen in log.seen.values():
        try:
            answers = _answers(seen)
        except RowError as error:
            intake.refuse(seen.line, error)
            continue
        first = len(intake.requests) + 1
        for place, answer in enumerate(answers):
            intake.add(seen.line, _request(seen, answer, first if place else 0))
    if not log.seen and not intake.requests:
        raise UserError(f"{path}: no request that was received is logged; see docs/workloads.md", field="trace")
    return intake.workload(format, reading, key_tokens=BLOCK_TOKENS, from_zero=True)


def _answers(seen: _Seen) -> list[_Answer]:
    if seen.choices > 1 and (seen.pieces or len(seen.answers) < seen.choices):
        raise RowError(f"n={seen.choices}, and its answers cannot be told apart")
    if seen.aborted and not seen.answers:
        return [_Answer(seen.pieces, len(seen.pieces), "abort")]
    if not seen.answers:
        raise RowError("no answer is logged: start vLLM with --enable-log-outputs")
    if any(answer.count < 0 for answer in seen.answers):
        raise RowError("the length of its answer is not logged: only a stream's pieces have token ids")
    return seen.answers[: seen.choices]


def _request(seen: _Seen, answer: _Answer, parent: int) -> TraceRequest:
    left, cut = answer.reason == "abort", answer.reason == "length"
    computed = seen.tail + answer.tokens[:-1]
    return TraceRequest(
        seen.arrival_ns,
        seen.prompt_tokens,
        answer.count + (left or cut) if answer.count else 0,
        keys=seen.keys,
        answer_keys=tuple(page_keys(computed, BLOCK_TOKENS, _SALT, seen.keys[-1] if seen.keys else 0)),
        max_tokens=seen.max_tokens,
        cancel_tokens=answer.count if left else 0,
        parent=parent,
    )


def _recognises(first: str) -> bool:
    return _LINE.fullmatch(_COLOUR.sub("", first)) is not None


VLLM_LOG = Format(
    "vllm-log",
    "INFO 11-30 07:41:24 [logger.py:47] Received request …",
    _recognises,
    _read,
    VllmLogOptions,
    bucket_ns=NS_PER_S,
)
