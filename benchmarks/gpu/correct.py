"""Every kernel against its truth at shapes as a server has them, outputs filled with not-a-number before."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stepwell.backends.kernels.norm import triton as norm
from stepwell.backends.kernels.pages import triton as pages
from stepwell.backends.kernels.rope import triton as rope
from stepwell.backends.kernels.swiglu import triton as gate
from stepwell.benchmarks.gpu import correct_attention, correct_sampling, truth
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.inputs import draw, heads_of
from stepwell.benchmarks.gpu.lines import Line

KEY = "correct"
EPS = 1e-5
OFF = "of the error that is allowed"
DTYPES = (torch.bfloat16, torch.float16)


def run(bench: Bench) -> None:
    checks = {
        "residual sum and norm": norms,
        "rotary positions and the write of keys": rotations,
        "gate": gates,
        "copies of pages": page_copies,
    }
    for what, check in checks.items():
        bench.each(what, lambda check=check: check(bench), KEY)  # type: ignore[misc]
    correct_attention.run(bench)
    correct_sampling.run(bench)


def found(bench: Bench, what: str, dtype: torch.dtype, share: float) -> Line:
    name = str(dtype).removeprefix("torch.")
    return bench.line(f"{what}, {name}", share, OFF, KEY)


def blank(shape: tuple[int, ...], dtype: torch.dtype, bench: Bench) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=bench.device)


def norms(bench: Bench) -> Iterator[Line]:
    hidden = bench.scale.model["hidden"]
    weight = 1 + 0.1 * draw(bench, hidden, dtype=torch.float32)
    for dtype in DTYPES:
        share = 0.0
        for rows in bench.scale.rows:
            states = 3 * draw(bench, rows, hidden, dtype=torch.float32)
            added = draw(bench, rows, hidden, dtype=dtype)
            sums = states + added.float()
            out = norm.add_norm(states, added, weight, EPS, dtype, out=blank((rows, hidden), dtype, bench))
            share = max(
                share, truth.rounding(out, truth.norm(sums, weight, EPS)), 2.0 * (not torch.equal(states, sums))
            )
        yield found(bench, f"residual sum and norm, {hidden} wide", dtype, share)


def gates(bench: Bench) -> Iterator[Line]:
    inner = bench.scale.model["intermediate"]
    for dtype in DTYPES:
        share = 0.0
        for rows in bench.scale.rows:
            both = draw(bench, rows, 2 * inner, dtype=dtype)
            left, right = both.double().chunk(2, dim=-1)
            out = gate.swiglu(both, out=blank((rows, inner), dtype, bench))
            share = max(share, truth.rounding(out, left * left.sigmoid() * right))
        yield found(bench, f"gate, {inner} wide", dtype, share)


def rotations(bench: Bench) -> Iterator[Line]:
    heads, model = heads_of(bench), bench.scale.model
    powers = torch.arange(0, heads.dim, 2, device=bench.device) / heads.dim
    frequencies = 1.0 / model["rope_theta"] ** powers
    for dtype in DTYPES:
        share = 0.0
        for rows in bench.scale.rows:
            count = -(-rows // heads.page_size) + 2
            cache = [blank((count, heads.page_size, heads.kv, heads.dim), dtype, bench) for _ in range(2)]
            qkv = draw(bench, rows, heads.query + 2 * heads.kv, heads.dim, dtype=dtype)
            positions = torch.randint(0, model["context"], (rows,), device=bench.device, dtype=torch.int32)
            slots = torch.randperm(count * heads.page_size, device=bench.device)[:rows]
            out = blank((rows, heads.query, heads.dim), dtype, bench)
            rope.rotate_and_write(qkv, positions, frequencies, slots, *cache, heads=heads.query, out=out)
            wanted = truth.turned(qkv[:, : heads.query + heads.kv], positions, frequencies)
            keys, values = (each.flatten(0, 1) for each in cache)
            share = max(
                share,
                truth.rounding(out, wanted[:, : heads.query]),
                truth.rounding(keys[slots], wanted[:, heads.query :]),
                2.0 * (not torch.equal(values[slots], qkv[:, heads.query + heads.kv :])),
                2.0 * (int(keys.isnan().any((1, 2)).sum()) != len(keys) - rows),
            )
        yield found(bench, f"rotary positions, {heads.query} and {heads.kv} heads", dtype, share)


def page_copies(bench: Bench) -> Iterator[Line]:
    heads, layers = heads_of(bench), bench.scale.model["layers"]
    count = 8 * max(bench.scale.rows) // heads.page_size // 8 + 4
    keys, values = (draw(bench, layers, count, heads.page_size, heads.kv, heads.dim) for _ in range(2))
    some = torch.randperm(count, device=bench.device)
    half = count // 2
    wanted = [each.clone() for each in (keys, values)]
    for each in wanted:
        each[:, some[half : 2 * half]] = each[:, some[:half]]
    pages.copy_pages(keys, values, some[:half], some[half : 2 * half])
    wrong = sum(not torch.equal(a, b) for a, b in zip((keys, values), wanted, strict=True))
    staged = blank((half, 2, layers, heads.page_size, heads.kv, heads.dim), bench.dtype, bench)
    pages.gather_pages(keys, values, some[:half], out=staged)
    wrong += not torch.equal(staged[:, 0], keys[:, some[:half]].transpose(0, 1))
    wrong += not torch.equal(staged[:, 1], values[:, some[:half]].transpose(0, 1))
    keys.zero_()
    values.zero_()
    pages.scatter_pages(staged, keys, values, some[:half])
    wrong += not torch.equal(staged[:, 0], keys[:, some[:half]].transpose(0, 1))
    yield found(bench, f"copies of {half} pages, all layers", bench.dtype, 2.0 * wrong)
