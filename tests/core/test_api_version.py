"""A plugin may state the version of the protocols that it was written for; who asks for what is not here is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.core import catalogue, registry
from stepwell.core.errors import UserError


def written_for(folder: Path, stated: str) -> str:
    """The name of a policy that states so."""
    path = folder / "mine.py"
    path.write_text(f"from stepwell.policies.fcfs import Fcfs\n\nclass Mine(Fcfs):\n    api_version = {stated}\n")
    return f"{path}:Mine"


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("2", "needs plugin API version 2, and this Stepwell offers version 1: update Stepwell, or take an older"),
        ("0", "states api_version = 0, which is not a whole number from 1"),
        ("'1'", "states api_version = '1'"),
        ("True", "states api_version = True"),
    ],
)
def test_a_plugin_for_another_version_is_refused(tmp_path: Path, stated: str, says: str) -> None:
    with pytest.raises(UserError, match="Mine") as caught:
        registry.make_policy(written_for(tmp_path, stated))
    assert caught.value.field == "scheduler.policy"
    assert says in str(caught.value)


def test_older_plugins_are_accepted_back_to_a_stated_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "API_VERSION", 3)
    monkeypatch.setattr(registry, "OLDEST_API_VERSION", 2)
    for stated in (2, 3):
        described = catalogue.describe("policies", written_for(tmp_path, str(stated)))
        assert described.api_version == stated
    says = "was written for plugin API version 1, and this Stepwell offers versions 2 to 3: take a newer release"
    with pytest.raises(UserError, match=says):
        registry.make_policy(written_for(tmp_path, "1"))
