"""``stepwell bench engine``: a serving engine under load, over HTTP, as its clients see it.

The server is a process of its own (or one that already runs, ours or another engine's), the client is this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from stepwell.cli.bench_server import own_server
from stepwell.cli.ceilings import ceilings
from stepwell.cli.load_client import MOST_LATE, Answer, Ask, Server, late_share, look, play
from stepwell.cli.load_requests import REQUESTS, Prompts, encoder_of, lengths, own_corpus, read_corpus
from stepwell.core.build_kind import build_kind
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.bench import Line, as_json, machine
from stepwell.sim.stats import percentiles

MODEL = "smollm2"
HOST_PATH = "host-path"
HOST_STREAMS = 256
MOST_RATE = 100_000

_PROBLEMS = 3
_ROW = "{:<16} {:>10} {:>12} {:>11} {:>11}  {}"


class Workload(msgspec.Struct, frozen=True):
    """Requests that are sent ``concurrency`` at a time; ``speed`` makes tokens a second of their answers."""

    name: str
    concurrency: int
    asks: Callable[[Prompts, int], list[Ask]]
    speed: Callable[[Sequence[Ask], Sequence[Answer]], float]


def _output_speed(asks: Sequence[Ask], answers: Sequence[Answer]) -> float:
    """Output tokens by the time from the first request sent to the last answer's end."""
    took_ns = max(each.done_ns for each in answers) - min(each.sent_ns for each in answers)
    return sum(each.tokens for each in answers) * NS_PER_S / took_ns


def _prompt_speed(asks: Sequence[Ask], answers: Sequence[Answer]) -> float:
    """Prompt tokens by the time to the first token, of the request in the middle."""
    return median(
        len(ask.prompt) * NS_PER_S / each.ttft_ns for ask, each in zip(asks, answers, strict=True) if each.chunks_ns
    )


def _alike(prompt: int, tokens: int, count: int) -> Callable[[Prompts, int], list[Ask]]:
    return lambda prompts, requests: [prompts.ask(prompt, tokens) for _ in range(count)]


def _mixed(prompts: Prompts, requests: int) -> list[Ask]:
    return [prompts.ask(prompt, tokens) for prompt, tokens in lengths(requests)]


