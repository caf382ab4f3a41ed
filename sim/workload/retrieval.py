"""Retrieval-augmented prompts: a document that many ask about, then a question of one's own.

Which document is asked about follows Zipf's law: the r-th most popular one in proportion to r to the power of minus
``popularity``.  Prompts about one document begin alike, so an allocator that reuses prefixes computes it once, as long
as it is kept.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.core.errors import UserError
from stepwell.sim.workload import draws
from stepwell.sim.workload.mixes import (
    MOST_REQUESTS,
    Lengths,
    TenantMix,
    between,
    check_lengths,
    check_mixes,
    check_seed,
    choose,
    counts,
)
from stepwell.sim.workload.prefixes import EMPTY, Text, Texts
from stepwell.sim.workload.rates import Arrivals, arrivals_ns, check_arrivals
from stepwell.sim.workload.request import TraceRequest, Workload

_CLASS, _TENANT, _QUESTION, _ANSWER, _DOCUMENT, _CHOSEN = 10, 20, 30, 40, 80, 90
MOST_DOCUMENTS = 1_000_000


class RetrievalClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of requests and its share of them: what is asked behind the documents, and what is answered."""

    question: Lengths
    answer: Lengths
    name: str = "chat"
    share: float = 1.0


class Retrieval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` requests that come by ``arrivals``.  Class and tenant of a request are drawn independently.

    A prompt is ``instructions`` tokens that all have, then ``per_request`` documents (one that is drawn twice is there
    once), then the question.  Every tenant has documents of its own, of the same lengths.  ``key_tokens`` are those of
    a prefix key: the page size, so that pages are found exactly.
    """

    arrivals: Arrivals
    classes: tuple[RetrievalClass, ...]
    document: Lengths
    documents: int = 1_000
    popularity: float = 1.0
    per_request: int = 1
    instructions: int = 0
    count: int = 10_000
    tenants: tuple[TenantMix, ...] = (TenantMix(),)
    key_tokens: int = 16
    seed: int = 0
    name: str = "retrieval"


def generate_retrieval(options: Retrieval) -> Workload:
    """The workload that ``options`` describe.  Raises ``UserError`` if they describe none."""
    check_retrieval(options)
    count, seed, classes = options.count, options.seed, options.classes
    klass = choose(seed, _CLASS, count, classes)
    question = counts(seed, _QUESTION, klass, [each.question for each in classes])
    answer = counts(seed, _ANSWER, klass, [each.answer for each in classes])
    rows = zip(
        arrivals_ns(options.arrivals, seed, count).tolist(),
        klass.tolist(),
        choose(seed, _TENANT, count, options.tenants).tolist(),
        question.tolist(),
        answer.tolist(),
        _chosen(options).tolist(),
        strict=True,
    )
    lengths = counts(seed, _DOCUMENT, np.zeros(options.documents, dtype=np.int64), [options.document]).tolist()
    texts = Texts(options.key_tokens)
    library: dict[tuple[int, ...], Text] = {}
    requests = []
    for at, k, t, asked, answered, chosen in rows:
        place: tuple[int, ...] = (t,)
        if place not in library:
            library[place] = texts.grow(EMPTY, options.instructions)
        for document in dict.fromkeys(chosen):
            before, place = library[place], (*place, document)
            if place not in library:
                library[place] = texts.grow(before, lengths[document])
        prompt = texts.grow(library[place], asked)
        keys = texts.prompt_keys(prompt)
        requests.append(TraceRequest(at, prompt.tokens, answered, classes[k].name, options.tenants[t].name, keys))
    note = f"{options.documents} documents, generated with seed {seed}"
    return Workload(options.name, requests, key_tokens=options.key_tokens, notes=[note])


def _chosen(options: Retrieval) -> npt.NDArray[np.int64]:
    """Documents from 0, the most popular first: ``[count, per_request]``."""
    ranks = np.arange(1, options.documents + 1, dtype=np.float64)
    reached = np.cumsum(draws.exp(-options.popularity * draws.log(ranks)))
    columns = [draws.uniforms(options.seed, _CHOSEN, options.count, each) for each in range(options.per_request)]
    found = np.searchsorted(reached / reached[-1], np.stack(columns, axis=1), side="right")
    return np.asarray(np.minimum(found, options.documents - 1), dtype=np.int64)


def check_retrieval(options: Retrieval) -> None:
    """Raises ``UserError`` for options of which no workload is made."""
    between(options.count, 1, MOST_REQUESTS, "count")
    between(options.documents, 1, MOST_DOCUMENTS, "documents")
    between(options.popularity, 0.0, 10.0, "popularity")
    between(options.per_request, 1, 64, "per_request")
    between(options.instructions, 0, 1 << 24, "instructions")
    check_seed(options.seed)
    check_arrivals(options.arrivals)
    check_mixes(options.classes, options.tenants)
    check_lengths(options.document, "document")
    if options.per_request > options.documents:
        raise UserError(f"is more than there are documents, {options.documents}", field="per_request")
    for index, each in enumerate(options.classes):
        check_lengths(each.question, f"classes[{index}].question")
        check_lengths(each.answer, f"classes[{index}].answer")
