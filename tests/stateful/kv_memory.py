"""Memory that remembers what was written where: on the device and in the host tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Cell = tuple[int, int]
"""(request, position), of a prompt (its first request, position); under a key, (- key, position): whoever computes it
writes the same."""


class Memory:
    """``page_size`` cells a page, ``key_tokens`` under a key; one never written, or spoiled, is None."""

    def __init__(self, total: int, page_size: int, host_total: int, key_tokens: int) -> None:
        self.total = total
        self.page_size = page_size
        self.key_tokens = key_tokens
        self.host_total = host_total
        self._device: list[list[Cell | None]] = [[None] * page_size for _ in range(total)]
        self._host: list[list[Cell | None]] = [[None] * page_size for _ in range(host_total)]

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def write(self, cells: Iterable[Cell], table: Sequence[int]) -> None:
        for cell in cells:
            page, offset = divmod(cell[1], self.page_size)
            self._device[table[page]][offset] = cell

    def missing(self, cells: Iterable[Cell], table: Sequence[int]) -> int:
        """The first position that does not hold what it should; -1 if all do."""
        for cell in cells:
            page, offset = divmod(cell[1], self.page_size)
            if self._device[table[page]][offset] != cell:
                return cell[1]
        return -1

    def copy_out(self, device: Sequence[int], host: Sequence[int]) -> None:
        for source, target in zip(device, host, strict=True):
            self._host[target] = list(self._device[source])

    def copy_in(self, device: Sequence[int], host: Sequence[int]) -> None:
        for target, source in zip(device, host, strict=True):
            self._device[target] = list(self._host[source])

    def copy(self, source: int, target: int) -> None:
        self._device[target] = list(self._device[source])

    def spoil_device(self) -> None:
        for cells in self._device:
            cells[:] = [None] * self.page_size

    def spoil_host(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._host[page] = [None] * self.page_size
