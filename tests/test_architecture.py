"""The house rules hold (design, sections 2 and 5); and each rule catches what it is there for."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import pytest

from stepwell.tests import architecture_rules as rules
from stepwell.tests.architecture_rules import OUTSIDE, ROOT, Module, module

Rule = Callable[[Module], Iterator[str]]


@cache
def every() -> list[Module]:
    """All that there is, tests too."""
    return [rules.read(path) for path in rules.sources()]


@cache
def package() -> list[Module]:
    """What is installed."""
    return [it for it in every() if it.name.split(".")[1:2] not in [[each] for each in OUTSIDE]]


@cache
def known() -> set[str]:
    return {it.name for it in package()}


def rooms(it: Module) -> Iterator[str]:
    return rules.rooms(it, known(), sys.stdlib_module_names)


def complaints(rule: Rule, modules: Iterable[Module]) -> list[str]:
    return [complaint for it in modules for complaint in rule(it)]


# ------------------------------------------------------------------------------------------------ the house


@pytest.mark.parametrize(
    "rule",
    [rooms, rules.lazy, rules.pure, rules.repeatable, rules.environment, rules.annotated],
    ids=lambda r: r.__name__,
)
def test_package_keeps_the_rule(rule: Rule) -> None:
    assert complaints(rule, package()) == []


def test_sizes() -> None:
    assert complaints(rules.sizes, every()) == []


def test_no_import_cycles() -> None:
    assert list(rules.cycles(package())) == []


def test_wheel_lists_exactly_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(project["tool"]["setuptools"]["packages"]) == rules.packages()


def test_no_source_lies_outside_a_package() -> None:
    folders = {name.replace(".", "/") for name in rules.packages()}
    lost = [it.path for it in package() if f"stepwell/{it.path}".rpartition("/")[0] not in folders]
    assert lost == []


def test_every_room_is_known() -> None:
    assert {it.room for it in package()} <= set(rules.MAY_USE)


def test_entry_points_name_code_of_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [target for group in project["entry-points"].values() for target in group.values()]
    declared += project["scripts"].values()
    assert declared
    for target in declared:
        name, _, attribute = target.partition(":")
        assert name in known(), target
        (it,) = [it for it in package() if it.name == name]
        assert attribute in {getattr(node, "name", "") for node in it.tree.body}, target


# ------------------------------------------------------------------------------------------------ the rules


CAUGHT: list[tuple[Rule, str, str]] = [
    (rooms, "stepwell.core.scheduler", "from stepwell.core.engine import Engine"),
    (rooms, "stepwell.core.scheduler", "from stepwell.core import config"),
    (rooms, "stepwell.core.scheduler", "from . import config"),
    (rooms, "stepwell.core.scheduler", "from ..policies import fcfs"),
    (rooms, "stepwell.core.scheduler", "import numpy"),
    (rooms, "stepwell.core.scheduler", "def f():\n    import torch"),
    (rooms, "stepwell.core.registry", "import stepwell.policies"),
    (rooms, "stepwell.core.engine", "import hypothesis"),
    (rooms, "stepwell.policies.mine", "from stepwell.memory import host"),
    (rooms, "stepwell.policies.mine", "from stepwell.core.config import Config"),
    (rooms, "stepwell.memory.mine", "import stepwell.policies"),
    (rooms, "stepwell.memory.mine", "import numpy as np"),
    (rooms, "stepwell.sim.loop", "from stepwell.memory.host import HostTier"),
    (rooms, "stepwell.sim.report", "import matplotlib"),
    (rooms, "stepwell.sim.report", "import torch"),
    (rooms, "stepwell.sim.report", "from stepwell.cli import main"),
    (rooms, "stepwell", "import stepwell.sim"),
    (rules.lazy, "stepwell.sim.report", "def f():\n    import csv"),
    (rules.lazy, "stepwell.sim.report", "def f():\n    import csv  # lazy:"),
    (rules.lazy, "stepwell.sim.report", "class A:\n    def f(self):\n        import csv  # lazy: import cycle"),
    (rules.pure, "stepwell.core.group", "import time"),
    (rules.pure, "stepwell.core.group", "from random import random"),
    (rules.pure, "stepwell.core.group", "import os.path"),
    (rules.pure, "stepwell.core.group", "import asyncio"),
    (rules.pure, "stepwell.core.group", "x = hash('a')"),
    (rules.pure, "stepwell.core.group", "x = id(object())"),
    (rules.pure, "stepwell.policies.mine", "from math import log"),
    (rules.pure, "stepwell.memory.mine", "import datetime"),
    (rules.repeatable, "stepwell.sim.loop", "x = hash(1)"),
    (rules.repeatable, "stepwell.core.group", "for x in {1, 2}: pass"),
    (rules.repeatable, "stepwell.core.group", "for x in set(y): pass"),
    (rules.repeatable, "stepwell.core.group", "a = {1} | b\nfor x in a: pass"),
    (rules.repeatable, "stepwell.core.group", "x = [y for y in {1, 2}]"),
    (rules.repeatable, "stepwell.core.group", "x = list({1, 2} - z)"),
    (rules.repeatable, "stepwell.core.group", "x = ','.join({'a', 'b'})"),
    (rules.repeatable, "stepwell.core.group", "x = [*{1, 2}]"),
    (rules.repeatable, "stepwell.core.group", "x = min({1, 2}, key=f)"),
    (rules.repeatable, "stepwell.core.group", "def f(x: set[int]):\n    return [y for y in x]"),
    (rules.repeatable, "stepwell.core.group", "def f(x: frozenset[int]):\n    for y in x.copy(): pass"),
    (
        rules.repeatable,
        "stepwell.policies.mine",
        "class A:\n    x: set[int]\n    def f(self):\n        return self.x.pop()",
    ),
    (
        rules.repeatable,
        "stepwell.core.group",
        "class A:\n    def f(self):\n        self.x = {1}\n        iter(self.x)",
    ),
    (rules.environment, "stepwell.sim.loop", "import os\nx = os.environ['A']"),
    (rules.environment, "stepwell.core.config", "from os import getenv"),
    (rules.sizes, "stepwell.core.group", "def f():\n" + "    pass\n" * 70),
    (rules.sizes, "stepwell.core.group", "pass\n" * 401),
    (rules.annotated, "stepwell.core.group", "def f(x): ..."),
    (rules.annotated, "stepwell.core.group", "def f(x: int): ..."),
    (rules.annotated, "stepwell.core.group", "def f(*x) -> None: ..."),
    (rules.annotated, "stepwell.core.group", "class A:\n    def __init__(self, x) -> None: ..."),
    (rules.annotated, "stepwell.core.group", "class A:\n    @staticmethod\n    def f(x) -> None: ..."),
]


@pytest.mark.parametrize(("rule", "name", "source"), CAUGHT)
def test_rule_catches(rule: Rule, name: str, source: str) -> None:
    assert list(rule(module(name, source))) != []


ALLOWED: list[tuple[Rule, str, str]] = [
    (rooms, "stepwell.core.scheduler", "import msgspec, heapq\nfrom stepwell.core.errors import UserError"),
    (rooms, "stepwell.core.testing", "import hypothesis"),
    (rooms, "stepwell.core.testing_policies", "import hypothesis\nfrom stepwell.core.config import Config"),
    (rooms, "stepwell.sim.report", "def f():\n    import matplotlib.pyplot"),
    (rooms, "stepwell.cli.sim", "import rich\nfrom stepwell.policies import fcfs"),
    (rules.lazy, "stepwell.sim.report", "def f():\n    import csv  # lazy: costs 20 ms at start"),
    (
        rules.lazy,
        "stepwell.sim.report",
        "def f():\n    from csv import (  # lazy: costs 20 ms at start\n        reader,\n    )",
    ),
    (rules.pure, "stepwell.core.engine", "import time"),
    (rules.pure, "stepwell.core.group", "class A:\n    id: int\ndef f(x: A) -> int:\n    return x.id"),
    (rules.repeatable, "stepwell.core.group", "for x in sorted({1, 2}): pass"),
    (rules.repeatable, "stepwell.core.group", "x = sum(y for y in {1, 2})"),
    (rules.repeatable, "stepwell.core.group", "x = {y for y in {1, 2}}\nz = 3 in x"),
    (rules.repeatable, "stepwell.core.group", "x = {'a': 1}\nfor y in x: pass\nz = x.pop('a')"),
    (rules.repeatable, "stepwell.core.group", "def f():\n    x = {1}\ndef g(x: list[int]):\n    for y in x: pass"),
    (rules.environment, "stepwell.cli.sim", "import os\nx = os.environ"),
    (rules.sizes, "stepwell.core.group", "def f():\n" + "    pass\n" * 69),
    (rules.sizes, "stepwell.core.group", "pass\n" * 400),
    (rules.annotated, "stepwell.backends.kernels.norm.triton", "@triton.jit\ndef f(x, BLOCK: tl.constexpr): ..."),
    (rules.annotated, "stepwell.core.group", "def _f(x): ...\nclass A:\n    def f(self, x: int) -> None: ..."),
]


@pytest.mark.parametrize(("rule", "name", "source"), ALLOWED)
def test_rule_allows(rule: Rule, name: str, source: str) -> None:
    assert list(rule(module(name, source))) == []


@pytest.mark.parametrize(
    "sources",
    [
        {"stepwell.a": "import stepwell.b", "stepwell.b": "from stepwell import a"},
        {
            "stepwell.a": "from . import b",
            "stepwell.b": "def f():\n    import stepwell.c",
            "stepwell.c": "import stepwell.a",
        },
    ],
)
def test_cycles_are_caught(sources: dict[str, str]) -> None:
    assert list(rules.cycles([module(name, text) for name, text in sources.items()])) != []


def test_no_cycle_where_there_is_none() -> None:
    sources = {"stepwell.a": "import stepwell.b, stepwell.c", "stepwell.b": "import stepwell.c", "stepwell.c": ""}
    assert list(rules.cycles([module(name, text) for name, text in sources.items()])) == []


def test_shell_is_by_whole_words() -> None:
    assert rules.is_shell("stepwell.core.testing_policies")
    assert rules.is_shell("stepwell.core.config_load")
    assert not rules.is_shell("stepwell.core.clockwork")
    assert not rules.is_shell("stepwell.core.journal")
