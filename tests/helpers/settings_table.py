"""The table of all settings in docs/operating.md, made of the configuration's own structs and what they say.

``python -m stepwell.tests.helpers.settings_table`` writes it anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stepwell.core.config import Config
from stepwell.core.config_load import toml_value
from stepwell.core.schema import element_in, struct_in
from stepwell.tests.architecture_rules import ROOT

PAGE = ROOT / "docs" / "operating.md"
BEGIN, END = "<!-- settings: made by tests/helpers/settings_table.py -->", "<!-- end of settings -->"
LEFT_OUT = ("workload", "cost")
"""Of simulations."""


def table() -> str:
    """Everything between the marks."""
    said = _docstrings()
    parts = []
    for field in msgspec.structs.fields(Config):
        if field.name in LEFT_OUT:
            continue
        listed = struct_in(field.type) is None
        struct = struct_in(element_in(field.type)) if listed else struct_in(field.type)
        assert struct is not None, field.name
        head = f"[[{field.name}]]" if listed else f"[{field.name}]"
        parts += [f"### `{head}`", "", said[struct.__name__][""], ""]
        parts += ["| setting | default | what and when |", "|---|---|---|"]
        parts += list(_rows(struct, said[struct.__name__]))
        parts.append("")
    return "\n".join(parts)


def _rows(struct: type[msgspec.Struct], said: Mapping[str, str]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        value = _default(field)
        shown = "" if value is msgspec.NODEFAULT or value is None else f"`{toml_value(msgspec.to_builtins(value))}`"
        text = said.get(field.name, "").replace("|", "\\|")
        yield f"| `{field.encode_name}` | {shown} | {text} |"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _docstrings() -> dict[str, dict[str, str]]:
    """By class and attribute (``""``: of the class itself), on one line."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "core").glob("config*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = {"": _line(ast.get_docstring(node) or "")} | dict(_attributes(node))
    return found


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            yield one.target.id, _line(after.value.value)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()


def on_the_page() -> str:
    """What the page has."""
    return PAGE.read_text().partition(BEGIN + "\n")[2].partition(END)[0]


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN + "\n")
    PAGE.write_text(before + BEGIN + "\n" + table() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
