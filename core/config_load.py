"""Reads the configuration tree from its layers, remembers where each value came from, and writes it as TOML.

Layers, strongest first: command line (``scheduler.policy=swap``), environment (``STEPWELL__SCHEDULER__POLICY=swap``),
file, default.  Tables merge key by key; ``[[classes]]``, ``[[tenants]]`` and ``[[keys]]`` of a stronger layer replace
the whole list, and one value of one of them is reached by its name (``classes.chat.ttft_ms=500``).  A layer that names
another plugin than the layers under it begins its options afresh, since the options below belong to the other plugin;
``Resolved.notes`` says so.  So it is with ``workload.kind`` and its settings, which other layers set.

The environment and the overrides are handed in: this module looks at nothing but its arguments and the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.config import Config, check_together
from stepwell.core.errors import UserError
from stepwell.core.schema import bare, check_keys, check_plain, choices_in, convert, join, type_at

PREFIX = "STEPWELL__"
DEFAULT = "default"
COMMAND_LINE = "command line"

Comment = Callable[[str], str]
"""A remark for the value at a path; empty for none."""

_CHOICES = (
    ("scheduler", "policy", "options"),
    ("memory", "allocator", "options"),
    ("cost", "model", "options"),
    ("workload", "kind", "settings"),
)
"""A section, what is chosen in it, and the table that belongs to what was chosen."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_PATH = re.compile(r"\[(\d+)\]")


class Resolved(msgspec.Struct, frozen=True):
    """The tree, and for each path that a layer set, that layer: a file, ``environment X``, or ``command line``."""

    config: Config
    origins: Mapping[str, str]
    file: Path | None = None
    notes: tuple[str, ...] = ()

    def origin(self, path: str) -> str:
        """Where the value at ``path`` came from; of a table, the strongest layer that set it as a whole."""
        path = _PLAIN_PATH.sub(r".\1", path)
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return DEFAULT

    def base(self, path: str) -> Path:
        """The folder from which a relative file name at ``path`` counts: the file's own, or where the program runs."""
        return self.file.parent if self.file is not None and self.origin(path) == str(self.file) else Path()

    def trace_path(self) -> Path:
        """The trace file of the workload."""
        return self.base("workload.trace") / self.config.workload.trace

    def to_toml(self) -> str:
        """The whole tree as TOML, each value with a comment that says where it came from."""
        return to_toml(self.config, comment=self.origin)


