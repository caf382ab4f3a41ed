"""The gate: every route that the router has, in every way to write it, opens to the right key and to no other.

The routes are read off the application, so that a new one is tested by being there.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import anyio
import pytest

from stepwell.tests.transports.house import chat, error_of, make_service

from starlette.applications import Starlette  # isort: skip
from starlette.routing import Mount, Route, WebSocketRoute  # isort: skip
from starlette.testclient import TestClient, WebSocketDenialResponse  # isort: skip
from starlette.types import ASGIApp  # isort: skip
from stepwell.transports.gateway.digests import digest_of  # isort: skip
from stepwell.transports.gateway.gate import OPEN, WRONG  # isort: skip
from stepwell.transports.gateway.guards import Guard, guard_of  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip

KEY, OTHER, TOKEN = "sw-" + "k" * 43, "sw-" + "o" * 43, "sw-" + "t" * 43
KEYS = [{"name": "web", "digest": digest_of(KEY.encode()), "tenant": "acme"}]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
ADMIN = (Guard("/admin", (digest_of(TOKEN.encode()),)),)


def app_of(keys: Any = KEYS, guards: tuple[Guard, ...] = ADMIN, **more: Any) -> Starlette:
    return create_app(make_service(keys=keys, **more), guards)


@pytest.fixture
def app() -> Starlette:
    return app_of()


def paths_of(app: Starlette) -> list[str]:
    """Of every HTTP route, with something in place of its parameters."""
    routes = [each for each in app.routes if isinstance(each, Route)]
    assert len(routes) == len([each for each in app.routes if not isinstance(each, WebSocketRoute)])
    return sorted({each.path.replace("{id:path}", "echo").replace("{id}", "some-id") for each in routes})


def ways_to_write(path: str) -> list[str]:
    """The same in other words, which a router may or may not take for it."""
    return [
        path,
        path + "/",
        "/" + path,
        path.replace("/", "//"),
        path.upper(),
        path.replace("a", "%61").replace("o", "%6f"),
        "/%2e" + path,
        "/x/%2e%2e" + path,
        "/health/.." + path,
        path + "?api_key=" + KEY,
        path + ";health",
        path + "%00",
    ]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def of_guard(path: str) -> bool:
    return path.startswith("/admin")


async def ask(app: ASGIApp, method: str, url: str, headers: dict[str, str]) -> tuple[int, dict[bytes, bytes], bytes]:
    """As a server hands it in: the path with its escapes undone and nothing else, which a client library would mend."""
    path, _, query = url.partition("?")
    said: list[Any] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "server": ("test", 80),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said[0]["status"], dict(said[0]["headers"]), b"".join(each.get("body", b"") for each in said[1:])


@pytest.mark.parametrize("method", METHODS)
def test_au_1_nothing_opens_without_the_right_key(app: Starlette, method: str) -> None:
    """AU-1: every route of the router, however it is written, with every method: no key, a wrong one, the other's."""

    async def everything() -> int:
        asked = 0
        for path in paths_of(app):
            wrong = [{}, bearer(OTHER), bearer(KEY if of_guard(path) else TOKEN)]
            for url in ways_to_write(path):
                if method in ("GET", "HEAD") and unquote(url.partition("?")[0]) in OPEN:
                    continue
                for headers in wrong:
                    status, head, body = await ask(app, method, url, headers)
                    assert status == 401, (method, url)
                    assert head[b"www-authenticate"].startswith(b"Bearer")
                    assert head[b"x-request-id"]
                    error = json.loads(body)["error"]
                    assert error.get("code") == "invalid_api_key" or error["type"] == "authentication_error"
                    asked += 1
        return asked

    assert anyio.run(everything) > 200


def test_au_1_every_route_opens_to_the_right_key(app: Starlette) -> None:
    with TestClient(app, raise_server_exceptions=False) as http:
        for path in paths_of(app):
            key = TOKEN if of_guard(path) else KEY
            for method in METHODS:
                if path == "/admin/events" and method in ("GET", "HEAD"):  # has no end, and the client waits for that
                    continue
                answer = http.request(method, path, headers=bearer(key))
                assert answer.status_code != 401, (method, path)
        answer = http.post("/v1/chat/completions", json=chat("hello"), headers=bearer(KEY))
        assert answer.json()["choices"][0]["message"]["content"] == "hello"


