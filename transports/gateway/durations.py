"""Durations as OpenAI's headers have them, which is how Go writes them: ``12ms``, ``1.5s``, ``6m0s``, ``1h2m3s``."""

from __future__ import annotations

from stepwell.core.types import NS_PER_MS, NS_PER_S


def written(duration_ns: int) -> str:
    """Rounded up to whole milliseconds: whoever waits so long has waited long enough."""
    ms = -(-max(duration_ns, 0) // NS_PER_MS)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    seconds, rest = divmod(ms, NS_PER_S // NS_PER_MS)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest:03}".rstrip("0") if rest else ""
    text = f"{seconds}{fraction}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
