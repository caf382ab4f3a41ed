"""Memory that remembers whose token was written where: on the device and in the host tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Cell = tuple[int, int]
"""(request, position)."""


class Memory:
    """``page_size`` cells a page; a cell that was never written, or was spoiled, is None."""

    def __init__(self, total: int, page_size: int, host_total: int) -> None:
        self.total = total
        self.page_size = page_size
        self.host_total = host_total
        self._device: list[list[Cell | None]] = [[None] * page_size for _ in range(total)]
        self._host: list[list[Cell | None]] = [[None] * page_size for _ in range(host_total)]

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def write(self, id: int, table: Sequence[int], start: int, tokens: int) -> None:
        for position in range(start, start + tokens):
            page, offset = divmod(position, self.page_size)
            self._device[table[page]][offset] = (id, position)

    def missing(self, id: int, table: Sequence[int], count: int) -> int:
        """The first of ``count`` positions that does not hold the request's own token; -1 if all do."""
        for position in range(count):
            page, offset = divmod(position, self.page_size)
            if self._device[table[page]][offset] != (id, position):
                return position
        return -1

    def copy_out(self, device: Sequence[int], host: Sequence[int]) -> None:
        for source, target in zip(device, host, strict=True):
            self._host[target] = list(self._device[source])

    def copy_in(self, device: Sequence[int], host: Sequence[int]) -> None:
        for target, source in zip(device, host, strict=True):
            self._device[target] = list(self._host[source])

    def spoil_device(self) -> None:
        for cells in self._device:
            cells[:] = [None] * self.page_size

    def spoil_host(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._host[page] = [None] * self.page_size
