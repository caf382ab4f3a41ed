"""Sampling of all rows of a step in plain torch: every row is sorted, and nothing is cut up.

The same arithmetic as ``backends.sampler.choose`` (see ``backends/draws.py``), so the same tokens, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.backends.draws import FAR, FRACTION, POLYNOMIAL, UNIT
from stepwell.backends.kernels.sampling import columns
from stepwell.backends.kernels.sampling.columns import BARRED_EARLY, BIAS, Sides

_LOW = (1 << 32) - 1


def sample(
    logits: Tensor,
    words: Tensor,
    lengths: Tensor,
    *,
    sides: Sides,
    out: Tensor | None = None,
    finite: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next token of each row, and whether its scores were finite (the best one, and no NaN); otherwise token 0.

    ``logits`` [rows, vocabulary], of any floating type; ``words`` [``columns.WORDS``, rows] int32; ``lengths`` [rows]
    int32: tokens known, which is the position of the one that is drawn.  Returns [rows] int64 and [rows] bool.  Drawn
    tokens are counted in the side places of rows that keep counts.
    """
    size = logits.shape[1]
    raw = logits.float()
    good = ~raw.isnan().any(1) & raw.amax(1).isfinite()
    scores, level = _judged(raw.masked_fill(raw.isnan(), -torch.inf), words, lengths, sides)
    kept = level == level.amax(1, keepdim=True)
    # A stable sort: of equal scores the lower token comes first.  What is not kept comes last, behind minus infinity.
    order = scores.masked_fill(~kept, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, (~kept).gather(1, order).int().argsort(dim=1, stable=True))
    scale = words[columns.SCALE].view(torch.float32)[:, None]
    best = scores.gather(1, order[:, :1])
    weight = _weights(scores, best, scale).masked_fill(~kept, 0).gather(1, order)
    rank = torch.arange(size, device=logits.device)[None]
    k = words[columns.TOP_K].long()[:, None]
    weight = weight.masked_fill((k > 0) & (rank >= k), 0)
    running = weight.cumsum(1)
    least = _part(_double(words, columns.SHARE)[:, None], running[:, -1:], up=True).clamp(min=1)
    weight = weight.masked_fill(running - weight >= least, 0)
    weight = weight.masked_fill(weight < _double(words, columns.LEAST)[:, None], 0)
    totals = torch.zeros_like(weight).scatter_(1, order, weight).cumsum(1)
    draw = _part(_bits(_double(words, columns.SEED), lengths.long()) << 11, totals[:, -1], up=False)
    drawn = torch.searchsorted(totals, draw[:, None], right=True)[:, 0]
    token = torch.where(scale[:, 0] < 0, order[:, 0], drawn.clamp(max=size - 1)).masked_fill(~good, 0)
    out = token if out is None else out.copy_(token)
    finite = good if finite is None else finite.copy_(good)
    side = words[columns.SIDE].long()
    place = side.clamp(min=0)
    counted = (side >= 0) & good & (lengths > 0) & (sides.notes[place, 1] != 0)
    sides.counts.index_put_((place, token), 2 * counted.int(), accumulate=True)
    return out, finite


def _judged(raw: Tensor, words: Tensor, lengths: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
    """Scores after penalties and biases, and the level of each token; those of the highest level of a row are kept."""
    side = words[columns.SIDE].long()
    place, has = side.clamp(min=0), (side >= 0)[:, None]
    edited, counted = ((sides.notes[place] != 0) & has).unsqueeze(2).unbind(1)
    harder, presence, frequency = words[columns.REPETITION : columns.FREQUENCY + 1].view(torch.float32)[:, :, None]
    count = torch.where(counted, sides.counts[place], 0)
    score = torch.where(count != 0, torch.where(raw > 0, raw / harder, raw * harder), raw)
    said = count >> 1
    score = torch.where(said != 0, score - (said.float() * frequency + presence), score)
    token, kind, value = sides.edits[place].unbind(2)
    here = edited & (torch.arange(token.shape[1], device=raw.device) < sides.notes[place, :1])

    def edits(which: int, values: Tensor) -> Tensor:
        """The values of edits of that kind, each at its token."""
        return torch.zeros_like(raw).scatter_add_(1, token.long(), values.masked_fill(~(here & (kind == which)), 0))

    score = score + edits(BIAS, value.view(torch.float32))
    barred = edits(BARRED_EARLY, torch.ones(value.shape, device=raw.device)) != 0
    early = lengths[:, None] < words[columns.EARLY][:, None]
    return score, (~(barred & early)).int()


def _weights(scores: Tensor, best: Tensor, scale: Tensor) -> Tensor:
    """``draws.weights``."""
    below = torch.where(scores == best, 0.0, best - scores)
    far = ~(below < torch.inf)
    fixed = ((below.masked_fill(far, 0) * scale).clamp(max=FAR) * float(1 << FRACTION)).int()
    fraction = (fixed & (1 << FRACTION) - 1).float() * 2.0**-FRACTION
    power = torch.full_like(fraction, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        power = power * fraction
        power = power + coefficient
    weight = (power * float(1 << FRACTION)).long() << UNIT - FRACTION
    return (weight >> (fixed >> FRACTION).long()).masked_fill(far, 0)


def _double(words: Tensor, word: int) -> Tensor:
    """[rows] int64."""
    return (words[word + 1].long() << 32) | (words[word].long() & _LOW)


def _part(part: Tensor, whole: Tensor, *, up: bool) -> Tensor:
    """``part`` / 2**64 (unsigned) of ``whole``, below 2**63; rounded up or down.  By halves, as there is no int128."""
    high, low = part >> 32 & _LOW, part & _LOW
    upper, lower = whole >> 32, whole & _LOW
    first = low * lower  # the low 64 bits, unsigned
    second = high * lower
    middle = (first >> 32 & _LOW) + (low * upper & _LOW) + (second & _LOW)
    product = high * upper + ((low * upper) >> 32 & _LOW) + (second >> 32 & _LOW) + (middle >> 32)
    rest = ((first & _LOW) != 0) | ((middle & _LOW) != 0)
    return product + (rest.long() if up else 0)


def _bits(seed: Tensor, position: Tensor) -> Tensor:
    """``draws.bits``."""
    return _shifted(_mixed(_mixed(seed) ^ position * _signed(0x9E3779B97F4A7C15)), 11)


def _mixed(x: Tensor) -> Tensor:
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    """To the right, as if unsigned."""
    return (x >> count) & ((1 << 64 - count) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64)
