"""Where tasks are carried out: here, or in processes of this machine.  ``on_ray`` has a third place.

A runner takes encoded tasks and yields (index, outcome) as they are done, in any order.  All runners give the same
outcomes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from stepwell.sim.compare.tasks import Failed, perform
from stepwell.sim.compare.worker import command, read_frame, write_frame

Runner = Callable[[Sequence[bytes]], Iterator[tuple[int, bytes]]]

MOST_JOBS = 1024


def cores() -> int:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def here(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """One after another in this process."""
    for index, task in enumerate(tasks):
        yield index, perform(task)


def in_processes(jobs: int) -> Runner:
    """``jobs`` at a time, each in a process of its own; with one job or one task, in this process."""

    def run(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        if min(jobs, len(tasks)) < 2:
            return here(tasks)
        return _Pool(tasks).run(min(jobs, len(tasks)))

    return run


class _Pool:
    """A thread for each process waits for it, as that is the one way which works on every system."""

    def __init__(self, tasks: Sequence[bytes]) -> None:
        self._tasks = tasks
        self._next = 0
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[tuple[int, bytes] | BaseException] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def run(self, jobs: int) -> Iterator[tuple[int, bytes]]:
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]
        try:
            for thread in threads:
                thread.start()
            for _ in self._tasks:
                done = self._done.get()
                if isinstance(done, BaseException):
                    raise done
                yield done
        finally:  # also when whoever asks is interrupted
            with self._lock:
                self._closed = True
                for process in self._processes:
                    process.kill()
            for thread in threads:
                thread.join()

    def _serve(self) -> None:
        """Feed one process; one that dies is replaced, and its task has failed."""
        try:
            process: subprocess.Popen[bytes] | None = None
            while (index := self._take()) is not None:
                process = process or self._start()
                outcome = self._ask(process, self._tasks[index])
                if outcome is None:
                    status = _end(process)
                    process = None
                    outcome = msgspec.json.encode(Failed(f"its process ended with status {status}{_because(status)}"))
                self._done.put((index, outcome))
            if process is not None:
                _end(process)
        except BaseException as error:  # told to whoever waits, who would wait for ever otherwise
            self._done.put(error)

    def _take(self) -> int | None:
        with self._lock:
            if self._closed or self._next == len(self._tasks):
                return None
            self._next += 1
            return self._next - 1

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            # A group of its own: an interrupt from the terminal is for whoever started it, who then ends it.
            process = subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            self._processes.append(process)
            if self._closed:
                process.kill()
            return process

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], task: bytes) -> bytes | None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, task)
        except OSError:
            return None
        return read_frame(process.stdout)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Close its stdin, upon which it ends; returns its status."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):  # it died with something unread
            pipe.close()
    return process.wait()


def _because(status: int) -> str:
    return " (killed, as happens where memory runs out)" if status == -9 else ""
