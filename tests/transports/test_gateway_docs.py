"""docs/gateway.md and docs/security.md say what the code does: settings and defaults, routes and their guards."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase

import msgspec
import pytest

from stepwell.core.config_gateway import GatewayConfig, KeyConfig, TenantConfig
from stepwell.core.schema import convert
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.transports.house import make_service

from starlette.routing import Route  # isort: skip
from starlette.testclient import TestClient  # isort: skip
from stepwell.transports.gateway.digests import digest_of  # isort: skip
from stepwell.transports.gateway.gate import OPEN  # isort: skip
from stepwell.transports.gateway.guards import Guard  # isort: skip
from stepwell.transports.gateway.limits import RATE_HEADERS  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip

GATEWAY = (ROOT / "docs" / "gateway.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
HERE = ("127.0.0.1", 50_000)
KEY, SCRAPER, TOKEN = "sw-key", "sw-scraper", "sw-token"
KEYS: list[dict[str, object]] = [
    {"name": "web", "digest": digest_of(KEY.encode())},
    {"name": "scraper", "digest": digest_of(SCRAPER.encode()), "metrics": True},
]
OPENS = {
    "everybody, to read": {"", KEY, SCRAPER, TOKEN},
    "keys with `metrics`, or everybody: `gateway.metrics`": {SCRAPER},
    "the admin token, and no client's key": {TOKEN},
    "a key": {KEY, SCRAPER},
}
"""What each of the table's words means: who is let in."""


def test_the_settings_are_those_that_there_are() -> None:
    keys, tenants, gateway = map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```$", GATEWAY, re.DOTALL | re.MULTILINE))
    assert list(gateway["gateway"]) == list(GatewayConfig.__struct_fields__)
    assert convert(gateway["gateway"], GatewayConfig) == GatewayConfig()
    assert list(keys["keys"][0]) == list(KeyConfig.__struct_fields__)
    assert convert(keys["keys"][0], KeyConfig).tenant == "acme"
    assert list(tenants["tenants"][0]) == list(TenantConfig.__struct_fields__)
    assert convert(tenants["tenants"][0], TenantConfig).tokens_per_minute == 200_000


def test_the_codes_and_headers_are_those_that_there_are() -> None:
    code = "".join(path.read_text() for path in (ROOT / "transports").rglob("*.py"))
    named = re.findall(r"`((?:[a-z]+_)+(?:allowed|exceeded|unreachable|key|tenants|timeout|kept|reloaded))`", GATEWAY)
    assert len(set(named)) >= 8
    assert [
        each for each in named if each not in code.replace("{what}_not_allowed", "class_not_allowed model_not_allowed")
    ] == []
    assert all(each.removeprefix("x-ratelimit").rsplit("-", 1)[0] in GATEWAY for each in RATE_HEADERS)


def rows() -> list[tuple[list[str], str]]:
    """The table of routes: patterns, and whom they let in where there are keys."""
    table = SECURITY.partition("| path | where there are keys |")[2].partition("\n\n")[0]
    return [
        (re.findall(r"`(/[^`]*)`", cells[1]), cells[2].strip())
        for cells in (line.split("|") for line in table.splitlines()[2:])
    ]


def test_every_route_lets_in_whom_the_table_says() -> None:
    table = rows()
    app = create_app(make_service(keys=KEYS), (Guard("/admin", (digest_of(TOKEN.encode()),)),))
    used = set()
    with TestClient(app, raise_server_exceptions=False, client=HERE, base_url="http://127.0.0.1") as http:
        for route in (each for each in app.routes if isinstance(each, Route)):
            path = re.sub(r"\{.*?\}", "echo", route.path)
            # Let in and then refused: a stream has no end, and the client would wait for that.
            asked = path + "?after=x" * (path == "/admin/events")
            place = next(
                place for place, (patterns, _) in enumerate(table) if any(fnmatchcase(path, each) for each in patterns)
            )
            used.add(place)
            for method in sorted(route.methods or ()):
                let_in = {
                    key
                    for key in ("", KEY, SCRAPER, TOKEN)
                    if http.request(method, asked, headers={"X-Api-Key": key} if key else {}).status_code
                    not in (401, 403)
                }
                assert let_in == OPENS[table[place][1]], (method, path)
    assert used == set(range(len(table)))
    assert table[0][0] == list(OPEN)


@pytest.mark.parametrize("page", [GATEWAY, SECURITY])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert (ROOT / "docs" / target).exists(), target


def test_a_key_in_the_docs_is_none() -> None:
    assert msgspec.json.encode(GATEWAY + SECURITY).count(b"sw-") == 1