def test_au_1_a_route_that_is_new_is_closed(app: Starlette) -> None:
    """AU-1: born closed, be it a route, a socket or a mounted application."""

    async def secret(*_: object) -> None:
        raise AssertionError("nobody may come here")

    inner = app_of()
    inner.router.routes += [Route("/new", secret), WebSocketRoute("/v1/new", secret), Mount("/old", secret)]
    http = TestClient(inner, raise_server_exceptions=False)
    for path in ("/new", "/old", "/old/health", "/old//health/"):
        assert http.get(path).status_code == 401
    with pytest.raises(WebSocketDenialResponse) as refused, http.websocket_connect("/v1/new"):
        pass
    assert refused.value.status_code == 401


def test_au_1_the_open_paths_are_a_short_list_and_only_read(app: Starlette) -> None:
    assert OPEN == ("/health", "/livez", "/ping", "/ready", "/readyz")
    with TestClient(app, raise_server_exceptions=False) as http:
        for path in OPEN:
            assert http.get(path).status_code == http.head(path).status_code == 200
            assert http.post(path).status_code == http.options(path).status_code == 401


def test_au_1_mounted_under_a_prefix(app: Starlette) -> None:
    """AU-1: what is open, closed and guarded is so below the prefix, and nothing is taken for it that is not."""
    outer = Starlette(routes=[Mount("/api", app)])
    http = TestClient(outer, raise_server_exceptions=False)
    assert http.get("/api/health").status_code in (200, 503)
    for path in ("/api/v1/models", "/api//health", "/api/api/health", "/api/admin/scheduler", "/api/metrics"):
        assert http.get(path).status_code == 401
        assert http.get(path, headers=bearer(OTHER)).status_code == 401
    assert http.get("/api/v1/models", headers=bearer(KEY)).status_code == 200
    assert http.get("/api/admin/scheduler", headers=bearer(KEY)).status_code == 401


# ------------------------------------------------------------------------------------------------ sockets


def denied(http: TestClient, path: str = "/v1/responses", **more: Any) -> int:
    """The status of a handshake that is refused."""
    with pytest.raises(WebSocketDenialResponse) as refused, http.websocket_connect(path, **more):
        pass
    assert refused.value.json()["error"]["code"]
    return refused.value.status_code


def test_au_1_a_socket_wants_a_key_in_its_handshake(app: Starlette) -> None:
    sockets = [each.path for each in app.routes if isinstance(each, WebSocketRoute)]
    assert sockets
    with TestClient(app) as http:
        for path in sockets:
            for url in ways_to_write(path):
                assert denied(http, url) == denied(http, url, headers=bearer(OTHER)) == 401
                assert denied(http, url, headers=bearer(TOKEN)) == 401
            with http.websocket_connect(path, headers=bearer(KEY)):
                pass


def test_a_page_shows_its_key_in_a_subprotocol() -> None:
    """A browser wants one of its protocols back, and that is never the one with the key."""
    page = "https://chat.example"
    inside = f"openai-insecure-api-key.{KEY}"
    with TestClient(app_of(server={"origins": (page,)})) as http:
        path, origin = "/v1/responses", {"Origin": page}
        for offered in ([inside, "realtime"], ["realtime", inside]):
            with http.websocket_connect(path, subprotocols=offered, headers={**origin}) as socket:
                assert socket.accepted_subprotocol == "realtime"
        with http.websocket_connect(path, subprotocols=[inside], headers={**origin}) as socket:
            assert socket.accepted_subprotocol is None
        assert denied(http, path, subprotocols=[inside]) == 401  # no browser, which would say where its page is from
        assert denied(http, path, subprotocols=[inside, inside], headers={**origin}) == 401
        assert denied(http, path, subprotocols=[f"openai-insecure-api-key.{OTHER}"], headers={**origin}) == 401
        assert denied(http, path, subprotocols=[inside], headers=origin | bearer(KEY)) == 401


