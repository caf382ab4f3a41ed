"""From a configuration to the requests that a simulation serves, ready for the scheduler.

``[workload]`` of the configuration, by ``kind``:

- ``builtin``: the built-in demonstration; ``settings`` replace values of it (``settings.count = 500``);
- ``common``: the workload on which simulators are compared, likewise;
- ``generate``: ``settings`` are a whole ``generate.Synthetic``;
- ``users``, ``sessions``, ``retrieval``, ``agents``: a whole ``users.Users``, ``sessions.Sessions``, and so on;
- ``trace``: the file ``trace``, by the rules of ``workload.trace``.

Then, in this order: those that arrive from ``start_s`` to ``end_s`` are kept, a ``share`` of them, the first ``limit``
of these; longer ones than ``max_prompt`` and ``max_output`` are cut or dropped (``over``), and arrivals are scaled to
``rate`` a second: of requests or, where some follow others, of the programs that begin by the clock.  A setting that
the kind does not use is refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.config import Config, WorkloadConfig
from stepwell.core.config_load import Resolved, resolve
from stepwell.core.errors import UserError
from stepwell.core.schema import convert
from stepwell.sim.workload.kinds import KINDS, Kind
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import answer_page_keys, clip, first, page_keys, sample, scale_rate, window

_SETTINGS = "workload.settings"
_MOST_KEY = 1 << 40
"""Larger ones would not fit 64 bits once they are told apart by page."""
_TRACE_ONLY = ("format", "debucket", "skip_bad")
_FIELDS = {"window": "end_s"}
_WHERE_TRACES_ARE = (
    "docs/workloads.md says where to get traces"
    " (Azure: github.com/Azure/AzurePublicDataset; Mooncake: github.com/kvcache-ai/Mooncake)"
)
_PLUGINS = (("scheduler", "policy"), ("memory", "allocator"), ("cost", "model"))
_APART = ("compare",)
"""Tables of a scenario's file that are no configuration of a run."""


