"""What makes the page look as it does: its style sheet, and one script, without which it is complete all the same."""

from __future__ import annotations

import base64
import hashlib

STYLE = """\
:root { --paper: #fff; --ink: #1c1c21; --soft: #62626d; --line: #dcdce2; --card: #f6f6f9; --good: #00664a;
  --bad: #a63d00; --link: #005a9e; color-scheme: light; }
@media (prefers-color-scheme: dark) { :root:not([data-look=light]) { --paper: #17171b; --ink: #ececf1; --soft: #a5a5b0;
  --line: #3b3b44; --card: #212127; --good: #5fd3ab; --bad: #ffab7a; --link: #7cc0f5; color-scheme: dark; } }
:root[data-look=dark] { --paper: #17171b; --ink: #ececf1; --soft: #a5a5b0; --line: #3b3b44; --card: #212127;
  --good: #5fd3ab; --bad: #ffab7a; --link: #7cc0f5; color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .2rem; }
p, li { max-width: 46rem; }
a { color: var(--link); }
.sub, figcaption, small, caption { color: var(--soft); }
.answer { background: var(--card); border-left: 4px solid #0072B2; padding: .8rem 1.2rem; margin: 1.2rem 0; }
.answer p { margin: .45rem 0; font-size: 1.06rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
tr.first > * { border-top: 2px solid var(--line); }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; white-space: normal; min-width: 4.4rem;
  font-weight: 600; }
tbody th, thead th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper);
  font-weight: 600; }
td small, th small { display: block; font-size: .78rem; font-weight: 400; }
td.best { font-weight: 700; } td.best small { font-weight: 400; }
td.better, td.better small { color: var(--good); } td.worse, td.worse small { color: var(--bad); }
td.chance { color: var(--soft); }
table.words td { text-align: left; white-space: normal; }
th[aria-sort] { text-decoration: underline; } th.can { cursor: pointer; }
figure { margin: .4rem 0 0; } figure svg { display: block; width: 100%; height: auto; max-width: 62rem; }
figure svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 34rem; }
figcaption { max-width: 46rem; font-size: .93rem; margin-bottom: .7rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1.2rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
pre { background: var(--card); padding: .8rem 1rem; overflow-x: auto; font-size: .86rem; line-height: 1.45; }
summary { cursor: pointer; margin: .6rem 0; }
button { font: inherit; font-size: .85rem; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: .3rem; padding: .15rem .6rem; cursor: pointer; float: right; }
@media (max-width: 36rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; }
  th, td { padding: .3rem .5rem; } }
@media print { .wide, .scroll { overflow: visible; } button, nav { display: none; } }
"""

SCRIPT = """\
"use strict";
const root = document.documentElement;
const button = document.createElement("button");
const dim = matchMedia("(prefers-color-scheme: dark)");
const dark = () => root.dataset.look ? root.dataset.look === "dark" : dim.matches;
const label = () => { button.textContent = dark() ? "light" : "dark"; };
button.type = "button";
button.addEventListener("click", () => { root.dataset.look = dark() ? "light" : "dark"; label(); });
label();
document.body.prepend(button);
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const key = (row) => {
      const told = row.cells[column].dataset.sort;
      return told === undefined ? null : Number(told);
    };
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a), y = key(b);
        const words = [a, b].map((row) => row.cells[column].textContent);
        if (x === null && y === null) return words[0].localeCompare(words[1]);
        if (x === null || y === null) return x === null ? 1 : -1;
        return down ? y - x : x - y;
      });
      table.tBodies[0].append(...rows);
    };
    head.classList.add("can");
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (it) => { if (it.key === "Enter") sort(); });
  });
}
"""


def policy() -> str:
    """The Content-Security-Policy: nothing from anywhere, this one script and no other."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
