"""What the kernel knows of a process: processor time, memory, descriptors.  Linux only (``/proc``)."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from stepwell.core.errors import UserError

SPARE = 256
"""Descriptors beside those of connections: files, listeners, pipes."""

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of all its threads so far.  Raises ``UserError`` where there is no ``/proc``."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def busy_s() -> float:
    """Seconds of all cores so far in which somebody worked, other machines on the same cores included."""
    user, nice, system, _idle, _wait, *others = map(int, (_PROC / "stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(others)) / _TICKS


def rss_bytes(pid: int) -> int:
    """Memory of it that is resident now."""
    pages = int(_read(pid, "statm").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """Processes that it started and that still run."""
    found = []
    for each in _PROC.iterdir():
        if each.name.isdigit():
            try:
                parent = int(_stat(int(each.name))[1])
            except UserError:
                continue  # gone meanwhile
            if parent == pid:
                found.append(int(each.name))
    return sorted(found)


def command_line(pid: int) -> str:
    """As it was started, words apart by spaces."""
    return _read(pid, "cmdline").replace("\0", " ")


def keep_to(pid: int, cores: Collection[int]) -> None:
    """Let it run on these cores only, with all threads that it has or makes."""
    for each in (_PROC / str(pid) / "task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(each.name), cores)


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text()
    except OSError as error:
        raise UserError(f"cannot read /proc/{pid}/{name}: {error.strerror or error}", field="pid") from None


def raise_descriptors() -> int:
    """Let this process open as many descriptors as it may without being somebody else; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_descriptors(wanted: int, what: str, field: str) -> None:
    """Raises ``UserError`` if ``wanted`` connections cannot be open at once."""
    most = raise_descriptors()
    if wanted + SPARE > most:
        raise UserError(
            f"{wanted:,} {what} need {wanted + SPARE:,} open files, and this process may have {most:,}; "
            f"raise the hard limit (`ulimit -Hn {wanted + SPARE}` as root, or LimitNOFILE= of the unit)",
            field=field,
        )
