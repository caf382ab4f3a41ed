"""The near side of ``template_worker.py``: starts its processes, talks to them, and replaces those that died."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.core.errors import CapacityError, UserError
from stepwell.transports.sandbox import Died, Sandbox


class TemplateLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a template may use for one rendering."""

    seconds: float = 1.0
    """Of processor time."""
    wait_s: float = 30.0
    """Of anybody's time: a process that has not answered by then is given up, however little it computed."""
    memory_mib: int = 1024
    most_letters: int = 8_000_000
    processes: int = 2
    """How many may render at once."""


class TemplatePool:
    """Processes for one template.  The first starts with the pool, which so finds out whether the template compiles."""

    def __init__(self, template: str, limits: TemplateLimits) -> None:
        self._template = template
        self._limits = limits
        self._free = threading.BoundedSemaphore(limits.processes)
        self._idle: list[Sandbox] = [self._start()]
        weakref.finalize(self, _end_all, self._idle)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises ``UserError`` as the template deserves, and ``CapacityError`` if all processes stay busy."""
        if not self._free.acquire(timeout=self._limits.wait_s):
            raise CapacityError("every process that renders chat templates is busy", code="templates_busy")
        try:
            told = self._ask(variables)
        finally:
            self._free.release()
        kind, error = told.get("kind"), told.get("error", "")
        if kind is None:
            return told["text"]
        if kind == "refused":
            raise UserError(f"the chat template refuses them: {error}", field="messages")
        if kind == "failed":
            raise UserError(f"the chat template cannot render them: {error}", field="messages")
        if kind == "unsafe":
            raise UserError(f"does what it may not: {error}", field="chat_template")
        most = f"{self._limits.most_letters} letters or {self._limits.memory_mib} MiB"
        raise UserError(f"makes more than {most}", field="chat_template")

    def close(self) -> None:
        _end_all(self._idle)

    def _begin(self) -> Sandbox:
        limits = self._limits
        order = {"template": self._template, "seconds": limits.seconds, "memory_mib": limits.memory_mib}
        order["most_letters"] = limits.most_letters
        return Sandbox("stepwell.transports.template_worker", order, seconds=limits.seconds, wait_s=limits.wait_s)

    def _start(self) -> Sandbox:
        try:
            process = self._begin()
        except Died as died:
            raise UserError(died.why or "the process that renders it did not start", field="chat_template") from None
        if "error" in process.begun:
            process.end()
            raise UserError(f"does not compile: {process.begun['error']}", field="chat_template")
        return process

    def _ask(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """A process that died while nobody looked is replaced once."""
        for _ in range(2):
            try:
                process = self._idle.pop()
            except IndexError:
                process = self._start()
            try:
                told = process.ask(variables)
            except Died as died:
                if died.why:
                    raise UserError(died.why, field="chat_template") from None
                continue
            except BaseException:
                process.end()
                raise
            self._idle.append(process)
            return told
        raise UserError("ends the process that renders it", field="chat_template")


def _end_all(processes: list[Sandbox]) -> None:
    while processes:
        processes.pop().end()
