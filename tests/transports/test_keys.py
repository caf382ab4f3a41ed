"""Keys: how they are found, how their file is read again, and the command that makes them."""

from __future__ import annotations

import hmac
import io
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from stepwell.__main__ import main
from stepwell.core.build import build_scheduler, journal_header
from stepwell.core.config import Config, validate
from stepwell.core.config_gateway import GatewayConfig, KeyConfig
from stepwell.core.config_load import resolve, toml_value
from stepwell.core.errors import UserError
from stepwell.tests.transports.house import PATIENCE_S
from stepwell.transports.gateway.digests import Digests, digest_of
from stepwell.transports.gateway.gateway import Gateway
from stepwell.transports.gateway.keys import Keyring

NS = 1_000_000_000


def key(name: str, **more: Any) -> KeyConfig:
    return KeyConfig(name=name, digest=digest_of(f"sw-{name}".encode()), **more)


def written(*keys: KeyConfig) -> str:
    tables = []
    for each in keys:
        said = msgspec.to_builtins(each)
        tables.append("\n".join(["[[keys]]", *(f"{name} = {toml_value(value)}" for name, value in said.items()), ""]))
    return "\n".join(tables)


# ------------------------------------------------------------------------------------------------ finding one


def test_au_2_looking_one_up_costs_the_same_for_one_key_or_ten_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """AU-2: whatever is shown, one look at the table and one comparison in constant time, on bytes of one length."""
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for count in (1, 10_000):
        ring = Keyring([key(f"k{number}") for number in range(count)])
        for shown in (b"sw-k0", f"sw-k{count - 1}".encode(), b"sw-wrong", b"", "ключ".encode(), b"\x00" * 400):
            compared.clear()
            found = ring.shown(shown, 0)
            assert compared == [(32, 32)]
            assert (found is not None) == (shown in (b"sw-k0", f"sw-k{count - 1}".encode()))


def test_where_a_digest_lies_in_the_table_is_known_to_this_process_only() -> None:
    one, other = (Digests([(digest_of(b"sw-web"), "web")]) for _ in range(2))
    assert set(one._values) != set(other._values)
    assert one.find(b"sw-web") == other.find(b"sw-web") == "web"


def test_a_key_that_was_shown_before_it_expired_is_none_either() -> None:
    """What a socket asks for, hours after its handshake."""
    ring, day_ns = Keyring([key("web", expires="1970-01-02"), key("cron")]), 86_400 * NS
    assert [ring.named("web", now_ns) is None for now_ns in (day_ns - 1, day_ns)] == [False, True]
    assert ring.named("cron", 1 << 62) is not None
    assert ring.named("nobody", 0) is None


@pytest.mark.parametrize("expires", ["1970-01-02", "1970-01-02T00:00:00", "1970-01-02T01:00:00+01:00"])
def test_a_key_expires(expires: str) -> None:
    ring, day_ns = Keyring([key("web", expires=expires)]), 86_400 * NS
    assert ring.shown(b"sw-web", day_ns - 1) is not None
    assert ring.shown(b"sw-web", day_ns) is None


