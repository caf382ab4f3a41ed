"""What structured output costs a step: masks of half of a batch, compiles beside it, and both by themselves.

    python -m stepwell.benchmarks.structured          64 requests on SmolLM2, half of them held to a schema (minutes)

Prints a line of JSON a case.  Rounds take turns, so that a machine that changes its speed does so for all: 64 free
requests, 32 free beside 32 held, and 64 free while grammars are compiled in another thread.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import msgspec
import numpy as np

from stepwell.backends.constraint import Constraint
from stepwell.backends.grammar import Grammars
from stepwell.backends.torch_backend import TorchBackend
from stepwell.backends.vocabulary import read_vocabulary
from stepwell.backends.weights.opening import open_model
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.sampling import SamplingParams
from stepwell.sim.bench import Line, machine

PAGE, PROMPT = 16, 2
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
LONG = {"type": "array", "items": PERSON, "minItems": 10_000}
"""Goes on for as long as it is watched."""


def grammar_of(schema: object) -> Grammar:
    return Grammar("json", json.dumps(schema))


def larger(number: int) -> Grammar:
    """Never the same again, with thirty properties of several kinds."""
    kinds = [{"type": "string", "pattern": f"^[a-z]{{1,{number % 50 + 1}}}$"}, {"enum": [number, "b"]}, PERSON]
    return grammar_of({"type": "object", "properties": {f"p{at}": kinds[at % 3] for at in range(30)}})


class Group:
    """``count`` requests that decode, of which the first ``held`` keep to a grammar."""

    def __init__(self, backend: TorchBackend, count: int, held: int, steps: int) -> None:
        self._backend = backend
        self._step = 0
        pages = -(-(PROMPT + steps + 2) // PAGE)
        grammar = grammar_of(LONG)
        ids = range(1, count + 1)
        for id in ids:
            sampling = SamplingParams(temperature=0.0, ignore_eos=id > held, grammar=grammar if id <= held else None)
            backend.admit(id, [id + 7] * PROMPT, 10_000, sampling)
        tables = [(id, [(id - 1) * pages + page for page in range(pages)]) for id in ids]
        self.run(tables=tables, slices=[(id, 0, PROMPT, True) for id in ids])
        self.run(decode=True, joined=list(ids))

    def run(self, **parts: object) -> float:
        """One step, in ms."""
        self._step += 1
        result = self._backend.execute(Launch(self._step, **parts))  # type: ignore[arg-type]
        if result.failed or result.spoiled:
            raise RuntimeError(f"{result.failed} {result.spoiled}")
        return result.elapsed_ns / 1e6

    def clear(self, count: int) -> None:
        self.run(left=list(range(1, count + 1)))
        for id in range(1, count + 1):
            self._backend.release(id)


@contextmanager
def compiling(backend: TorchBackend) -> Iterator[list[float]]:
    """Grammars are compiled without a pause in another thread, inside; gives how long each took, in ms."""
    over = threading.Event()
    took: list[float] = []

    def work() -> None:
        number = time.perf_counter_ns()
        while not over.is_set():
            start = time.perf_counter()
            backend.prepare(larger(number + len(took)))
            took.append((time.perf_counter() - start) * 1e3)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def _line(case: str, **values: float) -> Line:
    return {"bench": "structured", "case": case, **{name: round(value, 3) for name, value in values.items()}}


def steps(backend: TorchBackend, args: argparse.Namespace) -> Iterator[Line]:
    cases: dict[str, list[float]] = {"free": [], "half held": [], "free beside compiles": []}
    compiles: list[float] = []
    for _ in range(args.rounds):
        for case, times in cases.items():
            group = Group(backend, args.requests, args.requests // 2 if case == "half held" else 0, args.steps)
            if case == "free beside compiles":
                with compiling(backend) as took:
                    times += [group.run(decode=True) for _ in range(args.steps)]
                compiles += took
            else:
                times += [group.run(decode=True) for _ in range(args.steps)]
            group.clear(args.requests)
    base = median(cases["free"])
    for case, times in cases.items():
        values = {
            "step_ms_p50": median(times),
            "step_ms_p95": float(np.quantile(times, 0.95)),
            "ratio": median(times) / base,
        }
        yield _line(case, **values)
    values = {"compiles": float(len(compiles)), "compile_ms_p50": median(compiles), "compile_ms_max": max(compiles)}
    yield _line("compiles beside", **values)


def parts(path: str, rows: int) -> Iterator[Line]:
    """A mask and a compile by themselves, the rows of a step one after another in one thread."""
    vocabulary = read_vocabulary(open_model(path))
    grammars = Grammars(lambda: vocabulary)
    grammars.compiled(grammar_of(PERSON))
    took = []
    for number in range(50):
        start = time.perf_counter()
        grammars.compiled(larger(number))
        took.append((time.perf_counter() - start) * 1e3)
    yield _line("compile of 30 properties", ms_p50=median(took), ms_max=max(took))
    compiled = grammars.compiled(grammar_of(LONG))
    draws = np.random.default_rng(0)
    ends = frozenset(vocabulary.ends)
    answers: list[list[int]] = [[] for _ in range(rows)]
    constraints = [Constraint(compiled, grammars.ends) for _ in range(rows)]
    bits = np.zeros((rows, grammars.words), np.int32)
    masks: list[float] = []
    batches: list[float] = []
    for _ in range(40):
        begin = time.perf_counter()
        for place, (constraint, answer) in enumerate(zip(constraints, answers, strict=True)):
            start = time.perf_counter()
            constraint.fill(answer, 0, ends, bits, place)
            masks.append((time.perf_counter() - start) * 1e6)
        batches.append((time.perf_counter() - begin) * 1e6)
        for place, answer in enumerate(answers):
            may = np.flatnonzero(np.unpackbits(bits[place].view(np.uint8), bitorder="little"))
            answer.append(int(draws.choice(may)))
    values = {"us_p50": median(masks), "us_p95": float(np.quantile(masks, 0.95)), f"us_of_{rows}": median(batches)}
    yield _line("mask", **values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(msgspec.json.encode(machine()).decode(), flush=True)
    for line in parts(args.model, args.requests // 2):
        print(msgspec.json.encode(line).decode(), flush=True)
    pages = args.requests * -(-(PROMPT + args.steps + 2) // PAGE)
    backend = TorchBackend(
        TorchBackend.Options(path=args.model),
        pages=pages,
        page_size=PAGE,
        token_budget=args.requests * PROMPT,
        running_limit=args.requests,
    )
    for line in steps(backend, args):
        print(msgspec.json.encode(line).decode(), flush=True)
    backend.close()


if __name__ == "__main__":
    main()
