"""Writes what can be made of the pages of docs/policies: options, a picture of one small workload, measured costs.

    python -m stepwell.benchmarks.policy_pages            # of every registered policy; a new one gets a page

What stands above the mark in a page is written by hand and left alone.  The costs are those of the latest file of
benchmarks/results that has them:

    stepwell bench scheduler --policy all --json > benchmarks/results/DATE-scheduler-MACHINE.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from stepwell.core.catalogue import Description, describe
from stepwell.core.config import ClassConfig, Config, CostConfig, MemoryConfig, SchedulerConfig, validate
from stepwell.core.config_gateway import TenantConfig
from stepwell.core.registry import load, names
from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.run import Result, simulate
from stepwell.sim.strips import LEGEND, Strips
from stepwell.sim.wording import many
from stepwell.sim.workload.request import TraceRequest, Workload

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "policies"
RESULTS = ROOT / "benchmarks" / "results"
MARK = "<!-- From here on written by `python -m stepwell.benchmarks.policy_pages`. -->"
COLUMN_NS = 50 * NS_PER_MS

DEVICE: Mapping[str, object] = {"base_ns": 30_000_000, "prefill_token_ns": 600_000, "swap_page_ns": 1_000_000}
"""A slow one: 30 ms a step, 0.6 ms for each prompt token, 1 ms for each page copied."""

CONFIG = Config(
    scheduler=SchedulerConfig(running_limit=4, token_budget=48, max_context=192),
    memory=MemoryConfig(pages=22, page_size=16, host_pages=64),
    cost=CostConfig(options=DEVICE),
    classes=(ClassConfig(name="chat", rank=0, ttft_ms=600.0), ClassConfig(name="batch", rank=1)),
    tenants=(TenantConfig(name="bob", weight=2.0),),
)
INTRODUCTION = """\
Twelve requests on a slow device: four seats, 352 tokens of memory, steps of at most 48 tokens that take 30 ms, and
0.6 ms for each prompt token. Each is named by class, tenant, and tokens of prompt + answer; a column is 50 ms. Requests
5, 10 and 12 are calls of one program, 8 asks for priority −1, and tenant `bob` has weight 2."""

FOR_THE_PICTURE: Mapping[str, Mapping[str, object]] = {
    "cost-aware": {"victims": "exclusive-pages"},
    "plas": {"quantum": 128},
    "sarathi": {"step_ms": 45.0},
}
"""Options that make a difference on so small a workload; predictors know the truth there, and estimates the device."""

RUNNING = 256

COSTS = (
    ("steady step, nobody waiting", "steady_p50_us", 0, "{:,.1f} µs"),
    ("steady step, 10,000 waiting", "steady_p50_us", 10_000, "{:,.1f} µs"),
    ("step with an arrival, an end and an admission, 100 waiting", "change_p50_us", 100, "{:,.0f} µs"),
    ("the same, 10,000 waiting", "change_p50_us", 10_000, "{:,.0f} µs"),
    ("the same, 100,000 waiting", "change_p50_us", 100_000, "{:,.0f} µs"),
    ("requests simulated a second", "requests_per_s", None, "{:,.0f}"),
)


def workload() -> Workload:
    """Long batch work of one tenant, then chat of two others, with a long prompt, a program of three calls, a wish."""
    rows: list[tuple[int, int, int, str, str, int, str]] = [
        (0, 48, 60, "batch", "lab", 0, ""),
        (0, 64, 70, "batch", "lab", 0, ""),
        (10, 32, 40, "batch", "lab", 0, ""),
        (20, 32, 50, "batch", "lab", 0, ""),
        (300, 16, 12, "chat", "ann", 0, "agent"),
        (500, 32, 30, "chat", "bob", 0, ""),
        (700, 144, 8, "chat", "ann", 0, ""),
        (900, 16, 6, "chat", "bob", -1, ""),
        (1000, 48, 24, "batch", "lab", 0, ""),
        (1300, 32, 12, "chat", "ann", 0, "agent"),
        (2000, 24, 16, "chat", "bob", 0, ""),
        (2300, 48, 12, "chat", "ann", 0, "agent"),
    ]
    requests = [
        TraceRequest(at_ms * NS_PER_MS, prompt, output, klass, tenant, priority=priority, program=program)
        for at_ms, prompt, output, klass, tenant, priority, program in rows
    ]
    return Workload("twelve", requests)


def pictured(name: str) -> dict[str, object]:
    """The options with which a policy is pictured."""
    options = dict(FOR_THE_PICTURE.get(name, {}))
    parts: Mapping[str, str] = getattr(load("policies", name), "parts", {})
    if "predictor" in parts:
        options["predictor"] = "oracle"
    if "estimate" in parts:
        options["estimate_options"] = DEVICE
    return options


def play(name: str) -> tuple[Result, Strips]:
    """The small workload under a policy."""
    strips = Strips()
    scheduler = msgspec.structs.replace(CONFIG.scheduler, policy=name, options=pictured(name))
    config = validate(msgspec.structs.replace(CONFIG, scheduler=scheduler))
    return simulate(config, workload=workload(), observers=[strips.observe]), strips


# ------------------------------------------------------------------------------------------------ a page


def written(name: str) -> str:
    """All of a page from the mark on."""
    it = describe("policies", name)
    return "\n".join([MARK, "", *_options(it), *_picture(name), *_costs(name)])


def _options(it: Description) -> Iterator[str]:
    kept = [promise.replace("_", " ") for promise, kept in it.promises.items() if kept]
    yield "## Promises and options"
    yield ""
    yield f"It promises: {', '.join(kept) or 'nothing beyond the one duty of all'}."
    yield ""
    if not it.options:
        return
    yield "| option | values | default | |"
    yield "|---|---|---|---|"
    for each in it.options:
        values = each.type.replace("|", "\\|")
        yield f"| `{each.name}` | {values} | `{each.default}` | {each.doc.replace('|', chr(92) + '|')} |"
    yield ""


def _picture(name: str) -> Iterator[str]:
    result, strips = play(name)
    labels = {
        id: f"{id:>2} {each.klass:<5} {each.tenant} {each.prompt_tokens:>3}+{each.output_tokens}"
        for id, each in enumerate(result.workload.requests, 1)
    }
    told = [f"`{key} = {json.dumps(value)}`" for key, value in pictured(name).items() if key != "estimate_options"]
    yield "## What it does"
    yield ""
    yield INTRODUCTION + (f" Here with {' and '.join(told)}." if told else "")
    yield ""
    yield "```"
    yield from strips.lines(labels, COLUMN_NS)
    yield ""
    yield LEGEND
    yield "```"
    yield ""
    records = result.metrics.requests.values()
    served = [each for each in records if each.tokens]
    chat = [each.first_token_ns - each.arrival_ns for each in served if each.klass == "chat"]
    whole = [each.last_token_ns - each.arrival_ns for each in served]
    away = sum(each.preemptions for each in records)
    yield f"Chat's first token comes after {_mean_s(chat)} on average, {max(chat) / NS_PER_S:.2f} s at most; a whole"
    yield f"answer after {_mean_s(whole)} on average. Sent away: {many(away, 'time')}."
    yield ""


def _mean_s(times_ns: list[int]) -> str:
    return f"{sum(times_ns) / len(times_ns) / NS_PER_S:.2f} s"


def _costs(name: str) -> Iterator[str]:
    yield "## What it costs"
    yield ""
    file, lines = _measured(name)
    if file is None:
        yield "Not measured yet."
        yield ""
        return
    yield f"| {RUNNING} requests running (or as many as the policy lets run), page tables of `paged` | |"
    yield "|---|---|"
    for label, key, waiting, form in COSTS:
        found = [each for each in lines if key in each and each.get("waiting") == waiting]
        best = [each for each in found if each.get("running") == RUNNING]
        for each in (best or found)[:1]:
            yield f"| {label} | {form.format(each[key])} |"
    yield ""
    yield f"Medians from [{file.name}](../../benchmarks/results/{file.name}), on a shared machine at"
    yield f"{lines[0]['loop_ns']} ns a loop; `stepwell bench scheduler --policy {name}` measures it."
    yield ""


def _measured(name: str) -> tuple[Path | None, list[dict[str, float]]]:
    """The latest file with figures of the policy, and its lines with the machine's yardstick."""
    for file in sorted(RESULTS.glob("*.jsonl"), reverse=True):
        loop_ns, found = 0.0, []
        for each in map(json.loads, file.read_text().splitlines()):
            if each.get("bench") == "machine":
                loop_ns = each["loop_ns_per_iteration"]
            elif each.get("bench") == "scheduler" and each.get("policy") == name and each.get("allocator") == "paged":
                found.append({**each, "loop_ns": loop_ns})
        if found:
            return file, found
    return None, []


def page(name: str, present: str) -> str:
    """The page as it is to be: what was written by hand, or a beginning for a new one, and the rest."""
    by_hand = present.partition(MARK)[0]
    if not by_hand.strip():
        by_hand = f"# `{name}`\n\n{describe('policies', name).doc}\n\n"
    return by_hand + written(name)


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for name in names("policies"):
        path = PAGES / f"{name}.md"
        path.write_text(page(name, path.read_text() if path.is_file() else ""))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
