"""Finds plugins by name and makes them: the one place where concrete policies, allocators and cost models are made.

A plugin is named by its entry point (``fcfs``), by ``module:attribute``, or by ``path/to/file.py:attribute``.  It is a
class with a nested ``Options`` struct, called with an instance of it.  Nothing is imported before it is asked for, so
that listing names stays fast and one broken plugin hides no other.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import sys
import traceback
import types
from collections.abc import Collection, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from stepwell.core.config import Config, CostConfig, MemoryConfig
from stepwell.core.errors import PLUGIN_RAISES, StepwellError, UserError
from stepwell.core.protocols import API_VERSION, OLDEST_API_VERSION, CostModel, KVAllocator, SchedulerPolicy
from stepwell.core.schema import convert, unknown

Group = Literal[
    "policies",
    "allocators",
    "cost_models",
    "backends",
    "routers",
    "autoscalers",
    "predictors",
    "tool_parsers",
    "reasoning_parsers",
]

_ASKED_AT: dict[str, tuple[str, str]] = {
    "policies": ("scheduler.policy", "scheduler.options"),
    "allocators": ("memory.allocator", "memory.options"),
    "cost_models": ("cost.model", "cost.options"),
    "backends": ("model.path", "model.options"),
    "routers": ("fleet.router", "fleet.router_options"),
    "autoscalers": ("fleet.autoscaler", "fleet.autoscaler_options"),
    "predictors": ("scheduler.options.predictor", "scheduler.options.predictor_options"),
    "tool_parsers": ("model.tool_parser", "model.tool_parser_options"),
    "reasoning_parsers": ("model.reasoning_parser", "model.reasoning_parser_options"),
}
"""Where configuration names a plugin of each group, and where its options are."""

_DUTIES = {
    "policies": ("promises", "observe", "plan"),
    "allocators": ("reserve", "free", "check"),
    "cost_models": ("step_ns",),
    "backends": ("execute",),
    "predictors": ("predict", "learn"),
    "tool_parsers": ("signs", "reader", "write"),
    "reasoning_parsers": ("signs", "reader", "begins"),
}
"""What tells at once that a class is of another group; conformance checks the rest."""

_MACHINERY = (__file__, importlib.__file__)
"""Whose lines say nothing of where a plugin went wrong."""

_SINGULAR = {"policies": "policy"}
_OURS = "stepwell"


class Found(msgspec.Struct, frozen=True):
    """A declared plugin, not imported yet."""

    name: str
    target: str
    distribution: str


# ------------------------------------------------------------------------------------------------ finding


@functools.cache
def discover(group: Group) -> Mapping[str, tuple[Found, ...]]:
    """Every declaration of the group by name, sorted; more than one under a name if distributions clash."""
    declared: dict[str, list[Found]] = {}
    for point in importlib.metadata.entry_points(group=f"stepwell.{group}"):
        found = Found(point.name, point.value, point.dist.name if point.dist is not None else "")
        same = declared.setdefault(point.name, [])
        if found not in same:
            same.append(found)
    return {name: tuple(declared[name]) for name in sorted(declared)}


def names(group: Group) -> list[str]:
    """The names that configuration may use, sorted.  Imports no plugin."""
    return list(discover(group))


def load(group: Group, name: str, *, base: Path | None = None, registered_only: bool = False) -> type[Any]:
    """The plugin's class.  A file name counts from ``base``.

    ``registered_only`` takes entry points only: for names that did not come from the configuration at start.
    """
    field = _ASKED_AT[group][0]
    if ":" in name and not registered_only:
        thing = _by_path(name, base or Path(), field)
    elif name.endswith(".py") and not registered_only:
        raise _which_class(group, name, base or Path(), field)
    else:
        found = _registered(group, name, field)
        bring = functools.partial(importlib.import_module, found.target.partition(":")[0])
        thing = _attribute(bring, found.target, _origin(found), field)
    return _checked(thing, group, name, field)


def _registered(group: Group, name: str, field: str) -> Found:
    declared = discover(group)
    if name not in declared:
        if not declared:
            raise UserError(
                f"unknown {_word(group)} {name!r}: none is registered at all; is stepwell installed (`make venv`)?",
                field=field,
            )
        raise unknown(_word(group), name, declared, field=field)
    here = declared[name]
    if len(here) > 1:
        rivals = ", ".join(f"{each.target} ({each.distribution})" for each in here)
        raise UserError(f"{name!r} is declared more than once: {rivals}; name one as module:attribute", field=field)
    return here[0]


def _by_path(name: str, base: Path, field: str) -> object:
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UserError(f"{name!r} is neither module:attribute nor path/to/file.py:attribute", field=field)
    if place.endswith(".py") or "/" in place:
        return _attribute(functools.partial(_run_file, base / place, field), name, str(base / place), field)
    return _attribute(functools.partial(importlib.import_module, place), name, f"module {place}", field)


def _attribute(bring: functools.partial[types.ModuleType], target: str, origin: str, field: str) -> object:
    """An attribute of the module that ``bring`` imports."""
    attribute = target.rpartition(":")[2]
    module = _load_module(bring, target, origin, field)
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        public = [key for key in own if not key.startswith("_") and isinstance(vars(module)[key], type)]
        raise unknown(f"class ({origin})", attribute, public, field=field) from None


def _load_module(bring: functools.partial[types.ModuleType], target: str, origin: str, field: str) -> types.ModuleType:
    """What ``bring`` imports; whatever a plugin's import raises is told, not thrown."""
    try:
        return bring()
    except UserError:
        raise
    except PLUGIN_RAISES as error:
        raise UserError(f"{target} cannot be loaded ({origin}): {_told(error)}", field=field) from error


