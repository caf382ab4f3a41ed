"""The report as one HTML file: no network, no other file, complete without scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from html import escape

from stepwell.sim.report import look, style, tables, words
from stepwell.sim.report.lookup import ALL, Found
from stepwell.sim.report.pictures import Picture
from stepwell.sim.wording import many


def page(found: Found, pictures: Sequence[Picture], remarks: Sequence[str] = ()) -> str:
    """All of it.  ``remarks`` say what is left out and why."""
    title = _title(found)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(look.policy())}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{look.STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_subtitle(found))}</p>',
        '<section class="answer" aria-label="the answer">',
        *(f"<p>{escape(each)}</p>" for each in words.answer(found)),
        "</section>",
        _contents(),
        *_asked(found, remarks),
        *_numbers(found),
        *_pictures(pictures),
        *_trust(found),
        *_again(found),
        f"</main><script>{look.SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _title(found: Found) -> str:
    labels = found.labels
    if len(labels) == 1:
        return f"{labels[0]}, simulated"
    others = [each for each in labels if each != found.baseline]
    told = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"{told} against {found.baseline}"


def _subtitle(found: Found) -> str:
    it = found.comparison
    runs = len(it.cells)
    requests = it.workloads[0].requests if it.workloads else 0
    return (
        f"{many(runs, 'simulated run')}: {many(len(found.labels), 'contender')} × {many(len(found.points), 'rate')} ×"
        f" {many(len(found.axes.seeds), 'seed')}, {requests:,} requests each"
    )


def _contents() -> str:
    places = [("asked", "What was asked"), ("numbers", "Numbers"), ("pictures", "Pictures"), ("trust", "What to trust")]
    places.append(("again", "Repeat it"))
    return "<nav>" + "".join(f'<a href="#{id}">{text}</a>' for id, text in places) + "</nav>"


def _asked(found: Found, remarks: Sequence[str]) -> list[str]:
    parts = ['<h2 id="asked">What was asked</h2>', tables.asked(found)]
    notes = [*found.comparison.notes, *remarks]
    if notes:
        parts.append("<ul>" + "".join(f"<li>{escape(each)}</li>" for each in notes) + "</ul>")
    if found.comparison.failures:
        parts += [f"<h3>Runs that failed: {len(found.comparison.failures)}</h3>", tables.failures(found)]
    return parts


def _numbers(found: Found) -> list[str]:
    parts = [
        '<h2 id="numbers">Numbers</h2>',
        "<p>Small numbers are 95 % intervals, as wide on either side: few seeds that differ reach past what there can"
        " be. An arrow says which side is better; the best at a rate is bold.</p>",
        tables.results(found, ALL),
        tables.glossary(),
    ]
    for scope in found.axes.scopes:
        if scope != ALL:
            parts += [
                f"<details><summary>Class {escape(scope)} alone</summary>",
                tables.results(found, scope),
                "</details>",
            ]
    if len(found.labels) > 1:
        parts += [
            f"<h3>Differences to {escape(found.baseline)}</h3>",
            "<p>Taken pair by pair, under the same requests: the difference, its share of the baseline's value and"
            " whether it is real, and its 95 % interval.</p>",
            tables.differences(found),
        ]
    if found.comparison.knees:
        share = found.axes.slo_share
        whose = found.comparison.knees[0].scope
        what = (f"{100 * share:g} % of " if share else "") + ("requests" if whose == ALL else f"{whose} requests")
        parts += [f"<h3>The highest rate at which {escape(what)} meet their objectives</h3>", tables.knees(found)]
    return parts


def _pictures(pictures: Sequence[Picture]) -> list[str]:
    parts = ['<h2 id="pictures">Pictures</h2>']
    if not pictures:
        parts.append(f"<p>None: {escape(style.HOW_TO_GET_IT)}</p>")
    for each in pictures:
        parts += [
            f'<h3 id="{each.name}">{escape(each.title)}</h3>',
            f"<figure><figcaption>{escape(each.caption)}</figcaption>",
            f'<div class="scroll" tabindex="0">{inline(each)}</div></figure>',
        ]
    return parts


def inline(picture: Picture) -> str:
    """The picture's SVG as part of a page: in the page's colours, its identifiers told apart from other pictures'."""
    text = picture.svg[picture.svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\1{picture.name}-", text)
    for colour, name in ((style.INK, "ink"), (style.SOFT, "soft"), (style.GRID, "line")):
        text = re.sub(colour, f"var(--{name})", text, flags=re.IGNORECASE)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1)


def _trust(found: Found) -> list[str]:
    return [
        '<h2 id="trust">What is exact, and what is predicted</h2>',
        "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in words.trust(found)) + "</ul>",
    ]


def _again(found: Found) -> list[str]:
    cells = found.cells(found.baseline, found.focus)
    parts = ['<h2 id="again">Repeat it</h2>', f"<pre>{escape(words.command(found))}</pre>"]
    if cells:
        sets = "".join(f" \\\n  --set {escape(shlex.quote(each))}" for each in cells[0].overrides)
        scenario = f" {escape(shlex.quote(found.comparison.scenario))}" if found.comparison.scenario else ""
        parts += [
            f"<p>One run of it ({escape(found.baseline)}, {escape(found.focus.label)}, seed {cells[0].seed}):</p>",
            f"<pre>stepwell sim{scenario}{sets}</pre>",
        ]
    parts.append(f"<details><summary>The configuration</summary><pre>{escape(found.comparison.config)}</pre></details>")
    return parts
