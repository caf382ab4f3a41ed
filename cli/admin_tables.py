"""What a server tells its operator, as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Answer = Mapping[str, Any]

_COLUMNS = ("request", "state", "class", "tenant", "age_s", "prompt_tokens", "generated_tokens", "pages", "why")
_QUIET = ("kind", "request", "step", "elapsed_ns", "copy_ns")


def aligned(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as they must be; the last one as long as it is."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def plain(answer: Answer) -> Iterator[str]:
    """A line a value."""
    yield from aligned([(name.replace("_", " "), _said(value)) for name, value in answer.items()])


def scheduler(answer: Answer) -> Iterator[str]:
    """Who decides, over how much."""
    queue, pages, fault = answer["queue"], answer["pages"], answer["last_fault"]
    rows: list[tuple[str, str]] = [
        ("policy", f"{answer['policy']}  {_said(answer['options'])}"),
        ("since", f"{answer['since']}  {answer['why']}"),
        ("running", f"{queue['running']}, in line {queue['waiting']}, swapped {queue['swapped']}"),
        ("pages", f"{pages['free']} of {pages['total']} free"),
        ("estimated wait", f"{answer['estimated_wait_s']} s"),
        ("paused", _said(answer["paused"])),
        ("changes", f"{answer['swaps']}, {answer['fallbacks']} of them because a policy broke a rule"),
    ]
    if fault is not None:
        rows.append(("last fault", f"{fault['policy']} at {fault['at']}: {fault['rule']}: {fault['detail']}"))
    yield from aligned(rows)
    yield ""
    classes = [(name, each["in_line"], each["live"]) for name, each in answer["classes"].items()]
    yield from aligned([("class", "in line", "live"), *classes])


def requests(answer: Answer) -> Iterator[str]:
    """A row a request."""
    if answer["requests"]:
        heads = [name.removesuffix("_tokens").removesuffix("_s").replace("_", " ") for name in _COLUMNS]
        yield from aligned([heads, *([each[name] for name in _COLUMNS] for each in answer["requests"])])
        yield ""
    yield f"{answer['shown']} of {answer['total']}"


def request(answer: Answer) -> Iterator[str]:
    """One, with its story."""
    yield from plain({name: value for name, value in answer.items() if name != "story"})
    yield ""
    yield from aligned([(each["at"], each["state"], each["why"]) for each in answer["story"]])


def busy(answer: Answer) -> Iterator[str]:
    """How much goes on."""
    yield from plain(answer)


def aborted(answer: Answer) -> Iterator[str]:
    count, ids = answer["aborted"], answer["requests"]
    shown = f": {', '.join(map(str, ids))}" if ids else ""
    yield f"{count} aborted{shown}{' …' if count > len(ids) else ''}"


def cache(answer: Answer) -> Iterator[str]:
    yield f"{answer['freed_pages']} pages freed; {answer['pages_in_use']} of {answer['pages']} are held by requests"


def config(answer: Answer) -> Iterator[str]:
    """The settings that are not defaults."""
    rows = [(path, _said(_at(answer["config"], path)), source) for path, source in answer["origins"].items()]
    yield from aligned(rows) if rows else ["every setting has its default"]


def turn(told: Answer) -> Iterator[str]:
    """An event of the live stream: a line for each thing that happened or was decided."""
    if told["event"] == "missed":
        yield f"… {told['turns']} turns missed"
    elif told["event"] == "turn":
        for each in (*told["events"], *told["decisions"]):
            whom = f" {each['request']}" if "request" in each else f" step {each['step']}" if "step" in each else ""
            rest = " ".join(f"{name}={_said(value)}" for name, value in each.items() if name not in _QUIET and value)
            yield f"{told['at'][11:23]}  {each['kind']}{whom}  {rest}".rstrip()
    else:
        yield f"listening: turn {told['turn']}, policy {told['policy']}{', paused' if told['paused'] else ''}"


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return str(value)


def _at(tree: Any, path: str) -> object:
    """The value at a path such as ``classes[0].rank``."""
    for part in path.replace("[", ".").replace("]", "").split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree
