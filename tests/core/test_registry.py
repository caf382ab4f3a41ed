"""Plugins: found by name, module or file; refused with the reason; described for people."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.core import catalogue, registry
from stepwell.core.config import Config, CostConfig, MemoryConfig, SchedulerConfig
from stepwell.core.errors import UserError

PLUGIN = '''
import msgspec
from typing import Annotated, Literal
from stepwell.core.protocols import Promises
from stepwell.core.plan import StepPlan

class Mine:
    """Serves nobody.

    It is here for the tests.
    """

    name = "mine"
    promises = Promises(bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        aging_s: float = 30.0  # older requests rank as chat
        mode: Literal["swap", "recompute"] = "swap"
        """How a request
        leaves."""
        width: Annotated[int, msgspec.Meta(ge=1, description="slots")] = 4
        weights: dict[str, int] = {}
        limit: int | None = None

    def __init__(self, options):
        self.options = options

    def observe(self, event): ...
    def plan(self, view): return StepPlan()

class NoOptions:
    promises = observe = plan = None

class NoPolicy:
    Options = Mine.Options

def function(): ...
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my-policy.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with room for other distributions; what they declare is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.discover.cache_clear()
    yield tmp_path
    registry.discover.cache_clear()


def install(folder: Path, distribution: str, points: str, **modules: str) -> None:
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


def refused(name: str, options: dict[str, object] | None = None, base: Path | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        registry.make_policy(name, options, base=base)
    return caught.value


# ------------------------------------------------------------------------------------------------ built-ins

GROUPS: list[registry.Group] = ["policies", "allocators", "cost_models", "backends"]
BUILT_IN = [
    (group, name)
    for group in GROUPS
    for name, found in registry.discover(group).items()
    if found[0].distribution == "stepwell"
]


def test_built_ins_are_declared() -> None:
    assert set(registry.names("policies")) >= {"fcfs", "swap", "chat-batch", "static"}
    assert set(registry.names("allocators")) >= {"paged", "contiguous"}
    assert registry.names("policies") == sorted(registry.names("policies"))


@pytest.mark.parametrize(("group", "name"), BUILT_IN)
def test_built_ins_load_and_describe_themselves(group: registry.Group, name: str) -> None:
    described = catalogue.describe(group, name)
    assert described.summary
    assert described.distribution == "stepwell"
    assert not described.error
    assert not any(option.required for option in described.options)


def test_make_from_the_default_configuration() -> None:
    config = Config()
    allocator = registry.make_allocator(config.memory)
    assert (allocator.total_pages, allocator.free_pages, allocator.page_size) == (8192, 8192, 16)
    assert allocator.free_host_pages == 8192
    assert registry.make_allocator(MemoryConfig(pages=5, page_size=3, host_pages=0)).total_pages == 5
    assert registry.make_policy(config.scheduler.policy, config.scheduler.options) is not registry.make_policy("fcfs")
    assert registry.make_cost_model(config.cost) is not None


def test_complete_writes_every_option_out() -> None:
    config = registry.complete(Config())
    assert set(config.cost.options) >= {"base_ns", "prefill_token_ns"}
    assert registry.complete(config) == config
    assert registry.complete(Config(cost=CostConfig(options={"base_ns": 6_000_000}))).digest == config.digest


# ------------------------------------------------------------------------------------------------ names


def test_unknown_name_gives_known_ones_and_the_nearest() -> None:
    error = refused("chat_batch")
    assert error.field == "scheduler.policy"
    assert "did you mean 'chat-batch'?" in str(error)
    assert "fcfs" in str(error)
    with pytest.raises(UserError, match=r"memory\.allocator: unknown allocator 'pagd'; did you mean 'paged'") as caught:
        registry.make_allocator(MemoryConfig(allocator="pagd"))
    assert caught.value.field == "memory.allocator"
    with pytest.raises(UserError, match=r"cost\.model: unknown cost model 'x'"):
        registry.make_cost_model(CostConfig(model="x"))


def test_nothing_registered_says_so(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    assert "is stepwell installed" in str(refused("fcfs"))


def test_file_and_base(plugin: Path) -> None:
    policy = registry.make_policy(f"{plugin}:Mine", {"aging_s": 3, "weights": {"a": 1}, "limit": None})
    assert policy.promises.bounded_wait
    assert policy.options.aging_s == 3.0  # type: ignore[attr-defined]
    again = registry.load("policies", "./my-policy.py:Mine", base=plugin.parent)
    assert again is type(policy), "an equal file is the same module"


def test_edited_file_is_loaded_anew(plugin: Path) -> None:
    before = registry.load("policies", f"{plugin}:Mine")
    plugin.write_text(PLUGIN.replace("30.0", "40.0"))
    after = registry.load("policies", f"{plugin}:Mine")
    assert (before.Options().aging_s, after.Options().aging_s) == (30.0, 40.0)
    assert not list(plugin.parent.glob("__pycache__"))


def test_module_attribute(third_party: Path) -> None:
    (third_party / "mine_by_module.py").write_text(PLUGIN)
    assert registry.load("policies", "mine_by_module:Mine").__doc__


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("Mne", "did you mean 'Mine'?"),
        ("", "neither module:attribute nor"),
        ("function", "not a class but a function"),
        ("NoOptions", "no nested msgspec struct named Options"),
        ("NoPolicy", "no policy: it lacks promises, observe, plan"),
    ],
)
def test_wrong_attribute_of_a_file(plugin: Path, attribute: str, says: str) -> None:
    error = refused(f"{plugin}:{attribute}")
    assert says in str(error)
    assert error.field == "scheduler.policy"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("\0", "null bytes"),
    ],
)
def test_file_that_cannot_be_run_is_told_and_forgotten(tmp_path: Path, source: str, says: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    assert says in str(refused(f"{path}:X"))
    assert not [name for name in sys.modules if name.startswith("stepwell_file_bad")]


def test_missing_file_and_module() -> None:
    assert "cannot read nowhere/p.py" in str(refused("nowhere/p.py:X"))
    assert "No module named 'nowhere_here'" in str(refused("nowhere_here:X"))
    assert "neither" in str(refused(":X"))


def test_import_that_fails_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "helper_of_bad.py").write_text("X = 1\n\nX / 0\n")
    (tmp_path / "bad.py").write_text(
        "import sys\n\nsys.path[0:0] = [DIR]\nimport helper_of_bad\n".replace("DIR", repr(str(tmp_path)))
    )
    before = list(sys.path)
    try:
        assert f"({tmp_path / 'helper_of_bad.py'}:3)" in str(refused(f"{tmp_path / 'bad.py'}:X"))
    finally:
        sys.path[:] = before
    (tmp_path / "bad.py").write_text("X = 1\nimport nowhere_to_be_found\n")
    assert f"({tmp_path / 'bad.py'}:2)" in str(refused(f"{tmp_path / 'bad.py'}:X"))
    (tmp_path / "bad.py").write_text("X = 1\n\ndef f(:\n")
    assert f"({tmp_path / 'bad.py'}:3)" in str(refused(f"{tmp_path / 'bad.py'}:X"))


@pytest.mark.parametrize(
    ("body", "says", "line"),
    [
        ("    def __init__(self, options):\n        self.x = {}['aging']\n", "KeyError: 'aging'", 2),
        ("    def __init__(self, options):\n        assert False, 'never'\n", "AssertionError: never", 2),
        ("    def __init__(self):\n        pass\n", "takes 1 positional argument", 1),
    ],
)
def test_plugin_that_cannot_be_made_is_its_authors_to_mend(tmp_path: Path, body: str, says: str, line: int) -> None:
    head = PLUGIN[: PLUGIN.index("    def __init__")]
    path = tmp_path / "bad.py"
    path.write_text(head + body + "    def observe(self, event): ...\n    def plan(self, view): ...\n")
    error = refused(f"{path}:Mine")
    assert error.field == "scheduler.policy"
    assert f"'{path}:Mine' cannot be made" in str(error)
    assert says in str(error)
    assert f"({path}:{head.count(chr(10)) + line})" in str(error)


def test_a_built_in_that_cannot_be_made_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, options: object) -> None:
        raise AssertionError("never")

    monkeypatch.setattr("stepwell.policies.static.Static.__init__", broken)
    with pytest.raises(AssertionError, match="never"):
        registry.make_policy("static")


def test_a_file_without_a_class_says_which_classes_it_has(plugin: Path) -> None:
    error = refused(str(plugin))
    assert error.field == "scheduler.policy"
    assert f"write {plugin}:Mine (it has Mine)" in str(error)
    plugin.write_text("X = 1\n")
    assert "write my-policy.py:ClassName (no class in it looks like a policy)" in str(
        refused("my-policy.py", base=plugin.parent)
    )
    assert "cannot read nowhere.py" in str(refused("nowhere.py"))
    with pytest.raises(UserError, match="unknown policy"):
        registry.make_policy(str(plugin), registered_only=True)


def test_registered_only_refuses_code_by_path(plugin: Path) -> None:
    with pytest.raises(UserError, match="unknown policy"):
        registry.make_policy(f"{plugin}:Mine", registered_only=True)
    with pytest.raises(UserError, match="unknown policy"):
        registry.make_policy("os:getcwd", registered_only=True)


# ------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"agng_s": 3}, "scheduler.options.agng_s", "did you mean 'aging_s'? Allowed: aging_s, limit, mode"),
        ({"aging_s": "3"}, "scheduler.options.aging_s", "expected float, got str '3'"),
        ({"mode": "drop"}, "scheduler.options.mode", "one of 'swap', 'recompute', got 'drop'"),
        ({"width": 0}, "scheduler.options.width", ">= 1"),
        ({"weights": {"a": "x"}}, "scheduler.options.weights[...]", "expected int"),
        ({"aging_s": float("nan")}, "scheduler.options.aging_s", "finite"),
    ],
)
def test_wrong_options(plugin: Path, options: dict[str, object], field: str, says: str) -> None:
    error = refused(f"{plugin}:Mine", options)
    assert error.field == field
    assert says in str(error)


@pytest.mark.parametrize(
    ("policy", "key", "value"),
    [("static", "batch_size", 0), ("chat-batch", "aging_s", -1), ("chat-batch", "aging_s", 1.1e9)],
)
def test_options_of_built_ins_have_ranges(policy: str, key: str, value: float) -> None:
    error = refused(policy, {key: value})
    assert error.field == f"scheduler.options.{key}"
    assert str(value) in str(error)


def test_an_option_that_a_plugin_refuses_is_named_as_configuration_names_it() -> None:
    with pytest.raises(UserError, match="must be between") as caught:
        registry.make_cost_model(CostConfig(options={"base_ns": 0}))
    assert caught.value.field == "cost.options.base_ns"


def test_options_with_a_rule_of_their_own(plugin: Path) -> None:
    rule = "        def __post_init__(self):\n            raise ValueError('low above high')\n\n    def __init__"
    plugin.write_text(PLUGIN.replace("    def __init__", rule, 1))
    error = refused(f"{plugin}:Mine")
    assert error.field == "scheduler.options"
    assert "low above high" in str(error)


# ------------------------------------------------------------------------------------------------ third parties


def test_broken_plugin_hides_no_other(third_party: Path) -> None:
    points = "[stepwell.policies]\nbroken = broken_policy:X\nextra = extra_policy:Mine\n"
    install(third_party, "stepwell-extra", points, broken_policy="import nowhere_at_all", extra_policy=PLUGIN)
    assert {"broken", "extra", "fcfs"} <= set(registry.names("policies"))
    assert "broken_policy" not in sys.modules, "listing imports nothing"
    listed = {each.name: each for each in catalogue.catalogue("policies")}
    assert "No module named 'nowhere_at_all'" in listed["broken"].error
    assert listed["broken"].distribution == "stepwell-extra"
    assert listed["extra"].summary == "Serves nobody."
    error = refused("broken")
    assert "from stepwell-extra" in str(error)
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_name_declared_by_two_is_refused(third_party: Path) -> None:
    for number in "ab":
        install(third_party, f"dist-{number}", f"[stepwell.policies]\ntwin = twin_{number}:X\n")
    assert "declared more than once" in str(refused("twin"))
    assert "twin_a:X (dist-a)" in str(refused("twin"))
    assert registry.names("policies").count("twin") == 1


# ------------------------------------------------------------------------------------------------ for people


def test_describe(plugin: Path) -> None:
    described = catalogue.describe("policies", f"{plugin}:Mine")
    assert described.doc == "Serves nobody.\n\nIt is here for the tests."
    assert described.promises == {
        "work_conserving": False,
        "bounded_wait": True,
        "respects_rank": False,
        "keeps_work": False,
    }
    assert [(each.name, each.type, each.default, each.doc) for each in described.options] == [
        ("aging_s", "float", "30.0", "older requests rank as chat"),
        ("mode", "swap | recompute", "swap", "How a request leaves."),
        ("width", "int >= 1", "4", "slots"),
        ("weights", "table", "{}", ""),
        ("limit", "int | nothing", "None", ""),
    ]


def test_listing_names_imports_nothing_heavy() -> None:
    """What a command pays before its first policy; how long that takes is measured elsewhere."""
    code = "import sys; from stepwell.core import registry; registry.names('policies'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"numpy", "anyio", "rich", "hypothesis", "matplotlib", "stepwell.policies.fcfs", "stepwell.core.scheduler"}
    assert not heavy & set(done.stdout.split())


def test_scheduler_options_of_the_tree_reach_the_policy(plugin: Path) -> None:
    config = registry.complete(Config(scheduler=SchedulerConfig(policy=f"{plugin}:Mine", options={"width": 9})))
    assert config.scheduler.options["width"] == 9
    assert config.scheduler.options["aging_s"] == 30.0