def _told(error: BaseException, otherwise: types.CodeType | None = None) -> str:
    """The error and where a plugin raised it (``otherwise``, if that was not in its own code)."""
    what = f"{type(error).__name__}: {(isinstance(error, SyntaxError) and error.msg) or error}"
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{what} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if each.filename not in _MACHINERY and not each.filename.startswith("<frozen")]
    if theirs:
        return f"{what} ({theirs[-1].filename}:{theirs[-1].lineno})"
    return what + (f" ({otherwise.co_filename}:{otherwise.co_firstlineno})" if otherwise else "")


def _which_class(group: Group, name: str, base: Path, field: str) -> UserError:
    """What to write instead of a file's name alone: a class in it."""
    path = base / name
    module = vars(_load_module(functools.partial(_run_file, path, field), name, str(path), field))
    fit = [key for key, value in module.items() if not key.startswith("_") and not _problem(value, group)]
    found = f"it has {', '.join(sorted(fit))}" if fit else f"no class in it looks like a {_word(group)}"
    return UserError(
        f"{name!r} names a file and no class; write {name}:{fit[0] if fit else 'ClassName'} ({found})", field=field
    )


def _run_file(path: Path, field: str) -> types.ModuleType:
    """Run a plugin's file as a module named by its content, so that an edited file is a new module and an equal one
    is not run twice.  (Compiled here, since the cache of compiled files goes by whole seconds.)
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", field=field) from None
    identity = hashlib.sha256(str(path.resolve()).encode() + b"\0" + source).hexdigest()[:16]
    name = f"stepwell_file_{path.stem.replace('.', '_')}_{identity}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # annotations are looked up there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _checked(thing: object, group: Group, name: str, field: str) -> type[Any]:
    problem = _problem(thing, group)
    if problem:
        raise UserError(f"{name!r} {problem}", field=field)
    return cast(type[Any], thing)


def _problem(thing: object, group: Group) -> str:
    """Why it is no plugin of the group; empty if it looks like one."""
    if not isinstance(thing, type):
        return f"is not a class but a {type(thing).__name__}"
    options = getattr(thing, "Options", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        return "has no nested msgspec struct named Options; write: class Options(msgspec.Struct, frozen=True): ..."
    missing = [each for each in _DUTIES.get(group, ()) if not hasattr(thing, each)]
    if missing:
        return f"is no {_word(group)}: it lacks {', '.join(missing)}"
    return _outdated(getattr(thing, "api_version", API_VERSION))


def _outdated(wanted: object) -> str:
    """Why a plugin written for that version of ``protocols`` cannot be used; empty if it can."""
    if type(wanted) is not int or wanted < 1:
        return f"states api_version = {wanted!r}, which is not a whole number from 1"
    here = f"this Stepwell offers versions {OLDEST_API_VERSION} to {API_VERSION}"
    if OLDEST_API_VERSION == API_VERSION:
        here = f"this Stepwell offers version {API_VERSION}"
    if wanted > API_VERSION:
        return f"needs plugin API version {wanted}, and {here}: update Stepwell, or take an older release of the plugin"
    if wanted < OLDEST_API_VERSION:
        return f"was written for plugin API version {wanted}, and {here}: take a newer release of the plugin"
    return ""


# ------------------------------------------------------------------------------------------------ making


def make_options(plugin: type[Any], options: Mapping[str, object], *, field: str) -> Any:
    """The plugin's typed options; a wrong key or value is a ``UserError`` that names ``field.KEY``."""
    try:
        return convert(dict(options), plugin.Options, field=field)
    except StepwellError:
        raise
    except Exception as error:
        raise UserError(f"the options of {plugin.__qualname__} cannot be made: {_told(error)}", field=field) from error


def make(
    group: Group,
    name: str,
    options: Mapping[str, object] | None = None,
    *,
    base: Path | None = None,
    registered_only: bool = False,
    **arguments: Any,
) -> Any:
    """Load a plugin and call it with its typed options and ``arguments``.

    What somebody else's plugin raises is theirs to mend, so all of it becomes a ``UserError``; one of its own that
    names an option (``options.KEY``, after whatever it takes itself to be called) names the option's full path.
    """
    field, at = _ASKED_AT[group]
    plugin = load(group, name, base=base, registered_only=registered_only)
    made = make_options(plugin, options or {}, field=at)
    try:
        return plugin(made, **arguments)
    except UserError as error:
        key = error.field.partition("options.")[2]
        raise UserError(error.message, field=f"{at}.{key}" if key else error.field) from error
    except StepwellError:
        raise
    except PLUGIN_RAISES as error:
        if plugin.__module__.startswith(f"{_OURS}."):
            raise  # a bug of ours, told as one
        told = _told(error, getattr(plugin.__init__, "__code__", None))
        raise UserError(f"{name!r} cannot be made: {told}", field=field) from error


