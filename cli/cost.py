"""``stepwell cost``: what cost models predict, what they know, and how far off they are."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from stepwell.cli.tables import console, plain_table, time_of
from stepwell.core.config import Config
from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.registry import make_cost_model
from stepwell.sim.cost.architecture import GroupedQuery, LanguageModel
from stepwell.sim.cost.devices import DEVICES
from stepwell.sim.cost.models import MODELS
from stepwell.sim.cost.published import PUBLISHED
from stepwell.sim.cost.reach import reach_of
from stepwell.sim.cost.roofline import Roofline
from stepwell.sim.cost.room import Room, check_pool, room_of
from stepwell.sim.scenario import read_scenario

HELP = "Show how long steps take by a cost model, what it knows, and how far it is from what others measured."

EXAMPLES = """\
examples:
  stepwell cost show                                 step times of the configured cost model, by batch and context
  stepwell cost show --set 'cost={model="roofline",options={device="H200",model="llama-3-70b",tensor_parallel=4}}'
  stepwell cost show scenario.toml --json            the same of a scenario, as JSON
  stepwell cost list                                 devices and models that roofline knows, with sources
  stepwell cost check                                roofline against step times that others published
"""

_DECODING = (1, 8, 32, 128, 256)
_CONTEXTS = (512, 4_096, 32_768)
_PROMPTS = ((512, 0), (2_048, 0), (2_048, 30_720), (8_192, 0))
"""(tokens, tokens before them)."""

_STEPS = "step: requests × context of each, decoding; or prompt tokens + those before them"

_GIB, _GB, _TERA = 1 << 30, 10**9, 10**12


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="show|list|check")
    show = commands.add_parser("show", help="step times by batch and context, what bounds them, and room for KV")
    show.add_argument("file", nargs="?", metavar="FILE", help="a configuration or scenario (default: every default)")
    show.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as cost.model=roofline"
    )
    known = commands.add_parser("list", help="the catalogue of devices and models, with sources")
    check = commands.add_parser("check", help="predictions beside step times that others published")
    for command in (show, known, check):
        command.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    {"show": _show, "list": _list, "check": _check}[args.what](args)
    return 0


# ------------------------------------------------------------------------------------------------ show


def _show(args: argparse.Namespace) -> None:
    config = read_scenario(args.file, overrides=args.set, environ=os.environ).config
    cost = make_cost_model(config.cost)
    room = room_of(cost)
    rows = [_row(cost, shape, room) for shape in _shapes()]
    if args.json:
        told = {"model": config.cost.model, "steps": rows}
        print(json.dumps(told | ({"memory": _room(room)} if room is not None else {}), ensure_ascii=False))
        return
    to = console()
    _introduce(cost, config, to)
    to.print()
    table = plain_table("step", "takes", "tokens/s", "GB", "TFLOP", "longest part", "")
    for row in rows:
        moved, computed = row.get("bytes"), row.get("operations")
        cells = [time_of(row["ms"]), f"{row['tokens_per_s']:,.0f}"]
        cells += [f"{moved / _GB:,.0f}" if moved else "–", f"{computed / _TERA:,.1f}" if computed else "–"]
        noted = {"extrapolated": "beyond", "no room": "no room"}.get(row["trust"], "")
        table.add_row(_step(row), *cells, row.get("longest", "–"), noted)
    to.print(table)
    to.print(_STEPS)


def _step(row: Mapping[str, Any]) -> str:
    if row["decode_requests"]:
        return f"{row['decode_requests']} × {row['context']:,}"
    return f"{row['prefill_tokens']:,} + {row['context']:,}"


def _shapes() -> list[tuple[BatchShape, int]]:
    """Steps to show, and the context of each of their requests."""
    decoding = [(BatchShape(0, n, n * context), context) for context in _CONTEXTS for n in _DECODING]
    prompts = [
        (
            BatchShape(
                tokens, kv_tokens=before, prefill_requests=1, prefill_pairs=tokens * (2 * before + tokens + 1) // 2
            ),
            before,
        )
        for tokens, before in _PROMPTS
    ]
    return decoding + prompts


def _row(cost: CostModel, at: tuple[BatchShape, int], room: Room | None) -> dict[str, Any]:
    shape, context = at
    step_ns = cost.step_ns(shape)
    tokens = shape.prefill_tokens + shape.decode_requests
    reach = reach_of(cost)
    trust = "estimate" if reach is None else "measured" if reach.covers(shape) else "extrapolated"
    if room is not None and shape.kv_tokens + tokens > room.tokens:
        trust = "no room"
    row = {
        "prefill_tokens": shape.prefill_tokens,
        "decode_requests": shape.decode_requests,
        "context": context,
        "ms": step_ns / 1e6,
        "tokens_per_s": tokens * 1e9 / step_ns,
        "trust": trust,
    }
    if isinstance(cost, Roofline):
        parts = cost.parts(shape)
        longest = max(parts, key=lambda part: part.fs)
        row |= {
            "bytes": sum(part.bytes for part in parts if part.bound in ("memory", "compute")),
            "operations": sum(part.operations for part in parts),
            "longest": longest.name + (f", {longest.bound}" if longest.bound in ("memory", "compute") else ""),
            "parts_ms": {part.name: part.fs / 1e12 for part in parts if part.fs},
        }
    return row


def _introduce(cost: CostModel, config: Config, to: Console) -> None:
    """What the times are of, how far to trust them, and what room there is."""
    reach = reach_of(cost)
    if isinstance(cost, Roofline):
        setup, room, options = cost.setup, cost.room, cost.options
        to.print(
            f"{setup.model.name} on {setup.devices} × {setup.device.name}: weights {options.weights}, products"
            f" {setup.math}, KV {options.kv}; tensor × expert × pipeline parallel {options.tensor_parallel} ×"
            f" {options.expert_parallel} × {options.pipeline_parallel}",
            soft_wrap=True,
        )
        each = (
            f"{room.weights / _GIB:.1f} weights, {room.reserve / _GIB:.1f} reserved, {room.kv_token >> 10} KiB a token"
        )
        memory = f"{room.memory / _GIB:.1f} GiB, of which {room.usable / _GIB:.1f} may be used"
        to.print(f"memory of each: {memory}: {each}", soft_wrap=True)
        to.print(f"KV cache: --set memory.pages={room.pages} (of {room.page_size} tokens; {room.tokens:,} tokens)")
        to.print(f"sources: {setup.device.source or 'given'}; {setup.model.source or 'given'}", soft_wrap=True)
        check_pool(cost, min(config.memory.pages, room.pages), config.memory.page_size)
    if reach is None:
        to.print("measured: nothing; every step is an estimate")
    else:
        told = f", within {reach.error_p90:.1%} of nine in ten steps held out" if reach.error_p90 else ""
        to.print(f"measured: {reach.steps or 'an untold number of'} steps{told}; 'beyond' is outside of them")


def _room(room: Room) -> dict[str, int]:
    return {name: getattr(room, name) for name in room.__struct_fields__}


# ------------------------------------------------------------------------------------------------ list


def _list(args: argparse.Namespace) -> None:
    devices: list[dict[str, Any]] = [
        {
            "name": it.name,
            "memory": it.memory,
            "bandwidth": it.bandwidth,
            "operations": dict(it.operations),
            "link": it.link,
            "host": it.host,
            "source": it.source,
        }
        for it in DEVICES.values()
    ]
    models: list[dict[str, Any]] = [
        {
            "name": it.name,
            "parameters": it.parameters,
            "active": it.active_parameters,
            "layers": it.layers,
            "hidden": it.hidden,
            "context": it.context,
            "kv_bytes": 2 * it.layers * it.attention.cached(1),
            "attention": _attention(it),
            "experts": f"{it.experts.active} of {it.experts.experts}" if it.experts else "–",
            "source": it.source,
        }
        for it in MODELS.values()
    ]
    if args.json:
        print(json.dumps({"devices": devices, "models": models}, ensure_ascii=False))
        return
    to = console()
    table = plain_table("device", "GiB", "TB/s", "bf16", "fp8", "int8", "link GB/s", "host GB/s")
    for device in devices:
        table.add_row(*_device_cells(device))
    to.print(table)
    to.print("bf16, fp8, int8: dense TFLOP/s; link and host: one direction\n")
    table = plain_table("model", "10⁹", "active", "layers", "attention", "experts", "KiB")
    for model in models:
        cells = [model["name"], f"{model['parameters'] / _GB:.1f}", f"{model['active'] / _GB:.1f}"]
        cells += [str(model["layers"]), model["attention"], model["experts"]]
        table.add_row(*map(str, cells), f"{model['kv_bytes'] / 1024:.0f}")
    to.print(table)
    to.print("10⁹: parameters; KiB: KV of a token in bf16\n\nsources:")
    for each in (*devices, *models):
        to.print(f"  {each['name']}: {each['source']}", soft_wrap=True)


def _device_cells(device: Mapping[str, Any]) -> list[str]:
    peaks = device["operations"]
    return [
        device["name"],
        f"{device['memory'] / _GIB:.0f}",
        f"{device['bandwidth'] / _TERA:.2f}",
        *(f"{peaks[kind] / _TERA:,.0f}" if kind in peaks else "–" for kind in ("bf16", "fp8", "int8")),
        f"{device['link'] / _GB:.0f}",
        f"{device['host'] / _GB:.0f}",
    ]


def _attention(it: LanguageModel) -> str:
    kind = it.attention
    if isinstance(kind, GroupedQuery):
        return f"{kind.heads}/{kind.kv_heads} × {kind.head_dim}"
    return f"latent {kind.kv_rank} + {kind.rope_dim}"


# ------------------------------------------------------------------------------------------------ check


def _check(args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps([_told(each) for each in PUBLISHED], ensure_ascii=False))
        return
    to = console()
    sources = list(dict.fromkeys(each.source for each in PUBLISHED))
    table = plain_table("device", "model", "in", "step", "told", "ours", "off", "")
    for each in PUBLISHED:
        step = f"{each.prefill_tokens:,} + 0" if each.prefill_tokens else f"{each.decode_requests} × {each.context:,}"
        device = each.device if each.tensor_parallel == 1 else f"{each.tensor_parallel} × {each.device}"
        note = f"[{sources.index(each.source) + 1}]" + ("*" if each.fitted else "")
        times = (time_of(each.measured_ms), time_of(each.predicted_ms), f"{each.deviation:+.1%}")
        table.add_row(device, each.model, each.weights, step, *times, note)
    to.print(table)
    to.print(f"{_STEPS}\nour defaults were chosen by those marked *")
    _print_sources(sources, to)


def _told(each: Any) -> dict[str, Any]:
    told = {name: getattr(each, name) for name in each.__struct_fields__}
    return told | {"predicted_ms": each.predicted_ms, "deviation": each.deviation}


def _print_sources(sources: Sequence[str], to: Console) -> None:
    for number, source in enumerate(sources, 1):
        to.print(f"  [{number}] {source}", soft_wrap=True)