WORKLOADS = {
    "single-stream": Workload("single stream", 1, _alike(128, 128, 3), _output_speed),
    "prefill-512": Workload("prefill 512", 1, _alike(512, 1, 5), _prompt_speed),
    "concurrency-16": Workload("concurrency 16", 16, _mixed, _output_speed),
    "concurrency-64": Workload("concurrency 64", 64, _mixed, _output_speed),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=MODEL, metavar="MODEL", help=f"as `stepwell serve` takes it ({MODEL})")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32 or bfloat16 (auto)")
    parser.add_argument("--policy", metavar="NAME", help="scheduling policy (fcfs)")
    parser.add_argument("--journal", metavar="DIR", help="let the server write its journal into this folder")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the server")
    parser.add_argument("--url", metavar="URL", help="measure a server that runs already, of any engine")
    parser.add_argument("--engine", default="stepwell", metavar="NAME", help="what the rows call it (stepwell)")
    parser.add_argument("--precision", metavar="TEXT", help="what the rows say of it (what the server says)")
    names = [*WORKLOADS, HOST_PATH]
    parser.add_argument(
        "--workload", action="append", default=[], choices=names, help="only this one (may be repeated)"
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs a workload, the median counts (1)")
    parser.add_argument(
        "--requests", type=int, default=REQUESTS, metavar="N", help=f"of the concurrent workloads ({REQUESTS})"
    )
    parser.add_argument("--rate", type=float, default=0.0, metavar="R", help="send R requests a second, come what may")
    parser.add_argument("--run", type=int, default=0, metavar="N", help="another number, other places in the text (0)")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="token ids (JSON) to cut prompts from (a license)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Exit status 1 if an answer was not what was asked for."""
    if args.runs < 1 or args.requests < 1:
        raise UserError(f"must be at least 1 run and 1 request, not {args.runs} and {args.requests}", field="runs")
    if not 0 <= args.rate <= MOST_RATE:
        raise UserError(
            f"must be between 0 (no rate) and {MOST_RATE:,} requests a second, not {args.rate}", field="rate"
        )
    names = dict.fromkeys(args.workload or [*WORKLOADS, *([] if args.url else [HOST_PATH])])
    loads = [WORKLOADS[name] for name in names if name != HOST_PATH]
    first = machine() | (ceilings() if loads else {})
    print(as_json(first) if args.json else _machine_in_words(first), flush=True)
    good = _load(args, loads) if loads else True
    if HOST_PATH in names:
        line = _host_path(args.runs)
        words = f"{line['workload']}: {line['step_p50_us']} µs a step (p99 {line['step_p99_us']})"
        print(as_json(line) if args.json else words, flush=True)
    return 0 if good else 1


def _load(args: argparse.Namespace, workloads: Sequence[Workload]) -> bool:
    """Put a server under these loads, one after another.  Whether all answers were what was asked for."""
    running = look(args.url) if args.url else None
    prompts = Prompts(read_corpus(args.corpus) if args.corpus else own_corpus(encoder_of(args.model)), args.run)
    good = True
    with _server(args, running) as server:
        precision = args.precision or server.precision or args.dtype or "auto"
        if not args.json:
            print(f"{args.engine}, {precision}, model {server.model}")
            print(_ROW.format("workload", "tokens/s", "TTFT p50 ms", "ITL p50 ms", "ITL p99 ms", "").rstrip())
        play(server, [prompts.ask(32, 8)], 1)  # whatever is made on first use is made now
        for workload in workloads:
            line = _measure(server, workload, prompts, args.runs, args.requests, args.rate)
            good = good and "wrong" not in line
            line = {"bench": "engine", "build": build_kind(), "engine": args.engine, "precision": precision} | line
            print(as_json(line) if args.json else _in_words(line), flush=True)
    return good


def _host_path(runs: int) -> Line:
    """What Stepwell's own process does for a step beside the model; the device takes no time, so there is no speed."""
    from stepwell.cli.bench_host import measure_host_path  # lazy: an extra

    loop_ns = machine()["loop_ns_per_iteration"]
    found = [measure_host_path(HOST_STREAMS) for _ in range(runs)]
    return {
        "bench": "engine",
        "build": build_kind(),
        "engine": "stepwell",
        "precision": "none",
        "workload": f"host path, {HOST_STREAMS} streams",
        "tokens_per_s": None,
        "ttft_p50_ms": None,
        "itl_p50_ms": None,
        "itl_p99_ms": None,
        "step_p50_us": round(median(each.p50_us for each in found), 1),
        "step_p99_us": round(median(each.p99_us for each in found), 1),
        "steps": found[0].steps,
        "tokenizer": found[0].tokenizer,
        "runs": runs,
        "loop_ns": loop_ns,
    }


def _measure(server: Server, workload: Workload, prompts: Prompts, runs: int, requests: int, rate: float) -> Line:
    """Each figure is the median of the runs' own."""
    figures: list[dict[str, float]] = []
    problems: list[str] = []
    asks: list[Ask] = []
    loop_ns = machine()["loop_ns_per_iteration"]
    for _ in range(runs):
        asks = workload.asks(prompts, requests)
        answers = play(server, asks, workload.concurrency, rate)
        late = late_share(answers)
        if late > MOST_LATE:
            problems.append(f"invalid: the client itself was {late:.0%} of the time to the first token")
        problems += [each.problem for each in answers if each.problem]
        figures.append(_figures(workload, asks, answers))
    names = ("tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")
    line: Line = {"workload": workload.name}
    for name in names:
        found = [each[name] for each in figures if name in each]
        line[name] = round(median(found), 2) if found else None
    line |= {
        "runs": runs,
        "requests": len(asks),
        "prompt_tokens": sum(len(ask.prompt) for ask in asks),
        "output_tokens": sum(ask.tokens for ask in asks),
        "tokens_per_s_runs": [round(each["tokens_per_s"], 2) for each in figures if "tokens_per_s" in each],
        "loop_ns": loop_ns,
    }
    if problems:
        line["wrong"] = [f"{len(problems)} answers", *dict.fromkeys(problems)][: 1 + _PROBLEMS]
    return line


def _figures(workload: Workload, asks: Sequence[Ask], answers: Sequence[Answer]) -> dict[str, float]:
    """Of one run; what nothing can be said about is left out."""
    told = [each for each in answers if each.chunks_ns]
    if not told:
        return {}
    found = {"tokens_per_s": workload.speed(asks, answers)}
    gaps = [gap for each in told for gap in each.gaps_ns]
    (ttft_ns,) = percentiles([each.ttft_ns for each in told], (0.5,))
    itl_p50_ns, itl_p99_ns = percentiles(gaps, (0.5, 0.99))
    for name, value in (("ttft_p50_ms", ttft_ns), ("itl_p50_ms", itl_p50_ns), ("itl_p99_ms", itl_p99_ns)):
        if value is not None:
            found[name] = value / NS_PER_MS
    return found


def _machine_in_words(line: Line) -> str:
    words = f"machine: {line['loop_ns_per_iteration']} ns an iteration of plain Python"
    if "read_gb_per_s" not in line:
        return words
    product = f"multiplies {line['bfloat16_gflop_per_s']} GFLOP/s in bfloat16"
    return f"{words}; one thread reads {line['read_gb_per_s']} GB/s and {product}"


def _in_words(line: Line) -> str:
    names = ("tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")
    numbers = ["–" if line[name] is None else f"{line[name]:.1f}" for name in names]
    wrong = line.get("wrong")
    told = f"WRONG: {'; '.join(wrong)}" if isinstance(wrong, list) else ""
    return _ROW.format(str(line["workload"]), *numbers, told).rstrip()


# ------------------------------------------------------------------------------------------------ the server


@contextmanager
def _server(args: argparse.Namespace, running: Server | None) -> Iterator[Server]:
    """The one that runs already, or one of our own."""
    if running is not None:
        yield running
        return
    given = {"--model": args.model, "--policy": args.policy, "--journal": args.journal}
    settings = [*([f"model.dtype={args.dtype}"] if args.dtype else []), *args.set]
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    with own_server([*words, *(word for setting in settings for word in ("--set", setting))]) as process:
        yield look(process.url)
