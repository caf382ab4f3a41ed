"""What a request asks for beside its prompt: how long, how often, how the tokens are drawn, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.core.errors import UserError
from stepwell.core.sampling import GREEDY_BELOW, SamplingParams
from stepwell.transports.http.formats import Form, with_form
from stepwell.transports.http.requests import MAX_STOP_LETTERS, Sampled
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants


def wants_of(
    request: Sampled,
    service: Service,
    headers: Mapping[str, str],
    *,
    logprobs: int = -1,
    limit: str = "max_tokens",
    least: int = 1,
    form: Form | None = None,
) -> Wants:
    """What is asked for beside the prompt, within the server's own limits.

    ``limit`` is the field that bounds its length, ``form`` what it is held to.
    """
    max_tokens = getattr(request, limit)
    if max_tokens is not None and max_tokens < least:
        raise UserError("must be at least 1 (null: the rest of the context)", field=limit)
    if request.min_tokens is not None and max_tokens is not None and request.min_tokens > max_tokens:
        raise UserError(f"must not be more than {limit} ({max_tokens}), got {request.min_tokens}", field="min_tokens")
    n = request.n or 1
    if n > service.limits.max_choices:
        raise UserError(f"at most {service.limits.max_choices} here, got {n}", field="n")
    if logprobs >= 0 and not service.model.logprobs:
        raise UserError("this model's backend gives none", field="logprobs")
    vocab = service.model.tokenizer.vocab_size
    for name in ("logit_bias", "allowed_token_ids"):
        for id in getattr(request, name) or ():
            if not 0 <= id < vocab:
                raise UserError(f"there is no token {id}; token ids are 0 to {vocab - 1}", field=name)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if sum(map(len, stop)) > MAX_STOP_LETTERS:
        raise UserError(f"at most {MAX_STOP_LETTERS} letters, of all of them together", field="stop")
    standing = service.wire.standing(request, headers)
    service.check_taking()
    service.admission.check(standing)
    return Wants(
        n=n,
        max_tokens=max_tokens,
        stop=tuple(stop),
        sampling=with_form(_sampling(request, service, logprobs), form),
        grammar_field=form.field if form else "",
        standing=standing,
    )


def _sampling(request: Sampled, service: Service, logprobs: int) -> SamplingParams:
    given: dict[str, Any] = dict(service.model.sampling)
    for name in (
        *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("logit_bias", "min_tokens", "ignore_eos"),
    ):
        value = getattr(request, name)
        if value is not None:
            given[name] = value
    if request.top_k is not None:
        given["top_k"] = max(request.top_k, 0)
    if request.seed is not None:
        given["seed"] = request.seed & ((1 << 63) - 1)
    if given.get("temperature", 1.0) < GREEDY_BELOW:
        given["temperature"] = 0.0
    return SamplingParams(
        **given,
        logprobs=logprobs,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        allowed_token_ids=_allowed(request),
        bad_words=bad_words_of(request.bad_words or (), service.model.tokenizer.encode),
    )


def _allowed(request: Sampled) -> tuple[int, ...]:
    if request.allowed_token_ids is None:
        return ()
    if not request.allowed_token_ids:
        raise UserError("must hold at least one token", field="allowed_token_ids")
    return tuple(sorted(set(request.allowed_token_ids)))


def bad_words_of(words: Sequence[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """As tokens: each word as a text begins with it, and as it follows another."""
    spelled = [tuple(encode(text)) for word in words for text in (word.lstrip() or word, f" {word.lstrip()}")]
    return tuple(dict.fromkeys(each for each in spelled if each))