def read_scenario(
    file: str | Path | None = None, *, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Resolved:
    """The configuration of a simulation from all its layers.

    Plugin files that the configuration file names are made to count from where the program runs, so that the tree can
    be written into a journal and built again from there.
    """
    resolved = resolve(file, overrides=overrides, environ=environ, apart=_APART)
    config = resolved.config
    for section, key in _PLUGINS:
        table = getattr(config, section)
        name = getattr(table, key)
        found = rooted(name, resolved.base(f"{section}.{key}"))
        if found != name:
            config = msgspec.structs.replace(config, **{section: msgspec.structs.replace(table, **{key: found})})
    return msgspec.structs.replace(resolved, config=config)


def rooted(name: str, base: Path) -> str:
    """A plugin's name; one that names a file counts from ``base``."""
    place = name.rpartition(":")[0] or name
    return str(base / name) if place.endswith(".py") or "/" in place else name


def seed_overrides(seed: int, workload: WorkloadConfig) -> list[str]:
    """What gives a scenario another seed: the scheduler's, and that of what is drawn of its workload.

    Of a trace that is a sample (``share``), and what its format draws, if the scenario gives that a seed.
    """
    found = [f"scheduler.seed={seed}"]
    if workload.kind != "trace" or "seed" in workload.settings:
        found.append(f"workload.settings.seed={seed}")
    return found + ([f"workload.share_seed={seed}"] if workload.share < 1 else [])


def load_workload(resolved: Resolved) -> Workload:
    """The requests that the configuration asks for; raises ``UserError`` if it asks for none that can be served."""
    workload = read_workload(resolved)
    check_classes(workload, resolved.config)
    return workload


def read_workload(resolved: Resolved) -> Workload:
    """The same, whatever the classes of its requests."""
    asked = resolved.config.workload
    return shaped(_trace(resolved) if asked.kind == "trace" else _generated(asked), asked)


def shaped(workload: Workload, asked: WorkloadConfig) -> Workload:
    """Cut, drawn from, clipped and scaled, as the configuration asks; see the module for the order."""
    try:
        if asked.start_s or asked.end_s:
            workload = window(workload, start_s=asked.start_s, end_s=asked.end_s)
        if asked.share < 1:
            workload = sample(workload, asked.share, seed=asked.share_seed, by=asked.share_by)
        if asked.limit and asked.limit < len(workload):
            workload = first(workload, asked.limit)
        if asked.max_prompt or asked.max_output:
            most_prompt, most_output = asked.max_prompt or None, asked.max_output or None
            workload = clip(workload, max_prompt=most_prompt, max_output=most_output, over=asked.over)
    except UserError as error:
        raise UserError(error.message, field=f"workload.{_FIELDS.get(error.field or '', error.field)}") from None
    return _at_rate(workload, asked.rate) if asked.rate else workload


def _trace(resolved: Resolved) -> Workload:
    asked = resolved.config.workload
    path = resolved.trace_path()
    if not path.exists():
        raise UserError(f"{path}: no such file. {_WHERE_TRACES_ARE}", field="workload.trace")
    earliest = asked.limit and not (asked.start_s or asked.end_s or asked.share < 1)
    try:
        return read_trace(
            path,
            format=None if asked.format == "auto" else asked.format,
            limit=asked.limit if earliest else None,
            skip_bad=asked.skip_bad,
            debucket=asked.debucket,
            settings=asked.settings,
        )
    except UserError as error:
        if (error.field or "").startswith("settings"):
            raise UserError(error.message, field=f"workload.{error.field}") from None
        raise


def check_classes(workload: Workload, config: Config) -> None:
    """Refuse requests of a class that the configuration does not define: the scheduler would reject every one."""
    known = {each.name for each in config.classes}
    strange = sorted({each.klass for each in workload.requests} - known)
    if strange:
        raise UserError(
            f"the workload has requests of class {', '.join(map(repr, strange))}, which is not defined;"
            f" defined: {', '.join(sorted(known))}. Add a [[classes]] table with that name",
            field="classes",
        )


def fit_keys(workload: Workload, page_size: int, *, wanted: bool) -> Workload:
    """Requests keyed by page, as the scheduler takes them; without keys if nobody would look at them.

    Keys are by far the largest part of a trace that has them, so an allocator that reuses no prefixes gets none.  Keys
    of that size already (a journal's) stay as they are.  Otherwise, where a request of such a trace has none, it shares
    with nobody; preempted, it finds its own pages again.  A workload that says nothing of prefixes stays without keys:
    to keep pages that nobody finds costs more than the rest of a run.
    """
    if not workload.key_tokens:
        return workload
    if not wanted:
        requests = [msgspec.structs.replace(each, keys=[], answer_keys=()) for each in workload.requests]
        note = "the trace tells shared prefixes, but this allocator reuses none: they were left out"
        return msgspec.structs.replace(workload, requests=requests, notes=[*workload.notes, note])
    if workload.key_tokens == page_size:
        requests = [_whole(each, page_size) for each in workload.requests]
    else:
        requests = _by_page(workload.requests, workload.key_tokens, page_size)
    return msgspec.structs.replace(workload, requests=requests, key_tokens=page_size)


def _whole(request: TraceRequest, page_size: int) -> TraceRequest:
    """Without the key of a page that is not full."""
    full = request.prompt_tokens // page_size
    return msgspec.structs.replace(request, keys=request.keys[:full]) if len(request.keys) > full else request


def _by_page(requests: Sequence[TraceRequest], key_tokens: int, page_size: int) -> list[TraceRequest]:
    if any(max(each.keys, default=0) > _MOST_KEY for each in requests):
        requests = _renumbered(requests)
    fitted = []
    last = 0
    for each in requests:
        keys = page_keys(each, key_tokens, page_size)
        if not keys:
            first, last = last, last - each.prompt_tokens // page_size
            keys = list(range(first - 1, last - 1, -1))
        answer = answer_page_keys(each, key_tokens, page_size)
        fitted.append(msgspec.structs.replace(each, keys=keys, answer_keys=answer))
    return fitted


def _renumbered(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Keys in the order of their first appearance: those of a live server are hashes of 64 bits."""
    numbers: dict[int, int] = {}

    def small(keys: Sequence[int]) -> list[int]:
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    return [
        msgspec.structs.replace(each, keys=small(each.keys), answer_keys=tuple(small(each.answer_keys)))
        for each in requests
    ]


def check_workload(asked: WorkloadConfig) -> None:
    """Refuse, as ``load_workload`` would and without making one, what no workload can be made of.

    Of a trace nothing is looked at: it need not be there yet.
    """
    if asked.kind != "trace":
        kind, options = _asked(asked)
        with _in_settings():
            kind.check(options)


def _generated(asked: WorkloadConfig) -> Workload:
    kind, options = _asked(asked)
    with _in_settings():
        return kind.make(options)


@contextmanager
def _in_settings() -> Iterator[None]:
    """Names the field of an error as the configuration does."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message, field=f"{_SETTINGS}.{error.field}") from None


def _asked(asked: WorkloadConfig) -> tuple[Kind, Any]:
    """The kind of a workload that is generated, and its options."""
    for key in _TRACE_ONLY:
        if getattr(asked, key) != getattr(WorkloadConfig(), key):
            raise UserError(f"is for traces; workload.kind is {asked.kind!r}", field=f"workload.{key}")
    kind = KINDS[asked.kind]
    if asked.rate and not kind.paced:
        raise UserError(
            "cannot be set: users send when they have been answered; change settings.users, or how long they think",
            field="workload.rate",
        )
    tree = _merged(msgspec.to_builtins(kind.under) if kind.under is not None else {}, asked.settings)
    return kind, convert(tree, kind.settings, field=_SETTINGS)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` upon ``under``, table by table; lists are replaced whole."""
    tree = dict(under)
    for key, value in over.items():
        below = tree.get(key)
        tree[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return tree


def _at_rate(workload: Workload, rate: float) -> Workload:
    """Arrivals scaled so that ``rate`` a second arrive by the clock.  Requests that follow others come as these end,
    so what is offered of them is no matter of a rate.
    """
    present = workload.profile().rate_per_s
    if not present:
        raise UserError("cannot be set: all requests of the workload arrive at one time", field="workload.rate")
    try:
        return scale_rate(workload, rate / present)
    except UserError as error:
        raise UserError(f"from {present:g} {workload.rate_unit}: {error.message}", field="workload.rate") from None
