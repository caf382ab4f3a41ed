"""What every plugin says of itself, for people: the registry's second half, which reads sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.introspect import describe_options, doc_of, promises_of
from stepwell.core.registry import Group, discover, load


class OptionInfo(msgspec.Struct, frozen=True):
    """One field of a plugin's ``Options``, in words."""

    name: str
    type: str
    default: str
    doc: str
    required: bool = False


class Description(msgspec.Struct, frozen=True):
    """What a person wants to know of a plugin.  ``error`` is why it cannot be loaded; all else is then empty.

    ``api_version``: of ``core.protocols``, for which it was written, if it says.
    """

    group: str
    name: str
    target: str
    distribution: str = ""
    summary: str = ""
    doc: str = ""
    api_version: int | None = None
    promises: Mapping[str, bool] = {}
    options: tuple[OptionInfo, ...] = ()
    error: str = ""


def describe(group: Group, name: str, *, base: Path | None = None) -> Description:
    """What the plugin says of itself; raises ``UserError`` if it cannot be loaded."""
    plugin = load(group, name, base=base)
    found = discover(group).get(name, ())
    doc = doc_of(plugin)
    return Description(
        group=group,
        name=name,
        target=found[0].target if found else name,
        distribution=found[0].distribution if found else "",
        summary=doc.partition("\n")[0],
        doc=doc,
        api_version=getattr(plugin, "api_version", None),
        promises=promises_of(plugin),
        options=tuple(OptionInfo(**each) for each in describe_options(plugin.Options)),
    )


def catalogue(group: Group) -> list[Description]:
    """Every registered plugin of the group; one that cannot be loaded is there with its error."""
    listed = []
    for name, found in discover(group).items():
        try:
            listed.append(describe(group, name))
        except UserError as error:
            distribution = ", ".join(each.distribution for each in found)
            listed.append(Description(group, name, found[0].target, distribution, error=error.message))
    return listed