def test_without_keys_no_subprotocol_comes_back_that_holds_one() -> None:
    with TestClient(create_app(make_service())) as http:
        offered = ["openai-insecure-api-key.none", "realtime"]
        with http.websocket_connect("/v1/responses", subprotocols=offered) as socket:
            assert socket.accepted_subprotocol == "realtime"


# ------------------------------------------------------------------------------------------------ ways to show a key


def test_a_key_is_shown_as_the_sdks_do(app: Starlette) -> None:
    with TestClient(app) as http:
        for headers in ({"authorization": f"bearer {KEY}"}, {"Authorization": f"BEARER   {KEY} "}, {"X-Api-Key": KEY}):
            assert http.get("/v1/models", headers=headers).status_code == 200


ODD: list[Any] = [
    [("Authorization", "Bearer ключ".encode())],
    [("Authorization", b"")],
    [("Authorization", b"Bearer")],
    [("Authorization", b"Bearer ")],
    [("Authorization", b"Bearer " + b"x" * 10_000)],
    [("Authorization", b"x" * 10_000)],
    [("Authorization", f"Bearer {KEY}".encode()), ("Authorization", f"Bearer {KEY}".encode())],
    [("Authorization", f"Bearer {KEY}".encode()), ("X-Api-Key", KEY.encode())],
    [("Authorization", f"Bearer {KEY}, Bearer {KEY}".encode())],
    [("Authorization", f"Basic {KEY}".encode())],
    [("Authorization", KEY.encode())],
    [("Authorization", f"Bearer {KEY}x".encode())],
    [("Authorization", f"Bearer {KEY[:-1]}".encode())],
    [("Authorization", f"Bearer\t{KEY}".encode())],
    [("Authorization", b"Bearer \xff\xfe\x00")],
    [("X-Api-Key", b"")],
    [("X-Api-Key", KEY.encode() + b"\x00")],
    [("X-Stepwell-Caller", b"key web")],
    [("X-Stepwell-Caller", b"tenant acme")],
]


@pytest.mark.parametrize("headers", ODD)
def test_au_2_an_odd_key_is_no_key(app: Starlette, headers: list[tuple[str, bytes]]) -> None:
    """AU-2: 401 and never 500, whatever bytes there are."""
    with TestClient(app, raise_server_exceptions=False) as http:
        for path in ("/v1/models", "/admin/scheduler"):
            answer = http.get(path, headers=headers)  # type: ignore[arg-type]
            assert error_of(answer)[:2] == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"]
            assert KEY[:-1] not in answer.text


@pytest.mark.parametrize("name", ["api_key", "api-key", "API_KEY", "access_token", "api%5Fkey", "x=1&apikey"])
def test_au_2_a_key_in_the_query_is_refused(app: Starlette, name: str) -> None:
    with TestClient(app, raise_server_exceptions=False) as http:
        for headers in ({}, bearer(KEY)):
            answer = http.get(f"/v1/models?{name}={KEY}", headers=headers)
            assert error_of(answer)[:2] == (401, "invalid_api_key")
            assert "address" in answer.text or not headers


def test_who_asks_cannot_be_said_from_outside() -> None:
    """With and without keys: the header that the gate writes is taken away from clients."""
    with TestClient(create_app(make_service(wire={"tenant_header": "X-Tenant"}))) as http:
        for forged in ("key web", "tenant \x7f", "tenant acme"):
            answer = http.post("/v1/chat/completions", json=chat("hi"), headers={"X-Stepwell-Caller": forged})
            assert answer.status_code == 200


def test_anthropics_clients_are_refused_in_their_words(app: Starlette) -> None:
    answer = TestClient(app).post("/v1/messages", headers={"x-api-key": OTHER})
    assert answer.status_code == 401
    assert answer.json() == {"type": "error", "error": {"type": "authentication_error", "message": WRONG}}
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


