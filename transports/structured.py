"""Grammars on their way in: read, compiled where the model is, and only then may a request come with one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from stepwell.core.config_grammar import GrammarConfig
from stepwell.core.errors import StepwellError, UserError
from stepwell.core.grammar import ANY_OBJECT, Grammar, check_bounds
from stepwell.core.placement import Place
from stepwell.core.sampling import SamplingParams
from stepwell.transports.aside import Aside

log = structlog.get_logger("stepwell.structured")

K = TypeVar("K")
V = TypeVar("V")

KEPT = 256
"""Grammars that are known to be good, the latest used."""
FRESH = 32
"""Of those, so many are compiled where the model is; fewer than it keeps."""

ReadGrammar = Callable[[Grammar], Grammar]
"""Says how a backend is to be told of a stranger's grammar.  Blocks.  Raises ``UserError`` for what is none."""


class Structured:
    """Of one model.  ``read`` None: its answers cannot be held to a grammar."""

    def __init__(self, place: Place, read: ReadGrammar | None, limits: GrammarConfig) -> None:
        self._place = place
        self._read = read
        self._limits = limits
        self._aside = Aside(1)  # a bad grammar holds up other grammars, and nothing else
        self._good: OrderedDict[Grammar, Grammar] = OrderedDict()
        self._fresh: OrderedDict[Grammar, int] = OrderedDict()
        """Those compiled, and by which of the worker processes."""

    @property
    def able(self) -> bool:
        """Whether the model's answers can be held to a grammar."""
        return self._read is not None and self._place.open().grammars

    async def ready(self, sampling: SamplingParams, field: str) -> SamplingParams:
        """The same, with a grammar that no step has to wait for.  ``field`` is where the client put it.

        Raises ``UserError``, and ``CapacityError`` while no process is there that could compile it.
        """
        if sampling.grammar is None:
            return sampling
        try:
            made = await self._made_ready(sampling.grammar, field)
        except UserError as error:
            raise UserError(error.message, field=field) from None
        return msgspec.structs.replace(sampling, grammar=made)

    async def warm(self) -> None:
        """Compile something, so that the model's vocabulary is read before anybody waits for it."""
        if self.able:
            try:
                await self._place.prepare(ANY_OBJECT)
            except StepwellError as error:
                log.warning("structured output may be refused", why=str(error))

    def close(self) -> None:
        self._aside.close()

    async def _made_ready(self, grammar: Grammar, field: str) -> Grammar:
        if self._read is None or not self.able:
            raise UserError("this model's answers cannot be held to a grammar", field=field)
        read = self._read
        made = self._good.get(grammar)
        if made is None:
            check_bounds(grammar, self._limits.source_kib << 10, field)
            # Many may come with the same one while it is being read.
            made = await self._aside(lambda: self._good.get(grammar) or read(grammar))
        _remember(self._good, grammar, made, KEPT)
        if self._fresh.get(made) != self._place.restarts:
            process = self._place.restarts
            await self._place.prepare(made)
            self._fresh[made] = process
        _remember(self._fresh, made, self._fresh[made], FRESH)
        return made


def _remember(latest: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    latest[key] = value
    latest.move_to_end(key)
    while len(latest) > most:
        latest.popitem(last=False)