# ------------------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    ("keys", "field", "says"),
    [
        ([key("web"), key("web")], "keys[1].name", "keys[0]"),
        ([key("web"), KeyConfig(name="other", digest=key("web").digest)], "keys[1].digest", "keys[0]"),
        ([key("web", classes=("chats",))], "keys[0].classes", "did you mean 'chat'"),
        ([key("web", expires="tomorrow")], "keys[0].expires", "2027-01-31"),
        ([key("web", tenant="a b")], "keys[0].tenant", "does not match"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(keys: list[KeyConfig], field: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        validate(Config(keys=tuple(keys)))
    assert refused.value.field == field
    assert says in refused.value.message


@pytest.mark.parametrize("digest", ["sw-the-key-itself", "sha256:" + "g" * 64, "SHA256:" + "0" * 64, "0" * 64])
def test_au_2_a_key_in_place_of_its_digest_is_not_said_again(digest: str) -> None:
    with pytest.raises(UserError, match="stepwell keys hash") as refused:
        resolve(overrides=[f'keys=[{{name="web", digest="{digest}"}}]'])
    assert digest not in str(refused.value)


def test_a_value_of_a_key_is_reached_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "serving.toml"
    file.write_text(written(key("web"), key("Other")))
    found = resolve(file, environ={"STEPWELL__KEYS__OTHER__EXPIRES": "2030-01-01"}, overrides=["keys.web.trusted=true"])
    assert [each.trusted for each in found.config.keys] == [True, False]
    assert [each.expires for each in found.config.keys] == ["", "2030-01-01"]
    again = tmp_path / "again.toml"
    again.write_text(found.to_toml())
    assert resolve(again).config == found.config


def test_a_journal_holds_no_digest() -> None:
    config = validate(Config(keys=(key("web"),), gateway=GatewayConfig(key_file="/etc/keys.toml")))
    header = journal_header(config, build_scheduler(config), "engine")
    text = msgspec.json.encode(header).decode()
    assert "sha256" not in text
    assert "keys.toml" not in text
    assert header.digest == Config().digest


# ------------------------------------------------------------------------------------------------ the key file


def test_the_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """What is wrong with it is counted, once a change, and the keys stay as they were."""
    file = tmp_path / "keys.toml"
    file.write_text(written(key("old")))
    counted: list[str] = []
    config = validate(Config(keys=(key("fixed"),), gateway=GatewayConfig(key_file=str(file), key_poll_s=0.01)))
    gateway = Gateway(config, counted.append)

    async def changed(text: str | None) -> str:
        before = len(counted)
        if text is None:
            file.unlink()
        else:
            file.with_suffix(".new").write_text(text)
            file.with_suffix(".new").replace(file)
        with anyio.fail_after(PATIENCE_S):
            while len(counted) == before:
                await anyio.sleep(0.005)
        await anyio.sleep(0.05)
        assert len(counted) == before + 1
        return counted[-1]

    def opens(*names: str) -> bool:
        known = [name for name in ("old", "new", "fixed") if gateway.ring.shown(f"sw-{name}".encode(), 0)]
        return sorted(names) == sorted(known)

    async def watched() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.watch)
            assert opens("old", "fixed")
            assert await changed(written(key("old"), key("new"))) == "keys_reloaded"
            assert opens("old", "new", "fixed")
            twice = written(key("new"), key("new"))
            unknown = written(key("new", classes=("gold",)))
            for wrong in (
                "[[keys]",
                "",
                "[[keys]]\nname = 'x'\n",
                twice,
                unknown,
                written(key("fixed")),
                "keys = 3",
                None,
            ):
                assert await changed(wrong) == "keys_kept"
                assert opens("old", "new", "fixed")
            assert await changed(written(key("new"))) == "keys_reloaded"
            assert opens("new", "fixed")
            tasks.cancel_scope.cancel()

    anyio.run(watched)


# ------------------------------------------------------------------------------------------------ the command


def test_a_key_is_made_and_shown_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The key on stderr, which a terminal shows; on stdout what the server needs, to be appended to its file."""
    arguments = ["--class", "batch", "--tenant", "acme", "--expires", "2031-01-31", "--metrics", "--model", "echo"]
    assert main(["keys", "new", "nightly", *arguments]) == 0
    first = capsys.readouterr()
    assert main(["keys", "new", "web"]) == 0
    second = capsys.readouterr()
    file = tmp_path / "keys.toml"
    file.write_text(first.out + second.out)
    nightly, web = Gateway(Config(gateway=GatewayConfig(key_file=str(file)))).ring._named.values()
    assert (nightly.tenant, nightly.classes, nightly.models, nightly.metrics) == ("acme", ("batch",), ("echo",), True)
    assert (web.tenant, web.classes, web.expires, web.metrics) == ("web", (), "", False)
    for made, config in ((first, nightly), (second, web)):
        secret = made.err.splitlines()[-1]
        assert secret.startswith("sw-")
        assert len(secret) > 40
        assert digest_of(secret.encode()) == config.digest
        assert secret not in made.out
    assert first.err != second.err


def test_the_digest_of_a_key_that_there_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from stdin: an argument could be read by whoever lists processes."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("sw-web\n"))
    assert main(["keys", "hash"]) == 0
    assert capsys.readouterr().out == digest_of(b"sw-web") + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("two words\n"))
    assert main(["keys", "hash"]) == 2
    assert "two words" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("arguments", [["a b"], ["web", "--tenant", "a b"], ["web", "--expires", "soon"]])
def test_a_key_that_could_not_be_used_is_not_made(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_config_check_looks_into_the_key_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serving.toml"
    file.write_text("[gateway]\nkey_file = 'keys.toml'\n")
    assert main(["config", "check", str(file)]) == 2
    (tmp_path / "keys.toml").write_text(written(key("web")))
    assert main(["config", "check", str(file)]) == 0
    assert "is right" in capsys.readouterr().out