def make_policy(
    name: str,
    options: Mapping[str, object] | None = None,
    *,
    base: Path | None = None,
    registered_only: bool = False,
    trusted: Collection[str] = (),
) -> SchedulerPolicy:
    """A fresh policy, which has observed nothing; its parts are made with it.

    ``registered_only`` is for names that did not come from the configuration; ``trusted`` ones did after all.
    """
    closed = registered_only and name not in trusted
    parts = {}
    for part, group, part_name, part_options in _parts(name, options or {}, base, closed):
        part_closed = registered_only and part_name not in trusted
        try:
            parts[part] = make(group, part_name, part_options, base=base, registered_only=part_closed)
        except UserError as error:
            raise UserError(error.message, field=_field_of_part(part, group, error.field)) from error
    return cast(SchedulerPolicy, make("policies", name, options, base=base, registered_only=closed, **parts))


def _field_of_part(part: str, group: Group, field: str) -> str:
    """Where a policy's options name the part, instead of where configuration names others of its group."""
    name_at, options_at = _ASKED_AT[group]
    if field == name_at:
        return f"{_ASKED_AT['policies'][1]}.{part}"
    rest = field.removeprefix(options_at)
    return field if rest == field else f"{_ASKED_AT['policies'][1]}.{part}_options{rest}"


def _parts(
    name: str, options: Mapping[str, object], base: Path | None, registered_only: bool = False
) -> list[tuple[str, Group, str, Mapping[str, object]]]:
    """The plugins that a policy is made with: (part, group, name, options).

    A policy class names them in ``parts``, as ``{"predictor": "predictors"}``; then its options have ``predictor``, a
    name, and ``predictor_options``, and it is called with ``predictor=...``, which it keeps under that name.
    """
    plugin = load("policies", name, base=base, registered_only=registered_only)
    wanted: Mapping[str, Group] = getattr(plugin, "parts", {})
    if not wanted:
        return []
    made = make_options(plugin, options, field=_ASKED_AT["policies"][1])
    return [(part, group, getattr(made, part), getattr(made, f"{part}_options")) for part, group in wanted.items()]


def check_servable(policy: SchedulerPolicy) -> None:
    """Refuse a policy with a part that knows what nobody can know while serving."""
    for part, group in getattr(policy, "parts", {}).items():
        if getattr(getattr(policy, part, None), "simulation_only", False):
            raise UserError(
                f"this {_word(group)} knows the future and is for simulations only; for serving choose another",
                field=f"scheduler.options.{part}",
            )


def make_allocator(config: MemoryConfig, *, base: Path | None = None) -> KVAllocator:
    """An allocator with all its pages free."""
    if not config.pages:
        raise UserError("must be at least 1: only a real model says how many fit", field="memory.pages")
    made = make(
        "allocators",
        config.allocator,
        config.options,
        base=base,
        pages=config.pages,
        page_size=config.page_size,
        host_pages=config.host_pages,
    )
    return cast(KVAllocator, made)


def make_cost_model(config: CostConfig, *, base: Path | None = None) -> CostModel:
    """The cost model of a simulation."""
    return cast(CostModel, make("cost_models", config.model, config.options, base=base))


def complete(config: Config, *, base: Path | None = None) -> Config:
    """The same tree with every option of its plugins written out, so that its digest says all that was decided by."""
    scheduler, memory, cost = config.scheduler, config.memory, config.cost
    replace = msgspec.structs.replace
    return replace(
        config,
        scheduler=replace(scheduler, options=whole_options("policies", scheduler.policy, scheduler.options, base=base)),
        memory=replace(memory, options=whole_options("allocators", memory.allocator, memory.options, base=base)),
        cost=replace(cost, options=whole_options("cost_models", cost.model, cost.options, base=base)),
    )


def whole_options(
    group: Group, name: str, given: Mapping[str, object], *, base: Path | None = None
) -> dict[str, object]:
    """A plugin's options with every default written out, those of its parts too."""
    made = make_options(load(group, name, base=base), given, field=_ASKED_AT[group][1])
    whole = cast(dict[str, object], msgspec.to_builtins(made))
    if group == "policies":
        for part, of, part_name, part_options in _parts(name, given, base):
            whole[f"{part}_options"] = whole_options(of, part_name, part_options, base=base)
    return whole


def _word(group: str) -> str:
    return _SINGULAR.get(group, group.removesuffix("s").replace("_", " "))


def _origin(found: Found) -> str:
    return "built in" if found.distribution == _OURS else f"from {found.distribution or 'an unknown distribution'}"
