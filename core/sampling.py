"""How the next token is drawn from a model's logits: the field's usual parameters, as data."""

from __future__ import annotations

import msgspec

from stepwell.core.grammar import Grammar

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: as a divisor it would overflow."""


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one request.  ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off.

    ``seed`` with the token's position fixes every draw, whatever else runs beside it; None takes a fresh one.
    ``logprobs`` asks for the log-probabilities of the chosen token and that many best alternatives (-1: none at all),
    ``prompt_logprobs`` for those of the prompt's own tokens, of which the first has none.
    End tokens are not chosen before ``min_tokens`` tokens; with ``ignore_eos`` they do not end the answer.
    ``grammar`` is what the answer has to look like, ``allowed_token_ids`` the only tokens it may be made of (empty:
    all), ``bad_words`` sequences of tokens that it must not hold; docs/structured_output.md says what goes before what.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int = -1
    prompt_logprobs: int = -1
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()


GREEDY = SamplingParams(temperature=0.0)
"""What a request gets that does not say."""


class TokenLogprob(msgspec.Struct, array_like=True, gc=False):
    """Log-probability of the chosen token, and of the best alternatives as (token id, log-probability), best first."""

    logprob: float
    top: list[tuple[int, float]] = []
