"""Clients' grammars, read in a process of their own before anything is queued: bad ones are refused, cheaply.

It starts with the first grammar, and again after one that it died of.
"""

from __future__ import annotations

import threading
import weakref

from stepwell.core.config_grammar import GrammarConfig
from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.transports.sandbox import Died, Sandbox

WAIT_S = 20.0
"""Of anybody's time, however little was computed: the process may have to start in it, too."""
MEMORY_MIB = 1024


class GrammarProcess:
    """One process, one grammar at a time.  ``checker`` is ``module:function``: what makes a checker of ``about``."""

    def __init__(self, checker: str, about: object, limits: GrammarConfig) -> None:
        self._seconds = limits.seconds
        self._order = {"checker": checker, "about": about, "seconds": limits.seconds, "memory_mib": MEMORY_MIB}
        self._lock = threading.Lock()
        self._running: list[Sandbox] = []
        weakref.finalize(self, _end, self._running)

    def __call__(self, grammar: Grammar) -> Grammar:
        """How the backend is to be told of it.  Blocks, so call it in a thread.  Raises ``UserError``."""
        with self._lock:
            try:
                told = self._process().ask({"kind": grammar.kind, "source": grammar.source})
            except Died as died:
                self.close()
                raise UserError(
                    died.why or "cannot be followed: it goes too deep", field="structured_outputs"
                ) from None
            except BaseException:
                self.close()
                raise
        if "error" in told:
            raise UserError(told["error"], field="structured_outputs")
        return Grammar(grammar.kind, told["source"])

    def _process(self) -> Sandbox:
        if self._running and not self._running[0].alive:
            self.close()
        if not self._running:
            module = "stepwell.transports.grammar_worker"
            self._running.append(Sandbox(module, self._order, seconds=self._seconds, wait_s=WAIT_S))
        return self._running[0]

    def close(self) -> None:
        """End the process; another grammar starts a new one."""
        _end(self._running)


def _end(running: list[Sandbox]) -> None:
    while running:
        running.pop().end()
