"""Keys, limits, TLS and an announced drain, on a real server with real clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.serve_access import check_access_files, with_files
from stepwell.core.config_load import resolve, toml_value
from stepwell.core.errors import UserError
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving
from stepwell.tests.transports.house import chat
from stepwell.transports.gateway.digests import digest_of

import openai  # isort: skip
from openai import OpenAI  # isort: skip
from websockets.asyncio.client import connect  # isort: skip
from websockets.exceptions import InvalidStatus  # isort: skip

IN_FILE, IN_KEY_FILE, WRONG = "sw-in-the-configuration-0123", "sw-in-the-key-file-4567", "sw-of-nobody-89ab"


def table(name: str, key: str, **more: Any) -> str:
    said = {"name": name, "digest": digest_of(key.encode()), "tenant": name, **more}
    return "\n".join(["[[keys]]", *(f"{name} = {toml_value(value)}" for name, value in said.items()), ""])


def sdk(server: Server, key: str) -> OpenAI:
    return OpenAI(base_url=server.url, api_key=key, timeout=PATIENCE_S, max_retries=0)


def status(server: Server, path: str, headers: list[tuple[str, str | bytes]]) -> tuple[int, str]:
    """With headers as they are, which no client library would send."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.putrequest("GET", path)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = f"{answer.getheaders()} {answer.read().decode()}"
    connection.close()
    return answer.status, text


def family(pid: int) -> list[str]:
    """The command lines of a process and its children, as ``ps`` shows them."""
    told = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(each.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if pid in (int(each.name), parent):
                told.append(each.joinpath("cmdline").read_text())
        except (OSError, ValueError):
            continue
    return told


def test_au_2_a_key_is_said_nowhere(tmp_path: Path) -> None:
    """AU-2: keys from a file, named by the environment, changed by a flag; every log level, the journal, metrics, error
    bodies and the process list; and odd headers from a real socket."""
    (tmp_path / "keys.toml").write_text(table("other", IN_KEY_FILE))
    config = tmp_path / "serving.toml"
    config.write_text(f"[gateway]\nmetrics = 'open'\n{table('web', IN_FILE, classes=['chat'])}")
    errors, journal = tmp_path / "stderr", tmp_path / "journal"
    arguments = [str(config), "--journal", str(journal), "--set", "keys.web.expires=2099-01-01", "--log-level", "debug"]
    environ = {"STEPWELL__GATEWAY__KEY_FILE": str(tmp_path / "keys.toml"), "STEPWELL__GATEWAY__KEY_POLL_S": "0.1"}
    with serving(*arguments, errors=errors, environ=environ) as server:
        said = [*server.greeting, *family(server.process.pid)]
        for key in (IN_FILE, IN_KEY_FILE):
            with sdk(server, key) as client:
                answer = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
                assert answer.choices[0].message.content == "hi"
                with pytest.raises(openai.BadRequestError) as bad:
                    client.chat.completions.create(model="echo", messages=[], extra_body={"stop": [key] * 20})
                said.append(bad.value.response.text.replace(key, "") if "stop" in bad.value.response.text else "")
        with sdk(server, WRONG) as client, pytest.raises(openai.AuthenticationError) as denied:
            client.models.list()
        assert denied.value.code == "invalid_api_key"
        odd: list[list[tuple[str, str | bytes]]] = [
            [("Authorization", "Bearer ключ".encode())],
            [("Authorization", "")],
            [("Authorization", "Bearer " + IN_FILE * 400)],
            [("Authorization", f"Bearer {IN_FILE}"), ("Authorization", f"Bearer {IN_FILE}")],
            [("Authorization", f"Basic {IN_FILE}")],
        ]
        for headers in odd:
            code, text = status(server, "/v1/models", headers)
            assert code == 401
            assert "Bearer" in text
            said.append(text)
        assert status(server, "/v1/models", [("Authorization", f"bearer {IN_FILE}")])[0] == 200
        code, text = status(server, f"/v1/models?api_key={IN_FILE}", [])
        assert code == 401
        (tmp_path / "keys.toml").write_text(table("other", IN_KEY_FILE) + f"digest = '{IN_KEY_FILE}'\n")  # a mistake
        server.until(lambda: server.metric("stepwell:transport_total", event="keys_kept") == 1)
        assert status(server, "/v1/models", [("Authorization", f"Bearer {IN_KEY_FILE}")])[0] == 200
        (tmp_path / "keys.toml").write_text(table("other", WRONG).replace(digest_of(WRONG.encode()), IN_KEY_FILE))
        server.until(lambda: server.metric("stepwell:transport_total", event="keys_kept") == 2)
        (tmp_path / "keys.toml").write_text(table("other", WRONG))
        server.until(lambda: server.metric("stepwell:transport_total", event="keys_reloaded") == 1)
        assert status(server, "/v1/models", [("Authorization", f"Bearer {IN_KEY_FILE}")])[0] == 401
        assert status(server, "/v1/models", [("Authorization", f"Bearer {WRONG}")])[0] == 200
        said += [server.get("/metrics"), text]
        assert server.stop() == 0
        assert server.process.stdout is not None
        said.append(server.process.stdout.read())
    said += [errors.read_text(), *(each.read_text() for each in journal.iterdir())]
    assert "the keys stay as they were" in errors.read_text()
    for text in said:
        for key in (IN_FILE, IN_KEY_FILE, WRONG):
            assert key not in text
            assert digest_of(key.encode())[7:] not in text


def test_au_1_the_sdk_shows_its_key_over_http_and_sockets(tmp_path: Path) -> None:
    """AU-1: also over a WebSocket's handshake, whose refusal is a plain 401; and its retries follow our headers."""
    key = {"name": "web", "digest": digest_of(IN_FILE.encode()), "tenant": "web"}
    limits = "{requests_per_minute=60,tokens_per_minute=100000}"
    with serving(
        "--set", f"keys=[{toml_value(key)}]", "--set", f"gateway={limits}", errors=tmp_path / "errors"
    ) as server:
        assert "Authorization: Bearer KEY" in server.greeting[-1]
        with sdk(server, IN_FILE) as client:
            asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "a few words"}]}
            raw = client.chat.completions.with_raw_response.create(**asked)
            assert raw.headers["x-ratelimit-limit-requests"] == "60"
            chunks = list(client.chat.completions.create(**asked, stream=True))
            assert "".join(each.choices[0].delta.content or "" for each in chunks) == "a few words"
        asyncio.run(_sockets(server))
        bare = {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat("hi")), bare)
        assert connection.getresponse().status == 401
        connection.close()
    assert "handshake" not in (tmp_path / "errors").read_text()  # a refusal is no fault, and who has no key no author