def resolve(
    file: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> Resolved:
    """Read every layer, merge them, and check the result; raises ``UserError`` with the path of what is wrong.

    Tables of the file that are named in ``apart`` are no part of the tree; somebody else reads them.
    """
    path = Path(file) if file is not None else None
    layers = _Layers(str(path) if path else "")
    if path is not None:
        layers.merge({key: value for key, value in read_file(path).items() if key not in apart}, str(path))
    for name, text in sorted((environ or {}).items()):
        if name.startswith(PREFIX):
            source = f"environment {name}"
            parts = name.removeprefix(PREFIX).lower().split("__")
            layers.set(parts, text, source, written=name)
    layers.override(overrides)
    return layers.resolved(path)


def changed(config: Config, overrides: Sequence[str], *, source: str) -> Resolved:
    """A tree that there is already, which came from ``source``, with overrides upon it, as ``resolve`` reads them."""
    layers = _Layers(source)
    layers.merge(msgspec.json.decode(msgspec.json.encode(config)), source)
    layers.override(overrides)
    return layers.resolved(None)


def read_file(path: Path) -> dict[str, Any]:
    """The file's tables; every way in which a file can be unreadable is a ``UserError`` that names it."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


class _Layers:
    """The tree while it is being merged."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.tree: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notes: list[str] = []

    def source(self, path: str) -> str:
        path = _PLAIN_PATH.sub(r".\1", path)
        while path:
            if path in self.origins:
                return self.origins[path]
            below = [path_below for path_below in self.origins if path_below.startswith(path + ".")]
            if below:
                return self.origins[below[-1]]
            path = path.rpartition(".")[0]
        return self.file

    def override(self, overrides: Sequence[str]) -> None:
        """Values from the command line."""
        for override in overrides:
            dotted, equals, text = override.partition("=")
            if not equals or not dotted.strip():
                raise UserError(f"an override is written path=value, such as scheduler.policy=swap; got {override!r}")
            self.set(dotted.strip().split("."), text.strip(), COMMAND_LINE, written=dotted.strip())

    def resolved(self, file: Path | None) -> Resolved:
        """The tree, checked."""
        config = convert(self.tree, Config, source_of=self.source)
        check_together(config, self.source)
        return Resolved(config, dict(self.origins), file, tuple(self.notes))

    def set(self, parts: Sequence[str], text: str, source: str, *, written: str) -> None:
        """One value from the environment or the command line, whose text is read as the type at its place."""
        if not all(parts):
            raise UserError(f"{written!r} has an empty part between its separators", field=".".join(parts))
        if parts[0] in _NAMED and len(parts) > 1:
            self._set_in_named(list(parts), text, source)
            return
        value = _parsed(text, ".".join(parts))
        for part in reversed(parts):
            value = {part: value}
        self.merge(value, source)

    def merge(self, table: dict[str, Any], source: str) -> None:
        check_keys(table, Config, source_of=lambda path: source)
        check_plain(table, source_of=lambda path: source)
        self._switch(table, source)
        self._merge(self.tree, table, "", source)

    def _merge(self, into: dict[str, Any], table: Mapping[str, Any], at: str, source: str) -> None:
        for key, value in table.items():
            path = join(at, key)
            below = into.get(key)
            if isinstance(value, Mapping) and isinstance(below, dict):
                self._merge(below, value, path, source)
            elif isinstance(value, Mapping):
                into[key] = {}
                self._forget(path)
                self._merge(into[key], value, path, source)
            else:
                into[key] = value
                self._forget(path)
                self.origins.update(dict.fromkeys(_leaves(value, path), source))

    def _forget(self, path: str) -> None:
        for each in [each for each in self.origins if each == path or each.startswith(path + ".")]:
            del self.origins[each]

    def _switch(self, table: Mapping[str, Any], source: str) -> None:
        """A layer that names another plugin, or kind of workload, begins its options afresh."""
        for section, key, options in _CHOICES:
            given, here = table.get(section), self.tree.get(section)
            if not isinstance(given, Mapping) or key not in given or not isinstance(here, dict):
                continue
            before = here.get(key, getattr(getattr(Config(), section), key))
            paths = {name: f"{section}.{options}.{name}" for name in here.get(options) or ()}
            if section == "workload":  # one layer may say settings and kind in any order
                paths = {name: path for name, path in paths.items() if self.source(path) != source}
            if paths and given[key] != before:
                origin = self.source([*paths.values()][-1])
                for name, path in paths.items():
                    del here[options][name]
                    self._forget(path)
                self.notes.append(
                    f"{section}.{options} from {origin} belong to {before!r} and were left out,"
                    f" since {given[key]!r} was chosen ({source})"
                )

    def _set_in_named(self, parts: list[str], text: str, source: str) -> None:
        """One value of a class, a tenant or a key."""
        section = parts[0]
        one = _NAMED[section]
        tables = self.tree.get(section)
        if tables is None:
            tables = msgspec.to_builtins(list(getattr(Config(), section)))
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise UserError(
                f"expected a list of tables, written [[{section}]] (from {self.source(section)})", field=section
            )
        names = [str(each.get("name", "")) for each in tables]
        wanted = parts[1].lower()
        found = [index for index, name in enumerate(names) if wanted in (name.lower(), str(index))]
        if not found:
            raise UserError(
                f"no {one} {parts[1]!r} to set this in (from {source}); {section}: {', '.join(names) or 'none'}",
                field=".".join(parts),
            )
        index, key = found[0], ".".join(parts[2:])
        if not key:
            raise UserError(
                f"which value of the {one}? write {section}.{parts[1]}.KEY (from {source})", field=".".join(parts)
            )
        changed = {**tables[index], key: _parsed(text, f"{section}[0].{key}")}
        check_keys([changed], type_at(Config, section), field=section, source_of=lambda path: source)
        self.tree[section] = [*tables[:index], changed, *tables[index + 1 :]]
        self.origins[f"{section}.{index}.{key}"] = source


_NAMED = {"classes": "class", "tenants": "tenant", "keys": "key"}
"""Lists of tables that have names, and what one of them is called."""


def _leaves(value: object, path: str) -> list[str]:
    """The path itself, or of a list of tables the paths of what its tables say."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return [f"{path}.{index}.{key}" for index, each in enumerate(value) for key in (each or ("",))]
    return [path]


def _parsed(text: str, path: str) -> Any:
    """Text from outside as a value: itself where text is wanted, otherwise as TOML writes it, or itself."""
    kind = type_at(Config, path)
    if bare(kind) is str or choices_in(kind):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


# ------------------------------------------------------------------------------------------------ writing


def to_toml(config: Config, *, comment: Comment | None = None) -> str:
    """The tree as TOML that reads back as the same tree.  ``comment`` gives a remark for a path, if wanted."""
    lines: list[str] = []
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for section, value in tree.items():
        if not isinstance(value, list | tuple):
            _table(lines, section, value, section, comment)
        for index, element in enumerate(value if isinstance(value, list | tuple) else ()):
            _table(lines, section, element, f"{section}[{index}]", comment, brackets=("[[", "]]"))
    return "\n".join(lines).strip() + "\n"


def section_toml(config: Config, section: str) -> str:
    """One table of the tree as TOML, to be a configuration file by itself or part of another."""
    lines: list[str] = []
    _table(lines, section, msgspec.to_builtins(getattr(config, section)), section, None)
    return "\n".join(lines).strip() + "\n"


def _table(
    lines: list[str],
    header: str,
    table: Mapping[str, Any],
    path: str,
    comment: Comment | None,
    brackets: tuple[str, str] = ("[", "]"),
) -> None:
    """``header`` is the path as TOML writes it, ``path`` as ``comment`` knows it."""
    lines += ["", header.join(brackets)]
    tables = [key for key, value in table.items() if isinstance(value, Mapping) and value]
    for key, value in table.items():
        if key not in tables and value is not None:
            remark = comment(join(path, key)) if comment else ""
            lines.append(f"{_key(key)} = {toml_value(value)}" + (f"  # {_one_line(remark)}" if remark else ""))
    for key in tables:
        _table(lines, f"{header}.{_key(key)}", table[key], join(path, key), comment)


def toml_value(value: object) -> str:
    """A value on one line; what is None is left out of lists and tables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(each) for each in value if each is not None) + "]"
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
