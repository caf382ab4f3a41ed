"""How pictures look: colours that colour-blind people tell apart, one line style a contender, and the same bytes anew.

Text stays text in SVG, and its colours are few and fixed, so that a page can set both as its own.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log10
from pathlib import Path
from typing import Any

from stepwell.core.errors import UserError

INK, SOFT, GRID = "#1c1c21", "#62626d", "#dcdce2"
"""Text, lesser text, grid lines."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
"""Okabe and Ito's, without their yellow, which is lost on white."""
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

PHASE_COLOURS = {"queued": "#C9C9D1", "prefill": "#E69F00", "decode": "#0072B2", "swapped": "#CC79A7"} | {
    "preempted": "#D55E00"
}

HOW_TO_GET_IT = "pictures need matplotlib: pip install 'stepwell[research]'"
DPI = 120
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "stepwell",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.07,
}


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def drawing() -> Iterator[None]:
    """Pictures are made and saved inside; whatever the user's own settings are.  Raises ``UserError`` if they can't."""
    if not can_draw():
        raise UserError(HOW_TO_GET_IT, field="report")
    import matplotlib  # lazy: an extra

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def sheet(rows: int, columns: int, *, width: float = 10.0, height: float = 2.9) -> tuple[Any, list[list[Any]]]:
    """A figure of ``rows`` × ``columns`` axes, ``height`` inches a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # lazy: an extra
    from matplotlib.figure import Figure  # lazy: an extra

    figure = Figure(figsize=(width, height * rows + 0.5))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def line(index: int, label: str, *, markers: bool = True) -> dict[str, Any]:
    """How the ``index``-th contender is drawn, everywhere."""
    look: dict[str, Any] = {"color": colour(index), "linestyle": LINES[index % len(LINES)]}
    look["linewidth"] = max(2.6 - 0.35 * index, 1.2)  # what lies upon another lets it be seen
    if markers:
        look["marker"] = mark(index)
    return look | {"label": label}


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def dress(axes: Any, title: str, below: str = "", beside: str = "") -> None:
    """Title, units, a quiet grid."""
    axes.set_title(title, loc="left")
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def plain_log(axis: Any) -> None:
    """A logarithmic axis with numbers that people read (0.1, 1, 2,000), few enough to stand beside one another."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # lazy: an extra

    low, high = axis.get_view_interval()
    decades = log10(high / low) if 0 < low < high else 1.0
    most = 1.7 if axis.axis_name == "x" else 3.2
    subs = (1.0, 2.0, 5.0) if decades < most else (1.0, 3.0) if decades < 2 * most else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,g}" if value < 1e6 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def boxes(axes: Any, found: Sequence[tuple[float, float, float, float]], fill: str, label: str) -> None:
    """Rectangles (left, right, bottom, top) as one shape, which is many times quicker to draw than each by itself."""
    from matplotlib.collections import PolyCollection  # lazy: an extra

    corners = [[(a, c), (b, c), (b, d), (a, d)] for a, b, c, d in found]
    axes.add_collection(PolyCollection(corners, facecolor=fill, edgecolor="none", label=label))


def legend(figure: Any, axes: Sequence[Any]) -> None:
    """One for the whole sheet, below it; of several axes each label once."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        letters = max(map(len, found)) + 9
        columns = max(1, min(len(found), round(15 * figure.get_figwidth() / letters)))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def sign(figure: Any, remark: str) -> None:
    """In small letters at the right of its foot: what every picture has to say of itself."""
    figure.supxlabel(remark, x=0.995, ha="right", fontsize=7.5, color=SOFT)


def svg(figure: Any) -> str:
    """The picture as SVG, the same for the same picture."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # lazy: an extra

    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")  # laid out once, for both formats
    buffer = io.BytesIO()
    # Canvases are asked themselves: ``savefig`` would draw everything twice.
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue().decode()


def png(figure: Any, path: Path) -> None:
    """The picture as PNG, on white; after ``svg``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # lazy: an extra

    figure.set_facecolor("white")
    figure.set_dpi(DPI)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(path, metadata={"Software": None})