# ------------------------------------------------------------------------------------------------ guards


def test_a_guard_without_a_token_lets_nobody_in_where_there_are_keys() -> None:
    with TestClient(app_of(guards=(Guard("/admin"),)), client=("127.0.0.1", 1), base_url="http://127.0.0.1") as http:
        for headers in ({}, bearer(KEY), bearer(TOKEN)):
            assert error_of(http.get("/admin/scheduler", headers=headers))[0] == 401


def test_a_guard_holds_without_any_client_keys() -> None:
    app = create_app(make_service(), ADMIN)
    with TestClient(app, client=("127.0.0.1", 1), base_url="http://127.0.0.1") as http:
        assert http.get("/v1/models").status_code == 200
        assert http.get("/admin/scheduler").status_code == 401
        assert http.get("/admin/scheduler", headers=bearer(TOKEN)).status_code == 200


@pytest.mark.parametrize(
    ("path", "guarded"),
    [
        ("/admin", True),
        ("/admin/", True),
        ("/admin/scheduler", True),
        ("/admin/../v1/models", True),
        ("/v1/../admin/x", True),
        ("//admin//x", True),
        ("/ADMIN/x", True),
        ("/%61dmin/x", True),
        ("/%2561dmin/x", True),
        ("/.\\admin/x", True),
        ("/ admin /x", True),
        ("/administration", False),
        ("/v1/admin", False),
        ("/", False),
        ("", False),
    ],
)
def test_guarded_paths(path: str, guarded: bool) -> None:
    assert (guard_of(path, ADMIN) is not None) is guarded


@pytest.mark.parametrize("path", ["/%" + "25" * 30_000, "/A" + "/a" * 30_000, "/A/b" + "/..%5c" * 10_000])
def test_a_path_is_read_at_a_price_that_it_cannot_raise(path: str) -> None:
    """Nobody has shown a key yet: read over and over again, these took half a minute, in which nobody was served."""
    assert guard_of(path, ADMIN) is None


# ------------------------------------------------------------------------------------------------ pages and metrics


def test_metrics_are_a_setting_of_their_own() -> None:
    keys = [*KEYS, {"name": "scraper", "digest": digest_of(OTHER.encode()), "metrics": True}]
    with TestClient(app_of(keys)) as http:
        assert http.get("/metrics").status_code == 401
        assert error_of(http.get("/metrics", headers=bearer(KEY)))[:2] == (403, "key_not_allowed")
        assert http.get("/metrics", headers=bearer(OTHER)).status_code == 200
    with TestClient(app_of(keys, gateway={"metrics": "open"})) as http:
        assert http.get("/metrics").status_code == http.head("/metrics").status_code == 200
        assert http.post("/metrics").status_code == 401


def test_au_1_a_preflight_is_answered_without_data() -> None:
    """AU-1: what a browser asks first has no key, and gets nothing but permission; refusals can be read by the page."""
    page = {"Origin": "https://chat.example"}
    asks = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with TestClient(app_of(server={"origins": ("https://chat.example",)})) as http:
        for path in ("/v1/chat/completions", "/v1/models", "/metrics", "/nowhere"):
            answer = http.options(path, headers=asks)
            assert (answer.status_code, answer.text) == (200, "OK")
        refused = http.get("/v1/models", headers=page)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://chat.example"


def test_a_key_may_be_for_some_pages_only() -> None:
    pages = ("https://one.example", "https://two.example")
    keys = [{**KEYS[0], "origins": pages[:1]}]
    with TestClient(app_of(keys, server={"origins": pages})) as http:
        assert http.get("/v1/models", headers=bearer(KEY)).status_code == 200
        assert http.get("/v1/models", headers=bearer(KEY) | {"Origin": pages[0]}).status_code == 200
        refused = http.get("/v1/models", headers=bearer(KEY) | {"Origin": pages[1]})
        assert error_of(refused)[:2] == (403, "origin_not_allowed")
        assert denied(http, headers=bearer(KEY) | {"Origin": pages[1]}) == 403
