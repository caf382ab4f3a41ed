"""Clients' grammars, read in a process of their own before any request is queued: bad ones are refused, at a bounded price.

It starts with the first grammar, and again after one that it died of.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from stepwell.core.config_grammar import GrammarConfig
from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar, check_bounds
from stepwell.transports.sandbox import Died, Sandbox

WAIT_S = 20.0
"""Of anybody's time, however little was computed: the process is started in it, too."""
MEMORY_MIB = 1024
KEPT = 256
"""Grammars that are known to be good, the latest used."""


class GrammarProcess:
    """One process, one grammar at a time.  ``checker`` is ``module:function`` of what makes the checker of ``about``."""

    def __init__(self, checker: str, about: Mapping[str, Any], limits: GrammarConfig | None = None) -> None:
        self._limits = limits or GrammarConfig()
        self._order = {
            "checker": checker,
            "about": about,
            "seconds": self._limits.seconds,
            "memory_mib": MEMORY_MIB,
        }
        self._lock = threading.Lock()
        self._good: OrderedDict[Grammar, Grammar] = OrderedDict()
        self._running: list[Sandbox] = []
        weakref.finalize(self, _end, self._running)

    def __call__(self, grammar: Grammar, field: str) -> Grammar:
        """How the backend is to be told of it.  Blocks, so call it in a thread.  Raises ``UserError``."""
        check_bounds(grammar, self._limits.source_kib << 10, field)
        with self._lock:
            made = self._good.get(grammar)
            if made is None:
                made = self._good[grammar] = self._ask(grammar, field)
                while len(self._good) > KEPT:
                    self._good.popitem(last=False)
            self._good.move_to_end(grammar)
            return made

    def _ask(self, grammar: Grammar, field: str) -> Grammar:
        try:
            told = self._process().ask({"kind": grammar.kind, "source": grammar.source})
        except Died as died:
            self.close()
            raise UserError(died.why or "cannot be followed: it goes too deep", field=field) from None
        except BaseException:
            self.close()
            raise
        if "error" in told:
            raise UserError(told["error"], field=field)
        return Grammar(grammar.kind, told["source"])

    def _process(self) -> Sandbox:
        if not self._running:
            module = "stepwell.transports.grammar_worker"
            self._running.append(Sandbox(module, self._order, seconds=self._limits.seconds, wait_s=WAIT_S))
        return self._running[0]

    def close(self) -> None:
        """End the process; another grammar starts a new one."""
        _end(self._running)


def _end(running: list[Sandbox]) -> None:
    while running:
        running.pop().end()