async def _sockets(server: Server) -> None:
    url = server.url.replace("http", "ws") + "/responses"
    for headers in ({}, {"Authorization": f"Bearer {WRONG}"}):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["WWW-Authenticate"].startswith("Bearer")
    page = f"http://127.0.0.1:{server.port}"  # its own, as any page of another origin would have to be allowed
    offered: Any = [f"openai-insecure-api-key.{IN_FILE}", "realtime"]
    async with connect(url, subprotocols=offered, origin=page) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == "realtime"
    async with connect(url, additional_headers={"Authorization": f"Bearer {IN_FILE}"}) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass


@pytest.mark.slow
def test_the_sdk_waits_as_long_as_a_limit_says() -> None:
    """One request and then one a second: the SDK tries again by itself, when it was told to, and succeeds."""
    with serving("--set", "gateway.requests_per_minute=60") as server:
        with OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=3) as client:
            asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
            answers = [client.chat.completions.with_raw_response.create(**asked) for _ in range(62)]
        assert sum(each.retries_taken for each in answers) >= 1


# ------------------------------------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed one for 127.0.0.1, and its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem"


def test_tls(certificate: Path, tmp_path: Path) -> None:
    """HTTPS and wss with the certificate, plain HTTP not at all; and refusals in the middle of a body, as without."""
    config, errors = tmp_path / "serving.toml", tmp_path / "stderr"
    config.write_text(f"[server]\ntls_certificate = '{certificate}'\ntls_key = '{certificate.parent / 'key.pem'}'\n")
    trusting = ssl.create_default_context(cafile=str(certificate))
    with serving(
        str(config), "--set", "server.body_mib=0.1", "--set", "server.body_timeout_s=1", errors=errors
    ) as server:
        assert server.url.startswith("https://127.0.0.1")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=trusting)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat("hello", stream=True)))
        answer = connection.getresponse()
        assert (answer.status, answer.read().count(b"data: ") > 2) == (200, True)
        connection.request("POST", "/v1/chat/completions", b"x" * 200_000)
        answer = connection.getresponse()
        assert answer.status == 413
        answer.close()
        connection.close()
        slow = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=trusting)
        slow.connect()
        slow.send(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        late = http.client.HTTPResponse(slow.sock)
        late.begin()
        assert late.status == 408
        late.close()
        slow.close()
        asyncio.run(_secure_socket(server, trusting))
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            server.get("/health")
        assert server.stop() == 0
    assert "Traceback" not in errors.read_text()


async def _secure_socket(server: Server, trusting: ssl.SSLContext) -> None:
    async with connect(server.url.replace("https", "wss") + "/responses", ssl=trusting) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"server.tls_certificate": "nowhere.pem"}, "server.tls_certificate: there is no file nowhere.pem"),
        ({"server.tls_key": "nowhere.pem"}, "is the key of a certificate: name that too"),
        ({"server.tls_certificate": "{certificate}"}, "and its key cannot be used"),
        ({"gateway.key_file": "nowhere.toml"}, "cannot read nowhere.toml"),
        ({"gateway.key_file": "{empty}"}, "there is no [[keys]] in it"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    certificate: Path, tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    (tmp_path / "empty.toml").write_text("")
    names = {"certificate": str(certificate), "empty": str(tmp_path / "empty.toml")}
    overrides = [f"{key}={value.format(**names)}" for key, value in settings.items()]
    with pytest.raises(UserError) as refused:
        check_access_files(resolve(overrides=overrides).config)
    assert says in str(refused.value)


def test_files_are_looked_for_beside_the_configuration_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(table("web", IN_FILE))
    (tmp_path / "serving.toml").write_text("[gateway]\nkey_file = 'keys.toml'\n")
    resolved = resolve(tmp_path / "serving.toml")
    assert with_files(resolved, resolved.config).gateway.key_file == str(tmp_path / "keys.toml")
    by_flag = resolve(tmp_path / "serving.toml", overrides=["gateway.key_file=keys.toml"])
    assert with_files(by_flag, by_flag.config).gateway.key_file == "keys.toml"


def test_all_files_of_a_configuration_are_where_it_is(tmp_path: Path) -> None:
    """Not only the key file: a token or a store of the same folder too; what is not named stays so."""
    named = "[admin]\ntoken_file = 'token'\njournal_folder = 'journals'\n[store]\npath = 'store.sqlite'\n"
    (tmp_path / "serving.toml").write_text(named)
    resolved = resolve(tmp_path / "serving.toml")
    seen = with_files(resolved, resolved.config)
    assert seen.admin.token_file == str(tmp_path / "token")
    assert seen.admin.journal_folder == str(tmp_path / "journals")
    assert seen.store.path == str(tmp_path / "store.sqlite")
    bare = resolve(None)
    assert with_files(bare, bare.config) == bare.config


# ------------------------------------------------------------------------------------------------ drain


def test_a_drain_is_announced_before_anything_is_refused(tmp_path: Path) -> None:
    """SIGTERM: not ready at once; requests are taken for ``pre_drain_s``, then refused with 503 and a closed
    connection; what runs may end; exit status 0."""
    settings = ["--set", "server.pre_drain_s=1.5", "--set", "server.drain_s=60"]
    with serving(*settings, step_us=20_000, errors=tmp_path / "stderr") as server, sdk(server, "none") as client:
        asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "x" * 200}], "stream": True}
        stream = iter(client.chat.completions.create(**asked))
        next(stream)
        assert status(server, "/ready", [])[0] == 200
        server.process.terminate()
        server.until(lambda: status(server, "/ready", [])[0] == 503)
        taken = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
        assert taken.choices[0].message.content == "hi"
        refused = None
        while refused is None:
            try:
                client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
                time.sleep(0.05)
            except openai.InternalServerError as error:
                refused = error
        assert (refused.status_code, refused.code) == (503, "draining")
        assert refused.response.headers["connection"] == "close"
        assert int(refused.response.headers["retry-after"]) >= 1
        assert status(server, "/health", [])[0] == 200
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)[-1] == "x"
        assert server.process.wait(PATIENCE_S) == 0


def test_a_second_signal_does_not_wait_for_the_announcement() -> None:
    with serving("--set", "server.pre_drain_s=3600", step_us=20_000) as server:
        assert server.stop(signals=2) == 0
